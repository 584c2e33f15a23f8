"""A connection to the bus: requests, acknowledged publishes, streams, replay of events. A thin layer of our own over nats-py.

    bus = await connect("nats://127.0.0.1:4222", name="billing")
    await bus.ensure_streams()
    position = await bus.publish_events("task", task_id, [TaskSubmitted(...)])
    async for position, events in bus.replay(EVENTS_STREAM, from_position + 1): ...

Every publish that returns is stored; what raised may or may not be.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import random
import secrets
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from bus_schemas import subjects
from bus_schemas.access import AboutStream
from bus_schemas.events import Event, encode_events
from services.kit.consumers import Consumers, JetStreamConsumers, ProxiedConsumers, stored_at_ns, stored_message
from services.kit.credentials import Credentials
from services.kit.errors import BusRefused, BusUnavailable, Conflict, SettingError
from services.kit.follow import Follower, Handler, Replay
from services.kit.log import get_logger
from services.kit.seal import HEADER, NAME_HEADER, SEALED_FROM, Seal, is_fact
from services.kit.streams import (
    ELECTION_S,
    HUB_DOMAIN,
    LEAF_VARIABLE,
    REPLICAS_VARIABLE,
    batch_stream_config,
    events_stream_config,
    is_batch_stream,
    journal_stream_config,
    leaf_domain,
    replicas,
    replicated,
    telemetry_stream_config,
)
from wooly.shared.nats_client import connect as open_connection

EVENTS_PER_MESSAGE_MAX: Final = 100
"""Events packed into one message: replay of packed ones is ten times as fast."""

_EVENTS_BYTES_MAX: Final = 512 << 10
_ACK_TIMEOUT_S: Final = 2.0
_ASK_AGAIN_S: Final = 2.5
"""After so long a call that is not answered is repeated: servers without a leader drop what they are asked."""
_SLOW_S: Final = 6.25
"""The same from the fourth time on, for calls that are slow themselves."""
_CONNECT_S: Final = 8.0
_CORRECTED: Final = ("subjects", "no_ack", "max_msgs_per_subject")
"""Options of a stream that are corrected if an older version created it with others."""
_SERVER_LOST_S: Final = 3.0
"""When the bus has not said anything about a stream for so long, it is asked whether the stream's server is lost."""
_INBOXES: Final = ("_INBOX", "$SYS._INBOX.")
"""Prefixes of inboxes: those of clients, and those of nats-servers."""
_JOURNAL_S: Final = 5.0
"""How long the start of a service may wait for the stream of journals, which is on one server."""
_NO_CLUSTER: Final = 10074
"""JetStream err_code: a server alone stores no copies."""
_WRONG_LAST: Final = frozenset({10071, 10070, 10164})
"""JetStream err_codes of a failed expectation: wrong last sequence, wrong last msg id, wrong last sequence (constant)."""
_IN_PROCESS: Final = 10164
"""The one of them that a cluster answers while another write of the subject is being agreed on."""
_PAUSE_S: Final = (0.002, 0.02)
"""Before a writer hears of that: writers that decide again at the same moment would be in conflict again."""
_SAME_IN_PROCESS: Final = 10158
"""JetStream err_code: the first copy of this message is being agreed on."""
_ELECTING: Final = frozenset({10005, 10008, 10118})
"""JetStream err_codes of an API call that came too early: too few servers are there, JetStream is temporarily unavailable, the stream is
offline."""


class _Ack(msgspec.Struct):
    """JetStream's answer to a publish."""

    seq: int = 0
    duplicate: bool = False
    error: dict[str, Any] | None = None


_decode_ack: Final = msgspec.json.Decoder(_Ack).decode


