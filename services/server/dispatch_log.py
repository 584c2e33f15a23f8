"""The dispatch core of one device with its journal on disk: every stimulus with its decisions, replayable by ``wooly replay``.

One segment is one life of a core, from its empty state on; the last few segments are kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from scheduler.dispatch import Decision, Dispatch, DispatchState, Journal, Stimulus, chain
from services.kit.log import get_logger

__all__ = ["DispatchLog"]

_SEGMENT_BYTES: Final = 64 << 20
_SEGMENTS_KEPT: Final = 4
_SEGMENT_BYTES_MAX: Final = 1 << 30
"""A node that never has a moment without sessions begins no new segment: its record ends here, its work goes on."""


class DispatchLog:
    """A core whose every step is on record. ``full``: a new segment should begin at the next chance (when no session is open)."""

    def __init__(self, folder: Path, gpu: int, epoch: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        old = sorted(folder.glob(f"gpu{gpu}-*.journal"))
        for path in old[: max(0, len(old) - _SEGMENTS_KEPT + 1)]:
            path.unlink()
        number = int(old[-1].stem.rsplit("-", 1)[1]) + 1 if old else 1
        self.path = folder / f"gpu{gpu}-{epoch:08d}-{number:08d}.journal"
        self._file = self.path.open("wb")
        self._journal = Journal()
        self._core = Dispatch()
        self._nbytes = 0
        self._broken = False

    @property
    def state(self) -> DispatchState:
        return self._core.state

    @property
    def next_wakeup_ns(self) -> int | None:
        """When the core wants to hear the time, None: not before the next stimulus."""
        due_ns: int | None = getattr(self._core, "next_wakeup_ns", None)
        return due_ns

    @property
    def full(self) -> bool:
        return self._nbytes > _SEGMENT_BYTES

    def on(self, stimulus: Stimulus) -> list[Decision]:
        """One step, recorded. Raises StimulusError."""
        decisions = self._core.on(stimulus)
        record = self._journal.add(stimulus, decisions)
        if not self._broken:
            with self._tolerant():
                if self._nbytes + len(record) > _SEGMENT_BYTES_MAX:
                    raise OSError(f"the segment has {self._nbytes} bytes and the node no moment without sessions to begin another")
                self._nbytes += self._file.write(record)
        return decisions

    def chain_after(self, session: str, seq: int) -> bytes:
        """Launch digest of a session after its batch ``seq``, which is in flight."""
        batch, before = self._core.state.sessions[session].launched[seq]
        return chain(before, seq, batch.content)

    def flush(self) -> None:
        """Hand what was recorded to the kernel."""
        if not self._broken:
            with self._tolerant():
                self._file.flush()

    def close(self) -> None:
        with self._tolerant():
            self._file.close()

    @contextlib.contextmanager
    def _tolerant(self) -> Iterator[None]:
        """The record serves people: when the disk does not take it, it ends there and the node goes on."""
        try:
            yield
        except OSError as error:
            if not self._broken:
                get_logger().warning("the dispatch journal ends here", file=str(self.path), problem=str(error))
            self._broken = True
