"""Shape rules of common operations on common tensors, instead of torch's slower meta kernels.

Many meta kernels are Python and cost 0.3 ms or more, which a model pays at each new sequence length, for each operation. The rules here
hold for contiguous tensors of one floating type (or one type, where types are kept); everything else is left to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from wis.views import broadcast_shapes, contiguous_strides
from wooly.device.backend import is_ours

__all__ = ["known", "RULES"]

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
