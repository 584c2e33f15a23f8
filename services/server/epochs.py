"""The epochs of this node that the log knows: the node's own journal may be lost, its facts in the log are not."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import msgspec

from bus_schemas.events import NodeRegistered, decode_events
from bus_schemas.subjects import EVENTS_STREAM, event_subject
from services.kit.bus import Bus
from services.kit.errors import BusRefused, BusUnavailable
from services.kit.log import get_logger

__all__ = ["last_epoch"]

_HISTORY_S: Final = 10.0


async def last_epoch(bus: Bus, node: str) -> int:
    """The last epoch in which ``node`` registered; 0 when it never did, or the bus does not say (there is no log yet, or the node may not
    read it: what it does next says so better)."""
    last = 0

    def on_fact(position: int, subject: str, data: bytes) -> None:
        nonlocal last
        with contextlib.suppress(msgspec.DecodeError):  # of a newer version
            last = max([last, *(event.epoch for event in decode_events(data) if isinstance(event, NodeRegistered))])

    follower = bus.follow(EVENTS_STREAM, 1, on_fact, subject=event_subject("node", node))
    try:
        await follower.start()
        async with asyncio.timeout(_HISTORY_S):
            await follower.current.wait()
    except BusRefused:
        pass  # there is no log yet
    except (BusUnavailable, TimeoutError) as problem:
        get_logger().warning("the log does not say which starts of this node it knows", problem=str(problem))
    finally:
        await follower.stop()
    return last
