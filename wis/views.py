"""Views of operands: the same elements of a buffer under another shape; and the shapes and strides that views are made of.

A view costs no instruction: it is a new Operand, or a BuildError when it does not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from wis.errors import BuildError
from wis.program import Operand


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The common shape of ``shapes`` under torch's broadcasting; raises ValueError when there is none."""
    result: list[int] = []
    for sizes in zip_longest(*(reversed(s) for s in shapes), fillvalue=1):
        wide = [n for n in sizes if n != 1]
        if wide and any(n != wide[0] for n in wide):
            raise ValueError(f"shapes {shapes} do not broadcast")
        result.append(wide[0] if wide else 1)
    return tuple(reversed(result))


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements (a size of 0 counts as 1, as in torch)."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_contiguous(x: Operand) -> bool:
    """True when the elements lie in row-major order without gaps (sizes 0 and 1 never matter)."""
    if 0 in x.shape:
        return True
    step = 1
    for size, stride in zip(reversed(x.shape), reversed(x.strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _dim(x: Operand, dim: int) -> int:
    rank = len(x.shape)
    if not -rank <= dim < rank:
        raise BuildError(f"dimension {dim} is outside of rank {rank}")
    return dim % rank


def permute(x: Operand, order: Sequence[int]) -> Operand:
    """Dimensions in the given order."""
    if sorted(order) != list(range(len(x.shape))):
        raise BuildError(f"{tuple(order)} is not an order of {len(x.shape)} dimensions")
    return replace(x, shape=tuple(x.shape[d] for d in order), strides=tuple(x.strides[d] for d in order))


def transpose(x: Operand, a: int, b: int) -> Operand:
    """Dimensions ``a`` and ``b`` exchanged."""
    order = list(range(len(x.shape)))
    a, b = _dim(x, a), _dim(x, b)
    order[a], order[b] = order[b], order[a]
    return permute(x, order)


def expand(x: Operand, shape: Sequence[int]) -> Operand:
    """Broadcast to ``shape`` by stride 0, aligned at the last dimension."""
    lead = len(shape) - len(x.shape)
    if lead < 0:
        raise BuildError(f"cannot expand {x.shape} to {tuple(shape)}")
    strides = [0] * lead
    for have, stride, want in zip(x.shape, x.strides, shape[lead:], strict=True):
        if have != want and have != 1:
            raise BuildError(f"cannot expand {x.shape} to {tuple(shape)}")
        strides.append(stride if have == want else 0)
    return replace(x, shape=tuple(shape), strides=tuple(strides))


def narrow(x: Operand, dim: int, start: int, length: int, step: int = 1) -> Operand:
    """Elements ``start, start + step, ...`` (``length`` of them) along ``dim``."""
    dim = _dim(x, dim)
    last = start + (length - 1) * step
    if length < 0 or step == 0 or (length > 0 and not (0 <= start < x.shape[dim] and 0 <= last < x.shape[dim])):
        raise BuildError(f"[{start}, +{length} by {step}] is outside of size {x.shape[dim]}")
    shape, strides = list(x.shape), list(x.strides)
    offset = x.offset + start * strides[dim] if length else x.offset
    shape[dim] = length
    strides[dim] *= step
    return replace(x, shape=tuple(shape), strides=tuple(strides), offset=offset)


def unsqueeze(x: Operand, dim: int) -> Operand:
    """A new dimension of size 1 before ``dim`` (0..rank)."""
    rank = len(x.shape)
    if not -rank - 1 <= dim <= rank:
        raise BuildError(f"dimension {dim} is outside of rank {rank + 1}")
    dim %= rank + 1
    stride = x.shape[dim] * x.strides[dim] if dim < rank else 1
    return replace(x, shape=(*x.shape[:dim], 1, *x.shape[dim:]), strides=(*x.strides[:dim], stride, *x.strides[dim:]))
