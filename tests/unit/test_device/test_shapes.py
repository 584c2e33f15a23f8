"""The short-cut rules of infer.py say what torch's meta kernels say, or nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wooly.device.infer import RULES, Shaped, known
from wooly.device.schema import describe, overload

SIZES = st.lists(st.integers(0, 3), min_size=0, max_size=3)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.complex64])


@st.composite
def tensor(draw: Any) -> torch.Tensor:
    x = torch.empty(draw(SIZES), dtype=draw(DTYPES), device="cuda")
    if x.dim() and draw(st.booleans()):
        x = x.transpose(0, -1)
    return x.unsqueeze(0) if draw(st.booleans()) else x


OPTIONS: dict[str, Any] = {
    "aten::gelu": lambda draw: ["none"],
    "aten::clone": lambda draw: [draw(st.sampled_from([None, torch.contiguous_format, torch.preserve_format]))],
    "aten::_softmax": lambda draw: [draw(st.integers(-2, 2)), draw(st.booleans())],
    "aten::_log_softmax": lambda draw: [draw(st.integers(-2, 2)), False],
    "aten::cat": lambda draw: [draw(st.integers(-3, 2))],
    "aten::mm": lambda draw: [],
    "aten::bmm": lambda draw: [],
    "aten::addmm": lambda draw: [1, 1],
    "aten::pow.Tensor_Scalar": lambda draw: [],
}


def _heads(draw: Any) -> list[Any]:
    """Arguments of attention, whose operands are laid out by heads or by positions."""
    batch, heads, width = (draw(st.integers(0, 2)) for _ in range(3))

    def one(length: int, wide: int) -> torch.Tensor:
        by_heads = torch.empty(batch, heads, length, wide, device="cuda")
        by_positions = torch.empty(batch, length, heads, wide, device="cuda").transpose(1, 2)
        return by_heads if draw(st.booleans()) else by_positions

    length, past = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    value_width = width if draw(st.booleans()) else draw(st.integers(0, 3))
    return [one(length, width), one(past, width), one(past, value_width), None, 0.0, False, False]


def _images(draw: Any) -> list[Any]:
    """Arguments of a convolution."""
    n, groups = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 3)) for _ in range(n)]
    x = torch.empty(draw(st.integers(1, 2)), 2 * groups, *(draw(st.integers(2, 6)) for _ in range(n)), device="cuda")
    weight = torch.empty(groups * draw(st.integers(1, 2)), 2, *kernel, device="cuda")
    bias = torch.empty(weight.size(0), device="cuda") if draw(st.booleans()) else None
    if n == 2 and draw(st.booleans()):
        x = x.contiguous(memory_format=torch.channels_last)
    stride, padding, dilation = ([draw(st.integers(low, 2)) for _ in range(n)] for low in (1, 0, 1))
    return [x, weight, bias, stride, padding, dilation, draw(st.booleans()), [0] * n, groups]


def _counts(draw: Any) -> list[Any]:
    return [draw(st.integers(-3, 5)), draw(st.integers(-3, 9)), draw(st.integers(1, 2))]


SPECIAL: dict[str, Any] = {
    "aten::_scaled_dot_product_fused_attention_overrideable": _heads,
    "aten::convolution": _images,
    "aten::arange": lambda draw: _counts(draw)[1:2],
    "aten::arange.start": lambda draw: _counts(draw)[:2],
    "aten::arange.start_step": _counts,
}


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=60, deadline=None, database=None)
@given(data=st.data())
def test_rule_agrees_with_torch(name: str, data: st.DataObject) -> None:
    info = describe(name, overload(name))
    count = sum(a.kind.value == "tensor" and not a.has_default for a in info.args)
    values: list[Any] = [data.draw(tensor()) for _ in range(count)]
    if name == "aten::cat":
        values = [[data.draw(tensor()) for _ in range(data.draw(st.integers(1, 3)))]]
    if name in ("aten::mm", "aten::bmm", "aten::addmm"):
        rank = 3 if name == "aten::bmm" else 2
        a = torch.empty([data.draw(st.integers(0, 3)) for _ in range(rank)], device="cuda")
        b = torch.empty([*a.shape[:-2], a.shape[-1], data.draw(st.integers(0, 3))], device="cuda")
        bias = torch.empty(b.shape[-1:] if data.draw(st.booleans()) else [a.shape[0], b.shape[-1]], device="cuda")
        values = [bias, a, b] if name == "aten::addmm" else [a, b]
    if "Scalar" in name:
        values.append(data.draw(st.sampled_from([2, 0.5])))
    if name in SPECIAL:
        values = SPECIAL[name](data.draw)
    values += OPTIONS.get(name, lambda draw: [])(data.draw)
    values += [a.default for a in info.args[len(values) :]]
    quick = known(name, values)
    if quick is None:
        return
    if any(arg.kind.value == "device" for arg in info.args):
        values[next(i for i, arg in enumerate(info.args) if arg.kind.value == "device")] = torch.device("meta")
    expected = info.op(*[_meta(v) for v, a in zip(values, info.args, strict=True) if not a.kwarg_only], **_keywords(info, values))
    assert _parts(quick) == _parts(expected)


def _parts(result: Any) -> Any:
    if isinstance(result, tuple):
        return [_parts(part) for part in result]
    return (result.dtype, tuple(result.shape), tuple(result.stride())) if isinstance(result, torch.Tensor | Shaped) else result


def _meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
    return [_meta(v) for v in value] if isinstance(value, list) else value


def _keywords(info: Any, values: list[Any]) -> dict[str, Any]:
    return {a.name: v for a, v in zip(info.args, values, strict=True) if a.kwarg_only}


def test_no_element_of_a_0d_tensor_is_the_element_as_in_torch() -> None:
    for k in (0, 1):
        for device in ("cpu", "cuda"):
            values, indices = torch.tensor(3.0, device=device).topk(k)
            assert (values.tolist(), indices.tolist()) == (3.0, 0)
