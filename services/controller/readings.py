"""Authorised JetStream consumer proxy for clients authenticated by API key, which have no access to the JetStream API themselves, because a
caller of it chooses the subject that its answers go to.

Any controller serves it. The consumer that it creates delivers only into an inbox of the requester. The consumer lives on the broker, so it
outlives this controller, and ends when that inbox has no subscriber any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, defaultdict
from typing import Final

import msgspec

from bus_schemas.reading import (
    READ_ALL,
    AboutStream,
    Asked,
    Follow,
    Following,
    Refused,
    Said,
    Unfollow,
    consumer_owner,
    follow_fault,
    subject_fault,
)
from bus_schemas.subjects import requester
from services.controller.mirror import Mirror
from services.kit.access import AccessView
from services.kit.access.tokens import is_key_id
from services.kit.bus import Bus
from services.kit.bus_permissions import PUBLIC_STREAMS, may_follow, may_know
from services.kit.errors import BusRefused, BusUnavailable

__all__ = ["Readings"]

_CONSUMERS_MAX: Final = 64
"""Of one principal, made by one controller: a node follows about eight things at a time. When it asks for more, its oldest end."""
_NOT_YOURS: Final = Refused("your key may not read this: that needs the role admin or operator, without a tenant")


class _Made:
    """The consumers of a principal that we made, as (stream, name), the oldest first. ``turn``: one is made after the other, so that
    never more are there, however many are asked for at once."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.consumers: OrderedDict[tuple[str, str], None] = OrderedDict()


class Readings:
    """``serve`` once; ends with the bus's connection."""

    def __init__(self, bus: Bus, mirror: Mirror) -> None:
        self._bus = bus
        self._mirror = mirror
        self._made: defaultdict[str, _Made] = defaultdict(_Made)

    async def serve(self, queue: str) -> None:
        await self._bus.serve(READ_ALL, self._asked, principal=requester, queue=queue)

    async def end_those_without_right(self) -> None:
        """End the consumers, of any controller, whose keys have lost the right to read what they deliver: such a key may still be valid,
        with fewer rights, and receive messages on its inbox. Raises BusUnavailable."""
        for stream in PUBLIC_STREAMS:
            for consumer in await self._names(stream):
                principal = consumer_owner(consumer)
                if is_key_id(principal) and not self._knows(principal, stream):
                    with contextlib.suppress(BusRefused):  # it has ended
                        await self._bus.reads.unfollow(Unfollow(stream, consumer))

    async def _names(self, stream: str) -> list[str]:
        names: list[str] = []
        with contextlib.suppress(BusRefused):  # there is no such stream
            while True:
                answer = await self._bus.js_api(f"CONSUMER.NAMES.{stream}", {"offset": len(names)})
                names += answer["consumers"] or []
                if not answer["consumers"] or len(names) >= answer["total"]:
                    break
        return names

    def _knows(self, principal: str, stream: str) -> bool:
        who = self._mirror.fold(AccessView).principal(principal, time.time_ns())
        return who is not None and may_know(who, stream, "")

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
        made = self._made[principal]
        async with made.turn:
            while len(made.consumers) >= _CONSUMERS_MAX:
                await self._end(made, *next(iter(made.consumers)))
            key = asked.stream, asked.consumer
            made.consumers[key] = None  # before it is there: when no answer comes, it may be
            try:
                return await self._bus.reads.follow(asked)
            except BusRefused:
                made.consumers.pop(key, None)
                raise

    async def _unfollow(self, principal: str, asked: Unfollow) -> Said:
        """By its name it is theirs."""
        await self._end(self._made[principal], asked.stream, asked.consumer)
        return Following()

    async def _end(self, made: _Made, stream: str, consumer: str) -> None:
        with contextlib.suppress(BusRefused):  # it ended long ago
            await self._bus.reads.unfollow(Unfollow(stream, consumer))
        made.consumers.pop((stream, consumer), None)
