"""The bus: connections that are slow, stall and break, and a NATS server with core messages and the streams of JetStream, which loses what
it had not synced when its machine fails.

What the model promises is what NATS promises. A core message reaches a subscriber at most once, and those of one connection in order. A
stream stores a message once in a window of duplicates, refuses it when an expectation does not hold, and acknowledges it when it is stored:
synced, except for the streams of batches and of telemetry. A consumer delivers in order, and what it delivers may be lost on the way.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec

from bus_schemas.access import AboutStream, Follow, Following, StreamAbout, Unfollow
from bus_schemas.subjects import EVENTS_STREAM, JOURNAL_STREAM, TELEMETRY_STREAM
from services.kit.errors import BusRefused, BusUnavailable
from tests.simulation.system.kernel import MS, Machine, Process, S, World, call
from wooly.transport.bus import NoAnswer

__all__ = ["Broker", "BusThread", "Consumers", "Message", "Nats", "Network"]

_DETECT_NS: Final = 3 * S
"""A connection over which nothing passes for so long is given up."""
_RECONNECT_NS: Final = 300 * MS
_WINDOW_NS: Final = {EVENTS_STREAM: 600 * S}
_WINDOW_OTHERS_NS: Final = 120 * S
_NEVER: Final = 1 << 62


class Network:
    """Which machines cannot reach each other."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cuts: Counter[frozenset[str]] = Counter()
        self.on_change: list[Callable[[], None]] = []

    def cut(self, one: str, other: str) -> None:
        self.cuts[frozenset((one, other))] += 1
        self._changed()

    def heal(self, one: str, other: str) -> None:
        self.cuts[frozenset((one, other))] -= 1
        self._changed()

    def _changed(self) -> None:
        for then in list(self.on_change):
            then()

    def open(self, one: Machine, other: Machine) -> bool:
        return not self.cuts[frozenset((one.name, other.name))]


class Message(msgspec.Struct):
    """What ``nats.aio.msg.Msg`` has."""

    subject: str
    data: bytes
    reply: str = ""
    headers: dict[str, str] | None = None


class _Subscription:
    __slots__ = ("cb", "nats", "pattern", "words")

    def __init__(self, nats: Nats, pattern: str, cb: Callable[..., Any]) -> None:
        self.nats, self.pattern, self.cb = nats, pattern, cb
        self.words = pattern.split(".")

    async def unsubscribe(self) -> None:
        self.nats.forget(self)


