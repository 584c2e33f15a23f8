"""The disk tier: chunks in files named by their content, checked on the way back. One thread at a time."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from services.server.executor.swap.errors import SwapAway, SwapCorrupt, SwapFull

__all__ = ["DiskTier"]

_SHORT: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""The process or the machine is short of something: that says nothing of the file."""

Bytes = npt.NDArray[np.uint8]


class DiskTier:
    """Files in ``folder``, which is this tier's own: what an earlier life left there is removed. Equal chunks are one file, removed with
    the last that names it. Nothing is forced to the medium: after a crash nobody asks for it."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._names: dict[bytes, tuple[int, int]] = {}
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
            with open(self._path(name), "rb", buffering=0) as file:
                got = file.readinto(into.data)
                whole = got == into.nbytes and not file.read(1)
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
        self._path(name).unlink(missing_ok=True)

    def _write(self, name: bytes, data: Bytes) -> None:
        path = self._path(name)
        part = path.with_suffix(".part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb", buffering=0) as file:
                view = data.data
                while view:
                    view = view[file.write(view) :]
            part.rename(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise SwapFull(f"swapping to disk failed: {error.strerror or error}") from None

    def _path(self, name: bytes) -> Path:
        return self._folder / f"{name.hex()}.chunk"
