"""Order and cuts: calls to phases by their hazards, phases to chunks and claims.

A call goes into the earliest phase that comes after everything it conflicts with, so independent work shares a phase however far apart it
stood. Cuts depend only on the call, never on the number of threads: that keeps every bit of a result the same on any machine size.

May live here: hazards and cutting. May not: addresses, running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jit.host.calls import Call, Fallback
from jit.plan.access import Access, may_overlap

__all__ = ["Segment", "Chunk", "schedule"]

CHUNK_NS = 20_000
CHUNKS_MAX = 16
CLAIM_NS = 4_000
"""Chunks cheaper than this are claimed several at a time; a phase cheaper than this is run by the caller alone."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Units [r0, r1) of call number ``call``."""

    call: int
    r0: int
    r1: int


@dataclass(slots=True)
class Segment:
    """Native phases between two reference steps: ``phases[p]`` is a list of claims, each a list of chunks; or a fallback's number."""

    phases: list[list[list[Chunk]]]
    fallback: int | None


def schedule(calls: Sequence[Call | Fallback], before: Mapping[int, tuple[int, ...]]) -> list[Segment]:
    """The segments of a plan. ``before``: temporaries whose bytes another one took over."""
    levels = _Levels(before)
    segments: list[Segment] = []
    current: dict[int, list[int]] = {}
    floor = 0
    for number, call in enumerate(calls):
        level = max(levels.of(call), floor)
        if isinstance(call, Fallback):
            segments.append(Segment(_phases(calls, current), None))
            segments.append(Segment([], number))
            current = {}
            level = max(levels.top + 1, floor)
            floor = level + 1
        else:
            current.setdefault(level, []).append(number)
        levels.put(call, level)
    segments.append(Segment(_phases(calls, current), None))
    return [s for s in segments if s.phases or s.fallback is not None]


class _Levels:
    """Which phase each access so far is in, by buffer."""

    def __init__(self, before: Mapping[int, tuple[int, ...]]) -> None:
        self._before = before
        self._reads: dict[int, list[tuple[Access, int]]] = {}
        self._writes: dict[int, list[tuple[Access, int]]] = {}
        self._last: dict[int, int] = {}
        self.top = -1

    def of(self, call: Call | Fallback) -> int:
        """The earliest phase behind everything that conflicts."""
        level = 0
        for x in call.reads:
            level = max(level, self._behind(self._writes, x))
        for x in call.writes:
            level = max(level, self._behind(self._writes, x), self._behind(self._reads, x))
            for old in self._before.get(x.buffer, ()):  # at every write: a temporary may be written in parts
                level = max(level, self._last.get(old, -1) + 1)
        return level

    def put(self, call: Call | Fallback, level: int) -> None:
        """Take note of a call that went into this phase."""
        self.top = max(self.top, level)
        for x in call.reads:
            self._reads.setdefault(x.buffer, []).append((x, level))
            self._last[x.buffer] = max(self._last.get(x.buffer, -1), level)
        for x in call.writes:
            self._writes.setdefault(x.buffer, []).append((x, level))
            self._last[x.buffer] = max(self._last.get(x.buffer, -1), level)

    @staticmethod
    def _behind(known: dict[int, list[tuple[Access, int]]], x: Access) -> int:
        level = 0
        for other, at in known.get(x.buffer, ()):
            if at >= level and may_overlap(x, other):
                level = at + 1
        return level


def _phases(calls: Sequence[Call | Fallback], levels: Mapping[int, Sequence[int]]) -> list[list[list[Chunk]]]:
    phases = []
    for level in sorted(levels):
        members = [(number, call) for number in levels[level] if isinstance(call := calls[number], Call) and call.units > 0]
        if members:
            phases.append(_claims(members))
    return phases


def _claims(members: Sequence[tuple[int, Call]]) -> list[list[Chunk]]:
    """The costly chunks first, so that the last to finish are short; cheap ones together."""
    chunks: list[tuple[float, Chunk]] = []
    for number, call in members:
        total = call.units * call.grain
        pieces = max(1, min(call.units, call.max_chunks or CHUNKS_MAX, int(total / CHUNK_NS)))
        for piece in range(pieces):
            r0, r1 = call.units * piece // pieces, call.units * (piece + 1) // pieces
            chunks.append(((r1 - r0) * call.grain, Chunk(number, r0, r1)))
    chunks.sort(key=lambda x: -x[0])
    if sum(cost for cost, _ in chunks) < CLAIM_NS:
        return [[chunk for _, chunk in chunks]]
    claims: list[list[Chunk]] = []
    held = CLAIM_NS + 1.0
    for cost, chunk in chunks:
        if held + cost > CLAIM_NS:
            claims.append([])
            held = 0.0
        claims[-1].append(chunk)
        held += cost
    return claims
