"""A stream of the bus from its first message to the last one there was when reading began."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from bus_schemas.reading import AboutStream
from services.kit.bus import Bus
from services.kit.errors import BusRefused

__all__ = ["history"]

_BUFFER_HIGH: Final = 512
_BUFFER_LOW: Final = 128
_NO_STREAM: Final = 10059
"""JetStream's err_code."""


async def history(bus: Bus, stream: str, subject: str, begin: int = 1) -> AsyncIterator[bytes]:
    """The data of every message on ``subject`` (wildcards allowed) from position ``begin`` on, in order; none without such a stream. Raises
    BusUnavailable."""
    end = await _last(bus, stream, subject)
    if end < begin or not end:
        return
    buffer: deque[tuple[int, bytes]] = deque()
    arrived = asyncio.Event()

    def on_message(position: int, _: str, data: bytes) -> None:
        buffer.append((position, data))
        arrived.set()
        if len(buffer) >= _BUFFER_HIGH:
            follower.pause()

    follower = bus.follow(stream, begin, on_message, subject=subject)
    await follower.start()
    try:
        position = 0
        while position < end:
            while not buffer:
                arrived.clear()
                await arrived.wait()
            position, data = buffer.popleft()
            if len(buffer) <= _BUFFER_LOW:
                follower.resume()
            if position <= end:
                yield data
    finally:
        await follower.stop()


async def _last(bus: Bus, stream: str, subject: str) -> int:
    """Position of the last message on ``subject``, 0: none."""
    try:
        return (await bus.reads.about(AboutStream(stream, subject))).last_on_subject
    except BusRefused as error:
        if error.code == _NO_STREAM:
            return 0
        raise
