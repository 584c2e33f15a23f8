"""Inference of an operation's results without computing it: torch's meta kernels on descriptions of the arguments.

Costs 30-1000 microseconds a call, which is why it happens once a signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch._prims_common import suggest_memory_format

from wis.views import broadcast_shapes, contiguous_strides
from wooly.device.backend import is_ours
from wooly.device.schema import Kind, OpInfo
from wooly.device.shapes import known

__all__ = ["Unknown", "infer"]

_META: Final = torch.device("meta")


class Unknown(Exception):
    """The result's shape and type cannot be inferred without data. ``error`` is what torch said; ``missing``: it has no meta kernel at
    all."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error
        self.missing = isinstance(error, NotImplementedError)


def infer(info: OpInfo, values: Sequence[Any], op: Any = None) -> Any:
    """The result of ``info`` (or of its functional form ``op``) as meta tensors, in the structure torch returns; raises Unknown."""
    result = known(info.name, values)
    if result is not None:
        return result
    if info.name == _ATTENTION_BACKWARD:
        return _attention_gradients([_described(value) for value in values[:6]])
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for arg, value in zip(info.args, values, strict=True):
        if op is not None and arg.is_out:
            continue
        if arg.kind is Kind.DEVICE:
            value = None if value is None and info.takes_tensors else _META
        elif arg.kind is Kind.GENERATOR or arg.name == "pin_memory":
            value = None
        else:
            value = _described(value)
        if arg.kwarg_only:
            kwargs[arg.name] = value
        else:
            args.append(value)
    try:
        called = info.op if op is None else op
        return _adjusted(info, values, _SAME_AS.get(called, called)(*args, **kwargs))
    except NotImplementedError as error:
        raise Unknown(error) from error
    except Exception as error:  # meta kernels raise anything; the caller decides, after trying torch's CPU kernel
        raise Unknown(error) from error


_ATEN: Final = torch.ops.aten
_SAME_AS: Final = {
    _ATEN.convolution_overrideable.default: _ATEN.convolution.default,
    _ATEN.__lshift__.Tensor: _ATEN.bitwise_left_shift.Tensor,
    _ATEN.__lshift__.Scalar: _ATEN.bitwise_left_shift.Tensor_Scalar,
    _ATEN.__rshift__.Tensor: _ATEN.bitwise_right_shift.Tensor,
    _ATEN.__rshift__.Scalar: _ATEN.bitwise_right_shift.Tensor_Scalar,
}
"""Operations without a meta kernel, or whose meta kernel refuses what CUDA takes (shifts of bool): they take the arguments of another, and
return the same."""

_ATTENTION_BACKWARD: Final = "aten::_scaled_dot_product_fused_attention_overrideable_backward"
"""Its meta kernel, where torch has one, describes the bias' gradient whether or not it is asked for."""


def _attention_gradients(described: Sequence[Any]) -> tuple[torch.Tensor | None, ...]:
    """Like query, key, value, and like the bias if its gradient is asked for."""
    _, query, key, value, bias, wanted = described
    like = [torch.empty_like(x) for x in (query, key, value)]
    return (*like, torch.empty_like(bias) if isinstance(bias, torch.Tensor) and wanted[3] else None)


def _adjusted(info: OpInfo, values: Sequence[Any], result: Any) -> Any:
    """Where torch's meta kernels describe something else than its CPU kernels return, we follow the CPU.

    They describe what CUDA saves for a backward pass of a batch norm, promote the types of losses that have the type of their input, and
    lay the results of some operations out in another way.
    """
    if info.name in _ROWS or (info.base == "angle" and values[0].is_complex() and not info.mutates):
        return _in_rows(result)
    if info.name == "aten::nan_to_num.out" and not (values[0].is_floating_point() or values[0].is_complex()):
        return _in_rows(result)
    if info.name == "aten::index.Tensor" and result.numel():
        return _indexed(values[0], values[1], result)
    if info.base == "nansum" and values[1] is not None and not len(values[1]):
        return _ATEN.nansum.default(_described(values[0]), None, *values[2:3], dtype=values[3])
    if info.base == "multi_margin_loss" and not values[1].dim():
        return torch.empty((), dtype=result.dtype, device=_META)
    if info.base == "index_fill":
        return torch.empty_like(_described(values[0]))
    if info.base in _CHANNELS_LAST and not info.mutates and _is_channels_last(values[0]):
        return torch.empty(result.size(), dtype=result.dtype, device=_META, memory_format=suggest_memory_format(values[0]))
    if isinstance(result, torch.Tensor) and result.dim() > 1 and not info.mutates:
        result = _as_iterated(info, values, result)
    if info.base in ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update") and isinstance(result, tuple):
        result = (result[0] if _is_channels_last(values[0]) else _in_rows(result[0]), *result[1:])
    if info.base in ("native_batch_norm", "_native_batch_norm_legit") and isinstance(result, tuple):
        training = next(v for a, v in zip(info.args, values, strict=True) if a.name == "training")
        if not training:
            return (result[0], *(torch.empty(0, dtype=r.dtype, device=_META) for r in result[1:]))
    if info.base in ("binary_cross_entropy", "huber_loss", "soft_margin_loss") and not any(arg.is_out for arg in info.args):
        return result.to(values[0].dtype)
    return result


