"""The access view for services that follow nothing else: kept up to the log by its access subjects alone.

(The controller folds the whole log and needs none of this.)
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Final, Self

import msgspec

from bus_schemas.events import decode_events
from bus_schemas.subjects import EVENTS_STREAM
from services.kit.access.view import AccessView
from services.kit.bus import Bus
from services.kit.errors import BusRefused, BusUnavailable
from services.kit.log import get_logger

__all__ = ["ACCESS_SUBJECTS", "AccessFollower"]

ACCESS_SUBJECTS: Final = "wooly.evt.access.*"
_HISTORY_S: Final = 30.0
_NO_MESSAGE: Final = 10037


class AccessFollower:
    """``async with AccessFollower(bus)`` returns once the history is applied. ``failure``: why it has stopped following, or None."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._heard_position = 0
        self._moved = asyncio.Event()
        self.view = AccessView()
        self.failure: Exception | None = None

    async def __aenter__(self) -> Self:
        last = await self._last()
        self._follower = self._bus.follow(EVENTS_STREAM, 1, self._on_message, subject=ACCESS_SUBJECTS)
        await self._follower.start()
        async with asyncio.timeout(_HISTORY_S):
            await self._wait_for(last)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self._follower.stop()

    @property
    def heard(self) -> bool:
        """Whether a revocation would be heard now."""
        return self._bus.connected and self.failure is None

    async def caught_up(self, timeout_s: float = 1.0) -> None:
        """Return once everything about access that is in the log now is applied, or after ``timeout_s``."""
        with contextlib.suppress(TimeoutError, BusUnavailable, BusRefused):
            async with asyncio.timeout(timeout_s):
                await self._wait_for(await self._last())

    async def _wait_for(self, position: int) -> None:
        while self._heard_position < position and self.failure is None:
            self._moved.clear()
            await self._moved.wait()

    async def _last(self) -> int:
        """Position of the last message about access, 0 when there is none."""
        try:
            answer = await self._bus.js_api(f"STREAM.MSG.GET.{EVENTS_STREAM}", {"last_by_subj": ACCESS_SUBJECTS})
        except BusRefused as refused:
            if refused.code == _NO_MESSAGE:
                return 0
            raise
        return int(answer["message"]["seq"])

    def _on_message(self, position: int, subject: str, data: bytes) -> None:
        if position <= self._heard_position:
            self.view = AccessView()  # the broker lost the log's tail and gives positions again
        try:
            for event in decode_events(data):
                self.view.apply(position, event)
        except msgspec.DecodeError as error:
            # An unreadable event may be a revocation: from now on all authentication fails.
            self.failure = error
            get_logger().error("access is not followed any more", position=position, subject=subject, error=str(error))
        self._heard_position = position
        self._moved.set()
