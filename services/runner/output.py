"""Bounded log of a script's output: its first and its last 256 KiB. Pure."""

from __future__ import annotations

import codecs
from collections import deque
from typing import Final

__all__ = ["HEAD_BYTES", "TAIL_BYTES", "Output", "boundary"]

HEAD_BYTES: Final = 256 << 10
TAIL_BYTES: Final = 256 << 10


class Output:
    """Bytes in, UTF-8 text out. The head is given out as it comes, the tail at the end."""

    def __init__(self, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head_left = head_bytes
        self._full = False
        self._tail_bytes = tail_bytes
        self._ready: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._dropped = 0

    def feed(self, data: bytes, *, final: bool = False) -> None:
        """The next bytes of the output. ``final``: there are no more."""
        text = self._decoder.decode(data, final).encode()
        if not self._full:
            cut = boundary(text, self._head_left)
            head, text = text[:cut], text[cut:]
            self._head_left -= len(head)
            if head:
                self._ready.append(head)
            if text:
                self._full = True
                limit = f"\n[the log is longer than its limit: the last {self._tail_bytes >> 10} KiB follow at its end]\n"
                self._ready.append(limit.encode())
        if text:
            self._tail.append(text)
            self._tail_size += len(text)
            while self._tail and self._tail_size - len(self._tail[0]) >= self._tail_bytes:
                gone = self._tail.popleft()
                self._tail_size -= len(gone)
                self._dropped += len(gone)

    def take(self) -> bytes:
        """What of the head has come since the last call."""
        out = b"".join(self._ready)
        self._ready.clear()
        return out

    def rest(self) -> bytes:
        """What is left at the end, with a line that says how much is missing before it."""
        out, tail = self.take(), b"".join(self._tail)
        extra = max(0, len(tail) - self._tail_bytes)
        start = extra + next((at for at, byte in enumerate(tail[extra:]) if byte & 0xC0 != 0x80), 0)
        dropped = self._dropped + start
        self._tail.clear()
        return out + (f"[{dropped} bytes are left out]\n".encode() if dropped else b"") + tail[start:]


def boundary(text: bytes, limit: int) -> int:
    """The largest index up to ``limit`` at which a character begins (or the end)."""
    at = min(limit, len(text))
    while 0 < at < len(text) and text[at] & 0xC0 == 0x80:
        at -= 1
    return at
