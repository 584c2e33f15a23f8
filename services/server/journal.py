"""An append-only file of checked frames: what survives the server's death, power included.

Frame: length (u32 little-endian), first 8 bytes of blake3 of the body, body. A torn last frame is cut off when the file is opened;
damage before it sets the whole file aside under another name, for a person to look at.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from blake3 import blake3

__all__ = ["JournalFile"]

_HEAD: Final = struct.Struct("<I8s")
_TORN_BYTES_MAX: Final = 16 << 20
"""A last frame that claims more than this, and is not there, is no torn one: its length is damaged, and good frames stand behind it."""


class JournalFile:
    """One file. ``bodies``: what it held when it was opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes() if path.exists() else b""
        self.bodies, good = _read(data)
        if good is None:
            path.rename(path.with_name(f"{path.name}.damaged-{os.getpid()}"))
            good = 0
        self._file = path.open("ab")
        self._file.truncate(good)
        self.nbytes = good

    def append(self, body: bytes) -> None:
        """Add a frame; it is durable after the next ``sync``."""
        data = _frame(body)
        self._file.write(data)
        self.nbytes += len(data)

    def flush(self) -> None:
        """Hand what was appended to the kernel: it survives our death, not the machine's."""
        self._file.flush()

    def sync(self) -> None:
        """Wait until the disk has everything."""
        self._file.flush()
        os.fdatasync(self._file.fileno())

    def rewrite(self, bodies: Iterable[bytes]) -> None:
        """Replace the content, in one step."""
        fresh = self.path.with_name(self.path.name + ".new")
        with fresh.open("wb") as file:
            self.nbytes = sum(file.write(_frame(body)) for body in bodies)
            file.flush()
            os.fdatasync(file.fileno())
        self._file.close()
        fresh.replace(self.path)
        self._file = self.path.open("ab")

    def close(self) -> None:
        self._file.close()


def _frame(body: bytes) -> bytes:
    return _HEAD.pack(len(body), blake3(body).digest(length=8)) + body


def _read(data: bytes) -> tuple[list[bytes], int | None]:
    """The whole frames, and how many bytes they take; None when a frame before the last is damaged."""
    bodies: list[bytes] = []
    at = 0
    while at + _HEAD.size <= len(data):
        length, check = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        body = data[at + _HEAD.size : end]
        if len(body) < length:
            return bodies, (at if length <= _TORN_BYTES_MAX else None)
        if blake3(body).digest(length=8) != check:
            return bodies, (at if end == len(data) else None)
        bodies.append(body)
        at = end
    return bodies, at
