"""Inference of an operation's results without computing it: shape rules of common operations on common tensors, else torch's slower meta
kernels on descriptions of the arguments.

Costs 30-1000 microseconds a call, which is why it happens once a signature.

Many meta kernels are Python and cost 0.3 ms or more, which a model pays at each new sequence length, for each operation. The rules here
hold for contiguous tensors of one floating type (or one type, where types are kept); everything else is left to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch
from torch._prims_common import suggest_memory_format

from wis.views import broadcast_shapes, contiguous_strides
from wooly.device.backend import is_ours
from wooly.device.schema import Kind, OpInfo

__all__ = ["RULES", "Shaped", "Unknown", "infer", "known", "without_frames"]

Shape = tuple[int, ...]
_ORDERS: Final = {torch.channels_last: (1, 3, 2, 0), torch.channels_last_3d: (1, 4, 3, 2, 0)}


@dataclass(frozen=True, slots=True)
class Shaped:
    """A tensor of ours without lazy bits, as the rules see it; its sizes may be symbols (symbolic.py)."""

    dtype: torch.dtype
    shape: Shape
    #: in elements
    strides: Shape

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def stride(self) -> Shape:
        return self.strides

    def dim(self) -> int:
        return len(self.shape)

    def is_contiguous(self, *, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
        if any(size == 0 for size in self.shape):
            return memory_format is torch.contiguous_format
        step, order = 1, _ORDERS.get(memory_format, range(self.dim() - 1, -1, -1))
        if len(order) != self.dim():
            return False
        for dim in order:
            if self.shape[dim] != 1 and self.strides[dim] != step:
                return False
            step *= self.shape[dim]
        return True

    def suggests_channels_last(self) -> bool:
        """Whether ATen takes it for one with channels last (is_channels_last_strides_2d and _3d in c10)."""
        order = next((order for order in _ORDERS.values() if len(order) == self.dim()), None)
        if order is None or self.strides[1] == 0:
            return False
        least = 0
        for dim in order:
            size, stride = self.shape[dim], self.strides[dim]
            if size == 0 or stride < least or (dim == 0 and least == self.strides[1]):
                return False
            least = stride * size if size > 1 else stride
        return True


def _new(dtype: torch.dtype, shape: Sequence[int]) -> Shaped:
    return Shaped(dtype, tuple(shape), contiguous_strides(shape))


Rule = Callable[[Sequence[Any]], Any]
"""The result of a call, from its arguments in schema order: Shaped for tensors, in the structure torch returns; None: not known. A rule
knows nothing of a call that torch refuses. Tensors among the arguments may be Shaped as well."""


def known(name: str, values: Sequence[Any]) -> Any:
    """The result of overload ``name``, as its rule says it; None when no rule applies."""
    rule = RULES.get(name)
    return rule(values) if rule is not None else None


def _is_simple(value: Any) -> bool:
    """Is it a tensor of ours, without lazy bits?"""
    return isinstance(value, Shaped) or (isinstance(value, torch.Tensor) and is_ours(value) and not value.is_conj() and not value.is_neg())


def _plain(value: Any) -> bool:
    """Is it a simple tensor with exactly the strides of a fresh one?"""
    return _is_simple(value) and tuple(value.stride()) == contiguous_strides(value.size())


def shaped(value: Any) -> Shaped | None:
    """A simple tensor as the rules see it, else None."""
    if isinstance(value, Shaped):
        return value
    return Shaped(value.dtype, tuple(value.size()), tuple(value.stride())) if _is_simple(value) else None


def _floats(*values: Any) -> bool:
    return all(_plain(v) and v.dtype.is_floating_point for v in values) and len({v.dtype for v in values}) == 1


def _unary(values: Sequence[Any]) -> Shaped | None:
    x = values[0]
    return _new(x.dtype, x.size()) if _floats(x) else None


def _same(values: Sequence[Any]) -> Shaped | None:
    """Like a unary operation, for any type: clone with the default or the contiguous format."""
    x, memory_format = values
    if not _plain(x) or memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        return None
    return _new(x.dtype, x.size())


def _broadcast(a: Sequence[int], b: Sequence[int]) -> Shape | None:
    try:
        return broadcast_shapes(a, b)
    except ValueError:
        return None


def _binary(values: Sequence[Any]) -> Shaped | None:
    a, b = values[0], values[1]
    if not _floats(a):
        return None
    if isinstance(b, float | int):
        return _new(a.dtype, a.size())
    return _broadcast_floats(a, b)


def _broadcast_floats(a: Any, b: Any) -> Shaped | None:
    shape = _broadcast(a.size(), b.size()) if _floats(a, b) else None
    return None if shape is None else _new(a.dtype, shape)


def _arithmetic(values: Sequence[Any]) -> Shaped | None:
    """As ``_binary``, and integers of one type too: positions are computed with them."""
    a, b = values[0], values[1]
    if _plain(a) and a.dtype == torch.int64 and type(values[-1]) is int:
        if type(b) is int:
            return _new(a.dtype, a.size())
        if _plain(b) and b.dtype == torch.int64:
            shape = _broadcast(a.size(), b.size())
            return None if shape is None else _new(a.dtype, shape)
    return _binary(values)


def _softmax(values: Sequence[Any]) -> Shaped | None:
    x, dim, half_to_float = values
    return None if half_to_float or not -x.dim() <= dim < max(x.dim(), 1) else _unary(values)


def _cat(values: Sequence[Any]) -> Shaped | None:
    """In rows, unless all parts have channels last."""
    parts, dim = [shaped(part) for part in values[0]], values[1]
    first = parts[0]
    if first is None or not -first.dim() <= dim < first.dim():
        return None
    dim %= first.dim()
    before, after, length = first.shape[:dim], first.shape[dim + 1 :], 0
    for part in parts:
        if part is None or part.dtype != first.dtype or part.dim() != first.dim() or part.suggests_channels_last():
            return None
        if part.shape[:dim] != before or part.shape[dim + 1 :] != after:
            return None
        length += part.shape[dim]
    return _new(first.dtype, (*before, length, *after))


def _product(a: Any, b: Any, rank: int) -> Shaped | None:
    fits = (
        _is_simple(a)
        and _is_simple(b)
        and a.dtype == b.dtype
        and a.dim() == b.dim() == rank
        and a.size(-1) == b.size(-2)
        and a.size()[:-2] == b.size()[:-2]
    )
    return _new(a.dtype, (*a.size()[:-1], b.size(-1))) if fits else None


def _addmm(values: Sequence[Any]) -> Shaped | None:
    bias, a, b = values[:3]
    found = _product(a, b, 2)
    if found is None or not _floats(bias) or bias.dtype != found.dtype:
        return None
    return found if tuple(bias.size()) in (found.shape, found.shape[1:]) else None


def _baddbmm_dtype(values: Sequence[Any]) -> Shaped | None:
    """torch's meta kernel does not take its beta and alpha."""
    found = _product(values[1], values[2], 3)
    return None if found is None or _broadcast(values[0].size(), found.shape) != found.shape else _new(values[3], found.shape)


