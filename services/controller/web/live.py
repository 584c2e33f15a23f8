"""Live pages: each topic is rendered once for each scope and query string, at most about once a second, and all readers get the same bytes.

    live = Live()
    live.add(Topic("nodes", frozenset({"node", "telemetry"}), "node.read", render_nodes))
    live.wake("telemetry")          # something of that kind changed
    await live.run()                # beside the server

Kinds of change: ``telemetry``, ``node``, ``task``, ``session``, ``config``, ``group``, ``access``, ``billing``, ``log``.

Two renderings of a page differ by a patch; a page that applies it looks like the second (static/live.js is the other end).
"""

from __future__ import annotations

import asyncio
import inspect
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from bus_schemas import events
from services.controller.web.scope import Scope
from services.kit.log import get_logger

__all__ = ["Busy", "Channel", "Live", "Patch", "Topic", "TopicEnded", "difference", "encode_patch", "kind_of"]

Point = tuple[float | None, ...]
_KEPT: Final = 16
"""Changes kept as bytes. A reader further behind than these gets the whole once more, so slow readers take no memory."""
HEARTBEAT: Final = b": still here\n\n"


@dataclass(frozen=True, slots=True)
class Patch:
    """A rendering, or the difference between two."""

    html: Mapping[str, str] = field(default_factory=dict)  #: id in the document to the element's markup, itself with that id
    #: id of a list to the ids of its children in order; their markup is in ``html``
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    points: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)  #: chart id to its last points: seconds, then one value a series


def difference(before: Patch | None, after: Patch) -> Patch | None:
    """What turns ``before`` into ``after``; everything when there was nothing, None when nothing changed."""
    if before is None:
        return after
    found = Patch(
        {name: text for name, text in after.html.items() if before.html.get(name) != text},
        {name: order for name, order in after.lists.items() if before.lists.get(name) != order},
        {name: points for name, points in after.points.items() if before.points.get(name) != points},
    )
    return found if found.html or found.lists or found.points else None


def encode_patch(patch: Patch, whole: bool = False) -> bytes:
    """JSON in one line. ``whole``: this is everything, not a change."""
    body: dict[str, Any] = {}
    if patch.html or patch.lists:
        body["html"] = patch.html
    if patch.lists:
        body["lists"] = patch.lists
    if patch.points:
        body["points"] = patch.points
    if whole:
        body["all"] = True
    return msgspec.json.encode(body)


Render = Callable[[Scope, Mapping[str, str]], Patch | Awaitable[Patch]]


class TopicEnded(Exception):
    """The entity that a page shows does not exist any more: the browser loads the page again, which explains it."""


@dataclass(frozen=True, slots=True)
class Topic:
    """Something that pages follow."""

    name: str
    wakes: frozenset[str]  #: kinds of change (web.live) after which it may look different
    action: str  #: the right that a reader needs
    render: Render  #: from a scope and a query string to everything on the page that may change; may be a coroutine function


@dataclass(slots=True)
class Channel:
    """A topic for one scope and query string."""

    topic: Topic
    scope: Scope
    query: dict[str, str]
    version: int = 0  #: of the last rendering; it grows
    dirty: bool = True  #: something may have changed since
    due: float = 0.0  #: loop time before which it is not rendered again: slow renderings are made less often
    idle_since: float = 0.0  #: loop time since which it has no readers
    readers: int = 0
    shown: Patch | None = None
    beats: int = 0
    ended: bool = False  #: what it showed does not exist any more
    _kept_from: int = 0
    _changes: deque[tuple[int, bytes]] = field(default_factory=deque)
    _whole: tuple[int, bytes] | None = None
    _next: asyncio.Future[None] | None = None

    def show(self, patch: Patch, version: int, instance: str) -> None:
        """Take a new rendering; if it differs, every reader gets the difference. ``version``: greater than any before, of any channel."""
        changed = difference(self.shown, patch)
        if self.shown is None:
            self._kept_from = version  # the first is sent whole
        elif changed is not None:
            if len(self._changes) == _KEPT:
                self._kept_from = self._changes.popleft()[0]
            self._changes.append((version, _message(f"{instance}-{version}", encode_patch(changed))))
        self.shown = patch
        if changed is not None:
            self.version = version
            self._wake()

    def beat(self) -> None:
        """Let every reader send a comment, so that a connection that died unseen is noticed at both ends."""
        self.beats += 1
        self._wake()

    def after(self, version: int, instance: str) -> bytes:
        """What a reader at ``version`` must be sent to be at ``self.version``: the changes, or everything where they are not kept."""
        if self.shown is None or version == self.version:
            return b""
        if self._kept_from <= version < self.version:
            return b"".join(data for number, data in self._changes if number > version)
        if self._whole is None or self._whole[0] != self.version:
            self._whole = self.version, _message(f"{instance}-{self.version}", encode_patch(self.shown, whole=True))
        return self._whole[1]

    async def changed(self) -> None:
        """Wait for the next change or beat."""
        if self._next is None or self._next.done():
            self._next = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._next)

    def _wake(self) -> None:
        if self._next is not None and not self._next.done():
            self._next.set_result(None)
        self._next = None


