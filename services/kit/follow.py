"""An ordered consumer: every message of a stream from a position on, in order, each once.

The broker delivers into our inbox, and stops while we do not answer its flow control. The consumer keeps no state that matters: when it is
lost, falls silent or skips a message, a new one is created from the next position. After a broker has lost the tail of a stream (a crash
before a sync), it assigns the positions of the lost messages again: ``rewind`` is the number of messages to read again after an
interruption, so that none is missed. Handlers then tolerate repeats (they check their own sequence).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from bus_schemas.access import AboutStream, Follow, StreamAbout, Unfollow, consumer_prefix
from bus_schemas.events import Event, decode_events
from bus_schemas.subjects import EVENTS_STREAM
from services.kit.consumers import HEARTBEAT_S, Consumers
from services.kit.errors import BusRefused, BusUnavailable
from services.kit.seal import Seal, SealedLog

__all__ = ["Follower", "Handler", "Messages", "Replay"]

Handler = Callable[[int, str, bytes], None]
"""``handler(position, subject, data)``; must not block."""

_BUFFERED_MAX: Final = 4096
_SILENCE_S: Final = 2.5 * HEARTBEAT_S
_PASSED_MIN: Final = 4096
"""Fewer messages are read even if most of them do not count: it needs fewer consumers."""
_TURN_MESSAGES: Final = 256
"""After as many messages of a history, what has arrived meanwhile is received."""
_RETRY_S: Final = 0.1
_FLOW_CONTROL: Final = "$JS.FC."
_STALLED: Final = "Nats-Consumer-Stalled"
_LAST_DELIVERED: Final = "Nats-Last-Consumer"
"""Headers of heartbeats (ADR-15 of NATS): where a stalled consumer waits for an answer; the sequence of what it delivered last."""


class Connection(Protocol):
    """What a follower needs of a ``Bus``."""

    nc: Client
    principal: str
    seal: Seal | None
    consumers: Consumers

    @property
    def connected(self) -> bool: ...

    def on_reconnect(self, callback: Callable[[], None]) -> None: ...

    def off_reconnect(self, callback: Callable[[], None]) -> None: ...

    async def ensure_stream(self, config: dict[str, Any]) -> dict[str, Any]: ...

    async def last_position(self, stream: str, subject: str = "") -> int: ...


class Follower:
    """Made by ``Bus.follow``. ``position`` is the last one handed to the handler."""

    def __init__(
        self,
        bus: Connection,
        stream: str,
        from_position: int,
        handler: Handler,
        *,
        subject: str = "",
        rewind: int = 0,
        made_anew: dict[str, Any] | None = None,
        history: Sequence[str] = (),
        on_passed: Callable[[int], None] = lambda position: None,
        log: SealedLog | None = None,
    ) -> None:
        """``history``: subjects of the messages that count, none of which matches what another does. Of what the stream holds when a
        consumer is made, long stretches are read without the others; ``on_passed(position)`` then tells how far. Live messages come
        whatever their subject. ``log``: what decides which messages of the event log count; None: one of its own."""
        self.position = from_position - 1
        #: when the broker stored the message that was handed over last, Unix time
        self.stored_ns = 0
        self.current = asyncio.Event()
        """Set once everything that the stream held when it was asked has been handed over."""
        self.on_current: Callable[[], None] = lambda: None
        self._bus = bus
        self._stream = stream
        self._handler = handler
        self._subject = subject
        self._rewind = rewind
        self._made_anew = made_anew
        self._history = history
        self._on_passed = on_passed
        self._wake = asyncio.Event()
        self._broken = False
        self._task: asyncio.Task[None] | None = None
        self._subscription: Any = None
        self._made = ""
        """When the stream was made that ``position`` is of."""
        self._consumer = ""
        self._consumer_sequence = 0
        self._paused = False
        self._stalled = ""
        """The subject of an unanswered flow control request, while we pause."""
        self._last_heard = 0.0
        self._log = log or (SealedLog(bus.seal) if stream == EVENTS_STREAM else None)

    @property
    def hearing(self) -> bool:
        """Whether the consumer is alive: without messages it sends a heartbeat every second."""
        return not self._broken and asyncio.get_running_loop().time() - self._last_heard <= _SILENCE_S

    async def start(self) -> None:
        """Begin; returns once the consumer exists. Raises BusRefused when there is no such stream, BusUnavailable when the bus does not
        answer."""
        await self._attach(0)
        self._bus.on_reconnect(self.restart)
        self._task = asyncio.create_task(self._watch(), name=f"follow {self._stream}")

    def restart(self) -> None:
        """Make a new consumer from the next position (called after a reconnect)."""
        self._broken = True
        self._wake.set()

    def pause(self) -> None:
        """Do not answer flow control until ``resume``. The broker still sends two MiB at first, 32 at most."""
        self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            if self._stalled:
                self._wake.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
            self._bus.off_reconnect(self.restart)
        await self._detach()

    async def _watch(self) -> None:
        """Maintain the consumer: continue after a pause, replace it after a loss or without heartbeats."""
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):  # wait_for forgets a cancellation that meets a wake-up (Python 3.11)
                    await self._wake.wait()
            self._wake.clear()
            if self._broken or loop.time() - self._last_heard > _SILENCE_S:
                if not self._bus.connected:
                    continue
                try:
                    await self._attach(self._rewind)
                except (BusRefused, BusUnavailable):
                    self._broken = True
                    await asyncio.sleep(_RETRY_S)
                    self._wake.set()
            elif self._stalled and not self._paused:
                await self._keep_up(self._stalled)

    async def _attach(self, rewind: int) -> None:
        """Make a consumer from the next position, less ``rewind``."""
        await self._detach()
        self._broken = False
        about = await self._about()
        if self.position > about.last or self._made not in ("", about.made):
            self.position = 0  # the broker lost more than its tail, or the stream was made anew: everything it has is new
            if self._log is not None:
                self._log.start_over()
        if self._log is not None:
            self._log.since = about.sealed_from
        self._made = about.made
        if self._history and about.last - self.position >= _PASSED_MIN:
            await self._pass_over(about.last)
        known = self.position
        self.position = max(0, known - rewind)
        inbox = self._bus.nc.new_inbox()
        self._consumer = consumer_prefix(self._bus.principal) + secrets.token_hex(12)
        self._consumer_sequence = 0
        self._stalled = ""
        self._last_heard = asyncio.get_running_loop().time()
        self._subscription = await self._bus.nc.subscribe(inbox, cb=self._on_message)
        asked = Follow(self._stream, self._consumer, inbox, self.position + 1, self._subject)
        try:
            following = await self._bus.consumers.follow(asked)
        except (BusRefused, BusUnavailable):
            self.position = max(self.position, known)  # the next attempt goes back from here, and not from where this one began
            raise
        if not following.pending:
            self._on_all_read()

    def _on_all_read(self) -> None:
        """Everything that the consumer had was handed over."""
        self.current.set()
        self.on_current()

    async def _pass_over(self, end: int) -> None:
        """Hand over the messages that count up to position ``end``, in order. Raises BusRefused, BusUnavailable.

        Each subject has a consumer: for one with several, nats-server 2.15 looks at everything it has before every message (with 400,000
        messages on as many subjects 200 a second instead of 130,000).
        """
        sources = [Messages(self._bus, self._stream, self.position + 1, subject, log=self._log) for subject in self._history]
        try:
            heads = [(message, source) for source in sources if (message := await source.until(end)) is not None]
            heads.sort(key=_position)
            passed = 0
            while heads:
                (self.position, subject, data, self.stored_ns), source = heads.pop(0)
                self._handler(self.position, subject, data)
                passed += 1
                if not passed % _TURN_MESSAGES:
                    await asyncio.sleep(0)
                    self._last_heard = asyncio.get_running_loop().time()
                following = await source.until(end)
                if following is not None:
                    if following[0] <= self.position:
                        raise BusUnavailable(f"{self._stream} was made anew while it was read")
                    insort(heads, (following, source), key=_position)
        finally:
            for source in sources:
                await source.close()
        self.position = end
        self._on_passed(end)

    async def _about(self) -> StreamAbout:
        """Information about the stream. One in the broker's memory, or on one server of several, may have been lost; then it is created
        again."""
        if self._made_anew is not None:
            await self._bus.ensure_stream(self._made_anew)
        return await self._bus.consumers.about(AboutStream(self._stream))

    async def _detach(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with contextlib.suppress(Exception):  # the connection may be broken; the subscription has then ended with it
                await subscription.unsubscribe()
        consumer, self._consumer = self._consumer, ""
        if consumer and self._bus.connected:
            with contextlib.suppress(BusRefused, BusUnavailable):  # else it ends by itself, unused
                await self._bus.consumers.unfollow(Unfollow(self._stream, consumer))

    async def _keep_up(self, reply: str) -> None:
        """Answer a flow control request: everything sent before it has been handled."""
        self._stalled = ""
        with contextlib.suppress(nats.errors.Error, ConnectionError):  # it asks again with its next sign
            await self._bus.nc.publish(reply, b"")

    async def _on_message(self, message: Msg) -> None:
        self._last_heard = asyncio.get_running_loop().time()
        reply = message.reply
        if not reply.startswith("$JS.ACK."):
            await self._on_status(message)
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
        self.position = position
        self.stored_ns = int(parts[at + 5])
        data = message.data
        if self._log is not None:
            data = self._log.accepted(position, message.subject, message.headers or {}, data)
        self._handler(position, message.subject, data)
        if parts[at + 6] == "0" and not self.current.is_set():
            self._on_all_read()

    async def _on_status(self, message: Msg) -> None:
        """100 is a heartbeat or a flow control request; anything else ends the consumer (409: it was deleted)."""
        headers = message.headers or {}
        if headers.get("Status", "") != "100":
            self.restart()
            return
        asks = message.reply or headers.get(_STALLED, "")
        if asks.startswith(_FLOW_CONTROL):
            if self._paused:
                self._stalled = asks
            else:
                await self._keep_up(asks)
        if int(headers.get(_LAST_DELIVERED, self._consumer_sequence)) > self._consumer_sequence:
            self.restart()  # what was delivered before this was lost on the way


Stored = tuple[int, str, bytes, int]
"""(position, subject, data, when the broker stored it)."""


def _position(head: tuple[Stored, object]) -> int:
    return head[0][0]


class Messages:
    """Async iterator over a stream: history first, then the live tail, as (position, data). The broker stops delivering while more than
    ``buffered_max`` messages wait here."""

    def __init__(
        self,
        bus: Connection,
        stream: str,
        from_position: int,
        subject: str = "",
        buffered_max: int = _BUFFERED_MAX,
        *,
        log: SealedLog | None = None,
    ) -> None:
        self._buffer: deque[Stored] = deque()
        #: when the broker stored the message that was yielded last, Unix time
        self.stored_ns = 0
        self._buffered_max = buffered_max
        self._arrived = asyncio.Event()
        self._follower = Follower(bus, stream, max(1, from_position), self._on_message, subject=subject, log=log)
        self._follower.on_current = self._arrived.set
        self._started = False

    def __aiter__(self) -> Messages:
        return self

    async def start(self) -> None:
        """Begin to receive; done by the first iteration otherwise. Raises BusRefused, BusUnavailable."""
        if not self._started:
            self._started = True
            await self._follower.start()

    async def __anext__(self) -> tuple[int, bytes]:
        await self.start()
        while not self._buffer:
            self._arrived.clear()
            await self._arrived.wait()
        position, _, data, self.stored_ns = self._take()
        return position, data

    async def until(self, end: int) -> Stored | None:
        """The next message up to position ``end``, which the stream has reached; None: there is none."""
        await self.start()
        while not self._buffer and not self._follower.current.is_set():
            self._arrived.clear()
            await self._arrived.wait()
        return self._take() if self._buffer and self._buffer[0][0] <= end else None

    def _take(self) -> Stored:
        if 4 * len(self._buffer) <= self._buffered_max:
            self._follower.resume()
        return self._buffer.popleft()

    async def close(self) -> None:
        await self._follower.stop()

    def _on_message(self, position: int, subject: str, data: bytes) -> None:
        self._buffer.append((position, subject, data, self._follower.stored_ns))
        self._arrived.set()
        if len(self._buffer) >= self._buffered_max:
            self._follower.pause()


class Replay:
    """Made by ``Bus.replay``. Yields (position, events); raises msgspec.DecodeError, with the position, on what cannot be decoded."""

    def __init__(self, bus: Connection, stream: str, from_position: int) -> None:
        self._bus = bus
        self._stream = stream
        self._messages = Messages(bus, stream, from_position)
        self._end: int | None = None

    async def history_end(self) -> int:
        """Position of the last message there was when the replay started; 0 when the stream was empty."""
        if self._end is None:
            self._end = await self._bus.last_position(self._stream)
            await self._messages.start()
        return self._end

    @property
    def stored_ns(self) -> int:
        """When the broker stored the message that was yielded last, Unix time."""
        return self._messages.stored_ns

    def __aiter__(self) -> Replay:
        return self

    async def __anext__(self) -> tuple[int, list[Event]]:
        await self.history_end()
        position, data = await anext(self._messages)
        try:
            return position, decode_events(data)
        except msgspec.DecodeError as error:
            raise msgspec.DecodeError(f"{self._stream} position {position}: {error}") from error

    async def close(self) -> None:
        await self._messages.close()