class Nats:
    """A client of nats-py, as far as the product uses it: one connection, made again after it broke."""

    def __init__(self, process: Process, network: Network, broker: Broker, prefix: str) -> None:
        self.process, self.network, self.broker, self.prefix = process, network, broker, prefix
        self.world = process.world
        self.is_connected = False
        self.is_closed = False
        self.requires_authentication = False
        self.reconnected: Callable[[], None] = lambda: None
        self.subscriptions: list[_Subscription] = []
        self._requests: dict[str, Any] = {}
        self._made = 0
        self._pending: list[Callable[[], None]] = []
        self._links = 0
        self._stalled_ns = -1
        self._out: list[Callable[[], None]] = []
        self._in: list[Callable[[], None]] = []
        self._out_ns = self._in_ns = 0
        network.on_change.append(self._network_changed)
        broker.connections.append(self)
        process.on_end.append(self._ended)

    # -- the connection --------------------------------------------------------------------------------------------------------------

    def connect(self) -> bool:
        """Whether that works now."""
        if self.is_closed or self.process.dead or not self._reachable():
            return False
        self.is_connected = True
        self._links += 1
        self._out_ns = self._in_ns = self.world.now_ns
        self._out, self._in, self._stalled_ns = [], [], -1
        for subscription in self.subscriptions:
            self._to_broker(self.broker.subscribe, subscription)
        pending, self._pending = self._pending, []
        for send in pending:
            send()
        return True

    def _reachable(self) -> bool:
        return self.broker.up and self.network.open(self.process.machine, self.broker.machine)

    def _network_changed(self) -> None:
        if not self.is_connected:
            return
        if self._reachable():
            stalled = self._stalled_ns >= 0
            self._stalled_ns = -1
            if stalled:
                out, self._out, coming, self._in = self._out, [], self._in, []
                for send in [*out, *coming]:
                    send()
        elif not self.broker.up:
            self.breaks()
        elif self._stalled_ns < 0:
            self._stalled_ns = self.world.now_ns
            self.world.after(_DETECT_NS, None, self._give_up, self._links)

    def _give_up(self, link: int) -> None:
        if link == self._links and self._stalled_ns >= 0 and self.world.now_ns - self._stalled_ns >= _DETECT_NS:
            self.breaks()

    def breaks(self) -> None:
        """The connection is broken: what was under way is lost."""
        if not self.is_connected:
            return
        self.is_connected = False
        self._links += 1
        self._out, self._in, self._stalled_ns = [], [], -1
        self.broker.gone(self)
        self.world.counts["connections broken"] += 1
        if not self.is_closed:
            self.world.after(_RECONNECT_NS, self.process, self._again)

    def _again(self) -> None:
        if self.is_closed or self.is_connected:
            return
        if self.connect():
            self.reconnected()
        else:
            self.world.after(_RECONNECT_NS, self.process, self._again)

    def _ended(self) -> None:
        self.is_closed = True
        self.is_connected = False
        self._links += 1
        self.broker.gone(self)
        self.broker.connections.remove(self)
        self.network.on_change.remove(self._network_changed)

    def _to_broker(self, what: Callable[..., None], *args: Any) -> None:
        if self.process.dead:
            return
        if self._stalled_ns >= 0:
            self._out.append(lambda: self._to_broker(what, *args))
            return
        self._out_ns = max(self.world.now_ns + self.world.random.randrange(100_000, 2 * MS), self._out_ns + 1)
        self.world.at(self._out_ns, None, self._sent, self._links, what, args)

    def _sent(self, link: int, what: Callable[..., None], args: tuple[Any, ...]) -> None:
        if link != self._links:
            return
        if self._stalled_ns >= 0:
            self._out.append(lambda: self._to_broker(what, *args))
        else:
            what(*args)

    def deliver(self, subscription: _Subscription, message: Message) -> None:
        """(of the broker) A message for this client."""
        if not self.is_connected:
            return
        if self._stalled_ns >= 0:
            self._in.append(lambda: self.deliver(subscription, message))
            return
        self._in_ns = max(self.world.now_ns + self.world.random.randrange(100_000, 2 * MS), self._in_ns + 1)
        self.world.at(self._in_ns, self.process, self._receive, self._links, subscription, message)

    def _receive(self, link: int, subscription: _Subscription, message: Message) -> None:
        if link != self._links or self._stalled_ns >= 0:
            if link == self._links:
                self._in.append(lambda: self.deliver(subscription, message))
            return
        if message.subject in self._requests:
            future = self._requests[message.subject]
            if not future.done():
                future.set_result(message)
            return
        coro = subscription.cb(message)
        try:
            coro.send(None)
        except StopIteration:
            return
        raise AssertionError("a handler of messages waits")

    # -- of nats-py ------------------------------------------------------------------------------------------------------------------

    def new_inbox(self) -> str:
        self._made += 1
        return f"{self.prefix}.{id_of(self.process)}-{self._made}"

    async def publish(self, subject: str, data: bytes = b"", reply: str = "", headers: dict[str, str] | None = None) -> None:
        message = Message(subject, bytes(data), reply, headers)
        self._publish(message)

    def _publish(self, message: Message) -> None:
        if self.is_connected:
            self._to_broker(self.broker.publish, self, message)
        elif not self.is_closed:
            self._pending.append(lambda: self._publish(message))

    async def subscribe(self, subject: str, queue: str = "", cb: Callable[..., Any] | None = None) -> _Subscription:
        assert cb is not None
        return self.listen(subject, cb)

    def listen(self, subject: str, cb: Callable[..., Any]) -> _Subscription:
        subscription = _Subscription(self, subject, cb)
        self.subscriptions.append(subscription)
        if self.is_connected:
            self._to_broker(self.broker.subscribe, subscription)
        return subscription

    def forget(self, subscription: _Subscription) -> None:
        if subscription in self.subscriptions:
            self.subscriptions.remove(subscription)
            if self.is_connected:
                self._to_broker(self.broker.unsubscribe, subscription)

    async def request(self, subject: str, data: bytes = b"", timeout: float = 1.0) -> Message:  # noqa: ASYNC109  # as nats-py has it
        inbox = self.new_inbox()
        loop = self.process.loop
        future = loop.create_future()
        self._requests[inbox] = future
        subscription = self.listen(inbox, _nothing)
        timer = loop.call_later(timeout, lambda: future.done() or future.set_exception(TimeoutError()))
        self._publish(Message(subject, bytes(data), inbox))
        try:
            answer: Message = await future
            return answer
        finally:
            timer.cancel()
            del self._requests[inbox]
            self.forget(subscription)

    async def flush(self, timeout: float = 1.0) -> None:  # noqa: ASYNC109  # as nats-py has it
        pass

    async def close(self) -> None:
        if not self.is_closed:
            self._ended()
            self.process.on_end.remove(self._ended)