def _attention(values: Sequence[Any]) -> Any:
    """Its result is laid out as the query is."""
    query, key, value = (shaped(x) for x in values[:3])
    if query is None or key is None or value is None or not query.dtype.is_floating_point:
        return None
    if any(x.dim() != 4 or x.dtype != query.dtype for x in (query, key, value)):
        return None
    batch, heads, length, width = query.shape
    fits = key.shape[:2] == value.shape[:2] == (batch, heads) and key.shape[3] == width and value.shape[2] == key.shape[2]
    shape = (batch, heads, length, value.shape[3])
    if not fits or not (values[3] is None or _is_simple(values[3])) or any(n == 0 for n in (*shape, key.shape[2])):
        return None
    if query.is_contiguous() and (shape[3] == width or query.strides == contiguous_strides(query.shape)):
        out = _new(query.dtype, shape)
    elif shape[3] == width and not query.suggests_channels_last():
        out = Shaped(query.dtype, *iterated([query]))
    else:
        return None
    number = _new(torch.int64, ())
    return out, _new(torch.float32, shape[:3]), None, None, length, key.shape[2], number, number, None


def _convolution(values: Sequence[Any]) -> Shaped | None:
    x, weight = shaped(values[0]), shaped(values[1])
    bias, stride, padding, dilation, transposed, _, groups = values[2:9]
    if x is None or weight is None or transposed or x.dtype != weight.dtype or not x.dtype.is_floating_point:
        return None
    n = x.dim() - 2
    if n not in (1, 2, 3) or weight.dim() != x.dim() or any(t.suggests_channels_last() or not t.is_contiguous() for t in (x, weight)):
        return None
    if weight.shape[1] * groups != x.shape[1] or weight.shape[0] % groups or not (bias is None or _fits_bias(bias, weight)):
        return None
    steps, pads, gaps = (given * n if len(given) == 1 else given for given in map(tuple, (stride, padding, dilation)))
    out = [weight.shape[0]]
    for i in range(n):
        room = x.shape[i + 2] + 2 * pads[i] - gaps[i] * (weight.shape[i + 2] - 1) - 1
        if room < 0:
            return None
        out.append(room // steps[i] + 1)
    return None if any(size == 0 for size in (*x.shape, *weight.shape)) else _new(x.dtype, (x.shape[0], *out))


def _fits_bias(bias: Any, weight: Shaped) -> bool:
    return _is_simple(bias) and bias.dtype == weight.dtype and tuple(bias.size()) == weight.shape[:1]


def _counted(start: Any, end: Any, step: Any, dtype: torch.dtype | None) -> Shaped | None:
    """arange of integers, one after the other."""
    if any(isinstance(number, bool | float | complex) for number in (start, end, step)) or step != 1 or not start < end:
        return None
    return _new(dtype or torch.int64, (end - start,)) if dtype in (None, torch.int64, torch.int32, torch.float32) else None


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
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention,
    "aten::convolution": _convolution,
    "aten::arange": lambda values: _counted(0, values[0], 1, values[1]),
    "aten::arange.start": lambda values: _counted(values[0], values[1], 1, values[2]),
    "aten::arange.start_step": lambda values: _counted(*values[:4]),
}
"""By overload name."""


