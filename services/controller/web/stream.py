"""The stream of changes to one open page: server-sent events over plain ASGI.

A reader is a version of its channel, not a queue: a slow reader waits in its own socket, and is then sent the changes that it missed or,
too far behind, the whole rendering. Memory does not grow with the delay of readers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qsl

from litestar import Request, asgi
from litestar.types import Receive, Send
from litestar.types import Scope as AsgiScope

from services.controller.web.live import HEARTBEAT, Busy, Channel, Live
from services.controller.web.scope import Scope
from services.kit.access.web import identity_of, proof_of

_STUCK_S: Final = 30.0
"""A reader that takes nothing for this long is disconnected; its browser reconnects."""
_LIFE_S: Final = 600.0
"""Then the connection ends, and the browser makes another, which is authenticated again."""
_FIELDS_MAX: Final = 64
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-accel-buffering", b"no"),
]
_HELLO: Final = b"retry: 2000\nevent: hello\ndata: {}\n\n"
_GONE: Final = b"event: gone\ndata: {}\n\n"


@asgi("/live", is_mount=True, copy_scope=True, action="cluster.read")
async def live_stream(scope: AsgiScope, receive: Receive, send: Send) -> None:
    """``/live/<topic>?<the page's query string>&since=<last id>``"""
    request: Request[Any, Any, Any] = Request(scope, receive, send)
    web = request.app.state.web
    live: Live = web.live
    identity = identity_of(request)
    name = scope["path"].rstrip("/").rpartition("/")[2]
    name, _, entity = name.partition(".")
    topic = live.topic(name)
    viewer = Scope.of(identity)
    if topic is None or topic.action not in viewer.actions:
        await _refuse(send, 404 if topic is None else 403)
        return
    try:
        query = dict(parse_qsl(scope["query_string"].decode("ascii", "replace"), max_num_fields=_FIELDS_MAX))
    except ValueError:
        await _refuse(send, 400)
        return
    if entity:
        query["topic"] = entity  # /live/node.<id>: the page of one thing
    since = request.headers.get("last-event-id") or query.get("since", "")
    try:
        channel = live.join(topic, viewer, query)
    except Busy:
        await _refuse(send, 503)
        return
    proof = proof_of(request)
    try:
        await _follow(live, channel, _version(since, live.instance), receive, send, lambda: bool(web.is_current(identity, proof)))
    finally:
        live.leave(channel)


async def _follow(live: Live, channel: Channel, version: int, receive: Receive, send: Send, still: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.current_task()
    assert reader is not None
    left = asyncio.create_task(_left(receive, reader))
    until = loop.time() + _LIFE_S
    beats = channel.beats
    try:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await _send(send, _HELLO)
        while not live.closed and loop.time() < until and still():
            if channel.ended:
                await _send(send, _GONE)
                break
            data = channel.after(version, live.instance)
            version = channel.version
            if data:
                await _send(send, data)
            elif channel.beats != beats:
                await _send(send, HEARTBEAT)
            beats = channel.beats
            if channel.version == version and not live.closed and not channel.ended:
                await channel.changed()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    except (asyncio.CancelledError, TimeoutError, OSError):
        if not left.done() and reader.cancelling():
            raise  # the server is stopping; the reader did not leave
    finally:
        left.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await left


async def _send(send: Send, data: bytes) -> None:
    """Returns when the socket has taken it. Raises TimeoutError."""
    async with asyncio.timeout(_STUCK_S):
        await send({"type": "http.response.body", "body": data, "more_body": True})


async def _left(receive: Receive, reader: asyncio.Task[Any]) -> None:
    """Stop ``reader`` when its browser has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
    reader.cancel()


def _version(since: str, instance: str) -> int:
    """The version that a reader has; 0: of another process."""
    known, _, version = since.rpartition("-")
    return int(version) if known == instance and version.isascii() and version.isdigit() and len(version) < 16 else 0


async def _refuse(send: Send, status: int) -> None:
    headers = [(b"content-type", b"text/plain"), (b"retry-after", b"10")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
