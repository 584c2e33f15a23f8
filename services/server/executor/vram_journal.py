"""The memory core's journal until the server takes it: frames, and the state its segment begins with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from scheduler.vram import Decision, Stimulus, VramState
from scheduler.vram.journal import Journal, encode_state

_BYTES_MAX: Final = 16 << 20
"""Kept for a server that is away; what is more ends the segment."""


class Taken(NamedTuple):
    """``frames``: ``records`` of them. ``digest``: the journal's after the last. ``snapshot`` not None: a new segment begins with this
    state (empty: a new core's) and these frames."""

    frames: bytes
    records: int
    digest: bytes
    snapshot: bytes | None


class VramJournal:
    """``add`` every stimulus with what it gave; ``take`` hands over what was added since."""

    def __init__(self, state: VramState) -> None:
        self._state = state
        self._journal = Journal()
        self._frames: list[bytes] = []
        self._bytes = 0
        self._snapshot: bytes | None = b""

    def add(self, stimulus: Stimulus, decisions: Iterable[Decision]) -> None:
        """The state is the one after ``stimulus``."""
        frame = self._journal.add(stimulus, decisions)
        self._frames.append(frame)
        self._bytes += len(frame)
        if self._bytes > _BYTES_MAX:
            self.anew()

    def anew(self) -> None:
        """Begin a new segment with the state as it is."""
        self._journal = Journal()
        self._frames.clear()
        self._bytes = 0
        self._snapshot = encode_state(self._state)

    @property
    def waiting(self) -> bool:
        """There is something to take."""
        return bool(self._frames) or self._snapshot is not None

    def take(self) -> Taken | None:
        """None when there is nothing new."""
        if not self.waiting:
            return None
        taken = Taken(b"".join(self._frames), len(self._frames), self._journal.digest, self._snapshot)
        self._frames.clear()
        self._bytes = 0
        self._snapshot = None
        return taken
