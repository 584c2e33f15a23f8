"""The controller's image of the event log: the placement view, kept up to the log's end. It has no other state, and none on disk.

May live here: following and waiting. May not: deciding, writing.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar, cast

import msgspec

from bus_schemas.events import Event, decode_events
from bus_schemas.subjects import EVENTS_STREAM
from scheduler.placement import ClusterView
from services.controller.errors import LogUnreadable
from services.controller.turns import Turns
from services.kit.bus import Bus
from services.kit.errors import BusRefused, BusUnavailable

__all__ = ["ACCESS", "Fold", "Mirror"]

ACCESS: Final = "wooly.evt.access."
_USAGE: Final = "wooly.evt.usage."
_SESSION: Final = "wooly.evt.session."
_PLACEMENT: Final = "wooly.evt.placement."


class Fold(Protocol):
    """Another view over the same log."""

    def apply(self, position: int, event: Event) -> None: ...


F = TypeVar("F", bound=Fold)


class Mirror:
    """``async with Mirror(bus)`` returns once the history is applied. ``position``: of the last message seen (``view.position``: of the
    last one about placement). ``failure``: why it has stopped following, or None."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._listeners: list[Callable[[int, Event], None]] = []
        self._live_from = 0
        self._folds: dict[type[Any], Fold] = {}
        self.view = ClusterView()
        self.position = 0
        self.turns = Turns()
        self.access_position = 0
        self.subject_positions: dict[str, int] = {}
        self.failure: Exception | None = None
        self._end: asyncio.Task[int] | None = None
        self._next_end: asyncio.Task[int] | None = None

    async def __aenter__(self) -> Self:
        self._live_from = await self._bus.last_position(EVENTS_STREAM) + 1
        self._follower = self._bus.follow(EVENTS_STREAM, 1, self._on_message)
        await self._follower.start()
        await self.wait_for(self._live_from - 1)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self._follower.stop()

    def also(self, kind: type[F]) -> None:
        """Keep a view of this kind as well, from the first event on. Before the block is entered."""
        self._folds[kind] = kind()

    def fold(self, kind: type[F]) -> F:
        """The view of this kind as it is now; ask again each time (it is another one after the broker lost its tail)."""
        return cast(F, self._folds[kind])

    @property
    def bus(self) -> Bus:
        return self._bus

    @property
    def connected(self) -> bool:
        """Whether the bus is there: without it, answers are as old as the moment it went."""
        return self._bus.connected

    def on_live_event(self, listener: Callable[[int, Event], None]) -> None:
        """Call ``listener(position, event)`` for every event newer than the history there was at the start."""
        self._listeners.append(listener)

    async def wait_for(self, position: int) -> None:
        """Return once everything up to ``position`` is applied; raises the failure when that will not happen."""
        if self.failure is not None:
            raise self.failure
        if position > self.position:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiters, (position, next(self._order), future))
            await future

    async def caught_up(self, timeout_s: float = 1.0) -> bool:
        """Return once everything that was in the log at the call is applied, or after ``timeout_s``: an answer then is as fresh as can be
        had. Whether it is. Callers at the same time share one question to the bus."""
        with contextlib.suppress(TimeoutError, BusUnavailable, BusRefused):
            async with asyncio.timeout(timeout_s):
                await self.wait_for(await self._log_end())
                return True
        return False

    async def _log_end(self) -> int:
        """The log's last position, asked after the call: an answer under way may be older than what the caller knows of."""
        if self._next_end is None:
            self._next_end = asyncio.create_task(self._ask_end(self._end))
            self._next_end.add_done_callback(_retrieved)
        return await asyncio.shield(self._next_end)

    async def _ask_end(self, before: asyncio.Task[int] | None) -> int:
        if before is not None:
            await asyncio.wait((before,))
        self._end, self._next_end = self._next_end, None
        return await self._bus.last_position(EVENTS_STREAM)

    def _on_message(self, position: int, subject: str, data: bytes) -> None:
        if self.failure is not None:
            return
        if position <= self.position:
            self._start_over()
        try:
            self._apply(position, subject, data)
        except msgspec.DecodeError as error:
            # A fact we cannot read may change every answer after it, so there are none.
            self.failure = LogUnreadable(f"event log position {position} ({subject}): {error}; is this controller older than a node?")
            while self._waiters:
                self._wake(self._waiters.pop()[2], self.failure)
            return
        self.position = position
        while self._waiters and self._waiters[0][0] <= position:
            self._wake(heapq.heappop(self._waiters)[2], None)

    def _apply(self, position: int, subject: str, data: bytes) -> None:
        if subject.startswith(_USAGE):
            return  # the bulk of the log, and nothing for placement
        events = decode_events(data)
        for event in events:
            self.view.apply(position, event)
            for fold in self._folds.values():
                fold.apply(position, event)
        self.turns.note(position, subject)
        if not subject.startswith((_SESSION, _PLACEMENT)):
            self.subject_positions[subject] = position
        if subject.startswith(ACCESS):
            self.access_position = position
        if position >= self._live_from:
            for event in events:
                for listener in self._listeners:
                    listener(position, event)

    def _start_over(self) -> None:
        """The broker lost the log's tail in a crash and gives positions again: forget what is no longer so."""
        self.view = ClusterView()
        self._folds = {kind: kind() for kind in self._folds}
        self.turns = Turns()
        self.access_position = 0
        self.subject_positions.clear()

    @staticmethod
    def _wake(future: asyncio.Future[None], failure: Exception | None) -> None:
        if future.done():
            return
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)


def _retrieved(task: asyncio.Task[int]) -> None:
    """Mark the task's exception as retrieved: its waiter may have been cancelled, and the event loop should not report the failure."""
    if not task.cancelled():
        task.exception()
