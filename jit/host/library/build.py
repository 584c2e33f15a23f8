"""Context of every lowering: views of operands and temporaries, and the list of records under construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from jit.errors import Inexpressible
from jit.host.library.kernels import PREFIX, kernel
from jit.host.library.nest import Space, space
from jit.host.record import Arg, Ptr, Record, TempPtr, TempRef
from wis.dtypes import DType
from wis.program import Operand, Scalar


@dataclass(frozen=True, slots=True)
class View:
    """A strided window on an operand or a temporary; strides and offset in elements of ``dtype``."""

    root: Operand | TempRef
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def ptr(self) -> Arg:
        nbytes = self.offset * self.dtype.itemsize
        return TempPtr(self.root.id, nbytes) if isinstance(self.root, TempRef) else Ptr(self.root.buffer, nbytes)

    def reshape(self, shape: Sequence[int]) -> View:
        """A contiguous view under another shape of the same size."""
        assert self.strides == contiguous(self.shape) and prod(shape) == self.numel
        return replace(self, shape=tuple(shape), strides=contiguous(shape))

    def permute(self, *dims: int) -> View:
        return replace(self, shape=tuple(self.shape[d] for d in dims), strides=tuple(self.strides[d] for d in dims))

    @property
    def is_contiguous(self) -> bool:
        return all(size == 1 or a == b for size, a, b in zip(self.shape, self.strides, contiguous(self.shape), strict=True))


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides of ``shape``."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def view(operand: Operand | Scalar) -> View:
    """The whole of a buffer operand; an immediate is not supported where this is asked."""
    if isinstance(operand, Scalar):
        raise Inexpressible("an immediate where a buffer is needed")
    return View(operand, operand.dtype, operand.shape, operand.strides, operand.offset)


class Build:
    """Collects the records of one instruction."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._temps = 0

    def temp(self, dtype: DType, shape: Sequence[int]) -> View:
        """A contiguous temporary, not initialised."""
        ref = TempRef(self._temps, max(prod(shape), 1) * dtype.itemsize)
        self._temps += 1
        return View(ref, dtype, tuple(shape), contiguous(shape))

    def call(
        self,
        family: str,
        *,
        units: int,
        grain: float,
        reads: Sequence[View],
        writes: Sequence[View],
        args: Mapping[str, Arg],
        scratch_bytes: int = 0,
    ) -> None:
        """Add a call of kernel ``lib.<family>``; ``args`` must name each of its parameters, no more and no less."""
        if units == 0:
            return
        made = kernel(PREFIX + family)
        assert set(args) == set(made.params), (family, set(args) ^ set(made.params))
        values = tuple(args[name] for name in made.params)
        roots = (tuple(v.root for v in reads), tuple(v.root for v in writes))
        self.records.append(Record(made.symbol, values, units, grain, *roots, scratch_bytes))

    def walk(self, family: str, shape: Space, *, grain: float, reads: Mapping[str, View], writes: Mapping[str, View]) -> None:
        """Add a call over all units of an index space; ``grain`` is ns an element."""
        args: dict[str, Arg] = shape.args() | {name: v.ptr() for name, v in (*reads.items(), *writes.items())}
        cost = grain * shape.lanes + 5
        sides = (tuple(reads.values()), tuple(writes.values()))
        self.call(family, units=shape.units, grain=cost, reads=sides[0], writes=sides[1], args=args)

    def copy(self, source: View, target: View) -> None:
        """target = source (one shape), converting between float types of at most 32 bits where they differ."""
        assert source.shape == target.shape
        if target.numel == 0:
            return
        over = space(source.shape, {"x": source.strides, "y": target.strides}, order_by="y")
        if source.dtype is target.dtype:
            family = f"copy.{source.dtype.itemsize}.{over.rank}"
        else:
            family = f"cast.{source.dtype.text}.{target.dtype.text}.{over.rank}"
        self.walk(family, over, grain=0.3, reads={"x": source}, writes={"y": target})

    def zero(self, target: View) -> None:
        """target = 0."""
        if target.numel:
            over = space(target.shape, {"y": target.strides}, order_by="y")
            self.walk(f"zero.{target.dtype.itemsize}.{over.rank}", over, grain=0.1, reads={}, writes={"y": target})

    def packed(self, source: View, dtype: DType | None = None) -> View:
        """A contiguous copy of ``source``, in another float type if asked."""
        made = self.temp(dtype or source.dtype, source.shape)
        self.copy(source, made)
        return made
