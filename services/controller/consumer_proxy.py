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

from bus_schemas.access import (
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
from bus_schemas.limits import MALFORMED
from bus_schemas.subjects import batch_stream, requester
from services.controller.log_projection import LogProjection
from services.kit.access import AccessView
from services.kit.access.tokens import is_key_id
from services.kit.bus import Bus
from services.kit.bus_permissions import PUBLIC_STREAMS, may_follow, may_know
from services.kit.errors import BusRefused, BusUnavailable
from services.kit.streams import batch_stream_config

_CONSUMERS_MAX: Final = 64
"""Consumers of one principal on one controller; a node needs about eight. Beyond it the oldest is deleted."""
_NOT_YOURS: Final = Refused("your key may not read this: that needs the role admin or operator, without a tenant")


class _Owned:
    """The consumers that this controller created for a principal."""

    def __init__(self) -> None:
        #: held while one is created, so that concurrent requests do not exceed the bound
        self.turn = asyncio.Lock()
        #: (stream, name), the oldest first
        self.consumers: OrderedDict[tuple[str, str], None] = OrderedDict()


class ConsumerProxy:
    """Serves requests from ``serve`` until the connection to the bus is closed."""

    def __init__(self, bus: Bus, projection: LogProjection) -> None:
        self._bus = bus
        self._projection = projection
        self._owned: defaultdict[str, _Owned] = defaultdict(_Owned)

    async def serve(self, queue: str) -> None:
        await self._bus.serve(READ_ALL, self._asked, principal=requester, queue=queue)

    async def delete_unauthorised(self) -> None:
        """Delete the consumers, of any controller, whose keys have lost the right to read what they deliver: such a key may still be valid,
        with fewer rights, and receive messages on its inbox. Raises BusUnavailable."""
        for stream in PUBLIC_STREAMS:
            for consumer in await self._names(stream):
                principal = consumer_owner(consumer)
                if is_key_id(principal) and not self._knows(principal, stream):
                    with contextlib.suppress(BusRefused):  # it has ended
                        await self._bus.consumers.unfollow(Unfollow(stream, consumer))

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
        who = self._projection.fold(AccessView).principal(principal, time.time_ns())
        return who is not None and may_know(who, stream, "")

    async def _asked(self, subject: str, data: bytes) -> bytes | None:
        """The answer; None (silence) while this controller cannot check rights: another one answers, or the client asks again."""
        if not self._projection.connected or self._projection.failure is not None:
            return None
        try:
            asked = msgspec.msgpack.decode(data, type=Asked)
        except MALFORMED:
            return msgspec.msgpack.encode(Refused("this cannot be read; is it of another version?"))
        try:
            return msgspec.msgpack.encode(await self._answer(requester(subject), asked))
        except BusUnavailable:
            return None
        except BusRefused as refused:
            return msgspec.msgpack.encode(Refused(str(refused), refused.code))

    async def _answer(self, principal: str, asked: Asked) -> Said:
        who = self._projection.fold(AccessView).principal(principal, time.time_ns())
        if who is None:
            return _NOT_YOURS
        if isinstance(asked, AboutStream):
            if not may_know(who, asked.stream, asked.subject):
                return _NOT_YOURS
            fault = subject_fault(asked.subject)
            if not fault and asked.stream == batch_stream(who.node or "-"):
                await self._bus.ensure_stream(batch_stream_config(who.node))  # the server that held it may be lost
            return Refused(fault) if fault else await self._bus.consumers.about(asked)
        fault = follow_fault(asked, principal)
        if fault:
            return Refused(fault)
        if isinstance(asked, Unfollow):
            return await self._unfollow(principal, asked) if may_know(who, asked.stream, "") else _NOT_YOURS
        return await self._follow(principal, asked) if may_follow(who, asked.stream, asked.subject) else _NOT_YOURS

    async def _follow(self, principal: str, asked: Follow) -> Said:
        owned = self._owned[principal]
        async with owned.turn:
            while len(owned.consumers) >= _CONSUMERS_MAX:
                await self._end(owned, *next(iter(owned.consumers)))
            key = asked.stream, asked.consumer
            owned.consumers[key] = None  # before it exists: without an answer it may have been created
            try:
                return await self._bus.consumers.follow(asked)
            except BusRefused:
                owned.consumers.pop(key, None)
                raise

    async def _unfollow(self, principal: str, asked: Unfollow) -> Said:
        """The name of the consumer proves its owner (follow_fault)."""
        await self._end(self._owned[principal], asked.stream, asked.consumer)
        return Following()

    async def _end(self, owned: _Owned, stream: str, consumer: str) -> None:
        with contextlib.suppress(BusRefused):  # it ended long ago
            await self._bus.consumers.unfollow(Unfollow(stream, consumer))
        owned.consumers.pop((stream, consumer), None)