_ROWS: Final = frozenset(
    f"aten::{name}"
    for name in "_foreach_pow.ScalarAndTensor isin.Tensor_Scalar isin.Tensor_Tensor log_sigmoid_forward pow.Scalar rrelu_with_noise".split()
)
"""Operations whose results are laid out in rows, whatever the layout of their operands is."""

_CHANNELS_LAST: Final = frozenset("channel_shuffle max_unpool2d reflection_pad2d replication_pad2d roll".split())
"""Operations whose results are in channels_last where their operand is."""


def _indexed(x: torch.Tensor, indices: Sequence[torch.Tensor | None], result: torch.Tensor) -> torch.Tensor:
    """The result of indexing, laid out by the tensor and its indices (AdvancedIndex in ATen); torch's meta kernel leaves the latter out."""
    given = [dim for dim, index in enumerate(indices) if index is not None]
    others = [dim for dim in range(x.dim()) if dim not in given]
    n_before = given[0] if given == list(range(given[0], given[-1] + 1)) else 0
    found = [index for index in indices if index is not None]
    replacement = broadcast_shapes(*(index.size() for index in found))
    kept = [x.stride(dim) for dim in others]
    operands = [[*kept[:n_before], *(0 for _ in replacement), *kept[n_before:]]]
    n_after = len(others) - n_before
    for index in found:
        described = torch.empty_strided(index.size(), index.stride(), device=_META).expand(replacement)
        operand = described.reshape((1,) * n_before + tuple(replacement) + (1,) * n_after)
        sizes = zip(operand.size(), operand.stride(), result.size(), strict=True)
        operands.append([0 if size == 1 != wide else stride for size, stride, wide in sizes])
    order = _order(result.size(), operands)
    inner = contiguous_strides([result.size(dim) for dim in order])
    return torch.empty_strided(result.size(), [inner[order.index(dim)] for dim in range(result.dim())], dtype=result.dtype, device=_META)


def _order(sizes: Sequence[int], operands: Sequence[Sequence[int]]) -> list[int]:
    """The dimensions from the outermost to the innermost, by the strides of operands (TensorIteratorBase::reorder_dimensions in ATen)."""

    def is_inside(a: int, b: int) -> int:
        for strides in operands:
            if strides[a] and strides[b]:
                if strides[a] != strides[b]:
                    return 1 if strides[a] < strides[b] else -1
                if sizes[a] > sizes[b]:
                    return -1
        return 0

    order = list(reversed(range(len(sizes))))
    for at in range(1, len(order)):
        for before in reversed(range(at)):
            inside = is_inside(order[before], order[at])
            if inside > 0:
                break
            if inside < 0:
                order[before], order[at] = order[at], order[before]
                at = before
    return order[::-1]


def _in_rows(result: Any) -> Any:
    if isinstance(result, list | tuple):
        return type(result)(_in_rows(one) for one in result)
    return torch.empty(result.size(), dtype=result.dtype, device=_META) if isinstance(result, torch.Tensor) else result


def _is_channels_last(x: torch.Tensor) -> bool:
    return x.dim() in (4, 5) and suggest_memory_format(x) != torch.contiguous_format


_ITERATED_MIXED: Final = frozenset(
    """
    complex copysign div floor_divide heaviside logaddexp logaddexp2 logical_and logical_or logical_xor polar special_xlog1py xlogy
    """.split()
)
_ITERATED: Final = _ITERATED_MIXED | frozenset(
    """
    add atan2 clamp_max clamp_min elu_backward eq fmax fmin fmod ge gelu_backward gt hardsigmoid_backward hardswish_backward
    hardtanh_backward huber_loss hypot le logit_backward lt maximum minimum mish_backward mse_loss mul ne pow remainder sigmoid_backward
    smooth_l1_loss softplus_backward sub tanh_backward
    """.split()
)
_ITERATED_SWAPPED: Final = frozenset("leaky_relu_backward rsub threshold_backward".split())
"""Operations of two operands whose results ATen's TensorIterator lays out, by the first operand before the second or, swapped, the second
before the first. Their meta kernels describe something else: of halves, with alpha, in some backward formulas; and those that may have
operands of two types (mixed) of all types."""


def _as_iterated(info: OpInfo, values: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """``result`` laid out by TensorIterator, as the meta kernel of ``eq`` describes it for float32."""
    swapped = info.base in _ITERATED_SWAPPED
    if not (swapped or info.base in _ITERATED):
        return result
    operands = [_described(value) for value in values if isinstance(value, torch.Tensor)][:2]
    if info.base not in _ITERATED_MIXED and len({x.dtype for x in operands}) > 1:
        return result
    if len(operands) == 1:
        operands.append(torch.empty((), device=_META))
    if operands[0].dtype == operands[1].dtype:
        operands = [torch.empty_strided(x.size(), x.stride(), device=_META) for x in operands]
    like = _ATEN.eq.Tensor(*(reversed(operands) if swapped else operands))
    if like.size() != result.size():
        return result
    return torch.empty_strided(like.size(), like.stride(), dtype=result.dtype, device=_META)


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if not is_ours(value):
            return value if value.dim() == 0 else torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=_META)
        meta = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=_META)
        if value.is_conj():
            meta = meta.conj()
        return torch._neg_view(meta) if value.is_neg() else meta
    if isinstance(value, list | tuple):
        return [_described(v) for v in value]
    return value
