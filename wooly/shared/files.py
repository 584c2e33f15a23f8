"""Replacing a file in one step, reading one that no other user could write or that was replaced, and how many may be open."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


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


def read_own(path: str | Path) -> bytes:
    """The bytes of a file that only this user (or root) could have written. Raises OSError; PermissionError for a file of another user, or
    that others may write."""
    with open(path, "rb") as file:
        about = os.fstat(file.fileno())
        if hasattr(os, "getuid") and (about.st_uid not in (os.getuid(), 0) or about.st_mode & 0o022):
            raise PermissionError(f"{path} can be written by other users")
        return file.read()


def revision_of(paths: Sequence[str | Path]) -> tuple[tuple[int, int, int] | None, ...]:
    """Changes when one of the files is replaced or written; None for a file that is not there."""
    return tuple(_revision(path) for path in paths)


def _revision(path: str | Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class Reread(Generic[T]):
    """What ``read()`` makes of the files at ``paths``, made again at the first call after one of them was replaced (one ``stat`` for each
    file and call, about 1 us). If they cannot be read then, the value made before stays in use and a warning is logged. The constructor
    raises what ``read`` raises."""

    def __init__(self, paths: Sequence[str | Path], read: Callable[[], T]) -> None:
        self._paths = paths
        self._read = read
        self._revision = revision_of(paths)
        self._value = read()

    def __call__(self) -> T:
        revision = revision_of(self._paths)
        if revision != self._revision:
            self._revision = revision  # before reading: what is replaced meanwhile is read again
            try:
                self._value = self._read()
            except (OSError, ValueError) as error:
                logging.getLogger(__name__).warning("%s cannot be read, what it held before stays in use: %s", self._paths[0], error)
        return self._value


def more_files(files_max: int) -> int:
    """Let the process have as many files open as the system allows, at most ``files_max``; how many that are."""
    import resource  # of Unix: clients elsewhere import this module, and have no use for it

    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = files_max if most == resource.RLIM_INFINITY else min(files_max, most)
    if now != resource.RLIM_INFINITY and now < room:
        resource.setrlimit(resource.RLIMIT_NOFILE, (room, most))
    return room
