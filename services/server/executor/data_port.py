"""The data port: a thread with its own event loop that moves bulk bytes between sessions and the staging area, or the model cache.

Bytes land straight in their chunk (BufferedProtocol), are checked against their name, and are only then visible. Nothing here
touches device memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar, cast

import msgspec
import uvloop
from blake3 import blake3

from bus_schemas.batch import LIMITS
from bus_schemas.dataport import (
    MESSAGE_BYTES_MAX,
    Answer,
    Blob,
    Denied,
    Drop,
    Forget,
    Get,
    Had,
    Have,
    Hello,
    Keep,
    Models,
    Put,
    Request,
    Stored,
    Welcome,
    decode_request,
)
from bus_schemas.frames import HEAD, frame
from services.kit.log import get_logger
from services.kit.tls import certified_context
from services.server.executor.content import Content
from services.server.executor.model_cache import CachePort
from services.server.executor.staging import Held, Staging

__all__ = ["DataPort", "listen"]

_HELLO_BYTES_MAX: Final = 4096
_HELLO_S: Final = 10.0
"""Pre-authentication limits: bytes of a Hello, and the time for it, and before it for the TLS handshake."""
_CHUNK_S: Final = 120.0
"""The time for a chunk, which is memory of the node from its first byte on."""
_SKIPPED_BYTES: Final = 64 << 10
_BACKLOG: Final = 100
_LATER_S: Final = 1.0
_ACCEPT_PAUSE_S: Final = 0.1
_CONNECTIONS_MAX: Final = 4096
_CONNECTIONS_OF_ONE_MAX: Final = 8
"""Of one session, or through one door. A client has one: each holds memory for a chunk that is coming, and may have broken without a
word."""


_LONG_S: Final = 0.05
_REST: Final = 4
"""Work on the model cache that takes longer than ``_LONG_S`` is followed by a rest of its domain, so many times as long."""
_PART: Final = 8
"""One part in so many of all connections is as many as those before Hello may be while a tenant has as many."""


T = TypeVar("T")
OpenCache = Callable[[str, str], CachePort | None]
"""Opens the model cache for a client by its door: name and token, as in Hello."""


def _no_cache(name: str, token: str) -> CachePort | None:
    return None


class _CacheThread:
    """Work on the model cache, in a thread of its own: it reads and writes files and lists of models. Of each domain one piece at a time,
    in the order it came; so a domain with many connections delays another one by a piece. Of one event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "model cache")
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._rested_s: dict[str, float] = {}

    async def run(self, domain: str, work: Callable[[], T]) -> T:
        """``work()``. A caller that is cancelled while it waits loses its turn; work that has begun is done all the same."""
        loop = asyncio.get_running_loop()

        def timed() -> tuple[T, float]:
            begun_s = time.monotonic()
            return work(), time.monotonic() - begun_s

        async with self._turns[domain]:
            await asyncio.sleep(self._rested_s.pop(domain, 0.0) - loop.time())
            found, took_s = await loop.run_in_executor(self._thread, timed)
            if took_s > _LONG_S:
                self._rested_s[domain] = loop.time() + _REST * took_s
            return found