async def _nothing(message: Message) -> None:
    pass


def id_of(process: Process) -> str:
    return f"{process.name}{process.world.processes.index(process)}"


class _Consumer:
    __slots__ = ("delivered", "follow", "heard_ns", "nats", "next", "stream", "subscription", "words")

    def __init__(self, nats: Nats, subscription: _Subscription, follow: Follow, stream: _Stream) -> None:
        self.nats, self.subscription, self.follow, self.stream = nats, subscription, follow, stream
        self.next = follow.from_position
        self.delivered = 0
        self.heard_ns = 0
        self.words = [subject.split(".") for subject in (follow.subject,) if subject]


class _Stream:
    """``synced``: messages up to this position survive a failure of the machine."""

    def __init__(self, name: str, made: str, *, durable: bool, memory: bool) -> None:
        self.name, self.made, self.durable, self.memory = name, made, durable, memory
        self.messages: list[tuple[Message, int]] = []
        self.synced = 0
        self.names: dict[str, tuple[int, int]] = {}
        self.last_on: dict[str, int] = {}
        self.consumers: list[_Consumer] = []

    @property
    def last(self) -> int:
        return len(self.messages)

    def last_among(self, pattern: str) -> int:
        if "*" not in pattern:
            return self.last_on.get(pattern, 0)
        words = pattern.split(".")
        return max((at for subject, at in self.last_on.items() if _matches(words, subject)), default=0)

    def truncate(self, last: int) -> None:
        del self.messages[last:]
        self.names = {name: found for name, found in self.names.items() if found[0] <= last}
        self.last_on = {}
        for at, (message, _) in enumerate(self.messages, 1):
            self.last_on[message.subject] = at


def _matches(words: list[str], subject: str) -> bool:
    given = subject.split(".")
    if words[-1] == ">":
        words, given = words[:-1], given[: len(words) - 1]
    return len(words) == len(given) and all(word in ("*", other) for word, other in zip(words, given, strict=True))


