"""The disk tier: chunks in files named by their content, checked on the way back. One thread at a time.

Large chunks go past the page cache where the file system lets them: memory is short when this is used, and filling the cache with data that
is not read soon takes more of it, and several times as long (docs/memory.md).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from services.server.executor.errors import SwapAway, SwapCorrupt, SwapFull

__all__ = ["DiskTier"]

_SHORT: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""The process or the machine is short of something: that says nothing of the file."""

_DIRECT_BYTES_MIN: Final = 1 << 20
"""Smaller chunks wait for the medium longer than the cache costs."""
_BLOCK_BYTES: Final = 4096
"""What goes past the cache begins and ends at multiples of this, in the file and in memory."""

Bytes = npt.NDArray[np.uint8]


class DiskTier:
    """Files in ``folder``, which is this tier's own: what an earlier process left there is removed. Equal chunks are one file, removed with
    the last that names it. Nothing is forced to the medium: after a crash the files are not read."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._names: dict[bytes, tuple[int, int]] = {}
        self._direct = True
        self._aside = _aligned(0)
        self.used_bytes = 0
        if folder.is_dir():
            for path in folder.iterdir():
                if path.suffix in (".chunk", ".part"):
                    path.unlink(missing_ok=True)

    def put(self, data: Bytes) -> bytes:
        """Keep a chunk; its name. Raises SwapFull when the limit or the disk says no; nothing is left of it then."""
        name = blake3(data.data).digest()
        count, _ = self._names.get(name, (0, 0))
        if not count:
            if self.used_bytes + data.nbytes > self._bytes_max:
                raise SwapFull(f"{self.used_bytes >> 20} MiB of {self._bytes_max >> 20} MiB of swap on disk are in use")
            self._write(name, data)
            self.used_bytes += data.nbytes
        self._names[name] = count + 1, data.nbytes
        return name

    def read(self, name: bytes, into: Bytes) -> None:
        """Fill ``into`` with a chunk. Raises SwapCorrupt when it is not what was put, SwapAway when the system has nothing left to read it
        with."""
        try:
            whole = self._open(self._path(name), os.O_RDONLY, into, self._fill)
        except OSError as error:
            if error.errno in _SHORT:
                raise SwapAway(f"chunk {name.hex()[:16]} of swapped memory cannot be read now: {error.strerror}") from None
            raise SwapCorrupt(f"chunk {name.hex()[:16]} of swapped memory cannot be read: {error.strerror or error}") from None
        if not whole or blake3(into.data).digest() != name:
            raise SwapCorrupt(f"chunk {name.hex()[:16]} of swapped memory is not what was written")

    def drop(self, name: bytes) -> None:
        """One that named this chunk does so no longer."""
        count, nbytes = self._names[name]
        if count > 1:
            self._names[name] = count - 1, nbytes
            return
        del self._names[name]
        self.used_bytes -= nbytes
        with contextlib.suppress(OSError):  # the next process removes what this one cannot
            self._path(name).unlink()

    def _write(self, name: bytes, data: Bytes) -> None:
        path = self._path(name)
        part = path.with_suffix(".part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, data, self._pour)
            part.rename(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise SwapFull(f"swapping to disk failed: {error.strerror or error}") from None

    def _open(self, path: Path, flags: int, data: Bytes, work: Callable[[int, Bytes, bool], bool]) -> bool:
        """Do ``work(file, data, direct)`` on an open file; again through the cache when the file system cannot do it without. Raises
        OSError."""
        direct = self._direct and data.nbytes >= _DIRECT_BYTES_MIN
        try:
            file = os.open(path, flags | (os.O_DIRECT if direct else 0), 0o600)
            try:
                return work(file, data, direct)
            finally:
                os.close(file)
        except OSError as error:
            if not direct or error.errno != errno.EINVAL:
                raise
        self._direct = False
        return self._open(path, flags, data, work)

    def _pour(self, file: int, data: Bytes, direct: bool) -> bool:
        """All of ``data`` into an empty file."""
        source = data
        if direct and not _is_aligned(data):
            source = self._room(data.nbytes)
            source[: data.nbytes] = data
        view = source.data
        while view:
            view = view[os.write(file, view) :]
        if source.nbytes != data.nbytes:
            os.ftruncate(file, data.nbytes)
        return True

    def _fill(self, file: int, into: Bytes, direct: bool) -> bool:
        """``into`` from a file of that size; False when the file has another."""
        if os.fstat(file).st_size != into.nbytes:
            return False
        target = into if not direct or _is_aligned(into) else self._room(into.nbytes)
        at = 0
        while at < into.nbytes:
            got = os.readv(file, [target.data[at:]])
            if not got:
                return False
            at += got
        if target is not into:
            into[:] = target[: into.nbytes]
        return True

    def _room(self, nbytes: int) -> Bytes:
        """Memory at and of multiples of a block, for so many bytes."""
        room = -(-nbytes // _BLOCK_BYTES) * _BLOCK_BYTES
        if self._aside.nbytes < room:
            self._aside = _aligned(room)
        return self._aside[:room]

    def _path(self, name: bytes) -> Path:
        return self._folder / f"{name.hex()}.chunk"


def _aligned(nbytes: int) -> Bytes:
    """So many bytes that begin at a multiple of a block."""
    memory = np.zeros(nbytes + _BLOCK_BYTES, np.uint8)
    skip = -memory.ctypes.data % _BLOCK_BYTES
    return memory[skip : skip + nbytes]


def _is_aligned(data: Bytes) -> bool:
    return data.nbytes % _BLOCK_BYTES == 0 and data.ctypes.data % _BLOCK_BYTES == 0
