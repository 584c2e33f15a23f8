"""Replacing a file in one step."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: str | Path, data: bytes | bytearray, *, mode: int = 0o644, durable: bool = False) -> None:
    """Readers see the old file or the whole new one, which has ``mode`` (less the umask) from its creation on. ``durable``: return once
    the bytes are on disk. Raises OSError; then the old file is unchanged."""
    new = f"{path}.{os.getpid()}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)  # of a process with the same id that ended while it wrote
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as out:
            out.write(data)
            if durable:
                out.flush()
                os.fsync(out.fileno())
        os.replace(new, path)
    except BaseException:
        Path(new).unlink(missing_ok=True)
        raise