def iterated(operands: Sequence[Shaped]) -> tuple[Shape, Shape]:
    """Shape and strides of what an elementwise operation makes of these tensors (TensorIterator in ATen); raises ValueError where they do
    not broadcast. It asks what decides between ATen's ways to the same strides, so that symbols notice."""
    shape = broadcast_shapes(*(x.shape for x in operands))
    for x in operands:
        if not x.is_contiguous() and len(shape) in (4, 5):
            x.is_contiguous(memory_format=torch.channels_last if len(shape) == 4 else torch.channels_last_3d)
    wide = []
    for x in operands:
        lead = len(shape) - x.dim()
        sizes = zip(x.shape, x.strides, shape[lead:], strict=True)
        wide.append([0] * lead + [0 if size == 1 and n != 1 else stride for size, stride, n in sizes])
    order = _order(shape, wide)
    inner = contiguous_strides([shape[dim] for dim in order])
    return shape, tuple([inner[order.index(dim)] for dim in range(len(shape))])


_META: Final = torch.device("meta")


class Unknown(Exception):
    """The result's shape and type cannot be inferred without data. ``error`` is what torch said; ``missing``: it has no meta kernel at
    all."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = without_frames(error)
        self.missing = isinstance(error, NotImplementedError)


_E = TypeVar("_E", bound=Exception)


def without_frames(error: _E) -> _E:
    """``error``, to be kept: without the frames that it came through, which hold the tensors of a call."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def infer(info: OpInfo, values: Sequence[Any], op: Any = None) -> Any:
    """The result of ``info`` (or of its functional form ``op``) as meta tensors, in the structure torch returns; raises Unknown."""
    result = known(info.name, values)
    if result is not None:
        return _as_meta(result)
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


def _as_meta(result: Any) -> Any:
    if isinstance(result, Shaped):
        return torch.empty_strided(result.shape, result.strides, dtype=result.dtype, device=_META)
    return tuple(_as_meta(part) for part in result) if isinstance(result, tuple) else result


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
    _ATEN._sample_dirichlet.default: lambda alpha, generator=None: torch.empty(alpha.size(), dtype=alpha.dtype, device=_META),
    _ATEN.binomial.default: lambda count, prob, generator=None: torch.empty(count.size(), dtype=count.dtype, device=_META),
    _ATEN._standard_gamma_grad.default: lambda alpha, drawn: torch.empty_like(alpha),
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
    if isinstance(result, torch.Tensor) and result.dim() > 1 and (info.is_out or not info.mutates):
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
"""Operations of two operands (``where`` has three) whose results ATen's TensorIterator lays out, by the first operand before the second
or, swapped, the second before the first. Their meta kernels describe something else: of halves, with alpha, in some backward formulas; and
those that may have operands of two types (mixed) of all types."""


def _as_iterated(info: OpInfo, values: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """``result`` laid out by TensorIterator."""
    swapped, chosen = info.base in _ITERATED_SWAPPED, info.base == "where"
    if not (swapped or chosen or info.base in _ITERATED):
        return result
    given = [value for arg, value in zip(info.args, values, strict=True) if isinstance(value, torch.Tensor) and not arg.is_out]
    operands = [Shaped(x.dtype, tuple(x.size()), tuple(x.stride())) for x in given[: 3 if chosen else 2]]
    if info.base not in _ITERATED_MIXED and len({x.dtype for x in operands[chosen:]}) > 1:
        return result
    shape, strides = iterated(operands[::-1] if swapped else operands)
    return torch.empty_strided(shape, strides, dtype=result.dtype, device=_META) if shape == tuple(result.size()) else result


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        meta = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=_META)
        if value.is_conj():
            meta = meta.conj()
        return torch._neg_view(meta) if value.is_neg() else meta
    if isinstance(value, list | tuple):
        return [_described(v) for v in value]
    return value
