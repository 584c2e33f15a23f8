"""Reading streams to whoever came to the bus with a key: such a one may not speak to JetStream, which answers wherever it is told to.

Any controller does it. The consumer that it makes delivers into an inbox of who asked, and nowhere else; it lives on the broker, so it
goes on whatever becomes of this controller, and ends when nobody listens to that inbox any more.

May live here: looking at what was asked, doing it. May not: who may read what (kit.bus_permissions).
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from typing import Final

import msgspec

from bus_schemas.reading import READ_ALL, AboutStream, Asked, Follow, Following, Refused, Said, Unfollow, follow_fault, subject_fault
from bus_schemas.subjects import requester
from services.controller.mirror import Mirror
from services.kit.access import AccessView
from services.kit.bus import Bus
from services.kit.bus_permissions import may_follow, may_know
from services.kit.errors import BusRefused, BusUnavailable

__all__ = ["Readings"]

_CONSUMERS_MAX: Final = 64
"""Of one principal, made by one controller: a node follows about eight things at a time. When it asks for more, its oldest end."""
_NOT_YOURS: Final = Refused("your key does not read this")


class Readings:
    """``serve`` once; ends with the bus's connection."""

    def __init__(self, bus: Bus, mirror: Mirror) -> None:
        self._bus = bus
        self._mirror = mirror
        self._made: dict[str, OrderedDict[str, str]] = {}
        """By principal: consumers, the oldest first, and their streams."""

    async def serve(self, queue: str) -> None:
        await self._bus.serve(READ_ALL, self._asked, principal=requester, queue=queue)

    async def _asked(self, subject: str, data: bytes) -> bytes | None:
        """Silence when nothing can be said now: another controller may, or it is asked again."""
        if not self._mirror.connected or self._mirror.failure is not None:
            return None
        try:
            asked = msgspec.msgpack.decode(data, type=Asked)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.msgpack.encode(Refused("this cannot be read; is it of another version?"))
        try:
            return msgspec.msgpack.encode(await self._answer(requester(subject), asked))
        except BusUnavailable:
            return None
        except BusRefused as refused:
            return msgspec.msgpack.encode(Refused(str(refused), refused.code))

    async def _answer(self, principal: str, asked: Asked) -> Said:
        who = self._mirror.fold(AccessView).principal(principal, time.time_ns())
        if who is None:
            return _NOT_YOURS
        if isinstance(asked, AboutStream):
            if not may_know(who, asked.stream, asked.subject):
                return _NOT_YOURS
            fault = subject_fault(asked.subject)
            return Refused(fault) if fault else await self._bus.reads.about(asked)
        fault = follow_fault(asked, principal)
        if fault:
            return Refused(fault)
        if isinstance(asked, Unfollow):
            return await self._unfollow(principal, asked) if may_know(who, asked.stream, "") else _NOT_YOURS
        return await self._follow(principal, asked) if may_follow(who, asked.stream, asked.subject) else _NOT_YOURS

    async def _follow(self, principal: str, asked: Follow) -> Said:
        made = self._made.setdefault(principal, OrderedDict())
        while len(made) >= _CONSUMERS_MAX:
            consumer, stream = made.popitem(last=False)
            with contextlib.suppress(BusRefused):  # it ended long ago
                await self._bus.reads.unfollow(Unfollow(stream, consumer))
        following = await self._bus.reads.follow(asked)
        made[asked.consumer] = asked.stream
        return following

    async def _unfollow(self, principal: str, asked: Unfollow) -> Said:
        """By its name it is theirs."""
        self._made.get(principal, OrderedDict()).pop(asked.consumer, None)
        await self._bus.reads.unfollow(asked)
        return Following()
