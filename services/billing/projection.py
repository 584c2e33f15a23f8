"""The billing view, kept up to the log and saved on disk. The file is a cache: without it, the log gives the same view.

A copy of the process (fork) saves it: a view of millions of records takes seconds to encode, in which billing would answer no node.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from billing.errors import CorruptSnapshotError
from billing.projection import BillingView, verify
from bus_schemas.credits import Verification
from bus_schemas.events import decode_events
from bus_schemas.subjects import EVENTS_STREAM
from services.kit.bus import Bus
from services.kit.errors import LogUnreadable
from services.kit.log import get_logger
from services.kit.projection import Projection
from wooly.shared.files import write_atomically

__all__ = ["BillingProjection"]

_SAVE_S: Final = 2.0
_SAVE_SHARE: Final = 20
"""Of the time, at most one part in so many is spent saving."""
_CATCH_UP_S: Final = 5.0


class BillingProjection(Projection):
    """``async with BillingProjection(bus, file)`` loads the snapshot, follows the log and saves."""

    FATAL = (Exception,)  # a bill that silently stands still is worse than none

    def __init__(self, bus: Bus, file: Path) -> None:
        super().__init__(bus)
        self._file = file
        self._saved_position = 0
        self._history_end = 0
        self.view = BillingView()

    async def __aenter__(self) -> Self:
        self._clear()
        self.view = self._load()
        self._history_end = await self._bus.last_position(EVENTS_STREAM)
        if self.view.position and await self._bus.stored_at_ns(EVENTS_STREAM, self.view.position) != self.view.stored_ns:
            get_logger().warning("billing view is of another log, starting over", view=self.view.position, log=self._history_end)
            self.view = BillingView()
        self.position = self._saved_position = self.view.position
        await self.follow()
        self._saving = asyncio.create_task(self._save_often(), name="billing save")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._saving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._saving
        await self.stop()
        if self._unsaved():
            self._write()

    def apply(self, position: int, subject: str, data: bytes) -> None:
        self.view.apply(position, decode_events(data), self.stored_ns)

    def start_over(self) -> None:
        self.view = BillingView()

    async def fresh_view(self) -> BillingView:
        """The view with everything that the log holds now, or as much of it as is folded in 5 s. Raises BusUnavailable, and the failure:
        a view that stands still says nothing of the bill."""
        await self.reached(await self.log_end(), _CATCH_UP_S)
        if self.failure is not None:
            raise self.failure
        return self.view

    async def history_applied(self) -> None:
        """Return once the view holds everything that the log held at the start, or has stopped following."""
        with contextlib.suppress(LogUnreadable):
            await self.wait_for(self._history_end)

    async def verify(self) -> Verification:
        """Fold the whole log again, up to the position of the view, and compare."""
        frozen = BillingView.decode((await self.fresh_view()).encode())
        again = BillingView()
        if frozen.position:
            replay = self._bus.replay(EVENTS_STREAM, 1)
            try:
                async for position, events in replay:
                    again.apply(position, events, replay.stored_ns)
                    if position >= frozen.position:
                        break
            finally:
                await replay.close()
        return verify(frozen, again)

    async def _save_often(self) -> None:
        loop, took_s = asyncio.get_running_loop(), 0.0
        while True:
            await asyncio.sleep(max(_SAVE_S, _SAVE_SHARE * took_s))
            began_s = loop.time()
            if self._unsaved():
                await self._save()
            took_s = loop.time() - began_s

    async def _save(self) -> None:
        """Save what the view is now, beside all else."""
        position = self.view.position
        try:
            if await in_a_copy(self._write):
                self._saved_position = position
        except asyncio.CancelledError:
            self._clear()
            raise

    def _clear(self) -> None:
        """Remove what was not written to its end."""
        for part in self._file.parent.glob(f"{self._file.name}.*.new"):
            part.unlink(missing_ok=True)

    def _load(self) -> BillingView:
        try:
            return BillingView.decode(self._file.read_bytes())
        except FileNotFoundError:
            return BillingView()
        except CorruptSnapshotError as error:
            get_logger().warning("billing view discarded", reason=str(error))
            return BillingView()

    def _unsaved(self) -> bool:
        return self.view.position != self._saved_position and self.failure is None

    def _write(self) -> bool:
        """Whether that worked. The file only saves time at the next start: a full disk must not end a service whose answers come from the
        log."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file, self.view.encode(), durable=True)
        except OSError as error:
            get_logger().warning("billing view not saved: free disk space", file=str(self._file), problem=str(error))
            return False
        return True


async def in_a_copy(work: Callable[[], bool]) -> bool:
    """What ``work`` returns in a copy of this process, which is killed when the caller is cancelled: it changes nothing after that."""
    child = os.fork()
    if child == 0:
        try:
            signal.set_wakeup_fd(-1)  # it is the loop's
            os._exit(0 if work() else 1)
        finally:
            os._exit(1)
    waiting = asyncio.ensure_future(asyncio.to_thread(os.waitpid, child, 0))
    try:
        _, status = await asyncio.shield(waiting)
    except asyncio.CancelledError:
        os.kill(child, signal.SIGKILL)
        await waiting
        raise
    return status == 0
