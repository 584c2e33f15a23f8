"""Values of lowerings: tensors as metadata, and numbers whose value may be unknown; and what lowerings raise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from wis.dtypes import DType
from wis.views import contiguous_strides


class LoweringError(Exception):
    """A lowering made something that cannot be a template: a fault of this package, never of the user's program."""


class Unsupported(Exception):
    """This call has no lowering, and the reason; the caller falls back (Python decomposition, then CPU)."""


Number = bool | int | float | complex

_INT_MIN: Final = -(1 << 63)
_INT_END: Final = 1 << 64


def wire_number(value: Any, kind: type = float) -> int | float | complex:
    """``value`` as a batch carries it: a float, a complex, or an int from -2**63 to 2**64 - 1. Booleans become 0 and 1.

    An int outside of that range becomes what an operand of ``kind`` takes it for: the rest modulo 2**64 for int, else the nearest float (or
    an infinity). Raises LoweringError for what is not a number.
    """
    if isinstance(value, int):
        if _INT_MIN <= value < _INT_END:
            return int(value)
        return value % _INT_END if kind is int else _nearest(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, complex):
        return complex(value)
    item = getattr(value, "item", None)  # a NumPy scalar, a tensor of one element
    if item is None or isinstance(item(), type(value)):
        raise LoweringError(f"{type(value).__name__} is no number")
    return wire_number(item(), kind)