class _Connection(asyncio.BufferedProtocol):
    """One client connection. Receives a head, then a message, then for a Put its bytes; requests are answered in order."""

    def __init__(
        self,
        staging: Staging,
        content: Content,
        open_cache: OpenCache,
        cache_thread: _CacheThread,
        open_now: dict[_Connection, None],
        hello_s: float,
        most: int,
        on_linked: Callable[[str, bool], None],
    ) -> None:
        """``open_now``: all that are open, in the order they came; at most ``most``. ``on_linked(session, whether)``: the first connection
        of a session is there, or the last has ended."""
        self._cache_thread = cache_thread
        self._on_linked = on_linked
        self._staging = staging
        self._content = content
        self._open_cache = open_cache
        self._cache: CachePort | None = None
        self._open_now = open_now
        self._hello_s = hello_s
        self._most = most
        self.session = ""
        """Whose it is, empty before Hello."""
        self.tenant = ""
        """The tenant or trust domain of that."""
        self._head = bytearray(HEAD.size)
        self._target = memoryview(self._head)
        self._at = 0
        self._step = self._on_head
        self._put: Put | None = None
        self._chunk = bytearray()
        self._account: Held | None = None
        """On which the chunk counts that is coming."""
        self._skipping = 0
        self._drained = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it
        self._drained.set()
        self._open_now[self] = None
        if len(self._open_now) > self._most:
            self._crowded().abort()
        self._patience = asyncio.get_running_loop().call_later(self._hello_s, self._transport.abort)

    def _crowded(self) -> _Connection:
        """The connection that makes room for this one: the oldest before Hello, so that those cannot lock out clients; or, where they are
        few, the oldest of the tenant with the most, so that it cannot lock out others."""
        counts = Counter(other.tenant for other in self._open_now if other.session)
        tenant, count = counts.most_common(1)[0] if counts else ("", 0)
        few = self._most // _PART
        crowds = len(self._open_now) - counts.total() <= few < count
        return next(other for other in self._open_now if (other.session and other.tenant == tenant if crowds else not other.session))

    def connection_lost(self, error: Exception | None) -> None:
        self._drained.set()
        self._open_now.pop(self, None)
        if self.session and self._cache is None and not any(other.session == self.session for other in self._open_now):
            self._on_linked(self.session, False)
        if self._sending is not None:
            self._sending.cancel()
        self._release()
        if self._cache is not None:
            self._closing = asyncio.ensure_future(self._cache_thread.run(self._cache.domain, self._cache.close))

    def abort(self) -> None:
        self._open_now.pop(self, None)
        self._transport.abort()

    def get_buffer(self, size_hint: int) -> memoryview:
        return self._target[self._at :]

    def buffer_updated(self, nbytes: int) -> None:
        self._at += nbytes
        if self._at == len(self._target):
            self._step()

    def pause_writing(self) -> None:
        """Back-pressure: a connection that does not read its answers is not read from."""
        self._drained.clear()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._drained.set()
        if self._sending is None:
            self._transport.resume_reading()

    def _expect(self, buffer: bytearray) -> None:
        self._target = memoryview(buffer)
        self._at = 0

    def _on_head(self) -> None:
        (length,) = HEAD.unpack(self._head)
        if not 0 < length <= (MESSAGE_BYTES_MAX if self.session else _HELLO_BYTES_MAX):
            self._transport.abort()
            return
        self._body = bytearray(length)
        self._expect(self._body)
        self._step = self._on_message

    def _on_message(self) -> None:
        self._expect(self._head)
        self._step = self._on_head
        try:
            request = decode_request(self._body)
        except msgspec.DecodeError:
            self._transport.abort()
            return
        self._handle(request)

    def _handle(self, request: Request) -> None:
        if bool(self.session) == isinstance(request, Hello):  # the first message is Hello, and no other is
            self._transport.abort()
            return
        match request:
            case Hello(session, token):
                self._cache = self._open_cache(session, token)
                if self._cache is None and not self._staging.admits(session, token):
                    self._answer(Denied("no such session, or the wrong token"))
                    self._transport.close()
                    return
                self.session = session
                self.tenant = self._staging.tenant_of(session) if self._cache is None else self._cache.domain
                of_one = [other for other in self._open_now if other.session == session]
                if len(of_one) == 1 and self._cache is None:
                    self._on_linked(session, True)
                if len(of_one) > _CONNECTIONS_OF_ONE_MAX:
                    of_one[0].abort()
                if self._patience is not None:
                    self._patience.cancel()
                if self._cache is not None:
                    self._work(self._cache.open)
                else:
                    self._answer(Welcome())
            case Have() | Keep() | Models() | Forget() if self._cache is not None:
                self._work(partial(self._cache.answer, request))
            case Have(digests):
                self._answer(Had(self._content.have(self.session, digests)))
            case Put(_, nbytes):
                if not 0 < nbytes <= LIMITS.chunk_bytes:
                    self._transport.abort()
                    return
                self._begin(request)
            case Get(blob):
                self._send_blob(blob)
            case Drop(blob, chunks):
                self._staging.drop_blob(self.session, blob)
                if chunks:
                    self._staging.used(self.session, chunks)
            case Keep() | Models() | Forget():
                self._transport.abort()

    def _begin(self, put: Put) -> None:
        """A chunk comes. One that is refused is read all the same, for the answers stay in order, and is not kept."""
        self._put = put
        self._patience = asyncio.get_running_loop().call_later(_CHUNK_S, self._transport.abort)
        account = self._staging.begin(self.session if self._cache is None else self._cache.domain, put.nbytes)
        if isinstance(account, Denied):
            self._answer(account)
            self._skipping = put.nbytes
            self._skip()
            return
        self._account, self._chunk = account, bytearray(put.nbytes)
        self._expect(self._chunk)
        self._step = self._on_chunk

    def _skip(self) -> None:
        size = min(self._skipping, _SKIPPED_BYTES)
        self._skipping -= size
        if size:
            self._expect(bytearray(size))
            self._step = self._skip
            return
        self._release()
        self._expect(self._head)
        self._step = self._on_head

    def _work(self, work: Callable[[], Answer]) -> None:
        """Answer with what the model cache says. Nothing is read before that, and a chunk counts until then."""
        self._transport.pause_reading()
        self._sending = asyncio.ensure_future(self._worked(work))

    async def _worked(self, work: Callable[[], Answer]) -> None:
        try:
            answer = await self._cache_thread.run(self.tenant, work)
        except Exception:  # ours, or the disk's: the client must not wait for an answer
            get_logger().error("the model cache failed", trace=traceback.format_exc())
            self._sending = None
            self._release()
            self._transport.abort()
            return
        self._sending = None
        self._release()
        if self._transport.is_closing():
            return
        self._answer(answer)
        if self._drained.is_set():
            self._transport.resume_reading()

    def _release(self) -> None:
        """No chunk is coming any more."""
        if self._patience is not None:
            self._patience.cancel()
        if self._account is not None and self._put is not None:
            self._staging.end(self._account, self._put.nbytes)
        self._account = self._put = None

    def _on_chunk(self) -> None:
        put, chunk = self._put, self._chunk
        assert put is not None
        self._chunk = bytearray()
        self._expect(self._head)
        self._step = self._on_head
        right = blake3(chunk).digest() == put.digest
        if right and self._cache is not None:
            self._work(partial(self._cache.put, put.digest, chunk))
            return
        self._release()
        if not right:
            self._answer(Denied("the chunk does not match its name: it was damaged on the way"))
            return
        self._answer(self._content.put(self.session, put.digest, chunk) or Stored(put.digest))

    def _answer(self, answer: Answer) -> None:
        self._transport.write(frame(answer))

    def _send_blob(self, name: str) -> None:
        blob = self._staging.blob(self.session, name)
        if blob is None:
            self._answer(Denied("no such blob: it was received already, or its session is over"))
            return
        self._answer(Blob(blob.nbytes))
        self._transport.pause_reading()
        self._sending = asyncio.ensure_future(self._pour(blob.pieces))

    async def _pour(self, pieces: Sequence[bytes]) -> None:
        """Write ``pieces`` at the pace of the receiver, then read on."""
        for piece in pieces:
            await self._drained.wait()
            if self._transport.is_closing():
                return
            self._transport.write(piece)
        self._sending = None
        if self._drained.is_set():
            self._transport.resume_reading()


