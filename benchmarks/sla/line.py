"""A minimal NATS client that sends batches and receives answers: one blocking socket, one thread, no event loop.

The load generator shares two cores with the node; its own work must not show in the node's latency, and its clock must be finer than
an event loop's timers.
"""

from __future__ import annotations

import select
import socket
import time
from typing import Final
from urllib.parse import urlsplit

__all__ = ["Line", "Message"]

_RECEIVE_BYTES: Final = 1 << 20

Message = tuple[str, bytes, int]
"""(subject, payload, when it came on the monotonic clock in ns)."""


class Line:
    """A connection to the bus at ``url``. ``receive`` returns what has come."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 4222), 10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = bytearray()
        self._sids = 0
        self._socket.sendall(b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\nPING\r\n')
        self._inbox = f"_INBOX.sla{time.monotonic_ns():x}"
        self.subscribe(self._inbox)

    def close(self) -> None:
        self._socket.close()

    def subscribe(self, subject: str) -> None:
        self._sids += 1
        self._socket.sendall(f"SUB {subject} {self._sids}\r\n".encode())

    def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        self._socket.sendall(f"PUB {subject} {reply} {len(payload)}\r\n".encode() + payload + b"\r\n")

    def request(self, subject: str, payload: bytes, timeout_s: float = 10.0) -> bytes:
        """The first answer on ``subject``. Nothing else may be expected meanwhile. Raises TimeoutError."""
        self.publish(subject, payload, self._inbox)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for to, answer, _ in self.receive(deadline - time.monotonic()):
                if to == self._inbox and answer:
                    return answer
        raise TimeoutError(f"no answer on {subject} within {timeout_s:g} s")

    def receive(self, timeout_s: float) -> list[Message]:
        """The messages that have come, waiting up to ``timeout_s`` for the first. Raises ConnectionError."""
        readable, _, _ = select.select([self._socket], [], [], max(0.0, timeout_s))
        if not readable:
            return []
        data = self._socket.recv(_RECEIVE_BYTES)
        at_ns = time.monotonic_ns()
        if not data:
            raise ConnectionError("the bus closed the connection")
        self._rest += data
        return [(subject, payload, at_ns) for subject, payload in self._messages()]

    def _messages(self) -> list[tuple[str, bytes]]:
        """Cut whole protocol lines off what has come."""
        rest, out, at = self._rest, [], 0
        while (end := rest.find(b"\r\n", at)) >= 0:
            words = bytes(rest[at:end]).split()
            if words and words[0] in (b"MSG", b"HMSG"):
                length = int(words[-1])
                if len(rest) < end + 2 + length + 2:
                    break
                skip = int(words[-2]) if words[0] == b"HMSG" else 0
                out.append((words[1].decode(), bytes(rest[end + 2 + skip : end + 2 + length])))
                at = end + 2 + length + 2
                continue
            at = end + 2
            if words and words[0] == b"PING":
                self._socket.sendall(b"PONG\r\n")
            elif words and words[0] == b"-ERR":
                raise ConnectionError(b" ".join(words).decode())
        del rest[:at]
        return out