def _nearest(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def span_nbytes(itemsize: int, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> int:
    """Bytes from a buffer's start to the end of the last element; 0 when there are no elements."""
    last = offset
    for size, stride in zip(shape, strides, strict=True):
        if size == 0:
            return 0
        last += (size - 1) * stride
    return (last + 1) * itemsize


@dataclass(frozen=True, slots=True)
class Meta:
    """A tensor inside a template: a view of buffer ``slot``.

    Equal slots mean the same memory: the caller gives arguments that share a buffer the same slot, so that in-place templates can see what
    they alias.
    """

    slot: int
    dtype: DType
    shape: tuple[int, ...]
    #: in elements of ``dtype``
    strides: tuple[int, ...]
    #: in elements of ``dtype``
    offset: int = 0
    #: torch's lazy bit; a lowering never sees it set
    conj: bool = False
    #: likewise
    neg: bool = False

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        return self.numel == 0 or all(
            n == 1 or s == c for n, s, c in zip(self.shape, self.strides, contiguous_strides(self.shape), strict=True)
        )

    # --- views: each is another description of the same memory and costs no instruction

    def expand(self, shape: Sequence[int]) -> Meta:
        """Broadcast to ``shape`` by stride 0; raises ValueError when the sizes do not fit."""
        shape = tuple(shape)
        if shape == self.shape:
            return self
        lead = len(shape) - self.ndim
        if lead < 0:
            raise ValueError(f"cannot expand {self.shape} to {shape}")
        strides = [0] * lead
        for have, want, stride in zip(self.shape, shape[lead:], self.strides, strict=True):
            if have != want and have != 1:
                raise ValueError(f"cannot expand {self.shape} to {shape}")
            strides.append(stride if have == want else 0)
        return replace(self, shape=shape, strides=tuple(strides))

    def permute(self, dims: Sequence[int]) -> Meta:
        """Dimension i of the result is dimension ``dims[i]`` of this."""
        return replace(self, shape=tuple(self.shape[d] for d in dims), strides=tuple(self.strides[d] for d in dims))

    def transpose(self, a: int, b: int) -> Meta:
        dims = list(range(self.ndim))
        dims[a], dims[b] = dims[b], dims[a]
        return self.permute(dims)

    def move(self, source: int, target: int) -> Meta:
        """Dimension ``source`` moved to position ``target``, the others in order."""
        dims = list(range(self.ndim))
        dim = dims.pop(source)
        dims.insert(target if target >= 0 else target + self.ndim, dim)
        return self.permute(dims)

    def narrow(self, dim: int, start: int, length: int, step: int = 1) -> Meta:
        """Elements start, start + step, ... of ``dim`` (``step`` may be negative)."""
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + (start * strides[dim] if length and self.numel else 0)
        shape[dim], strides[dim] = length, strides[dim] * step
        return replace(self, shape=tuple(shape), strides=tuple(strides), offset=offset)

    def split(self, dim: int, length: int) -> Meta:
        """Dimension ``dim``, whose size is a multiple of ``length``, as two: which part, and the place in it."""
        count, stride = self.shape[dim] // length, self.strides[dim]
        shape = (*self.shape[:dim], count, length, *self.shape[dim + 1 :])
        return replace(self, shape=shape, strides=(*self.strides[:dim], stride * length, stride, *self.strides[dim + 1 :]))

    def select(self, dim: int, index: int) -> Meta:
        return self.narrow(dim, index, 1).squeeze(dim)

    def squeeze(self, dim: int) -> Meta:
        """Without dimension ``dim``, which has size 1."""
        dim %= self.ndim
        return replace(self, shape=self.shape[:dim] + self.shape[dim + 1 :], strides=self.strides[:dim] + self.strides[dim + 1 :])

    def unsqueeze(self, dim: int, size: int = 1) -> Meta:
        """With a new dimension at ``dim``, of ``size`` equal entries (stride 0)."""
        if dim < 0:
            dim += self.ndim + 1
        return replace(self, shape=(*self.shape[:dim], size, *self.shape[dim:]), strides=(*self.strides[:dim], 0, *self.strides[dim:]))

    def flip(self, dim: int) -> Meta:
        return self.narrow(dim, self.shape[dim] - 1, self.shape[dim], -1)

    def view(self, shape: Sequence[int]) -> Meta | None:
        """The same elements in row-major order as ``shape``, or None when strides cannot say that."""
        shape = tuple(shape)
        if math.prod(shape) != self.numel:
            raise ValueError(f"cannot view {self.shape} as {shape}")
        if shape == self.shape:
            return self
        if self.numel == 0:
            return replace(self, shape=shape, strides=contiguous_strides(shape))
        strides = _view_strides(self.shape, self.strides, shape)
        return None if strides is None else replace(self, shape=shape, strides=strides)

    def as_parts(self) -> Meta:
        """A complex tensor as its parts: the float type, with a last dimension of 2 (real, imaginary)."""
        real = {DType.C64: DType.F32, DType.C128: DType.F64}[self.dtype]
        return replace(self, dtype=real, shape=(*self.shape, 2), strides=(*(2 * s for s in self.strides), 1), offset=2 * self.offset)


def _view_strides(shape: tuple[int, ...], strides: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides of the row-major reinterpretation of (shape, strides) as ``target``; no size is 0. None: needs a copy."""
    runs: list[tuple[int, int]] = []  # (number of elements, stride of the innermost), outer to inner, each one run in memory
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    result: list[int] = []
    left, step = (1, 1)
    for size in reversed(target):
        if size == 1:
            result.append(step)
            continue
        if left == 1:
            left, step = runs.pop()
        if left % size:
            return None
        result.append(step)
        left //= size
        step *= size
    return tuple(reversed(result))


@dataclass(frozen=True, slots=True)
class ScalarArg:
    """A number argument whose value is a parameter of the template, not part of it."""

    #: place among such arguments of the call, in the order of its flattened arguments
    index: int
    #: bool, int, float or complex
    kind: type
    #: set for a 0-dim CPU tensor: it takes part in type promotion as a 0-dim tensor
    dtype: DType | None = None


@dataclass(frozen=True, slots=True)
class Derived:
    """A number computed from others each time the template is used: ``fn(*values of args)``."""

    fn: Callable[..., Number]
    args: tuple[ScalarArg | Derived | Number, ...]
    kind: type


Value = Meta | ScalarArg | Derived | bool | int | float | complex


def kind_of(value: Value) -> type:
    """The kind of a number: bool, int, float or complex."""
    if isinstance(value, ScalarArg | Derived):
        return value.kind
    if isinstance(value, Meta):
        raise TypeError("a tensor has no kind")
    return type(value)


@dataclass(frozen=True, slots=True)
class Expected:
    """An output as torch would make it: what the new tensor of a template is."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return span_nbytes(self.dtype.itemsize, self.shape, self.strides)