class Bus:
    """One connection. Owned by one event loop; made by ``connect``."""

    def __init__(
        self,
        nc: Client,
        *,
        window: int = 256,
        seal: Seal | None = None,
        principal: str = subjects.LOCAL,
        keyed: bool = False,
        copies: int = 1,
        leaf: str = "",
    ) -> None:
        """``keyed``: authenticated by an API key, without access to JetStream. ``copies``: on how many servers it has streams stored.
        ``leaf``: the JetStream domain of the leaf server that it is connected to, which stores batches; the hub stores everything else."""
        self.nc = nc
        self.copies = copies
        self._leaf = leaf
        self.principal = principal
        self.keyed = keyed
        self.recent_errors: deque[str] = deque(maxlen=16)
        """The last refusals of the bus, in lower case."""
        self.consumers: Consumers = JetStreamConsumers(self.js_api)
        if keyed:
            self.consumers = ProxiedConsumers(self.request, principal, self.recent_errors)
        self.seal = seal
        self._acks: dict[str, asyncio.Future[_Ack]] = {}
        self._ack_inbox = nc.new_inbox()
        self._tokens = itertools.count()
        self._window = asyncio.Semaphore(window)
        self._events_lock = asyncio.Lock()
        self._replacing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By stream."""
        self._reconnected: list[Callable[[], None]] = []
        self._away_since_s: float | None = None
        """Time of the event loop: when a wait for the connection began that has not come back since."""
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answering: set[asyncio.Task[None]] = set()

    # -- core messages ---------------------------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return bool(self.nc.is_connected)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` after every reconnect."""
        self._reconnected.append(callback)

    def off_reconnect(self, callback: Callable[[], None]) -> None:
        """Undo ``on_reconnect``."""
        self._reconnected.remove(callback)

    async def reconnected(self, timeout_s: float) -> None:
        """Return once the bus is connected, at once if it is, or ``timeout_s`` after the first call that found it away."""
        if self.connected:
            return
        loop, back = asyncio.get_running_loop(), asyncio.Event()
        self._away_since_s = self._away_since_s or loop.time()
        self.on_reconnect(back.set)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._away_since_s + timeout_s):
                    await back.wait()
        finally:
            self.off_reconnect(back.set)

    async def publish(self, subject: str, data: bytes) -> None:
        """Fire and forget (core NATS): lost when there is no subscriber or the connection breaks."""
        await self.nc.publish(subject, data)

    async def subscribe(self, subject: str, handler: Callable[[str, bytes], Awaitable[None]], queue: str = "") -> Any:
        """Call ``await handler(subject, data)`` for every message, in order; ``unsubscribe()`` of the result ends it."""

        async def on_message(message: Msg) -> None:
            await handler(message.subject, message.data)

        return await self.nc.subscribe(subject, queue=queue, cb=on_message)

    async def serve(
        self,
        subject: str,
        handler: Callable[[str, bytes], Awaitable[bytes | None]],
        *,
        principal: Callable[[str], str] | None = None,
        queue: str = "",
    ) -> Any:
        """Answer requests: ``await handler(subject, data)`` gives the reply, None for silence. Requests are handled concurrently. Of the
        services with the same ``queue`` one answers each request.

        ``principal(subject)`` gives the requester: the answer then goes into that principal's inbox or nowhere; without it, into an inbox.
        The bus does not check reply subjects, so any publisher could have an answer sent to any client, or stored as ours. Nor does it
        check onto which subject a stream delivers: a message that was not published on ``subject`` is no request."""

        async def answer_it(message: Msg) -> None:
            if not subjects.matches(subject, message.subject):
                return
            if principal is not None and not self._is_inbox_of(principal(message.subject), message.reply):
                return
            answer = await handler(message.subject, message.data)
            if answer is not None and message.reply.startswith(_INBOXES):
                await self.nc.publish(message.reply, answer)

        async def on_request(message: Msg) -> None:
            task = asyncio.create_task(answer_it(message))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

        return await self.nc.subscribe(subject, queue=queue, cb=on_request)

    def _is_inbox_of(self, principal: str, reply: str) -> bool:
        """Whether ``reply`` is an inbox of ``principal``. Without authentication every inbox belongs to ``local``."""
        return self.principal == subjects.LOCAL or reply.startswith(f"{subjects.inbox_prefix(principal)}.")

    async def request(self, subject: str, data: bytes, timeout_s: float = 2.0) -> bytes:
        """Ask and wait for one answer. Raises BusUnavailable when ``subject`` has no responder, no answer came in time, or the connection
        broke meanwhile (the request may have been delivered)."""
        asking: asyncio.Future[Any] = asyncio.ensure_future(self.nc.request(subject, data, timeout=timeout_s))
        await asyncio.wait((asking, self._broken), return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            asking.cancel()
            raise BusUnavailable(f"the connection broke while asking {subject}")
        try:
            answer: bytes = asking.result().data
        except (TimeoutError, nats.errors.Error) as error:
            raise BusUnavailable(f"no answer on {subject} within {timeout_s:g} s ({type(error).__name__})") from error
        return answer

    # -- acknowledged publishes --------------------------------------------------------------------------------------------------------

    async def publish_acked(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str | None = None,
        expect_last_on_subject: int | None = None,
        headers: Mapping[str, str] | None = None,
        deadline_s: float = 30.0,
    ) -> int:
        """Publish into the stream of ``subject`` and wait for its acknowledgement; the position (stream sequence) it got.

        Sent again with the same message id every 2 s and after a reconnect until acknowledged: stored once. (The id must be unpredictable:
        a stream drops a message with a known id as a duplicate and acknowledges it, also when another client sent the first.) At most
        ``window`` publishes are under way; order between concurrent ones is not kept. ``expect_last_on_subject``: raises Conflict when the
        subject has moved on. ``headers``: further JetStream headers. Raises BusUnavailable after ``deadline_s``, BusRefused when the stream
        refuses.
        """
        name = message_id or secrets.token_hex(12)
        sent = {NAME_HEADER: name, **(headers or {})}
        if self.seal is not None and is_fact(subject):
            sent[HEADER] = self.seal.make(subject, name, data)
        if expect_last_on_subject is not None:
            sent["Nats-Expected-Last-Subject-Sequence"] = str(expect_last_on_subject)
        async with self._window:
            return await self._publish_until_acked(subject, data, sent, deadline_s)

    async def _publish_until_acked(self, subject: str, data: bytes, headers: dict[str, str], deadline_s: float) -> int:
        loop = asyncio.get_running_loop()
        deadline, repeated = loop.time() + deadline_s, False
        while True:
            token = str(next(self._tokens))
            future: asyncio.Future[_Ack] = loop.create_future()
            self._acks[token] = future
            try:
                await self.nc.publish(subject, data, reply=f"{self._ack_inbox}.{token}", headers=headers)
                async with asyncio.timeout(min(_ACK_TIMEOUT_S, max(0.01, deadline - loop.time()))):  # (wait_for may forget a cancellation)
                    ack = await future
            except (TimeoutError, nats.errors.OutboundBufferLimitError, nats.errors.ConnectionClosedError, ConnectionError) as error:
                if loop.time() >= deadline or self.nc.is_closed:
                    raise BusUnavailable(f"no acknowledgement for {subject} within {deadline_s:g} s: is JetStream running?") from error
                await asyncio.sleep(0.05)
                repeated = True
                continue
            finally:
                self._acks.pop(token, None)
            if ack.error is None:
                return ack.seq
            code, text = int(ack.error.get("err_code", 0)), str(ack.error.get("description", "error"))
            if code == _IN_PROCESS:
                await asyncio.sleep(random.uniform(*_PAUSE_S))
            if code in _WRONG_LAST:
                if repeated and (own := await self._position_of(subject, headers[NAME_HEADER])):
                    return own  # a server alone checks the condition before it recognises a repeat
                raise Conflict(f"{subject}: {text}", code)
            if (ack.error.get("code") == 503 or code == _SAME_IN_PROCESS) and loop.time() < deadline:
                await asyncio.sleep(0.05)  # JetStream is loading after a restart, or electing a leader, or its disk is full
                continue
            raise BusRefused(f"{subject}: {text}", code)

    async def _position_of(self, subject: str, name: str) -> int:
        """The position of the last event or entry of a bucket on ``subject``, if its message id is ``name``; else 0."""
        if not is_fact(subject) and not subject.startswith("$KV."):
            return 0
        stream = subjects.EVENTS_STREAM if is_fact(subject) else f"KV_{subject.split('.')[1]}"
        try:
            found = (await self.js_api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject}))["message"]
        except BusRefused:
            return 0
        return int(found["seq"]) if f"\n{NAME_HEADER}: {name}\r".encode() in base64.b64decode(found.get("hdrs", "")) else 0

    async def publish_events(
        self, area: str, entity: str, events: Sequence[Event | msgspec.Raw], *, message_id: str | None = None, node: str = ""
    ) -> int:
        """Store facts (or encoded ones) on ``event_subject(area, entity)``, in order also across calls, up to 100 a message; the last
        message's position.

        ``message_id`` names this call for ever: the stream drops a repeat within its window, so it must be unpredictable. ``node``: they
        are this node's facts about a session, on ``session_facts``."""
        subject = subjects.session_facts(entity, node) if node else subjects.event_subject(area, entity)
        position = 0
        async with self._events_lock:
            for part, chunk in enumerate(_packs(events)):
                part_id = None if message_id is None else f"{message_id}.{part}"
                position = await self.publish_acked(subject, chunk, message_id=part_id)
        return position

    # -- streams -----------------------------------------------------------------------------------------------------------------------

    async def js_api(self, verb: str, body: dict[str, Any] | None = None, timeout_s: float = ELECTION_S) -> dict[str, Any]:
        """One call of the JetStream API (``STREAM.INFO.<name>`` and so on), asked again while no answer comes, for up to ``timeout_s``:
        what it does, it may do twice. Raises BusRefused with JetStream's err_code, BusUnavailable."""
        question = json.dumps(body).encode() if body else b""
        loop = asyncio.get_running_loop()
        patient, deadline = loop.time() + 3 * _ASK_AGAIN_S, loop.time() + timeout_s
        while True:
            try:
                asking_s = max(0.05, min(_ASK_AGAIN_S if loop.time() < patient else _SLOW_S, deadline - loop.time()))
                answer: dict[str, Any] = json.loads(await self.request(_api_subject(verb, self._leaf), question, asking_s))
            except BusUnavailable:
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(0.02)
                continue
            error = answer.get("error")
            if not error:
                return answer
            code = int(error.get("err_code", 0))
            if code not in _ELECTING:
                raise BusRefused(f"{verb}: {error.get('description')}", code)
            if loop.time() >= deadline:
                raise BusUnavailable(f"{verb}: {error.get('description')}: do enough servers of the bus run?")
            await asyncio.sleep(0.1)

    async def ensure_stream(self, config: dict[str, Any]) -> dict[str, Any]:
        """Create the stream on as many servers as it is to be stored on, or leave it as it is when it exists, but for _CORRECTED and more
        servers; its info. Options an older server does not know are left out. A stream of batches whose server is lost is created again."""
        config = replicated(config, self.copies)
        name = config["name"]
        with contextlib.suppress(BusRefused):
            replaceable = self.copies > 1 and is_batch_stream(name) and not self._leaf
            info = await (self._info_or_removed(name) if replaceable else self.js_api(f"STREAM.INFO.{name}"))
            found = info["config"]
            changes: dict[str, Any] = {key: config[key] for key in _CORRECTED if key in config and found.get(key) != config[key]}
            if found.get("num_replicas", 1) < config.get("num_replicas", 1):
                changes["num_replicas"] = config["num_replicas"]
            if not changes:
                return info
            try:
                return await self.js_api(f"STREAM.UPDATE.{name}", {**found, **changes})
            except BusRefused as refused:
                get_logger().error("a stream cannot be changed", stream=name, changes=changes, problem=str(refused))
                return info
        try:
            return await self.js_api(f"STREAM.CREATE.{name}", config)
        except BusRefused as refused:
            if refused.code == _NO_CLUSTER:
                raise BusRefused(f"{refused}; {REPLICAS_VARIABLE}={self.copies} needs a cluster of three servers", refused.code) from None
            # Lost a race with another creator, or an older server refuses persist_mode.
            with contextlib.suppress(BusRefused):
                return await self.js_api(f"STREAM.INFO.{name}")
            return await self.js_api(f"STREAM.CREATE.{name}", {k: v for k, v in config.items() if k != "persist_mode"})

    async def _info_or_removed(self, name: str) -> dict[str, Any]:
        """Information about a stream that is on one server of several; raises BusRefused once it is removed, because that server is lost:
        it alone could answer."""
        with contextlib.suppress(BusUnavailable):
            return await self.js_api(f"STREAM.INFO.{name}", timeout_s=_SERVER_LOST_S)
        async with self._replacing[name]:
            await self.js_api("STREAM.NAMES")  # the other servers have a leader, and the connection is not at fault
            with contextlib.suppress(BusUnavailable):
                return await self.js_api(f"STREAM.INFO.{name}", timeout_s=_ASK_AGAIN_S)
            get_logger().warning("the bus server of a stream is lost; another one gets it", stream=name)
            with contextlib.suppress(BusUnavailable):
                await self.js_api(f"STREAM.DELETE.{name}", timeout_s=0.5)  # the server that would answer is the one that is lost
        return await self.js_api(f"STREAM.INFO.{name}")

    async def require_stream(self, config: dict[str, Any]) -> None:
        """Create the stream unless it exists. A client authenticated by API key cannot create it: raises BusRefused while it is missing."""
        await (self.consumers.about(AboutStream(config["name"])) if self.keyed else self.ensure_stream(config))

    async def ensure_streams(self, node: str | None = None) -> None:
        """Make sure that the events, telemetry and journal streams exist, and with ``node`` its batch stream. The first service with a seal
        that calls this records the position from which unsealed facts are ignored. Clients authenticated by API key cannot create streams;
        the controller provisions them."""
        if self.keyed:
            return
        info = await self.ensure_stream(events_stream_config())
        if self.seal is not None and SEALED_FROM not in (info["config"].get("metadata") or {}):
            since = {SEALED_FROM: str(int(info["state"]["last_seq"]) + 1)}
            config = {**info["config"], "metadata": {**(info["config"].get("metadata") or {}), **since}}
            await self.js_api(f"STREAM.UPDATE.{subjects.EVENTS_STREAM}", config)
        await self.ensure_stream(telemetry_stream_config())
        try:
            async with asyncio.timeout(_JOURNAL_S):
                await self.ensure_stream(journal_stream_config())
        except (BusRefused, BusUnavailable, TimeoutError) as problem:  # no room for it, or its server is away: only replay needs it
            get_logger().warning("there is no stream for journals", problem=str(problem) or "its server does not answer")
        if node is not None:
            await self.ensure_stream(batch_stream_config(node))

    async def last_position(self, stream: str, subject: str = "") -> int:
        """Position of the last message of ``stream`` (on ``subject``, unless empty), 0 when there is none. Raises BusRefused when there is
        no such stream."""
        about = await self.consumers.about(AboutStream(stream, subject))
        return about.last_on_subject if subject else about.last

    async def message(self, stream: str, **query: Any) -> tuple[int, bytes] | None:
        """Position and data of the message of ``stream`` that ``query`` selects (``seq``, ``last_by_subj``, ``next_by_subj``), None when
        there is none. Raises BusRefused, BusUnavailable."""
        return await stored_message(self.js_api, stream, query)

    async def stored_at_ns(self, stream: str, position: int) -> int:
        """When the broker stored the message of ``stream`` at ``position``, Unix time; 0 when there is none. Raises BusRefused,
        BusUnavailable."""
        return await stored_at_ns(self.js_api, stream, position)

    def follow(
        self,
        stream: str,
        from_position: int,
        handler: Handler,
        *,
        subject: str = "",
        rewind: int = 0,
        made_anew: dict[str, Any] | None = None,
        history: Sequence[str] = (),
        on_passed: Callable[[int], None] = lambda position: None,
    ) -> Follower:
        """Call ``handler(position, subject, data)`` for every message from ``from_position`` on, in order, each once, for ever; survives
        broker restarts. ``subject`` narrows it; ``rewind``, ``history`` and ``on_passed``: see follow.py; ``made_anew``: the configuration
        of a stream in the broker's memory, which is created again when it is lost. Start it with ``await follower.start()``."""
        return Follower(
            self, stream, from_position, handler, subject=subject, rewind=rewind, made_anew=made_anew, history=history, on_passed=on_passed
        )

    def replay(self, stream: str = subjects.EVENTS_STREAM, from_position: int = 1) -> Replay:
        """``async for position, events in bus.replay(...)``: history from ``from_position`` on, then the live tail, for ever.
        ``await replay.history_end()`` gives the last position there was when it started (0: none)."""
        return Replay(self, stream, from_position)

    async def close(self) -> None:
        """Send what is buffered and disconnect."""
        with contextlib.suppress(nats.errors.Error, asyncio.TimeoutError, ConnectionError):
            if self.nc.is_connected:
                await self.nc.flush(timeout=2)
        with contextlib.suppress(nats.errors.Error, OSError, RuntimeError):  # flushing and closing a broken connection fails
            await self.nc.close()
        for future in self._acks.values():
            if not future.done():
                future.set_exception(BusUnavailable("the connection was closed"))

    # -- for connect -------------------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        await self.nc.subscribe(f"{self._ack_inbox}.*", cb=self._on_ack)

    async def _on_ack(self, message: Msg) -> None:
        future = self._acks.get(message.subject.rsplit(".", 1)[1])
        if future is None or future.done():
            return
        status = (message.headers or {}).get("Status", "")
        if status == "503":
            future.set_result(_Ack(error={"code": 503, "description": "no stream listens on this subject"}))
            return
        future.set_result(_decode_ack(message.data))

    async def _on_reconnected(self) -> None:
        broken, self._broken = self._broken, asyncio.get_running_loop().create_future()
        broken.set_result(None)
        for future in list(self._acks.values()):
            if not future.done():
                future.set_exception(TimeoutError())  # send again now, not when the acknowledgement is overdue
        self._away_since_s = None
        for callback in list(self._reconnected):
            callback()


