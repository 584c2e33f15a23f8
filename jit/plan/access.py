"""Addressing of operands by a linear index: canonical dimensions, common refinements, and whether two operands can share bytes.

An operand is a function from the row-major index of its shape to elements. Two operands of different shapes that are the same function
have the same canonical dimensions; that is what fusion compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from wis.dtypes import DType
from wis.program import BoundInstr, Operand

Dims = tuple[tuple[int, int], ...]
"""(size, stride) from the slowest to the fastest; sizes above 1, neighbours merged where they are one run."""


class Access(NamedTuple):
    """An operand as a function of a linear index; ``offset`` and strides in elements, ``low`` and ``high`` the byte span."""

    buffer: int
    dtype: DType
    offset: int
    dims: Dims
    low: int
    high: int

    @property
    def dense(self) -> bool:
        """Whether it touches every byte of its span."""
        count = self.dtype.itemsize
        for size, stride in self.dims:
            count *= size if stride else 1
        return count == self.high - self.low


def canonical(shape: Sequence[int], strides: Sequence[int]) -> Dims:
    """Dimensions of size 1 dropped, neighbours merged where stepping over the inner one is one outer step."""
    out: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if out and out[-1][1] == size * stride:
            out[-1] = (out[-1][0] * size, stride)
        else:
            out.append((size, stride))
    return tuple(out)


def access(x: Operand) -> Access:
    """The operand as an Access."""
    low, high = x.span()
    size = x.dtype.itemsize
    return Access(x.buffer, x.dtype, x.offset, canonical(x.shape, x.strides), low * size, high * size)


def refine(total: int, cuts: Iterable[Sequence[int]]) -> list[int] | None:
    """Sizes (slowest first, product ``total``) of which every list in ``cuts`` is a merging, or None when they cut across each other."""
    marks = {1, total}
    for sizes in cuts:
        run = 1
        for size in reversed(sizes):
            run *= size
            marks.add(run)
    ordered = sorted(marks)
    sizes_up: list[int] = []
    for a, b in pairwise(ordered):
        if b % a:
            return None
        sizes_up.append(b // a)
    return sizes_up[::-1]


def split(dims: Dims, sizes: Sequence[int]) -> list[int]:
    """The stride along each of ``sizes``, which refine ``dims``."""
    result: list[int] = []
    left = list(dims)
    for size in reversed(sizes):
        if not left:
            result.append(0)
            continue
        have, stride = left[-1]
        result.append(stride)
        if have == size:
            left.pop()
        else:
            left[-1] = (have // size, stride * size)
    return result[::-1]


def lift(dims: Dims, pattern: Sequence[tuple[int, bool]]) -> Dims | None:
    """``dims`` over the kept part of an index space as dims over all of it, standing along the reduced parts; None if they do not fit."""
    kept = [size for size, keep in pattern if keep]
    total = 1
    for size in kept:
        total *= size
    sizes = refine(total, [[n for n, _ in dims], kept])
    if sizes is None:
        return None
    strides = split(dims, sizes)
    shape: list[int] = []
    steps: list[int] = []
    at = 0
    for size, keep in pattern:
        if not keep:
            shape.append(size)
            steps.append(0)
            continue
        run = 1
        while run < size:
            run *= sizes[at]
            shape.append(sizes[at])
            steps.append(strides[at])
            at += 1
    return canonical(shape, steps)


def may_overlap(a: Access, b: Access) -> bool:
    """Whether the two may touch a common byte; False is certain."""
    if a.buffer != b.buffer or a.low >= b.high or b.low >= a.high or a.low == a.high or b.low == b.high:
        return False
    for step, size_a, width_a, size_b, width_b in _periods(a.dtype, a.dims, b.dtype, b.dims):
        low_a, low_b = a.offset * size_a % step, b.offset * size_b % step
        if low_a + width_a <= low_b <= step - width_b or low_b + width_b <= low_a <= step - width_a:
            return False  # both repeat with this period, and stay in disjoint parts of it (columns of one matrix)
    return True


@lru_cache(1 << 14)
def _periods(a: DType, dims_a: Dims, b: DType, dims_b: Dims) -> tuple[tuple[int, int, int, int, int], ...]:
    """(period, element of a, part of the period that a takes, the same of b), in bytes, of each period that both may repeat with."""
    sizes = a.itemsize, b.itemsize
    steps = {abs(stride) * size for size, dims in zip(sizes, (dims_a, dims_b), strict=True) for _, stride in dims}
    found = [(step, _width(sizes[0], dims_a, step), _width(sizes[1], dims_b, step)) for step in sorted(steps) if step]
    return tuple((step, sizes[0], x, sizes[1], y) for step, x, y in found if x is not None and y is not None)


def _width(size: int, dims: Dims, step: int) -> int | None:
    """Bytes of each period of ``step`` bytes from the first to the last that are touched; None: it does not repeat with that period."""
    width = size
    for n, stride in dims:
        if stride < 0:
            return None
        if stride * size % step or stride == 0:
            width += (n - 1) * stride * size
    return width if width <= step else None


def overlaps(instr: BoundInstr) -> bool:
    """Whether an out shares bytes with an in: kernels of a library read and write in any order, so it must not."""
    for out in instr.outs:
        size = out.dtype.itemsize
        low, high = (size * x for x in out.span())
        for x in instr.ins:
            if isinstance(x, Operand) and x.buffer == out.buffer:
                a, b = (x.dtype.itemsize * y for y in x.span())
                if a < high and low < b:
                    return True
    return False
