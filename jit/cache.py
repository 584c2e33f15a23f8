"""Compiled objects on disk, by digest; those that were not used for longest are removed when they take too much room.

A file is written beside its name and moved into place, so readers never see half of one. Each file starts with a digest of its contents:
a damaged or truncated file counts as absent and is replaced.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Final

from blake3 import blake3

_DIGEST_BYTES = 32
_BYTES_MAX: Final = 4 << 30
_KEPT_PERCENT: Final = 90
"""Of the limit, after some were removed."""


class ObjectCache:
    """A folder of objects of ``bytes_max`` bytes together; with ``folder`` None a cache in which nothing is ever found. Several processes
    may use a folder: each counts what it adds, and looks again before it removes."""

    def __init__(self, folder: Path | None, bytes_max: int = _BYTES_MAX) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._bytes: int | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> bytes | None:
        """The object stored under ``key`` (a file name), or None."""
        if self._folder is None:
            return None
        path = self._folder / key
        try:
            raw = path.read_bytes()
        except OSError:  # absent, or unreadable, which is as good as absent
            return None
        with contextlib.suppress(OSError):  # a read-only folder
            os.utime(path)
        digest, body = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
        return body if blake3(body).digest() == digest else None

    def put(self, key: str, body: bytes) -> None:
        """Store an object; a full or read-only disk costs the next start a compilation and nothing else."""
        if self._folder is None:
            return
        try:
            handle, name = tempfile.mkstemp(dir=self._folder, prefix=".new-")
            with os.fdopen(handle, "wb") as file:
                file.write(blake3(body).digest() + body)
            os.replace(name, self._folder / key)
            self._bytes = None if self._bytes is None else self._bytes + _DIGEST_BYTES + len(body)
            if self._bytes is None or self._bytes > self._bytes_max:
                self._make_room()
        except OSError:
            return

    def _make_room(self) -> None:
        """Count what is there, and remove what was not used for longest beyond the limit. Raises OSError."""
        assert self._folder is not None, "called by put alone"
        with os.scandir(self._folder) as entries:
            files = [(entry.stat(), entry.path) for entry in entries if entry.is_file()]
        self._bytes = sum(found.st_size for found, _ in files)
        if self._bytes <= self._bytes_max:
            return
        for found, path in sorted(files, key=lambda file: file[0].st_mtime_ns):
            if self._bytes <= self._bytes_max * _KEPT_PERCENT // 100:
                return
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                os.unlink(path)
            self._bytes -= found.st_size
