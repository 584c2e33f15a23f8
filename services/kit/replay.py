"""Events of a stream as an async iterator: history first, then the live tail, with the position of each message."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from bus_schemas.events import Event, decode_events

if TYPE_CHECKING:
    from services.kit.bus import Bus

__all__ = ["Replay"]

_BUFFER_HIGH: Final = 4096
_BUFFER_LOW: Final = 1024


class Replay:
    """Made by ``Bus.replay``. Yields (position, events); raises msgspec.DecodeError, with the position, on what cannot be decoded."""

    def __init__(self, bus: Bus, stream: str, from_position: int) -> None:
        self._bus = bus
        self._stream = stream
        self._buffer: deque[tuple[int, bytes]] = deque()
        self._arrived = asyncio.Event()
        self._follower = bus.follow(stream, max(1, from_position), self._on_message)
        self._started = False
        self._end = 0

    async def history_end(self) -> int:
        """Position of the last message there was when the replay started; 0 when the stream was empty."""
        await self._start()
        return self._end

    def __aiter__(self) -> Replay:
        return self

    async def __anext__(self) -> tuple[int, list[Event]]:
        await self._start()
        while not self._buffer:
            self._arrived.clear()
            await self._arrived.wait()
        position, data = self._buffer.popleft()
        if len(self._buffer) <= _BUFFER_LOW:
            self._follower.resume()
        try:
            return position, decode_events(data)
        except msgspec.DecodeError as error:
            raise msgspec.DecodeError(f"{self._stream} position {position}: {error}") from error

    async def close(self) -> None:
        await self._follower.stop()

    async def _start(self) -> None:
        if not self._started:
            self._started = True
            self._end = await self._bus.last_position(self._stream)
            await self._follower.start()

    def _on_message(self, position: int, subject: str, data: bytes) -> None:
        self._buffer.append((position, data))
        self._arrived.set()
        if len(self._buffer) >= _BUFFER_HIGH:
            self._follower.pause()
