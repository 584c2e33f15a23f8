"""Order and cuts: calls to phases by their hazards, phases to chunks and claims.

A call goes into the earliest phase that comes after everything it conflicts with, so independent work shares a phase however far apart it
stood. Cuts depend only on the call, never on the number of threads: that keeps every bit of a result the same on any machine size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from jit.host.calls import Call
from jit.plan.access import Access, may_overlap
from jit.plan.calls import WholeInstr

__all__ = ["levels_of", "cut", "claims_of"]

CHUNK_NS = 20_000
CHUNKS_MIN = 16
"""A call is cut into so many chunks (fewer when they would be short), and into more when they would be long: a run stops between chunks."""
LONG_NS = 50_000
CHUNKS_MAX = 4096
CLAIM_NS = 4_000
"""Chunks cheaper than this are claimed several at a time; a phase cheaper than this is run by the caller alone."""

Piece = tuple[float, int, int]
"""(estimated ns, r0, r1)"""


def levels_of(calls: Sequence[Call | WholeInstr], before: Mapping[int, tuple[int, ...]]) -> list[int]:
    """The phase of each call; launches of the program and reference steps have one of their own. ``before``:
    temporaries whose bytes another one took over."""
    known = _Known(before)
    levels: list[int] = []
    floor = top = 0
    for call in calls:
        level = max(known.earliest(call), floor)
        if isinstance(call, WholeInstr):
            level = max(level, top)
            floor = level + 1
        levels.append(level)
        top = max(top, level + 1)
        known.put(call, level)
    return levels


class _Known:
    """Which phase each access so far is in, by buffer."""

    def __init__(self, before: Mapping[int, tuple[int, ...]]) -> None:
        self._before = before
        self._reads: dict[int, list[tuple[Access, int]]] = {}
        self._writes: dict[int, list[tuple[Access, int]]] = {}
        self._last: dict[int, int] = {}

    def earliest(self, call: Call | WholeInstr) -> int:
        """The earliest phase behind everything that conflicts."""
        level = 0
        for x in call.reads:
            level = max(level, self._behind(self._writes, x))
        for x in call.writes:
            level = max(level, self._behind(self._writes, x), self._behind(self._reads, x))
        # At every access: a temporary may be written in parts, and one without elements is not written.
        for x in (*call.reads, *call.writes):
            for old in self._before.get(x.buffer, ()):
                level = max(level, self._last.get(old, -1) + 1)
        return level

    def put(self, call: Call | WholeInstr, level: int) -> None:
        """Take note of a call that went into this phase."""
        for x in call.reads:
            self._reads.setdefault(x.buffer, []).append((x, level))
            self._last[x.buffer] = max(self._last.get(x.buffer, -1), level)
        for x in call.writes:
            if x.dense:  # a call that conflicts with what it covers conflicts with it too, and comes after it
                for known in (self._reads, self._writes):
                    if x.buffer in known:
                        known[x.buffer] = [(y, at) for y, at in known[x.buffer] if y.low < x.low or y.high > x.high or at > level]
            self._writes.setdefault(x.buffer, []).append((x, level))
            self._last[x.buffer] = max(self._last.get(x.buffer, -1), level)

    @staticmethod
    def _behind(known: dict[int, list[tuple[Access, int]]], x: Access) -> int:
        level = 0
        for other, at in reversed(known.get(x.buffer, [])):  # the latest phases are nearest to the end
            if at >= level and may_overlap(x, other):
                level = at + 1
        return level


def cut(call: Call) -> list[Piece]:
    """The chunks of one call."""
    if call.units <= 0:
        return []
    total = call.units * call.grain
    most = min(max(CHUNKS_MIN, int(total / LONG_NS)), CHUNKS_MAX)
    pieces = max(1, min(call.units, most, int(total / CHUNK_NS)))
    marks = [call.units * piece // pieces for piece in range(pieces + 1)]
    return [((b - a) * call.grain, a, b) for a, b in pairwise(marks)]


def claims_of(chunks: Sequence[tuple[float, int, int, int]]) -> list[int]:
    """Where claims begin in the chunks (estimated ns, call, r0, r1) of one phase, which are sorted so that costly ones come first."""
    if sum(chunk[0] for chunk in chunks) < CLAIM_NS:
        return [0]
    starts: list[int] = []
    held = CLAIM_NS + 1.0
    for at, chunk in enumerate(chunks):
        if held + chunk[0] > CLAIM_NS:
            starts.append(at)
            held = 0.0
        held += chunk[0]
    return starts
