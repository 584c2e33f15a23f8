"""A write-ahead log: an append-only file of checked frames (bus_schemas.frames) that survives the server's death, power included.

A torn last frame is cut off when the file is opened; damage before it sets the whole file aside under another name, for a person to look
at.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from bus_schemas.frames import FrameDamage, checked_frame, checked_frames
from wooly.shared.files import write_atomically

__all__ = ["JournalFile"]


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
        data = checked_frame(body)
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
        data = b"".join(map(checked_frame, bodies))
        write_atomically(self.path, data, durable=True)
        self._file.close()
        self._file = self.path.open("ab")
        self.nbytes = len(data)

    def close(self) -> None:
        self._file.close()


def _read(data: bytes) -> tuple[list[bytes], int | None]:
    """The whole frames, and how many bytes they take; None when a frame before the last is damaged."""
    bodies: list[bytes] = []
    used = 0
    try:
        for end, body in checked_frames(data):
            bodies.append(bytes(body))
            used = end
    except FrameDamage:
        return bodies, None
    return bodies, used