def _api_subject(verb: str, leaf: str) -> str:
    """Where a call of the JetStream API is made. ``leaf``: as of ``Bus``."""
    if not leaf:
        return f"$JS.API.{verb}"
    return f"$JS.{leaf if any(is_batch_stream(word) for word in verb.split('.')) else HUB_DOMAIN}.API.{verb}"


def _why_not(url: str, error: Exception, recent_errors: Iterable[str]) -> str:
    text = str(error) or type(error).__name__
    if any("authorization" in said for said in [text.lower(), *recent_errors]):
        return f"the bus at {url} refuses our credentials ({text}); check WOOLY_API_KEY or WOOLY_NATS_NKEY, and that a controller runs"
    return f"no NATS server answers at {url} ({text})"


def _packs(events: Sequence[Event | msgspec.Raw]) -> list[bytes]:
    """Encoded messages of at most 100 events and about half a megabyte each."""
    out: list[bytes] = []
    size = EVENTS_PER_MESSAGE_MAX
    for start in range(0, len(events), size):
        part = list(events[start : start + size])
        data = encode_events(part)
        if len(data) > _EVENTS_BYTES_MAX and len(part) > 1:
            half = len(part) // 2
            out += [*_packs(part[:half]), *_packs(part[half:])]
        else:
            out.append(data)
    return out