def _message(identity: str, data: bytes) -> bytes:
    return b"id: " + identity.encode() + b"\nevent: patch\ndata: " + data + b"\n\n"


_EVERY_S: Final = 1.0
_SHARE: Final = 0.04
"""A channel takes at most this part of one core: a rendering of 80 ms is followed by two seconds of rest."""
_IDLE_S: Final = 30.0
_BEAT_S: Final = 15.0
_CHANNELS_MAX: Final = 256
_READERS_MAX: Final = 2_000
_TENANT_SHARE: Final = 0.5
"""Of channels and of readers: the share that one tenant's users may take, so that they cannot lock out the others."""
_QUERY_MAX: Final = 1_000

_KINDS: Final[dict[type[object], str]] = {
    events.NodeRegistered: "node",
    events.NodeLost: "node",
    events.NodeLeaving: "node",
    events.NodeRecovered: "node",
    events.SessionOpenedFact: "session",
    events.SessionClosedFact: "session",
    events.SessionPriorityChanged: "session",
    events.TaskSubmitted: "task",
    events.TaskPlaced: "task",
    events.TaskRefused: "task",
    events.TaskStateChanged: "task",
    events.TaskDisplaced: "task",
    events.TaskStayed: "task",
    events.TaskPriorityChanged: "task",
    events.ConfigChanged: "config",
    events.GroupChanged: "group",
    events.TenantChanged: "access",
    events.UserChanged: "access",
    events.KeyIssued: "access",
    events.KeyRevoked: "access",
    events.TariffSet: "billing",
    events.GrantRecorded: "billing",
    events.BudgetSet: "billing",
    events.BudgetCrossed: "billing",
    events.TierSet: "billing",
}


def kind_of(event: events.Event) -> str:
    """The kind of change a fact is, empty for those no page shows by themselves."""
    return _KINDS.get(type(event), "")


class Busy(Exception):
    """The limit of readers or channels is reached."""


