"""HTTP server inside a process that already runs an event loop, with limits on body sizes and slow clients (slowloris).

    async with serve(app, parse_address("127.0.0.1:0")) as url: ...

A TLS handshake or a head that does not arrive within 10 s, or an answer that the client does not read for 60 s, ends the connection. A body
is read whole before the application sees the request, 1 MiB at most (413, after reading away a moderate rest, so that the caller gets to
read the answer) within 30 s (408). Connections are limited, overall and of one address (``Listener``), before the first byte; those above
are closed at once, so that silent ones do not use up the process's files.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, Protocol

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from services.kit.addresses import address_group
from services.kit.errors import SettingError, StartError
from services.kit.tls import CERT_VARIABLE, KEY_VARIABLE, plain_allowed, server_context
from wooly.shared.files import more_files

__all__ = ["BODY_BYTES_MAX", "SlowClientProtocol", "buffer_bodies", "parse_address", "serve", "Listener"]

_START_S: Final = 10.0
BODY_BYTES_MAX: Final = 1 << 20
_DRAINED_BYTES_MAX: Final = 32 << 20
_HEAD_S: Final = 10.0
_BODY_S: Final = 30.0
_UNREAD_S: Final = 60.0

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def parse_address(text: str, variable: str = "WOOLY_HTTP") -> tuple[str, int]:
    """``host:port`` (port 0: any free one), as ``variable`` gave it. Raises SettingError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise SettingError(f"{variable} is {text!r}; write host:port, for example 127.0.0.1:8080")
    return host, int(port)


@contextlib.asynccontextmanager
async def serve(app: Any, address: tuple[str, int], environment: Mapping[str, str] = os.environ) -> AsyncIterator[str]:
    """Serve an ASGI app inside the block; yields its URL, https with the certificate of ``environment`` (WOOLY_TLS_CERT). Raises StartError
    when the address cannot be had, SettingError for plain text beyond loopback."""
    host, port = address
    context = server_context(environment)
    if context is None:
        plain_allowed(environment, host, "REST", f"set {CERT_VARIABLE} and {KEY_VARIABLE} to a certificate and its key")
    try:
        bound = socket.create_server((host, port), reuse_port=False)
    except OSError as error:
        raise StartError(f"cannot listen on {host}:{port} ({error.strerror}); set WOOLY_HTTP to another address") from error
    # proxy_headers: uvicorn would accept a forwarded address from any local process; kit.access decides which proxies are trusted.
    config = uvicorn.Config(
        buffer_bodies(app),
        http=SlowClientProtocol,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=2,
    )
    config.load()
    config.ssl = context
    server = _Server(config)
    # Signals belong to the process, which stops the server by leaving the block.
    task = asyncio.create_task(server._serve([bound]), name="http")
    try:
        async with asyncio.timeout(_START_S):
            while not server.started:
                if task.done():
                    await task
                    raise StartError("the HTTP server ended while it started")
                await asyncio.sleep(0.005)
        yield f"http{'s' if context is not None else ''}://{host}:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await task
        bound.close()


