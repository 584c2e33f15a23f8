"""Accepts TCP connections with limits that hold before the first byte: time for the TLS handshake, and connections, overall and of one
address. Connections above them are closed at once, so that silent ones do not use up the process's files.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["Listener", "Tracked", "more_files"]

_HANDSHAKE_S: Final = 10.0
_FILES_MAX: Final = 1 << 16
_CONNECTIONS_MAX: Final = 8192
_OF_ONE_ADDRESS: Final = 4
"""One address may have this part of all connections."""
_PAUSE_S: Final = 0.05


class Tracked(Protocol):
    """A protocol of asyncio that calls ``on_lost`` when its connection has ended."""

    on_lost: Callable[[], None]


def more_files() -> int:
    """Let the process have as many files open as the system allows, 65,536 at most; how many that are."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = _FILES_MAX if most == resource.RLIM_INFINITY else min(_FILES_MAX, most)
    if now != resource.RLIM_INFINITY and now < room:
        resource.setrlimit(resource.RLIMIT_NOFILE, (room, most))
    return room


class Listener:
    """Serves ``make()`` on each connection to ``bound``. Half of the process's files are for other things than connections."""

    handshake_s = _HANDSHAKE_S

    def __init__(self, bound: socket.socket, make: Callable[[], Tracked], context: ssl.SSLContext | None) -> None:
        bound.setblocking(False)
        self._bound = bound
        self._make = make
        self._context = context
        self._max = min(_CONNECTIONS_MAX, more_files() // 2)
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
            host = str(address[0])
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
