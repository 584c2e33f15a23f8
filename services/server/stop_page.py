"""The stop page: a small file that server and executor both map, faster than any message.

The executor makes it, the server writes into word p the serial up to which launches of priority p stop, the code that runs a launch reads
it (jit.engine.Stop).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from pathlib import Path
from typing import Final, Self

from services.server.protocol import STOP_WORDS

_WORD: Final = struct.Struct("<Q")
_NBYTES: Final = STOP_WORDS * _WORD.size


def stop_page_path(commands: Path) -> Path:
    """The file of the page, beside the executor's socket of commands."""
    return commands.with_name(commands.name + ".stop")


class StopPage:
    """A mapped page. Serials only grow, so a word that is read while it is written is never above the one or the other."""

    def __init__(self, file: int) -> None:
        self._map = mmap.mmap(file, _NBYTES)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @classmethod
    def create(cls, path: Path) -> Self:
        """A new page of zeros, for this user alone. Raises OSError."""
        path.unlink(missing_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, _NBYTES)
            return cls(file)
        finally:
            os.close(file)

    @classmethod
    def open(cls, path: Path) -> Self:
        """The page that another process made. Raises OSError, and ValueError when the file is no such page."""
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(file)
        finally:
            os.close(file)

    def address(self, priority: int) -> int:
        """Where the word of ``priority`` is in this process; the page must not be closed while it is read."""
        return self._base + priority * _WORD.size

    def word(self, priority: int) -> int:
        serial: int = _WORD.unpack_from(self._map, priority * _WORD.size)[0]
        return serial

    def stop(self, priority: int, serial: int) -> None:
        """Launches of ``priority`` with a serial up to this one stop as soon as they can."""
        if serial > self.word(priority):
            _WORD.pack_into(self._map, priority * _WORD.size, serial)

    def clear(self) -> None:
        """Nothing is to be stopped: serials begin anew."""
        self._map[:] = bytes(_NBYTES)

    def close(self) -> None:
        self._map.close()
