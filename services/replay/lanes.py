"""Replay of each core's journal: the one place that knows which core a lane is of. Pure.

A lane is replayed part by part: its frames are decoded, every stimulus goes through a new core, and what that decides is compared with
what is on record, decision by decision and digest by digest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bus_schemas.journal import DISPATCH, VRAM
from scheduler import dispatch, vram
from scheduler.vram import journal as vram_journal

__all__ = ["LANES", "Again", "DispatchAgain", "Replayed", "VramAgain"]


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
