"""How the journal of each core is run again: the one place that knows which core a lane is of. Pure.

A lane is replayed part by part: its frames are decoded, every stimulus goes through a new core, and what that decides is compared with
what is on record, decision by decision and digest by digest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bus_schemas.journal import DISPATCH
from scheduler.dispatch import Dispatch, Journal, decode_journal

__all__ = ["LANES", "Again", "Replayed"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """One record: its time (the node's monotonic clock), what it was told, what was decided then and what now."""

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


class _Dispatch:
    """The dispatcher."""

    def __init__(self, snapshot: bytes) -> None:
        self.core = Dispatch.restore(snapshot) if snapshot else Dispatch()
        self._journal = Journal()

    @property
    def digest(self) -> bytes:
        return self._journal.digest

    def decode(self, frames: bytes) -> tuple[Sequence[Any], int]:
        return decode_journal(frames)

    def take(self, record: Any) -> Replayed:
        again = tuple(self.core.on(record.stimulus))
        self._journal.add(record.stimulus, again)
        return Replayed(record.stimulus.at_ns, record.stimulus, record.decisions, again)


LANES: Final[dict[str, Callable[[bytes], Again]]] = {DISPATCH: _Dispatch}
"""lane: a new core, from a snapshot (empty: from nothing)."""