class Broker:
    """One nats-server. ``loss``: the part of core messages that its subscribers do not get."""

    def __init__(self, world: World, machine: Machine, loss: float) -> None:
        self.world, self.machine, self.loss = world, machine, loss
        self.up = True
        self.paused = False
        self.connections: list[Nats] = []
        self.streams: dict[str, _Stream] = {}
        self._exact: dict[str, list[_Subscription]] = {}
        self._wild: list[_Subscription] = []
        self._found: dict[str, list[_Subscription]] = {}
        """By subject, as long as no subscription changes."""
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._starts = 0
        self.drops: Callable[[Message], bool] = lambda message: False
        """Whether a core message is lost on its way, for tests of one loss."""
        for name in (EVENTS_STREAM, TELEMETRY_STREAM, JOURNAL_STREAM):
            self.ensure(name)
        world.after(2 * S, None, self._beat)

    def ensure(self, name: str) -> _Stream:
        stream = self.streams.get(name)
        if stream is None:
            durable = name == EVENTS_STREAM
            stream = self.streams[name] = _Stream(name, f"made {self.world.now_ns}", durable=durable, memory=name == TELEMETRY_STREAM)
        return stream

    # -- start and end -----------------------------------------------------------------------------------------------------------------

    def kill(self, *, power: bool) -> None:
        """``power``: its machine fails, so what was not synced is lost."""
        self.up = False
        self.paused = False
        self._waiting.clear()
        self._exact.clear()
        self._wild.clear()
        self._found.clear()
        for stream in list(self.streams.values()):
            stream.consumers.clear()
            if stream.memory:
                del self.streams[stream.name]
            elif power and not stream.durable and stream.last > stream.synced:
                lost = self.world.random.randrange(stream.last - stream.synced + 1)
                self.world.counts["messages that the bus lost"] += lost
                stream.truncate(stream.last - lost)
        for nats in list(self.connections):
            nats.breaks()

    def start(self) -> None:
        self.up = True
        self._starts += 1

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        self.paused = False
        waiting, self._waiting = self._waiting, []
        for what, args in waiting:
            what(*args)

    def gone(self, nats: Nats) -> None:
        """A connection ended."""
        self._found.clear()
        for pattern, found in list(self._exact.items()):
            found[:] = [subscription for subscription in found if subscription.nats is not nats]
            if not found:
                del self._exact[pattern]
        self._wild = [subscription for subscription in self._wild if subscription.nats is not nats]
        for stream in self.streams.values():
            stream.consumers = [consumer for consumer in stream.consumers if consumer.nats is not nats]

    def _held_up(self, what: Callable[..., None], *args: Any) -> bool:
        if self.paused:
            self._waiting.append((what, args))
        return self.paused

    # -- core messages -----------------------------------------------------------------------------------------------------------------

    def subscribe(self, subscription: _Subscription) -> None:
        if self._held_up(self.subscribe, subscription):
            return
        if "*" in subscription.words:
            self._found.clear()
            if subscription not in self._wild:
                self._wild.append(subscription)
        else:
            self._found.pop(subscription.pattern, None)
            found = self._exact.setdefault(subscription.pattern, [])
            if subscription not in found:
                found.append(subscription)

    def unsubscribe(self, subscription: _Subscription) -> None:
        if self._held_up(self.unsubscribe, subscription):
            return
        self._found.pop(subscription.pattern, None)
        found = self._exact.get(subscription.pattern)
        if found is not None and subscription in found:
            found.remove(subscription)
            if not found:
                del self._exact[subscription.pattern]
        elif subscription in self._wild:
            self._found.clear()
            self._wild.remove(subscription)

    def publish(self, nats: Nats, message: Message) -> None:
        if self._held_up(self.publish, nats, message):
            return
        subject = message.subject
        if subject.startswith("$JS.FC."):
            return
        stream = self._stream_of(subject)
        if stream is not None:
            self._store(stream, message)
            return
        self._route(message)

    def _route(self, message: Message) -> None:
        subject = message.subject
        found = self._found.get(subject)
        if found is None:
            found = self._found[subject] = [
                *self._exact.get(subject, ()),
                *(one for one in self._wild if one.pattern.startswith(subject[:12]) and _matches(one.words, subject)),
            ]
        for subscription in found:
            if (self.loss and self.world.random.random() < self.loss) or self.drops(message):
                self.world.counts["core messages lost"] += 1
            else:
                subscription.nats.deliver(subscription, message)

    # -- JetStream -----------------------------------------------------------------------------------------------------------------------

    def _stream_of(self, subject: str) -> _Stream | None:
        if subject.startswith("wooly.evt."):
            return self.streams.get(EVENTS_STREAM)
        if subject.startswith("wooly.telemetry."):
            return self.streams.get(TELEMETRY_STREAM)
        words = subject.split(".")
        if len(words) > 3 and words[1] == "node" and words[3] == "batch":
            return self.streams.get(f"WOOLY_BATCH_{words[2]}")
        return None

    def _store(self, stream: _Stream, message: Message) -> None:
        headers = message.headers or {}
        answer: dict[str, Any] = {}
        name = headers.get("Nats-Msg-Id", "")
        known = stream.names.get(name) if name else None
        window_ns = _WINDOW_NS.get(stream.name, _WINDOW_OTHERS_NS)
        if known is not None and self.world.now_ns - known[1] < window_ns:
            self.world.counts["duplicates that the bus dropped"] += 1
            answer = {"stream": stream.name, "seq": known[0], "duplicate": True}
        elif self.machine.full:
            answer = {"error": {"code": 503, "err_code": 10047, "description": "insufficient storage resources available"}}
        else:
            expected = headers.get("Nats-Expected-Last-Subject-Sequence")
            among = headers.get("Nats-Expected-Last-Subject-Sequence-Subject", message.subject)
            if expected is not None and stream.last_among(among) != int(expected):
                self.world.counts["appends refused"] += 1
                answer = {"error": {"code": 400, "err_code": 10071, "description": "wrong last sequence"}}
            else:
                stream.messages.append((message, self.world.unix_ns() + self.machine.skew_ns))
                at = stream.last
                stream.last_on[message.subject] = at
                if name:
                    stream.names[name] = (at, self.world.now_ns)
                if not stream.durable and at - stream.synced > 8:
                    stream.synced = at - self.world.random.randrange(4)
                answer = {"stream": stream.name, "seq": at}
                for consumer in stream.consumers:
                    self._push(consumer)
        if message.reply:
            self._route(Message(message.reply, json.dumps(answer).encode()))

    def about(self, asked: AboutStream) -> StreamAbout | None:
        stream = self.streams.get(asked.stream)
        if stream is None:
            return None
        return StreamAbout(stream.made, stream.last, stream.last_among(asked.subject) if asked.subject else 0)

    def last_on(self, name: str, subject: str) -> tuple[int, str]:
        """Position and message id of the last message on a subject; 0 and empty: there is none."""
        stream = self.streams[name]
        at = stream.last_on.get(subject, 0)
        return at, (stream.messages[at - 1][0].headers or {}).get("Nats-Msg-Id", "") if at else ""

    def stored_at_ns(self, name: str, position: int) -> int:
        """When the message of a stream at a position was stored; 0: there is none."""
        messages = self.streams[name].messages
        return messages[position - 1][1] if 0 < position <= len(messages) else 0

    def follow(self, nats: Nats, asked: Follow) -> Following | None:
        stream = self.streams.get(asked.stream)
        if stream is None:
            return None
        subscription = next((one for one in nats.subscriptions if one.pattern == asked.inbox), None)
        if subscription is None:
            return Following(0)
        consumer = _Consumer(nats, subscription, asked, stream)
        consumer.heard_ns = self.world.now_ns
        stream.consumers.append(consumer)
        pending = self._pending(consumer)
        self._push(consumer)
        return Following(pending)

    def unfollow(self, asked: Unfollow) -> None:
        stream = self.streams.get(asked.stream)
        if stream is not None:
            stream.consumers = [consumer for consumer in stream.consumers if consumer.follow.consumer != asked.consumer]

    def _wanted(self, consumer: _Consumer, at: int) -> bool:
        subject = consumer.stream.messages[at - 1][0].subject
        return not consumer.words or any(_matches(words, subject) for words in consumer.words)

    def _pending(self, consumer: _Consumer) -> int:
        """How many messages it has not been sent."""
        stream = consumer.stream
        if not consumer.words:
            return stream.last - consumer.next + 1
        return sum(1 for at in range(consumer.next, stream.last + 1) if self._wanted(consumer, at))

    def _push(self, consumer: _Consumer) -> None:
        stream = consumer.stream
        while consumer.next <= stream.last:
            at = consumer.next
            consumer.next += 1
            if not self._wanted(consumer, at):
                continue
            message, stored_ns = stream.messages[at - 1]
            consumer.delivered += 1
            consumer.heard_ns = self.world.now_ns
            if self.loss and self.world.random.random() < self.loss:
                self.world.counts["deliveries of consumers lost"] += 1
                continue
            reply = f"$JS.ACK.{stream.name}.{consumer.follow.consumer}.1.{at}.{consumer.delivered}.{stored_ns}.{self._pending(consumer)}"
            consumer.nats.deliver(consumer.subscription, Message(message.subject, message.data, reply, message.headers))

    def _beat(self) -> None:
        """Heartbeats of consumers that had nothing to deliver."""
        self.world.after(2 * S, None, self._beat)
        if not self.up or self.paused:
            return
        for stream in self.streams.values():
            for consumer in stream.consumers:
                if self.world.now_ns - consumer.heard_ns >= 3 * S:
                    headers = {"Status": "100", "Nats-Last-Consumer": str(consumer.delivered)}
                    consumer.nats.deliver(consumer.subscription, Message(consumer.follow.inbox, b"", "", headers))


