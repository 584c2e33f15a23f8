"""An ordered consumer that pulls without pause: every message of a stream from a position on, in order, each once.

Two requests are in flight at any time. The consumer on the broker keeps no state that matters: when it is lost, falls silent or
skips, a new one is made from the next position. After a broker has lost its tail (a crash before a sync), positions
of lost messages are given out anew: where that may happen, ``rewind`` says how many messages to read again after a break, so that none
behind the loss is missed. Handlers then bear repeats (they check their own sequence).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from nats.aio.msg import Msg

from bus_schemas.subjects import EVENTS_STREAM
from services.kit.errors import BusRefused, BusUnavailable
from services.kit.seal import SEALED_FROM, SealedLog

if TYPE_CHECKING:
    from services.kit.bus import Bus

__all__ = ["Follower", "Handler"]

Handler = Callable[[int, str, bytes], None]
"""``handler(position, subject, data)``; must not block."""

_PULL_MESSAGES: Final = 256
_HEARTBEAT_S: Final = 1.0
_EXPIRES_S: Final = 30.0
_SILENCE_S: Final = 2.5 * _HEARTBEAT_S
_RETRY_S: Final = 0.1
_INACTIVE_NS: Final = 60 * 10**9
_PULL: Final = json.dumps({"batch": _PULL_MESSAGES, "expires": int(_EXPIRES_S * 1e9), "idle_heartbeat": int(_HEARTBEAT_S * 1e9)}).encode()


class Follower:
    """Made by ``Bus.follow``. ``position`` is the last one handed to the handler."""

    def __init__(
        self,
        bus: Bus,
        stream: str,
        from_position: int,
        handler: Handler,
        subject: str = "",
        rewind: int = 0,
        made_anew: dict[str, Any] | None = None,
    ) -> None:
        self.position = from_position - 1
        self.current = asyncio.Event()
        """Set once everything that the stream held when it was asked has been handed over."""
        self._bus = bus
        self._stream = stream
        self._handler = handler
        self._subject = subject
        self._rewind = rewind
        self._made_anew = made_anew
        self._wake = asyncio.Event()
        self._broken = False
        self._task: asyncio.Task[None] | None = None
        self._subscription: Any = None
        self._inbox = ""
        self._consumer = ""
        self._consumer_sequence = 0
        self._asked = 0
        self._paused = False
        self._last_heard = 0.0
        self._log = SealedLog(bus.seal) if stream == EVENTS_STREAM else None

    @property
    def hearing(self) -> bool:
        """Whether the consumer lives: silence then says that there are no messages. (Without any, it gives a sign every second.)"""
        return not self._broken and asyncio.get_running_loop().time() - self._last_heard <= _SILENCE_S

    async def start(self) -> None:
        """Begin; returns once the consumer exists. Raises BusRefused when there is no such stream, BusUnavailable when nobody answers."""
        await self._attach(0)
        self._task = asyncio.create_task(self._watch(), name=f"follow {self._stream}")

    def restart(self) -> None:
        """Make a new consumer from the next position (called after a reconnect)."""
        self._broken = True
        self._wake.set()

    def pause(self) -> None:
        """Ask for no more messages until ``resume``; up to two requests' worth may still come."""
        self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._wake.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self._detach()

    async def _watch(self) -> None:
        """Look after the consumer: pull more after a pause, replace it when it broke or fell silent."""
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HEARTBEAT_S):  # wait_for forgets a cancellation that meets a wake-up (Python 3.11)
                    await self._wake.wait()
            self._wake.clear()
            if self._broken or (self._asked and loop.time() - self._last_heard > _SILENCE_S):
                if not self._bus.connected:
                    continue
                try:
                    await self._attach(self._rewind)
                except (BusRefused, BusUnavailable):
                    self._broken = True
                    await asyncio.sleep(_RETRY_S)
                    self._wake.set()
            elif not self._paused:
                await self._pull()

    async def _attach(self, rewind: int) -> None:
        """Make a consumer from the next position, less ``rewind``, and start pulling from it."""
        await self._detach()
        self._broken = False
        info = await self._info()
        last = int(info["state"]["last_seq"])
        if self.position > last:
            self.position = 0  # the broker lost more than its tail: everything it has is new
            if self._log is not None:
                self._log.start_over()
        if self._log is not None:
            since = (info["config"].get("metadata") or {}).get(SEALED_FROM)
            self._log.since = None if since is None else int(since)
        self.position = max(0, self.position - rewind)
        name = f"follow_{secrets.token_hex(12)}"  # who knows the name of a consumer can take its messages
        config = {
            "name": name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self.position + 1,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _INACTIVE_NS,
        }
        if self._subject:
            config["filter_subject"] = self._subject
        suffix = f".{self._subject}" if self._subject else ""
        create = {"stream_name": self._stream, "config": config, "action": "create"}
        made = await self._bus.js_api(f"CONSUMER.CREATE.{self._stream}.{name}{suffix}", create)
        if not made.get("num_pending"):
            self.current.set()
        self._consumer = name
        self._consumer_sequence = 0
        self._asked = 0
        self._last_heard = asyncio.get_running_loop().time()
        self._inbox = self._bus.nc.new_inbox()
        self._subscription = await self._bus.nc.subscribe(self._inbox, cb=self._on_message)
        if not self._paused:
            await self._pull()

    async def _info(self) -> dict[str, Any]:
        """About the stream; where it may be gone with the broker's memory, it is made anew."""
        if self._made_anew is not None:
            return await self._bus.ensure_stream(self._made_anew)
        return await self._bus.js_api(f"STREAM.INFO.{self._stream}")

    async def _detach(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with contextlib.suppress(Exception):  # the connection may be gone; the subscription then is too
                await subscription.unsubscribe()
        if self._consumer and self._bus.connected:
            consumer, self._consumer = self._consumer, ""
            with contextlib.suppress(BusRefused, BusUnavailable):  # else it ends by itself, unused
                await self._bus.js_api(f"CONSUMER.DELETE.{self._stream}.{consumer}", timeout_s=0.5)

    async def _pull(self) -> None:
        while self._asked <= _PULL_MESSAGES and not self._broken:
            self._asked += _PULL_MESSAGES
            await self._bus.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}", _PULL, reply=self._inbox)

    async def _on_message(self, message: Msg) -> None:
        self._last_heard = asyncio.get_running_loop().time()
        reply = message.reply
        if not reply.startswith("$JS.ACK."):
            self._on_status(message)
            return
        parts = reply.split(".")
        # $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>, newer servers put domain and account first
        at = 2 if len(parts) == 9 else 4
        if parts[at + 1] != self._consumer:
            return  # of a consumer given up since
        position, sequence = int(parts[at + 3]), int(parts[at + 4])
        if sequence != self._consumer_sequence + 1:
            self.restart()  # a delivery was lost on the way
            return
        self._consumer_sequence = sequence
        self._asked -= 1
        self.position = position
        data = message.data
        if self._log is not None:
            data = self._log.accepted(position, message.subject, message.headers or {}, data)
        self._handler(position, message.subject, data)
        if not self.current.is_set() and parts[at + 6] == "0":
            self.current.set()
        if self._asked <= _PULL_MESSAGES and not self._paused:
            await self._pull()

    def _on_status(self, message: Msg) -> None:
        """Status messages: 100 heartbeat, 404/408 the pull ended, 409 limits or consumer gone, 503 no consumer."""
        headers = message.headers or {}
        status = headers.get("Status", "")
        if status == "100":
            return
        if status in ("404", "408") or (status == "409" and "Exceeded" in headers.get("Description", "")):
            self._asked = max(0, self._asked - int(headers.get("Nats-Pending-Messages", _PULL_MESSAGES)))
            self._wake.set()
            return
        self.restart()