class Live:
    """``closed`` is set at the end: every stream ends then."""

    def __init__(self) -> None:
        self.instance = uuid.uuid4().hex[:12]
        self.closed = False
        self.readers = 0
        self._topics: dict[str, Topic] = {}
        self._channels: dict[tuple[str, Scope, str], Channel] = {}
        self._work = asyncio.Event()
        self._version = 0

    def add(self, topic: Topic) -> None:
        self._topics[topic.name] = topic

    def topic(self, name: str) -> Topic | None:
        return self._topics.get(name)

    @property
    def channels(self) -> int:
        return len(self._channels)

    def wake(self, kind: str, *, of: str = "") -> None:
        """Something of this kind changed; with ``of``, only pages of this one show it. Costs next to nothing, so it may be called for every
        event."""
        for channel in self._channels.values():
            if kind in channel.topic.wakes and not channel.dirty and of in ("", channel.query.get("topic", "").partition(".")[0]):
                channel.dirty = True
                self._work.set()

    def join(self, topic: Topic, scope: Scope, query: Mapping[str, str]) -> Channel:
        """The channel of these, with one more reader. Raises Busy. ``leave`` releases it."""
        if self.closed or self._crowded(scope):
            raise Busy
        own = {name: query[name] for name in sorted(query) if name != "since"}
        address = urlencode(own)
        key = topic.name, scope, address
        channel = self._channels.get(key)
        if channel is None:
            if len(address) > _QUERY_MAX:
                raise Busy
            if self._full(scope):
                self._drop_idle(0.0)
            if self._full(scope):
                raise Busy
            channel = self._channels[key] = Channel(topic, scope, own)
        channel.readers += 1
        self.readers += 1
        if channel.dirty:
            self._work.set()
        return channel

    def leave(self, channel: Channel) -> None:
        channel.readers -= 1
        self.readers -= 1
        channel.idle_since = asyncio.get_running_loop().time()

    def _crowded(self, scope: Scope) -> bool:
        own = sum(channel.readers for channel in self._channels.values() if channel.scope.tenant == scope.tenant)
        return self.readers >= _READERS_MAX or bool(scope.tenant and own >= _TENANT_SHARE * _READERS_MAX)

    def _full(self, scope: Scope) -> bool:
        own = sum(channel.scope.tenant == scope.tenant for channel in self._channels.values())
        return len(self._channels) >= _CHANNELS_MAX or bool(scope.tenant and own >= _TENANT_SHARE * _CHANNELS_MAX)

    async def run(self) -> None:
        """Render what changed, until cancelled; then every stream ends."""
        loop = asyncio.get_running_loop()
        beat_at = loop.time() + _BEAT_S
        try:
            while True:
                started = loop.time()
                wait_s = max(0.0, beat_at - started)
                try:
                    async with asyncio.timeout(wait_s):
                        await self._work.wait()
                except TimeoutError:
                    beat_at = started + wait_s + _BEAT_S
                    self._beat()
                self._work.clear()
                fresh = await self._render_due()
                # A new follower is answered at once; changes are gathered for about a second.
                await asyncio.sleep(0.05 if fresh else max(0.0, _EVERY_S - (loop.time() - started)))
        finally:
            self.closed = True
            self._beat()

    async def _render_due(self) -> bool:
        """Render what is dirty, followed and due; whether anything was rendered for the first time."""
        loop = asyncio.get_running_loop()
        first = False
        for channel in list(self._channels.values()):
            if not channel.dirty or not channel.readers:
                continue
            if channel.due > loop.time():
                loop.call_at(channel.due, self._work.set)
                continue
            first = first or channel.shown is None
            channel.dirty = False
            started_s, spent_s = loop.time(), time.thread_time()
            await self._render(channel)
            # Processor time, not the clock's: a machine that others keep busy would otherwise make every page slow.
            channel.due = started_s + max(0.9 * _EVERY_S, (time.thread_time() - spent_s) / _SHARE)
            await asyncio.sleep(0)
        return first

    async def _render(self, channel: Channel) -> None:
        try:
            patch = channel.topic.render(channel.scope, channel.query)
            shown = await patch if inspect.isawaitable(patch) else patch
            self._version += 1
            channel.show(shown, self._version, self.instance)
        except TopicEnded:
            self._forget(channel)
        except Exception:
            # An error of one page must not stop the others; it is rendered again at the next change.
            get_logger().exception("a live page could not be rendered", topic=channel.topic.name, query=channel.query)

    def _forget(self, channel: Channel) -> None:
        channel.ended = True
        self._channels = {key: kept for key, kept in self._channels.items() if kept is not channel}
        channel.beat()

    def _beat(self) -> None:
        for channel in self._channels.values():
            if channel.readers or self.closed:
                channel.beat()
        self._drop_idle(_IDLE_S)

    def _drop_idle(self, idle_s: float) -> None:
        """Drop channels that have had no follower for so long."""
        before = asyncio.get_running_loop().time() - idle_s
        self._channels = {key: kept for key, kept in self._channels.items() if kept.readers or kept.idle_since > before}
