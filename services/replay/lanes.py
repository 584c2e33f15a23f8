"""Replay of each core's journal: the one place that knows which core a lane is of. Pure.

A lane is replayed part by part: its frames are decoded, every stimulus goes through a new core, and what that decides is compared with
what is on record, decision by decision and digest by digest.

A *run* of a dispatcher is a stretch without a gap: segments of one device, each beginning with the snapshot of the one before. It ends
where a core began anew (the executor was started again) or where records are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bus_schemas.journal import DISPATCH, VRAM
from scheduler import dispatch, vram
from scheduler.dispatch import Decision, Dispatch, DispatchState, Stimulus
from scheduler.errors import SchedulerError
from scheduler.vram import journal as vram_journal
from scheduler.vram.state import VramState
from services.replay.errors import ReplayError
from services.replay.segments import Segment

__all__ = ["LANES", "Again", "DispatchAgain", "Replayed", "Step", "VramAgain", "begins_life", "memory_steps", "steps"]

Step = tuple[Stimulus, Sequence[Decision], DispatchState]
"""What happened, what was decided, the state after it."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One record: its time (the node's monotonic clock), its stimulus, the decisions then and the decisions now."""

    at_ns: int
    stimulus: Any
    recorded: tuple[Any, ...]
    again: tuple[Any, ...]


class Again(Protocol):
    """A core and its journal, from the beginning of a segment."""

    @property
    def digest(self) -> bytes: ...

    def decode(self, frames: bytes) -> tuple[Sequence[Any], int]:
        """Whole records, and the bytes they take. Raises SchedulerError."""
        ...

    def take(self, record: Any) -> Replayed:
        """Run one record again. Raises SchedulerError when the core refuses its stimulus."""
        ...


class DispatchAgain:
    """The dispatcher."""

    def __init__(self, snapshot: bytes) -> None:
        self.core = dispatch.Dispatch(dispatch.restore(snapshot))
        self._journal = dispatch.Journal()

    @property
    def digest(self) -> bytes:
        return self._journal.digest

    def decode(self, frames: bytes) -> tuple[Sequence[dispatch.Record], int]:
        return dispatch.decode_journal(frames)

    def take(self, record: dispatch.Record) -> Replayed:
        again = tuple(self.core.on(record.stimulus))
        self._journal.add(record.stimulus, again)
        return Replayed(record.stimulus.at_ns, record.stimulus, record.decisions, again)


class VramAgain:
    """The memory core."""

    def __init__(self, snapshot: bytes) -> None:
        self.core = vram.Vram(vram_journal.decode_state(snapshot))
        self._journal = vram_journal.Journal()

    @property
    def digest(self) -> bytes:
        return self._journal.digest

    def decode(self, frames: bytes) -> tuple[Sequence[vram_journal.Record], int]:
        return vram_journal.decode_journal(frames)

    def take(self, record: vram_journal.Record) -> Replayed:
        again = tuple(self.core.on(record.stimulus))
        self._journal.add(record.stimulus, again)
        return Replayed(record.stimulus.at_ns, record.stimulus, record.decisions, again)


LANES: Final[dict[str, Callable[[bytes], Again]]] = {DISPATCH: DispatchAgain, VRAM: VramAgain}
"""lane: a new core, from a snapshot (empty: from nothing)."""


def begins_life(segment: Segment, before: Segment | None) -> bool:
    """Does nothing of what went before hold on?"""
    return before is None or bool(before.gap) or not segment.snapshot


def memory_steps(segment: Segment) -> Iterator[tuple[Replayed, VramState]]:
    """Of the memory core's lane: every record with the state after it. Raises ReplayError where the journal cannot be read or gives other
    decisions than those on record."""
    again = _begin(segment)
    assert isinstance(again, VramAgain)
    for seen in _run(segment, again):
        yield seen, again.core.state


def steps(segment: Segment) -> Iterator[tuple[Dispatch, Step | None]]:
    """Of the dispatcher's lane: first (the core as the segment finds it, None), then the core with every step. Raises ReplayError."""
    again = _begin(segment)
    assert isinstance(again, DispatchAgain)
    yield again.core, None
    for seen in _run(segment, again):
        yield again.core, (seen.stimulus, seen.recorded, again.core.state)


def _begin(segment: Segment) -> Again:
    try:
        return LANES[segment.lane](segment.snapshot)
    except SchedulerError as error:
        raise _broken(segment, str(error)) from None


def _run(segment: Segment, again: Again) -> Iterator[Replayed]:
    at = 0
    try:
        for part in segment.parts:
            for record in again.decode(part.frames)[0]:
                seen = again.take(record)
                if seen.again != seen.recorded:
                    raise _broken(segment, f"record {at} gives other decisions now")
                yield seen
                at += 1
    except SchedulerError as error:
        raise _broken(segment, f"record {at}: {error}") from None


def _broken(segment: Segment, problem: str) -> ReplayError:
    where = f"segment {segment.number} of the {segment.lane} journal of {segment.node}"
    return ReplayError(f"{where} cannot be run again, {problem}: see wooly replay")
