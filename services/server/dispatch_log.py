"""The dispatch core of one device with its journal on disk and on the bus: every stimulus with its decisions, for ``wooly replay``; and the
alarm that rings when the core is to be asked again.

The record is cut into segments: one begins with every start of a core, and with a snapshot of its state when the one before has grown
long or the bus was away for too long. A segment is one file of frames (and beside it ``.snapshot``, unless its core is new); the last few
are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from io import BufferedWriter
from pathlib import Path
from typing import Final

from scheduler.dispatch import Decision, Dispatch, DispatchState, Journal, Stimulus, chain, snapshot
from services.kit.log import get_logger
from services.server.journal_stream import Lane

_SEGMENT_BYTES: Final = 64 << 20
_SEGMENTS_KEPT: Final = 4


class DispatchLog:
    """A new core whose every step is on record."""

    def __init__(self, folder: Path, gpu: int, epoch: int, lane: Lane) -> None:
        self._folder = folder
        self._gpu = gpu
        self._epoch = epoch
        self._lane = lane
        self._core = Dispatch()
        self._file: BufferedWriter | None = None
        lane.on_gap = self.anew
        self._begin(b"")

    @property
    def state(self) -> DispatchState:
        return self._core.state

    @property
    def next_wakeup_ns(self) -> int | None:
        """When the core wants to hear the time, None: not before the next stimulus."""
        return self._core.next_wakeup_ns()

    def on(self, stimulus: Stimulus) -> list[Decision]:
        """One step, recorded. Raises StimulusError."""
        decisions = self._core.on(stimulus)
        record = self._journal.add(stimulus, decisions)
        self._nbytes += len(record)
        self._lane.add(record)
        if self._file is not None:
            try:
                self._file.write(record)
            except OSError as error:
                self._give_up(error)
        if self._nbytes > _SEGMENT_BYTES:
            self.anew()
        return decisions

    def anew(self) -> None:
        """End the segment; the next one begins with the state as it is."""
        self._begin(snapshot(self._core.state))

    def chain_after(self, session: str, seq: int) -> bytes:
        """Launch digest of a session after its batch ``seq``, which is in flight."""
        batch, before = self._core.state.sessions[session].launched[seq]
        return chain(before, seq, batch.content)

    def flush(self) -> None:
        """Hand what was recorded to the kernel."""
        if self._file is not None:
            with self._tolerant():
                self._file.flush()

    def close(self) -> None:
        self._lane.seal()
        if self._file is not None:
            with self._tolerant():
                self._file.close()
            self._file = None

    def _begin(self, state: bytes) -> None:
        if self._file is not None:
            self.close()
        self._journal = journal = Journal()
        self._nbytes = 0
        segment = self._lane.begin(lambda: journal.digest, state)
        self.path = self._folder / f"gpu{self._gpu}-{self._epoch:08d}-{segment:014d}.journal"
        with self._tolerant():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._forget()
            if state:
                self.path.with_suffix(".snapshot").write_bytes(state)
            self._file = self.path.open("wb")

    def _forget(self) -> None:
        """Room for one more segment."""
        old = sorted(self._folder.glob(f"gpu{self._gpu}-*.journal"))
        for path in old[: max(0, len(old) - _SEGMENTS_KEPT + 1)]:
            path.with_suffix(".snapshot").unlink(missing_ok=True)
            path.unlink()

    @contextlib.contextmanager
    def _tolerant(self) -> Iterator[None]:
        """The record serves people: when the disk does not take it, the file ends there and the node goes on."""
        try:
            yield
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        get_logger().warning("the dispatch journal on disk ends here", file=str(self.path), problem=str(error))
        file, self._file = self._file, None
        with contextlib.suppress(OSError):
            if file is not None:
                file.close()


class Alarm:
    """``ring()`` is called once for the time set, not before it."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._due_ns: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due_ns: int | None) -> None:
        """Ring at ``due_ns`` (monotonic), at once when that is past; None: not at all."""
        if due_ns == self._due_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due_ns = due_ns
        if due_ns is not None:
            self._wait(due_ns)

    def _wait(self, due_ns: int) -> None:
        delay_s = max(0, due_ns - time.monotonic_ns()) / 1e9
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._over)

    def _over(self) -> None:
        self._timer = None
        due_ns = self._due_ns
        if due_ns is None:
            return
        if time.monotonic_ns() < due_ns:  # timers of the loop are coarse and may be early
            self._wait(due_ns)
            return
        self._due_ns = None
        self._ring()
