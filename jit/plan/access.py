"""Addressing of operands by a linear index: canonical dimensions, common refinements, and whether two operands can share bytes.

An operand is a function from the row-major index of its shape to elements. Two operands of different shapes that are the same function
have the same canonical dimensions; that is what fusion compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from wis.dtypes import DType
from wis.program import BoundInstr, Operand

__all__ = ["Dims", "Access", "access", "canonical", "refine", "split", "lift", "may_overlap", "overlaps"]

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
    steps = {abs(s) * x.dtype.itemsize for x in (a, b) for _, s in x.dims}
    return not any(_interleaved(a, b, step) for step in steps if step)


def _interleaved(a: Access, b: Access, step: int) -> bool:
    """Whether both repeat with period ``step`` bytes and stay in disjoint parts of the period (columns of one matrix)."""
    windows = []
    for x in (a, b):
        size = x.dtype.itemsize
        low = x.offset * size % step
        high = low + size
        for n, stride in x.dims:
            if stride < 0:
                return False
            if stride * size % step or stride == 0:
                high += (n - 1) * stride * size
        if high > step:
            return False
        windows.append((low, high))
    (low_a, high_a), (low_b, high_b) = windows
    return high_a <= low_b or high_b <= low_a


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
