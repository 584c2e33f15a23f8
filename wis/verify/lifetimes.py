"""Fourth pass: TEMP buffers are written before they are read, and which buffers' initial zeros can be seen.

A CREATED or TEMP buffer holds zeros until written. Clearing costs a pass over memory that is wasted when everything is overwritten
first, so ``find_zeroed`` says for which buffers an instruction, or a later reader of a CREATED one, can see such a zero.
"""

from __future__ import annotations

from typing import NamedTuple

from wis.ops import BY_CODE
from wis.program import BoundInstr, BoundProgram, BufferKind, Operand, Program, Ref
from wis.verify.extents import byte_span
from wis.verify.report import Report


class EarlyRead(NamedTuple):
    """Operand ``number`` (of the outputs or inputs) of the instruction at ``place`` reads a TEMP buffer that nothing before it wrote."""

    place: int
    is_out: bool
    number: int


def early_reads(program: Program) -> tuple[EarlyRead, ...]:
    """All of them. Needs no dims; only those with elements break a rule."""
    unwritten = {number for number, kind in enumerate(program.buffers) if kind == BufferKind.TEMP}
    found = []
    for place, instr in enumerate(program.code):
        if not unwritten:
            break
        found += [EarlyRead(place, False, i) for i, x in enumerate(instr.ins) if isinstance(x, Ref) and x.buffer in unwritten]
        if BY_CODE[instr.op].rmw:
            found += [EarlyRead(place, True, i) for i, out in enumerate(instr.outs) if out.buffer in unwritten]
        unwritten.difference_update([out.buffer for out in instr.outs])
    return tuple(found)


def check_early_reads(bound: BoundProgram, reads: tuple[EarlyRead, ...], report: Report) -> None:
    """Report those of ``reads`` that have elements."""
    for place, is_out, number in reads:
        instr = bound.code[place]
        x = (instr.outs if is_out else instr.ins)[number]
        if isinstance(x, Operand) and 0 not in x.shape:
            report.at(place)
            say = report.out if is_out else report.ins
            say(number, "unwritten", f"{instr.op.name} reads buffer {x.buffer}, a temp that nothing has written")


class _Written:
    """Which bytes of one buffer have certainly been written: disjoint sorted intervals.

    ``series``: of writes that repeat an interval (the parts of a join along an inner dimension), by (first period, bytes of a period,
    number of periods) the bytes of a period that were written. Together they may leave no gap.
    """

    __slots__ = ("series", "spans")

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        self.series: dict[tuple[int, int, int], _Written] = {}

    def add_operand(self, x: Operand) -> None:
        """What a write to ``x`` has certainly written."""
        found = _repeated(x)
        if found is None:
            return
        low, nbytes, period, count = found
        if count == 1:
            self.add(low, low + nbytes)
            return
        first, phase = divmod(low, period)
        within = self.series.setdefault((first, period, count), _Written())
        within.add(phase, phase + nbytes)
        if within.covers(0, period):
            self.add(first * period, (first + count) * period)

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


def touches(program: Program) -> dict[int, tuple[int, ...]]:
    """For every CREATED and TEMP buffer, the places of the instructions that have it as an operand."""
    found: dict[int, list[int]] = {number: [] for number, kind in enumerate(program.buffers) if kind != BufferKind.EXTERNAL}
    for place, instr in enumerate(program.code):
        for buffer in {x.buffer for x in (*instr.outs, *instr.ins) if isinstance(x, Ref)}:
            if buffer in found:
                found[buffer].append(place)
    return {number: tuple(places) for number, places in found.items()}


def find_zeroed(bound: BoundProgram, touched: dict[int, tuple[int, ...]]) -> frozenset[int]:
    """The CREATED and TEMP buffers whose zeros can be seen. ``bound`` keeps all other rules."""
    return frozenset(number for number, places in touched.items() if bound.nbytes[number] and _shows_zeros(bound, number, places))


def _shows_zeros(bound: BoundProgram, number: int, places: tuple[int, ...]) -> bool:
    nbytes = bound.nbytes[number]
    written = _Written()
    for place in places:
        instr = bound.code[place]
        for x in _reads(instr):
            if x.buffer == number and not written.covers(*byte_span(x)):
                return True
        for out in instr.outs:
            if out.buffer == number:
                # Outputs stay inside of their buffer and never meet an element twice: as many bytes as the buffer has are all of it.
                if out.numel * out.dtype.itemsize == nbytes:
                    return False
                if out.numel:
                    written.add_operand(out)
    return bound.program.buffers[number] == BufferKind.CREATED and not written.covers(0, nbytes)


def _reads(instr: BoundInstr) -> list[Operand]:
    reads = [x for x in instr.ins if isinstance(x, Operand)]
    return reads + list(instr.outs) if instr.op.rmw else reads


def _repeated(x: Operand) -> tuple[int, int, int, int] | None:
    """A view with elements as an interval of bytes that repeats: (first byte, bytes, distance in bytes, how often); else None."""
    n_run = n_series = 1
    period = 0
    for stride, size in sorted((abs(stride), size) for size, stride in zip(x.shape, x.strides, strict=True) if size > 1):
        if not period and stride == n_run:
            n_run *= size
        elif not period:
            period, n_series = stride, size
        elif stride == period * n_series:
            n_series *= size
        else:
            return None
    itemsize = x.dtype.itemsize
    low = x.span()[0] * itemsize
    nbytes, distance = n_run * itemsize, period * itemsize
    return (low, nbytes, distance, n_series) if n_series == 1 or low % distance + nbytes <= distance else None