class _Server(uvicorn.Server):
    """uvicorn with a listener that has limits."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise StartError("the HTTP server ended while it started")
        assert sockets is not None
        self.servers = [Listener(sockets[0], self._protocol, self.config.ssl)]  # type: ignore[list-item]  # it is closed, and no more
        self.started = True

    def _protocol(self) -> SlowClientProtocol:
        return SlowClientProtocol(self.config, self.server_state, self.lifespan.state)


class SlowClientProtocol(H11Protocol):
    """uvicorn's connection with time limits, which it lacks. ``on_lost`` is called at its end."""

    on_lost: Callable[[], None] = staticmethod(lambda: None)

    head_s = _HEAD_S
    unread_s = _UNREAD_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._head_timer: asyncio.TimerHandle | None = self.loop.call_later(self.head_s, transport.abort)
        self._unread_timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._cancel_head()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_s, self.transport.abort)

    def on_response_complete(self) -> None:
        self._cancel_head()  # between two requests uvicorn's own limit for idle connections holds
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(self.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_unread()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head()
        self._cancel_unread()
        self.on_lost()
        super().connection_lost(exc)

    def _cancel_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _cancel_unread(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None


def buffer_bodies(app: App, *, bytes_max: int = BODY_BYTES_MAX, body_s: float = _BODY_S) -> App:
    """``app``, which gets each body in one piece."""

    async def limited(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        declared = _declared(scope)
        if declared == 0:
            await app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(body_s):
                body = await _read(receive, bytes_max, declared)
        except TimeoutError:
            await _refuse(send, 408, "Request Timeout", f"the body did not come within {body_s:g} s")
            return
        except EOFError:
            return  # the client has disconnected
        if body is None:
            await _refuse(send, 413, "Content Too Large", f"a body of more than {bytes_max} bytes is not read")
            return
        await app(scope, _again(body, receive), send)

    return limited


def _declared(scope: Scope) -> int | None:
    """The length of the body as declared, None when it is only known at its end."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return None
    text = headers.get(b"content-length", b"0")
    return int(text) if text.isdigit() else None


async def _read(receive: Receive, bytes_max: int, declared: int | None) -> bytes | None:
    """The body, None when it is too large; raises EOFError when the caller goes away before its end."""
    parts: list[bytes] = []
    got, more = 0, True
    large = declared is not None and declared > bytes_max
    while more and got < _DRAINED_BYTES_MAX:
        message = await receive()
        if message["type"] != "http.request":
            raise EOFError
        part: bytes = message.get("body", b"")
        got += len(part)
        large = large or got > bytes_max
        if large:
            parts.clear()
        else:
            parts.append(part)
        more = bool(message.get("more_body", False))
    return None if large else b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(send: Send, status: int, title: str, detail: str) -> None:
    kind = {408: "too-slow", 413: "too-large"}[status]
    errors = [{"field": "body", "message": detail}]
    body = json.dumps({"type": f"urn:wooly:problem:{kind}", "title": title, "status": status, "detail": detail, "errors": errors}).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


_HANDSHAKE_S: Final = 10.0
_FILES_MAX: Final = 1 << 16
_CONNECTIONS_MAX: Final = 8192
_OF_ONE_ADDRESS: Final = 4
"""One address (IPv6: one /64) may have this part of all connections."""
_PAUSE_S: Final = 0.05


class Tracked(Protocol):
    """A protocol of asyncio that calls ``on_lost`` when its connection has ended."""

    on_lost: Callable[[], None]


class Listener:
    """Serves ``make()`` on each connection to ``bound``. Half of the process's files are for other things than connections."""

    handshake_s = _HANDSHAKE_S

    def __init__(self, bound: socket.socket, make: Callable[[], Tracked], context: ssl.SSLContext | None) -> None:
        bound.setblocking(False)
        self._bound = bound
        self._make = make
        self._context = context
        self._max = min(_CONNECTIONS_MAX, more_files(_FILES_MAX) // 2)
        self._open: Counter[str] = Counter()
        self._beginning: set[asyncio.Task[None]] = set()
        self._task = asyncio.get_running_loop().create_task(self._accept(), name="accept")

    def close(self) -> None:
        """Accept no more; connections that have begun go on."""
        self._task.cancel()
        for task in self._beginning:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return once handshakes under way have ended."""
        await asyncio.wait((self._task, *self._beginning))

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._bound)
            except OSError:  # no file is left, or the caller has disconnected
                await asyncio.sleep(_PAUSE_S)
                continue
            host = address_group(str(address[0]))
            if self._open.total() >= self._max or self._open[host] >= self._max // _OF_ONE_ADDRESS:
                connection.close()
                continue
            self._open[host] += 1
            task = loop.create_task(self._begin(connection, host))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    async def _begin(self, connection: socket.socket, host: str) -> None:
        def lost() -> None:
            self._open -= Counter({host: 1})

        def make() -> Tracked:
            protocol = self._make()
            protocol.on_lost = lost
            return protocol

        connection.setblocking(False)
        handshake_s = None if self._context is None else self.handshake_s
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                make,  # type: ignore[type-var]  # a protocol of uvicorn
                connection,
                ssl=self._context,
                ssl_handshake_timeout=handshake_s,
            )
        except BaseException as error:
            lost()
            with contextlib.suppress(OSError):
                connection.close()
            if not isinstance(error, (OSError, ssl.SSLError, asyncio.TimeoutError)):
                raise
