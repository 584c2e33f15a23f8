"""Registers split into webs: definitions and the uses they reach get registers of their own.

Front ends use one register for unrelated values (and expansion for many temporaries), which then look as if they differed between lanes
as much as the worst of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from jit.host.simt.analysis import bits_of, liveness
from wis.kernel.model import Block, Cbr, Kernel, Op, Switch, Sync, Terminator, successors

__all__ = ["split_registers"]

_NODES_MAX: Final = 300_000
"""Registers alive at starts of blocks, above which a kernel is left as it is."""


class _Sets:
    """Union-find."""

    def __init__(self) -> None:
        self.parent: list[int] = []

    def new(self) -> int:
        self.parent.append(len(self.parent))
        return len(self.parent) - 1

    def find(self, x: int) -> int:
        parent = self.parent
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    def union(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[max(a, b)] = min(a, b)


def split_registers(kernel: Kernel) -> Kernel:
    """The same kernel on more registers."""
    live = liveness(kernel)
    if sum(mask.bit_count() for mask in live) > _NODES_MAX:
        return kernel
    sets = _Sets()
    kinds: list[int] = []

    def new(r: int) -> int:
        kinds.append(kernel.regs[r])
        return sets.new()

    arriving = [{r: new(r) for r in bits_of(mask)} for mask in live]
    written: list[list[tuple[int, ...]]] = []
    read: list[list[tuple[int, ...]]] = []
    ends: list[dict[int, int]] = []
    for b, block in enumerate(kernel.blocks):
        now = dict(arriving[b])
        reads, writes = [], []
        for op in block.code:
            reads.append(tuple(now[r] for r in op.ins))
            fresh = tuple(new(r) for r in op.outs)
            now.update(zip(op.outs, fresh, strict=True))
            writes.append(fresh)
        read.append(reads)
        written.append(writes)
        ends.append(now)
        for s in successors(block.end):
            for r, node in arriving[s].items():
                if s > b:  # those of earlier blocks are joined below: theirs may not be known yet
                    sets.union(node, now[r])
    for b, block in enumerate(kernel.blocks):
        for s in successors(block.end):
            if s <= b:
                for r, node in arriving[s].items():
                    sets.union(node, ends[b][r])
    return _renamed(kernel, sets, kinds, read, written, ends)


def _renamed(
    kernel: Kernel,
    sets: _Sets,
    kinds: Sequence[int],
    read: Sequence[Sequence[tuple[int, ...]]],
    written: Sequence[Sequence[tuple[int, ...]]],
    ends: Sequence[dict[int, int]],
) -> Kernel:
    numbers: dict[int, int] = {}
    regs: list[int] = []

    def name(node: int) -> int:
        root = sets.find(node)
        if root not in numbers:
            numbers[root] = len(regs)
            regs.append(kinds[root])
        return numbers[root]

    blocks = []
    for b, block in enumerate(kernel.blocks):
        code = [
            Op(op.op, tuple(map(name, outs)), tuple(map(name, ins)), op.attrs)
            for op, ins, outs in zip(block.code, read[b], written[b], strict=True)
        ]
        blocks.append(Block(tuple(code), _renamed_end(block.end, lambda r, b=b: name(ends[b][r]))))
    return msgspec.structs.replace(kernel, regs=tuple(regs), blocks=tuple(blocks))


def _renamed_end(end: Terminator, name: object) -> Terminator:
    assert callable(name)
    if isinstance(end, Cbr):
        return Cbr(name(end.pred), end.yes, end.no)
    if isinstance(end, Switch):
        return Switch(name(end.index), end.targets, end.default)
    if isinstance(end, Sync) and end.count >= 0:
        return Sync(end.target, end.barrier, name(end.count), end.arrive)
    return end
