"""Prepares a verified kernel for interpretation: semantics, sites and types of ops looked up once, and the registers that outlive their
block.

Named functions under Math.STRICT are *defined* by their expansion into exact ops, so a plan holds that; every other op is executed as
itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from wis.kernel.expand import form_of, in_place
from wis.kernel.model import Block, Cbr, Kernel, Math, Op, RegType, Switch, Sync, Terminator, successors
from wis.kernel.ops import BY_CODE, KernelOp, Sig
from wis.kernel.verify import TRAPPING, VerifiedKernel

__all__ = ["Step", "PreparedBlock", "PreparedKernel", "prepare"]


@dataclass(frozen=True, slots=True)
class Step:
    """One op. ``types``: RegTypes of its outputs; ``site``: its number among those that may trap, or -1."""

    op: Op
    row: KernelOp
    types: tuple[RegType, ...]
    site: int


@dataclass(frozen=True, slots=True)
class PreparedBlock:
    """``keeps``: registers written here that some path reads after the block. ``cost``: instructions of each thread that runs it."""

    steps: tuple[Step, ...]
    end: Terminator
    cost: int
    keeps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PreparedKernel:
    """``lasting``: how many registers live across blocks. ``fair``: threads may wait for values from others, see ``Batch``."""

    kernel: Kernel
    blocks: tuple[PreparedBlock, ...]
    sites: int
    lasting: int
    fair: bool


def prepare(verified: VerifiedKernel) -> PreparedKernel:
    """The plan of ``verified.flat``."""
    kernel = verified.flat
    sites = {(site.block, site.op): number for number, site in enumerate(verified.sites)}
    live = _live_out(kernel.blocks)
    numbers = count(len(kernel.regs))

    def temporary(type_: RegType) -> int:
        return next(numbers)  # it never outlives its block, so it takes no memory

    blocks, lasting = [], 0
    for b, block in enumerate(kernel.blocks):
        steps: list[Step] = []
        for i, op in enumerate(block.code):
            row = BY_CODE[op.op]
            form = form_of(op, kernel.regs) if row.named and kernel.math == Math.STRICT else None
            if form is not None:
                steps += [Step(inner, BY_CODE[inner.op], (type_,), -1) for inner, type_ in in_place(form, op, temporary)]
            else:
                steps.append(Step(op, row, tuple(RegType(kernel.regs[r]) for r in op.outs), sites[b, i] if row.sig in TRAPPING else -1))
        written = {r for op in block.code for r in op.outs}
        blocks.append(PreparedBlock(tuple(steps), block.end, verified.costs[b], tuple(r for r in sorted(written) if live[b] >> r & 1)))
        lasting |= live[b]
    return PreparedKernel(kernel, tuple(blocks), len(verified.sites), lasting.bit_count(), _communicates(kernel))


def _read_by(end: Terminator) -> tuple[int, ...]:
    if isinstance(end, Cbr):
        return (end.pred,)
    if isinstance(end, Switch):
        return (end.index,)
    return (end.count,) if isinstance(end, Sync) and end.count >= 0 else ()


def _live_out(blocks: Sequence[Block]) -> list[int]:
    """For every block the set (bit r: register r) of registers that are read after it before they are written."""
    reads, writes = [], []
    for block in blocks:
        read = written = 0
        for op in block.code:
            for r in op.ins:
                read |= (1 << r) & ~written
            for r in op.outs:
                written |= 1 << r
        for r in _read_by(block.end):
            read |= (1 << r) & ~written
        reads.append(read)
        writes.append(written)
    live_in, live_out = list(reads), [0] * len(blocks)
    changed = True
    while changed:
        changed = False
        for b in range(len(blocks) - 1, -1, -1):
            out = 0
            for c in successors(blocks[b].end):
                out |= live_in[c]
            live_out[b] = out
            into = reads[b] | (out & ~writes[b])
            if into != live_in[b]:
                live_in[b], changed = into, True
    return live_out


def _communicates(kernel: Kernel) -> bool:
    """Whether a thread may wait for what another one does other than at a barrier: it looks at memory anew (volatile), or at old values."""
    for block in kernel.blocks:
        for op in block.code:
            sig = BY_CODE[op.op].sig
            if sig is Sig.ATOM or (sig is Sig.BYTES_LOAD and op.attrs[5] & 1):
                return True
    return False
