"""Live channels: the rendering of one topic, for one scope and query string, shared by all its readers, and patches between renderings.

Two renderings of a page differ by a patch; a page that applies it looks like the second (static/live.js is the other end).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from services.controller.web.scope import Scope

__all__ = ["Channel", "TopicEnded", "Render", "Topic", "Patch", "difference", "encode_patch"]

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
