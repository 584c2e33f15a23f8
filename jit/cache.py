"""Compiled objects on disk, by digest.

A file is written beside its name and moved into place, so readers never see half of one. Each file starts with a digest of its contents:
a damaged or truncated file counts as absent and is replaced.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from blake3 import blake3

__all__ = ["ObjectCache"]

_DIGEST_BYTES = 32


class ObjectCache:
    """A folder of objects; with ``folder`` None a cache in which nothing is ever found."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> bytes | None:
        """The object stored under ``key`` (a file name), or None."""
        if self._folder is None:
            return None
        try:
            raw = (self._folder / key).read_bytes()
        except OSError:  # absent, or unreadable, which is as good as absent
            return None
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
        except OSError:
            return
