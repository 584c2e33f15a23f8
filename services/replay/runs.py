"""Segments run again, record by record, for a caller that consumes the steps. Pure.

A *life* of a dispatcher is a stretch without a gap: segments of one device, each beginning with the snapshot of the one before. It ends
where a core began anew (the executor was started again) or where records are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scheduler.dispatch import Decision, Dispatch, DispatchState, Stimulus
from scheduler.errors import SchedulerError
from scheduler.vram.state import VramState
from services.replay.errors import ReplayError
from services.replay.lanes import LANES, Again, DispatchAgain, Replayed, VramAgain
from services.replay.segments import Segment

__all__ = ["Step", "begins_life", "memory_steps", "steps"]

Step = tuple[Stimulus, Sequence[Decision], DispatchState]
"""What happened, what was decided, the state after it."""


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