async def connect(url: str, *, name: str, deadline_s: float = 10.0, credentials: Credentials | None = None) -> Bus:
    """Connect to the bus at ``url`` (one, or several separated by commas); reconnects for ever afterwards. ``credentials``: as the
    environment says unless given. Raises BusUnavailable, SettingError."""
    shown = credentials if credentials is not None else Credentials.from_environment(os.environ, url)
    copies, leaf = replicas(os.environ), leaf_domain(os.environ)
    holder: list[Bus] = []
    recent_errors: deque[str] = deque(maxlen=4)

    async def on_reconnected() -> None:
        if holder:
            await holder[0]._on_reconnected()

    async def on_error(error: Exception) -> None:
        """Errors of the connection show as overdue acknowledgements and answers; the others are exceptions of our handlers."""
        (holder[0].recent_errors if holder else recent_errors).append(str(error).lower())
        if not isinstance(error, OSError | TimeoutError | nats.errors.Error):
            get_logger().error("a handler of a bus message failed", exc_info=error)

    loop = asyncio.get_running_loop()
    deadline = loop.time() + deadline_s
    while True:
        try:
            nc = await open_connection(
                [part.strip() for part in url.split(",") if part.strip()],
                name=name,
                credentials=shown,
                inbox_prefix=subjects.inbox_prefix(shown.principal if shown.secret else name),
                on_error=on_error,
                on_reconnect=on_reconnected,
                timeout_s=_CONNECT_S,
            )
            break
        except (TimeoutError, OSError, nats.errors.Error) as error:
            if loop.time() >= deadline:
                raise BusUnavailable(_why_not(url, error, recent_errors)) from error
            await asyncio.sleep(0.1)
    keyed = bool(shown.secret) and nc.requires_authentication
    if keyed and leaf:
        await nc.close()
        raise SettingError(f"{LEAF_VARIABLE}={leaf}: leaf servers are for a bus without authentication; unset it, the hub stores batches")
    bus = Bus(nc, seal=shown.seal, principal=shown.principal, keyed=keyed, copies=copies, leaf=leaf)
    holder.append(bus)
    await bus._start()
    return bus