class Consumers:
    """``services.kit.consumers.Consumers`` of a service, without the JSON of the API."""

    def __init__(self, nats: Nats) -> None:
        self._nats = nats

    async def about(self, asked: AboutStream) -> StreamAbout:
        return _found(await self._ask(lambda broker: broker.about(asked)))

    async def follow(self, asked: Follow) -> Following:
        return _found(await self._ask(lambda broker: broker.follow(self._nats, asked)))

    async def unfollow(self, asked: Unfollow) -> None:
        await self._ask(lambda broker: broker.unfollow(asked) or True)

    async def _ask(self, work: Callable[[Broker], Any]) -> Any:
        """Asked again while no answer comes, as ``Bus.js_api`` does."""
        nats = self._nats
        loop = nats.process.loop
        deadline = loop.time() + 20.0
        while True:
            future = loop.create_future()

            def answered(future: Any = future) -> None:
                if not nats.broker.up:
                    return
                if nats.broker.paused:
                    nats.world.after(500 * MS, None, answered, future)
                    return
                result = work(nats.broker)
                nats.world.after(MS, nats.process, lambda: future.done() or future.set_result(result))

            if nats.is_connected:
                nats._to_broker(answered)
            timer = loop.call_later(2.5, lambda future=future: future.done() or future.set_result(_LATE))
            result = await future
            timer.cancel()
            if result is not _LATE:
                return result
            if loop.time() >= deadline:
                raise BusUnavailable("the bus does not answer")