def listen(path: Path, host: str, port: int) -> list[socket.socket]:
    """The sockets of a data port: the Unix one at ``path``, and those of every address of ``host``. They are made before the sandbox is
    entered, in which there is no network; a client sees the user that made them. Raises OSError."""
    path.unlink(missing_ok=True)
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    local.bind(str(path))
    os.chmod(path, 0o600)
    local.listen(_BACKLOG)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = dict.fromkeys((family, address) for family, _, _, _, address in found)
    return [local, *(socket.create_server(address, family=family, backlog=_BACKLOG) for family, address in addresses)]


class DataPort:
    """Serves ``sockets``, a Unix one and others on TCP."""

    def __init__(
        self,
        staging: Staging,
        content: Content,
        sockets: Sequence[socket.socket],
        advertised_host: str,
        *,
        open_cache: OpenCache = _no_cache,
        hello_s: float = _HELLO_S,
        tls: ssl.SSLContext | None = None,
        connections_max: int = _CONNECTIONS_MAX,
    ) -> None:
        """``tls``: TCP is encrypted, with the node's certificate; the Unix socket never is."""
        self._tls = tls
        self._staging = staging
        self._content = content
        self._open_cache = open_cache
        self._hello_s = hello_s
        self._connections_max = min(connections_max, _CONNECTIONS_MAX)
        self._cache_thread = _CacheThread()
        self._open_now: dict[_Connection, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beginning: dict[socket.socket, asyncio.Task[None]] = {}
        """Connections in their TLS handshake, in the order they came."""
        self._sockets = sockets
        self.on_linked: Callable[[str, bool], None] = lambda session, linked: None
        """Called with a session and whether it has connections, when that changes (thread of the data port)."""
        self._later = threading.Event()
        self._started = threading.Event()
        path, (_, port, *_) = sockets[0].getsockname(), sockets[1].getsockname()
        self.addresses = (f"unix:{path}", f"{'tcp' if tls is None else 'tls'}:{advertised_host}:{port}")

    def start(self) -> None:
        """Serve from a thread of its own, until the process ends."""
        threading.Thread(target=lambda: uvloop.run(self._serve()), name="data port", daemon=True).start()
        self._started.wait()

    def end(self, session: str) -> None:
        """The session is over, and so are its connections (any thread): a client that vanished closes none itself."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end, session)

    def later(self, work: Callable[[], None]) -> None:
        """Do ``work`` in a second, unless some is to be done by then (any thread)."""
        if self._loop is not None and not self._later.is_set():
            self._later.set()
            self._loop.call_soon_threadsafe(self._loop.call_later, _LATER_S, self._do, work)

    def _do(self, work: Callable[[], None]) -> None:
        self._later.clear()
        work()

    def use_certificate(self, pem: bytes) -> None:
        """Encrypt new connections with this certificate (any thread); ``pem`` holds its key too. An unusable one changes nothing."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._use_certificate, pem)

    def _use_certificate(self, pem: bytes) -> None:
        try:
            with open(os.memfd_create("certificate"), "wb") as file:  # ssl reads certificates from files only
                file.write(pem)
                file.flush()
                path = f"/proc/self/fd/{file.fileno()}"
                certified_context(path)
                if self._tls is not None:
                    self._tls.load_cert_chain(path)
        except OSError as error:
            get_logger().error("the new certificate cannot be used", problem=str(error))

    def _end(self, session: str) -> None:
        for connection in [connection for connection in self._open_now if connection.session == session]:
            connection.abort()

    def _connection(self) -> _Connection:
        linked = self.on_linked
        return _Connection(
            self._staging, self._content, self._open_cache, self._cache_thread, self._open_now, self._hello_s, self._connections_max, linked
        )

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started.set()
        await asyncio.gather(*(self._accept(bound, None if at == 0 else self._tls) for at, bound in enumerate(self._sockets)))

    async def _accept(self, bound: socket.socket, tls: ssl.SSLContext | None) -> None:
        """No server of asyncio's: that would listen again, so that clients of the Unix socket would see the user of now as the one who
        serves, and it does not count handshakes. Beyond the limit the oldest one under way is given up, as in connection_made."""
        loop = asyncio.get_running_loop()
        bound.setblocking(False)
        while True:
            try:
                connection, _ = await loop.sock_accept(bound)
            except OSError:  # too many open files: some are about to be closed
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if len(self._beginning) >= self._connections_max // 4:
                oldest = next(iter(self._beginning))
                del self._beginning[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # a transport of uvloop's that is closed would wait for the other end
            self._beginning[connection] = loop.create_task(self._begin(connection, tls))

    async def _begin(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        handshake_s = None if tls is None else self._hello_s
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connection, connection, ssl=tls, ssl_handshake_timeout=handshake_s
            )
        except OSError:  # also ssl.SSLError, TimeoutError
            connection.close()
        finally:
            self._beginning.pop(connection, None)
