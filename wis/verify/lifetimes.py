"""Fourth pass: TEMP buffers are written before they are read, and which buffers' initial zeros can be seen.

A CREATED or TEMP buffer holds zeros until written. Clearing costs a pass over memory that is wasted when everything is overwritten
first, so the pass also finds out for which buffers no instruction, and for CREATED ones nobody afterwards, can see such a zero.
"""

from __future__ import annotations

from wis.program import BoundInstr, BoundProgram, BufferKind, Operand
from wis.verify.extents import byte_span
from wis.verify.report import Report

__all__ = ["check_lifetimes"]


class _Written:
    """Which bytes of one buffer have certainly been written: disjoint sorted intervals."""

    __slots__ = ("any", "spans")

    def __init__(self) -> None:
        self.any = False
        self.spans: list[tuple[int, int]] = []

    def add(self, low: int, high: int) -> None:
        kept = []
        for a, b in self.spans:
            if b < low or high < a:
                kept.append((a, b))
            else:
                low, high = min(low, a), max(high, b)
        kept.append((low, high))
        self.spans = sorted(kept)

    def covers(self, low: int, high: int) -> bool:
        return low >= high or any(a <= low and high <= b for a, b in self.spans)


def check_lifetimes(bound: BoundProgram, report: Report) -> frozenset[int]:
    """Report reads of unwritten TEMP buffers; return the CREATED and TEMP buffers whose zeros can be seen."""
    kinds = bound.program.buffers
    written = {number: _Written() for number, kind in enumerate(kinds) if kind != BufferKind.EXTERNAL}
    zeroed: set[int] = set()
    for place, instr in enumerate(bound.code):
        report.at(place)
        for number, x in enumerate(_reads(instr)):
            state = written.get(x.buffer)
            if state is None or x.numel == 0:
                continue
            if kinds[x.buffer] == BufferKind.TEMP and not state.any:
                report.instr("unwritten", f"reads buffer {x.buffer} (operand {number} of those read), a temp that nothing has written")
            if not state.covers(*byte_span(x)):
                zeroed.add(x.buffer)
        for out in instr.outs:
            state = written.get(out.buffer)
            if state is None:
                continue
            state.any = True
            if _dense(out):
                state.add(*byte_span(out))
    for number, state in written.items():
        if kinds[number] == BufferKind.CREATED and not state.covers(0, bound.nbytes[number]):
            zeroed.add(number)
    return frozenset(zeroed)


def _reads(instr: BoundInstr) -> list[Operand]:
    reads = [x for x in instr.ins if isinstance(x, Operand)]
    return reads + list(instr.outs) if instr.op.rmw else reads


def _dense(x: Operand) -> bool:
    """Whether a write to ``x`` leaves no gap in its span (outputs never overlap themselves)."""
    low, high = x.span()
    return x.numel == high - low
