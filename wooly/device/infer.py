"""Inference of an operation's results without computing it: shape rules of common operations on common tensors, else torch's slower meta
kernels on descriptions of the arguments.

Costs 30-1000 microseconds a call, which is why it happens once a signature.

Many meta kernels are Python and cost 0.3 ms or more, which a model pays at each new sequence length, for each operation. The rules here
hold for contiguous tensors of one floating type (or one type, where types are kept); everything else is left to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch._prims_common import suggest_memory_format

from wis.views import broadcast_shapes, contiguous_strides
from wooly.device.backend import is_ours
from wooly.device.schema import Kind, OpInfo

__all__ = ["RULES", "Unknown", "infer", "known"]

Shape = tuple[int, ...]
Rule = Callable[[Sequence[Any]], "tuple[Shape, torch.dtype] | None"]


def known(name: str, values: Sequence[Any]) -> torch.Tensor | None:
    """The result of overload ``name`` as a meta tensor, or None when no rule applies."""
    rule = RULES.get(name)
    found = rule(values) if rule is not None else None
    return None if found is None else torch.empty(found[0], dtype=found[1], device="meta")


def _plain(value: Any) -> bool:
    """Is it a tensor of ours with exactly the strides of a fresh one, and no lazy bits?"""
    return (
        isinstance(value, torch.Tensor)
        and is_ours(value)
        and tuple(value.stride()) == contiguous_strides(value.size())
        and not value.is_conj()
        and not value.is_neg()
    )


def _dense(value: torch.Tensor) -> bool:
    """As ``_plain``, but dimensions of size 1 may have any stride (keys and values of one position have)."""
    return is_ours(value) and value.is_contiguous() and not value.is_conj() and not value.is_neg()


def _floats(*values: Any) -> bool:
    return all(_plain(v) and v.dtype.is_floating_point for v in values) and len({v.dtype for v in values}) == 1


def _unary(values: Sequence[Any]) -> tuple[Shape, torch.dtype] | None:
    x = values[0]
    return (tuple(x.size()), x.dtype) if _floats(x) else None


def _same(values: Sequence[Any]) -> tuple[Shape, torch.dtype] | None:
    """Like a unary operation, for any type: clone with the default or the contiguous format."""
    x, memory_format = values
    if not _plain(x) or memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        return None
    return tuple(x.size()), x.dtype


def _broadcast(a: Sequence[int], b: Sequence[int]) -> Shape | None:
    try:
        return broadcast_shapes(a, b)
    except ValueError:
        return None


def _binary(values: Sequence[Any]) -> tuple[Shape, torch.dtype] | None:
    a, b = values[0], values[1]
    if not _floats(a):
        return None
    if isinstance(b, float | int):
        return tuple(a.size()), a.dtype
    return _broadcast_floats(a, b)


def _broadcast_floats(a: Any, b: Any) -> tuple[Shape, torch.dtype] | None:
    shape = _broadcast(a.size(), b.size()) if _floats(a, b) else None
    return None if shape is None else (shape, a.dtype)


def _arithmetic(values: Sequence[Any]) -> tuple[Shape, torch.dtype] | None:
    """As ``_binary``, and integers of one type too: positions are computed with them."""
    a, b = values[0], values[1]
    if _plain(a) and a.dtype == torch.int64 and type(values[-1]) is int:
        if type(b) is int:
            return tuple(a.size()), a.dtype
        if _plain(b) and b.dtype == torch.int64:
            shape = _broadcast(a.size(), b.size())
            return None if shape is None else (shape, a.dtype)
    return _binary(values)


def _softmax(values: Sequence[Any]) -> tuple[Shape, torch.dtype] | None:
    x, dim, half_to_float = values
    return None if half_to_float or not -x.dim() <= dim < max(x.dim(), 1) else _unary(values)


def _cat(values: Sequence[Any]) -> tuple[Shape, torch.dtype] | None:
    parts, dim = values
    first = parts[0]
    rank = first.dim()
    if not all(_dense(t) and t.dtype == first.dtype and t.dim() == rank for t in parts) or not -rank <= dim < rank:
        return None
    channels_last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(rank)
    if channels_last is not None and any(t.is_contiguous(memory_format=channels_last) for t in parts):
        return None  # torch looks closer which layout is meant
    dim %= rank
    around = {(*t.size()[:dim], *t.size()[dim + 1 :]) for t in parts}
    if len(around) != 1:
        return None
    return (*first.size()[:dim], sum(t.size(dim) for t in parts), *first.size()[dim + 1 :]), first.dtype


def _product(a: Any, b: Any, rank: int) -> tuple[Shape, torch.dtype] | None:
    fits = (
        isinstance(a, torch.Tensor)
        and isinstance(b, torch.Tensor)
        and a.dtype == b.dtype
        and is_ours(a)
        and is_ours(b)
        and a.dim() == b.dim() == rank
        and a.size(-1) == b.size(-2)
        and a.size()[:-2] == b.size()[:-2]
    )
    return ((*a.size()[:-1], b.size(-1)), a.dtype) if fits else None


def _addmm(values: Sequence[Any]) -> tuple[Shape, torch.dtype] | None:
    bias, a, b = values[:3]
    found = _product(a, b, 2)
    if found is None or not _floats(bias) or bias.dtype != found[1]:
        return None
    return found if tuple(bias.size()) in (found[0], found[0][1:]) else None


def _baddbmm_dtype(values: Sequence[Any]) -> tuple[Shape, torch.dtype] | None:
    """torch's meta kernel does not take its beta and alpha."""
    found = _product(values[1], values[2], 3)
    return None if found is None or _broadcast(values[0].size(), found[0]) != found[0] else (found[0], values[3])