_LATE: Final = object()


def _found(answer: Any) -> Any:
    if answer is None:
        raise BusRefused("stream not found", 10059)
    return answer


class BusThread:
    """``wooly.transport.bus.BusThread`` over ``Nats``: the same methods, on the loop of the client's process."""

    def __init__(self, nats: Nats, credentials: Any) -> None:
        self._nats = nats
        self.credentials = credentials
        self.principal = credentials.principal
        self.loop = nats.process.loop
        self.refused = False
        self._stopped = False

    def call(self, work: Any, timeout_s: float) -> Any:
        return call(work, timeout_s)

    def post(self, callback: Callable[..., object], *arguments: object) -> None:
        self.loop.call_soon(callback, *arguments)

    def stop(self) -> None:
        self._stopped = True

    @property
    def connected(self) -> bool:
        return self._nats.is_connected

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._nats.reconnected = callback

    async def publish(self, subject: str, data: bytes, message_id: str) -> None:
        await self._nats.publish(subject, data, headers={"Nats-Msg-Id": message_id})

    async def subscribe(self, subject: str, handler: Callable[[bytes], None]) -> None:
        async def on_message(message: Message) -> None:
            handler(message.data)

        await self._nats.subscribe(subject, cb=on_message)

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        try:
            return (await self._nats.request(subject, data, timeout=timeout_s)).data
        except TimeoutError as error:
            raise NoAnswer("TimeoutError") from error
