"""The client's end of the node's data port: a blocking socket, used by whichever thread submits or waits.

One connection is kept and made again after an error: chunks are named by content and blobs stay until dropped, so a repeat is harmless.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import stat
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec
import numpy as np
from blake3 import blake3

from bus_schemas.dataport import (
    MESSAGE_BYTES_MAX,
    Answer,
    Blob,
    Denied,
    Drop,
    Get,
    Had,
    Have,
    Hello,
    Put,
    Request,
    Stored,
    Welcome,
    decode_answer,
)
from bus_schemas.frames import HEAD, frame
from wooly.errors import NodeLostError, ProtocolError, RefusedError, WoolyError, quota_reached
from wooly.transport.patience import Away, repeat

_TIMEOUT_S: Final = 8.0
_PEER: Final = struct.Struct("3i")
"""Process, user and group of the other end of a Unix socket."""
_HAVE_MAX: Final = 8
"""Chunks asked for, named and sent at a time: the node checks those of one round while the next is named here."""
_RELEASE_MAX: Final = 8192
"""Chunks named in one message."""

T = TypeVar("T")


class _Refusal(OSError):
    """The node refuses. Retried once like any other failure, but for quotas: it also refuses data that was damaged on the way."""

    def __init__(self, denied: Denied) -> None:
        super().__init__(denied.message)
        self.denied = denied

    @property
    def shown(self) -> WoolyError:
        """For the caller."""
        message, excess = self.denied.message, self.denied.excess
        return RefusedError(message) if excess is None else quota_reached(message, excess)


class DataPort:
    """The client of a node's data port."""

    def __init__(
        self,
        addresses: Sequence[str],
        session: str,
        token: str,
        tls: ssl.SSLContext | None = None,
        *,
        wait_s: float = 0.0,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """``addresses``: ``unix:/path``, ``tcp:host:port`` and ``tls:host:port``, best first. ``tls``: for the last kind; then the bus is
        encrypted, and plain TCP is refused. ``wait_s``: how long a node that does not answer is waited for, while ``check()`` raises
        nothing."""
        self._addresses = addresses
        self._wait_s = wait_s
        self._check = check
        self._tls = tls
        self._hello = Hello(session, token)
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        #: messages and bodies after the greeting
        self.sent_bytes = 0

    def open(self) -> None:
        """Connect, if that works now: while the connection is there the node knows that this process lives. Raises nothing."""
        with self._lock, contextlib.suppress(OSError, NodeLostError, ProtocolError):
            self._connected()

    def wait(self, wait_s: float, check: Callable[[], None]) -> None:
        """From now on, wait for a node that does not answer for ``wait_s``, while ``check()`` raises nothing."""
        self._wait_s, self._check = wait_s, check

    def put(self, chunks: Sequence[memoryview]) -> list[bytes]:
        """Bring chunks to the node, only those it lacks; their names. Raises NodeLostError, RefusedError, QuotaReachedError."""
        names: list[bytes] = []
        for start in range(0, len(chunks), _HAVE_MAX):
            part = chunks[start : start + _HAVE_MAX]
            named = [(blake3(chunk).digest(), chunk) for chunk in part]
            with self._lock:
                self._repeated(lambda connection, named=named: self._put(connection, named))  # type: ignore[misc]  # mypy cannot infer
            names += [name for name, _ in named]
        return names

    def release(self, names: Sequence[bytes]) -> None:
        """Have the node know, if it answers now, that no upload will use these chunks. Raises nothing."""
        with self._lock, contextlib.suppress(OSError, NodeLostError, ProtocolError):
            for start in range(0, len(names), _RELEASE_MAX):
                self._send(self._connected(), Drop("", tuple(names[start : start + _RELEASE_MAX])))

    def get(self, blob: str, nbytes: int) -> memoryview:
        """Fetch a blob of ``nbytes``. Raises NodeLostError."""
        with self._lock:
            return self._repeated(lambda connection: self._get(connection, blob, nbytes))

    def ask(self, request: Request) -> Answer:
        """One request that carries no bytes, and its answer. Raises NodeLostError, RefusedError, QuotaReachedError."""

        def exchange(connection: socket.socket) -> Answer:
            self._send(connection, request)
            return _receive(connection)

        with self._lock:
            answer = self._repeated(exchange)
        if isinstance(answer, Denied):
            raise _Refusal(answer).shown
        return answer

    def close(self) -> None:
        with self._lock:
            self._drop()

    # -- one connection ------------------------------------------------------------------------------------------------------------

    def _repeated(self, work: Callable[[socket.socket], T]) -> T:
        """Do ``work``, and again on a new connection while that breaks."""
        try:
            return work(self._connected())
        except OSError as error:
            self._drop()
            if isinstance(error, _Refusal) and error.denied.excess is not None:
                raise error.shown from None
        except BaseException:  # Ctrl-C, say: an answer may be on its way, which the next request would take for its own
            self._drop()
            raise
        return repeat(lambda: self._again(work), self._wait_s, self._check)

    def _again(self, work: Callable[[socket.socket], T]) -> T:
        try:
            return work(self._connected())
        except _Refusal as refusal:
            self._drop()
            raise refusal.shown from None
        except OSError as error:
            self._drop()
            lost = NodeLostError(f"the node's data port at {', '.join(self._addresses)} does not answer ({error}); is the node alive?")
            if isinstance(error, PermissionError | ssl.SSLCertVerificationError):
                raise lost from error
            raise Away(lost) from error
        except BaseException:
            self._drop()
            raise

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = self._connect()
        return self._socket

    def _connect(self) -> socket.socket:
        failure: OSError = ConnectionError("the node announced no data port")
        for address in self._addresses:
            try:
                connection = _open(address, self._tls)
            except OSError as error:
                failure = error
                continue
            connection.sendall(frame(self._hello))
            answer = _receive(connection)
            if isinstance(answer, Welcome):
                return connection
            connection.close()
            failure = PermissionError(answer.message) if isinstance(answer, Denied) else ConnectionError("unexpected answer")
        raise failure

    def _drop(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def _send(self, connection: socket.socket, request: Request, body: memoryview | None = None) -> None:
        data = frame(request)
        connection.sendall(data)
        self.sent_bytes += len(data)
        if body is not None:
            connection.sendall(body)
            self.sent_bytes += body.nbytes

    def _put(self, connection: socket.socket, named: list[tuple[bytes, memoryview]]) -> None:
        self._send(connection, Have(tuple(name for name, _ in named)))
        had = _receive(connection)
        if not isinstance(had, Had) or len(had.held) != len(named):
            raise ConnectionError("unexpected answer")
        missing = {name: chunk for (name, chunk), held in zip(named, had.held, strict=True) if not held}
        for name, chunk in missing.items():
            self._send(connection, Put(name, chunk.nbytes), chunk)
        for _ in missing:
            answer = _receive(connection)
            if not isinstance(answer, Stored):
                raise _Refusal(answer) if isinstance(answer, Denied) else ConnectionError("unexpected answer")

    def _get(self, connection: socket.socket, blob: str, nbytes: int) -> memoryview:
        self._send(connection, Get(blob))
        answer = _receive(connection)
        if isinstance(answer, Denied):
            raise NodeLostError(f"the node has lost an answer: {answer.message}")
        if not isinstance(answer, Blob) or answer.nbytes != nbytes:
            raise ProtocolError(f"expected {nbytes} bytes from the data port, the node offers {answer!r}")
        data = np.empty(nbytes, np.uint8).data  # not cleared first, and on large pages where there are any
        _fill(connection, data)
        self._send(connection, Drop(blob))
        return data


def _open(address: str, tls: ssl.SSLContext | None) -> socket.socket:
    kind, _, rest = address.partition(":")
    if kind == "unix":
        return _open_ours(rest)
    if kind != "tls" and tls is not None:
        raise PermissionError("the bus is encrypted, and the node offers plain TCP: give the node a certificate (WOOLY_TLS_CERT)")
    host, _, port = rest.rpartition(":")
    connection = socket.create_connection((host, int(port)), _TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if kind != "tls":
        return connection
    try:
        return (tls or ssl.create_default_context()).wrap_socket(connection, server_hostname=host.strip("[]"))
    except OSError:
        connection.close()
        raise


def _open_ours(path: str) -> socket.socket:
    """Connect to a socket in a folder of this user alone, served by this user or root. A node elsewhere names paths of its own machine,
    which any user can create here."""
    folder = os.lstat(os.path.dirname(path))
    if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != os.getuid() or folder.st_mode & 0o077:
        raise PermissionError(f"{os.path.dirname(path)} is not a private folder of this user")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_TIMEOUT_S)
    try:
        connection.connect(path)
        _, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if uid not in (os.getuid(), 0):
            raise PermissionError(f"{path} is served by user {uid}")
    except OSError:
        connection.close()
        raise
    return connection


def _fill(connection: socket.socket, target: memoryview) -> None:
    at = 0
    while at < target.nbytes:
        got = connection.recv_into(target[at:])
        if got == 0:
            raise ConnectionError("the node closed the connection")
        at += got


def _receive(connection: socket.socket) -> Answer:
    head = bytearray(HEAD.size)
    _fill(connection, memoryview(head))
    (length,) = HEAD.unpack(head)
    if length > MESSAGE_BYTES_MAX:
        raise ProtocolError(f"the data port announces a message of {length} bytes: client and node are of different versions")
    body = bytearray(length)
    _fill(connection, memoryview(body))
    try:
        return decode_answer(body)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"the data port answered with something unreadable ({error})") from error
