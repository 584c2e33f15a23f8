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
from wis.kernel.flow import live_before
from wis.kernel.model import Block, Kernel, Math, Op, RegType, Terminator, successors
from wis.kernel.ops import BY_CODE, KernelOp, Sig
from wis.kernel.verify import TRAPPING, VerifiedKernel


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


def _live_out(blocks: Sequence[Block]) -> list[int]:
    """For every block the set (bit r: register r) of registers that are read after it before they are written."""
    before, after = live_before(blocks, range(len(blocks))), [0] * len(blocks)
    for b, block in enumerate(blocks):
        for c in successors(block.end):
            after[b] |= before[c]
    return after


def _communicates(kernel: Kernel) -> bool:
    """Whether a thread may wait for what another one does other than at a barrier: it looks at memory anew (volatile), or at old values."""
    for block in kernel.blocks:
        for op in block.code:
            sig = BY_CODE[op.op].sig
            if sig is Sig.ATOM or (sig is Sig.BYTES_LOAD and op.attrs[5] & 1):
                return True
    return False
