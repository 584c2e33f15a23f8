"""The short-cut rules of infer.py say what torch's meta kernels say, or nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wooly.device.infer import RULES, known
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
    values += OPTIONS.get(name, lambda draw: [])(data.draw)
    values += [a.default for a in info.args[len(values) :]]
    quick = known(name, values)
    if quick is None:
        return
    expected = info.op(*[_meta(v) for v, a in zip(values, info.args, strict=True) if not a.kwarg_only], **_keywords(info, values))
    assert (quick.shape, quick.dtype, quick.stride()) == (expected.shape, expected.dtype, expected.stride())


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
