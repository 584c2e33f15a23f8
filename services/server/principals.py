"""Principals of requests: where the bus authenticates clients, the node takes a session's tenant from its principal, never from the
request.

The bus lets a client send only with its own principal in the subject; who that is the node asks the controllers, and remembers for a
moment. When keys end, controllers say so, and the node looks again at the principals of all its sessions; it also does so now and then, in
case it did not hear.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from bus_schemas import faults
from bus_schemas.access import WHO_CHANGED, Principal, WhoIs, who_subject
from bus_schemas.batch import Fault
from services.kit.bus import Bus
from services.kit.errors import BusUnavailable, StartError
from services.kit.log import get_logger
from services.server.device import Device
from services.server.sessions import CANCELLED
from wooly.shared.lru import LruDict

_REMEMBERED_S: Final = 30.0
_REMEMBERED_MAX: Final = 4096
_LOOK_S: Final = 30.0
_ASK_S: Final = 2.0
_TRIES: Final = 5
_DENIED: Final = Fault(faults.ACCESS_DENIED, "your key opens nothing here (any more): make a new one, and set it as WOOLY_API_KEY")
_UNSURE: Final = Fault(faults.NODE_FAULT, "no controller says who you are; is one running? try again", fatal=False)
_NOT_YOURS: Final = Fault(faults.ACCESS_DENIED, "task: there is no such task of yours")
_ENDED: Final = Fault(faults.SESSION_LOST, "the key that this session came with opens nothing any more")


class Principals:
    """``on``: whether the bus authenticates clients. If not, the tenant that a client claims is accepted."""

    def __init__(self, bus: Bus, node: str, devices: Sequence[Device], *, on: bool) -> None:
        self.on = on
        self._bus = bus
        self._subject = who_subject(node)
        self._devices = devices
        self._known: LruDict[tuple[str, str], tuple[float, Principal]] = LruDict(_REMEMBERED_MAX)
        self._look = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises StartError when the node's key is another node's, or no controller is there."""
        if self.on:
            await self._ask_once()
            await self._bus.subscribe(WHO_CHANGED, self._changed)
            self._task = asyncio.create_task(self._watch(), name="principals")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def tenant_of(self, principal: str, claimed: str, task: str = "") -> str | Fault:
        """The tenant that ``principal`` works for (``claimed`` counts for those of the whole cluster only), or why it may not. ``task``:
        what it wants to do it for, must be that tenant's."""
        if not self.on:
            return claimed
        who = await self._who(principal, task)
        if who is None:
            return _UNSURE
        if not who.good:
            return _DENIED
        if not who.task_good:
            return _NOT_YOURS
        return who.tenant or claimed

    async def _ask_once(self) -> None:
        """Check the node's own key. On another node's subject there is no answer: the bus does not carry the request."""
        for _ in range(_TRIES):
            if await self._who(self._bus.principal, "") is not None:
                return
            if any(self._subject.lower() in text for text in self._bus.recent_errors):
                break
        raise StartError(
            f"no controller answers on {self._subject}: is WOOLY_API_KEY a key of this node? The node's id is the last part of that name; "
            "make one with `wooly keys create --role node --node ID`, or set NODE_ID to the id that the key is for"
        )

    async def _who(self, principal: str, task: str) -> Principal | None:
        """None when no controller can answer."""
        known = self._known.get((principal, task))
        if known is not None and time.monotonic() - known[0] < _REMEMBERED_S:
            return known[1]
        try:
            answer = await self._bus.request(self._subject, msgspec.msgpack.encode(WhoIs(principal, task)), _ASK_S)
            who = msgspec.msgpack.decode(answer, type=Principal)
        except (BusUnavailable, msgspec.DecodeError):
            return None
        self._known[principal, task] = (time.monotonic(), who)
        return who

    async def _changed(self, subject: str, data: bytes) -> None:
        self._known.clear()
        self._look.set()

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):  # wait_for forgets a cancellation that meets a wake-up (Python 3.11)
                    await self._look.wait()
            self._look.clear()
            for principal in {session.record.principal for device in self._devices for session in device.sessions.values()}:
                who = await self._who(principal, "")
                if who is not None and not who.good:
                    self._end(principal)

    def _end(self, principal: str) -> None:
        ended: list[Any] = []
        for device in self._devices:
            for session in [session for session in device.sessions.values() if session.record.principal == principal]:
                device.cancel(session, _ENDED, CANCELLED)
                ended.append(session.record.session)
        get_logger().info("sessions ended: their key opens nothing any more", principal=principal, sessions=ended)