_UNARY: Final = "relu silu neg exp log sqrt rsqrt sin cos tanh sigmoid abs reciprocal gelu"
_BINARY: Final = "mul.Tensor div.Tensor"
_TO_NUMBER: Final = "pow.Tensor_Scalar add.Scalar sub.Scalar mul.Scalar div.Scalar"

RULES: Final[dict[str, Rule]] = {
    **{f"aten::{name}": _unary for name in _UNARY.split()},
    **{f"aten::{name}": _binary for name in (*_BINARY.split(), *_TO_NUMBER.split())},
    "aten::add.Tensor": _arithmetic,
    "aten::sub.Tensor": _arithmetic,
    "aten::clone": _same,
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _softmax,
    "aten::cat": _cat,
    "aten::mm": lambda values: _product(values[0], values[1], 2),
    "aten::bmm": lambda values: _product(values[0], values[1], 3),
    "aten::addmm": _addmm,
    "aten::baddbmm.dtype": _baddbmm_dtype,
}
"""By overload name. ``values`` are the arguments in schema order."""


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
        elif arg.kind is Kind.TENSOR and isinstance(value, bool | int | float | complex):
            value = _for_number(value, values)
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


def _for_number(number: Any, values: Sequence[Any]) -> Any:
    """A number that torch hands to a kernel for a tensor, as few operators take it: a tensor of the type that the others give it."""
    tensor = next((value for value in values if isinstance(value, torch.Tensor)), None)
    return number if tensor is None else torch.empty((), dtype=torch.result_type(tensor, number), device=_META)


_ATEN: Final = torch.ops.aten


def _reflectors(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What geqrf returns: it is laid out as LU and its pivots are."""
    lu, pivots, _ = _ATEN.linalg_lu_factor_ex(x)
    return lu, pivots.to(x.dtype)


_SAME_AS: Final[dict[Any, Callable[..., Any]]] = {
    _ATEN.geqrf.default: _reflectors,
    _ATEN.multi_margin_loss_backward.default: lambda dy, x, *others: torch.empty_like(x),
    _ATEN.convolution_overrideable.default: _ATEN.convolution.default,
    _ATEN.__lshift__.Tensor: _ATEN.bitwise_left_shift.Tensor,
    _ATEN.__lshift__.Scalar: _ATEN.bitwise_left_shift.Tensor_Scalar,
    _ATEN.__rshift__.Tensor: _ATEN.bitwise_right_shift.Tensor,
    _ATEN.__rshift__.Scalar: _ATEN.bitwise_right_shift.Tensor_Scalar,
}
"""Operations without a meta kernel, or whose meta kernel refuses what CUDA takes (shifts of bool): what takes their arguments and describes
their result, mostly another operation."""

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
