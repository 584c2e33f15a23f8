"""Keeps the billing view up to the log, and on disk. The file is a cache: without it, the log gives the same view."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from billing.errors import CorruptSnapshotError
from billing.projection import BillingView
from billing.verify import Verification, verify
from bus_schemas.subjects import EVENTS_STREAM
from services.kit.bus import Bus
from services.kit.log import get_logger
from wooly.shared.files import write_atomically

__all__ = ["Keeper"]

_SAVE_S: Final = 2.0


class Keeper:
    """Owns the view. ``async with Keeper(bus, file)`` loads, follows and saves."""

    def __init__(self, bus: Bus, file: Path) -> None:
        self._bus = bus
        self._file = file
        self._saved_position = 0
        self._history_end = 0
        self._moved = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self.view = BillingView()
        self.failure: BaseException | None = None

    async def __aenter__(self) -> Keeper:
        self.view = self._load()
        last = await self._bus.last_position(EVENTS_STREAM)
        self._history_end = last
        if self.view.position > last:  # of another log
            get_logger().warning("billing view is ahead of the log, starting over", view=self.view.position, log=last)
            self.view = BillingView()
        self._saved_position = self.view.position
        self._tasks = [
            asyncio.create_task(self._follow(), name="billing follow"),
            asyncio.create_task(self._save_often(), name="billing save"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._try_to_save()

    @property
    def connected(self) -> bool:
        """Whether the bus is there: without it, answers are as old as the moment it went."""
        return self._bus.connected

    async def caught_up(self, timeout_s: float = 5.0) -> bool:
        """Wait until the view holds everything the log held when this was called; whether it does."""
        return await self.reached(await self.log_end(), timeout_s)

    async def log_end(self) -> int:
        """Position of the log's last message. Raises BusUnavailable."""
        return await self._bus.last_position(EVENTS_STREAM)

    async def history_applied(self) -> None:
        """Wait until the view holds everything the log held when it began to follow, or has stopped following."""
        await self.moved_until(lambda view: view.position >= self._history_end or self.failure is not None)

    async def reached(self, position: int, timeout_s: float) -> bool:
        """Wait until the view holds everything up to ``position``; whether it does."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.moved_until(lambda view: view.position >= position)
        except TimeoutError:
            return False
        return True

    async def moved_until(self, condition: Callable[[BillingView], bool]) -> None:
        """Wait until ``condition(view)``; it is asked after every message."""
        async with self._moved:
            await self._moved.wait_for(lambda: condition(self.view))

    async def verify(self) -> Verification:
        """Fold the whole log again, up to where the view stands, and compare."""
        await self.caught_up()
        frozen = BillingView.decode(self.view.encode())
        again = BillingView()
        if frozen.position:
            replay = self._bus.replay(EVENTS_STREAM, 1)
            try:
                async for position, events in replay:
                    again.apply(position, events)
                    if position >= frozen.position:
                        break
            finally:
                await replay.close()
        return verify(frozen, again)

    async def _follow(self) -> None:
        replay = self._bus.replay(EVENTS_STREAM, self.view.position + 1)
        try:
            async for position, events in replay:
                if position <= self.view.position:
                    self.view = BillingView()  # the broker lost the log, or the tail of it, and gives positions again
                self.view.apply(position, events)
                async with self._moved:
                    self._moved.notify_all()
        except Exception as error:  # whatever it is, /health must say it: a bill that silently stands still is worse than none
            self.failure = error
            get_logger().error("billing stopped following the log", error=str(error))
            async with self._moved:
                self._moved.notify_all()
        finally:
            await replay.close()

    async def _save_often(self) -> None:
        while True:
            await asyncio.sleep(_SAVE_S)
            self._try_to_save()

    def _load(self) -> BillingView:
        try:
            return BillingView.decode(self._file.read_bytes())
        except FileNotFoundError:
            return BillingView()
        except CorruptSnapshotError as error:
            get_logger().warning("billing view discarded", reason=str(error))
            return BillingView()

    def _try_to_save(self) -> None:
        """The file only saves time at the next start: a full disk must not end a service whose answers come from the log."""
        try:
            self._save()
        except OSError as error:
            get_logger().warning("billing view not saved: free disk space", file=str(self._file), problem=str(error))

    def _save(self) -> None:
        """View and position in one file, replaced in one step."""
        if self.view.position == self._saved_position:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file, self.view.encode(), durable=True)
        self._saved_position = self.view.position
