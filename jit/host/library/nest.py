"""Walks over n-dimensional index spaces: the same nest seen from the plan (``Space``) and from the kernel (``rows``).

A space of sizes (n0, .., nk) is walked as units x lanes: the last dimension is cut into blocks, and one unit is one block of one row.
Every operand has one stride a dimension, in elements. Sizes, strides and the block are arguments; only the rank is part of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from jit.host.library.emit import Fn, Type, Value

__all__ = ["Space", "rows", "space"]


@dataclass(frozen=True, slots=True)
class Space:
    """A merged index space. ``strides`` has, per operand, one stride (elements) a dimension; rank is at least 1."""

    sizes: tuple[int, ...]
    strides: Mapping[str, tuple[int, ...]]
    block: int

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def blocks(self) -> int:
        """Blocks a row."""
        return -(-self.sizes[-1] // self.block)

    @property
    def units(self) -> int:
        n = self.blocks
        for size in self.sizes[:-1]:
            n *= size
        return n

    @property
    def lanes(self) -> int:
        """Elements of one full unit."""
        return min(self.block, self.sizes[-1])

    def args(self) -> dict[str, int]:
        """The kernel's arguments under the names that ``rows`` declares."""
        out = {f"n{d}": size for d, size in enumerate(self.sizes)} | {"block": self.block}
        for name, strides in self.strides.items():
            out |= {f"{name}_s{d}": stride for d, stride in enumerate(strides)}
        return out


def space(shape: Sequence[int], strides: Mapping[str, Sequence[int]], *, block: int = 8192, order_by: str | None = None) -> Space:
    """Drop dimensions of size 1, merge neighbours that every operand walks as one, and cut the last into blocks.

    ``order_by`` names an operand whose strides decide the order of the dimensions (widest first), where the order does not matter.
    """
    dims = [(size, {name: s[d] for name, s in strides.items()}) for d, size in enumerate(shape) if size != 1]
    if order_by is not None:
        dims.sort(key=lambda dim: -abs(dim[1][order_by]))
    merged: list[tuple[int, dict[str, int]]] = []
    for size, steps in dims:
        if merged and all(merged[-1][1][name] == size * step for name, step in steps.items()):
            merged[-1] = (merged[-1][0] * size, steps)
        else:
            merged.append((size, steps))
    if not merged:
        merged.append((1, dict.fromkeys(strides, 1)))
    return Space(tuple(size for size, _ in merged), {name: tuple(steps[name] for _, steps in merged) for name in strides}, block)


@dataclass(frozen=True, slots=True)
class Row:
    """What one unit covers: lanes [start, stop) of one row. ``base`` points at lane 0, ``step`` is the stride a lane, per operand."""

    index: list[Value]
    start: Value
    stop: Value
    base: dict[str, Value]
    step: dict[str, Value]


@contextmanager
def rows(f: Fn, rank: int, operands: Mapping[str, Type]) -> Iterator[Row]:
    """Emit the loop over the units [r0, r1); declares the operands' pointers, the sizes, the block and the strides as arguments."""
    points = {name: f.ptr(name) for name in operands}
    sizes, block = f.i64s("n", rank), f.i64("block")
    strides = {name: f.i64s(f"{name}_s", rank) for name in operands}
    with f.loop(f.r0, f.r1) as unit:
        blocks = (sizes[-1] + block - 1) // block
        rest, start = unit // blocks, (unit % blocks) * block
        index: list[Value] = []
        for size in reversed(sizes[1:-1]):
            index.append(rest % size)
            rest = rest // size
        if len(sizes) > 1:
            index.append(rest)
        index.reverse()
        base = {}
        for name, point in points.items():
            offset = f.const(start.type, 0)
            for i, stride in zip(index, strides[name], strict=False):  # the last stride belongs to the lanes
                offset = offset + i * stride
            base[name] = point.at(offset, operands[name])
        yield Row(index, start, (start + block).min(sizes[-1]), base, {name: strides[name][-1] for name in points})
