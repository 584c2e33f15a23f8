"""Host memory in chunks of one size, out of one mapping with large pages: the copy to and from it is all that swapping costs."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

__all__ = ["ChunkMemory"]

Bytes = npt.NDArray[np.uint8]


class ChunkMemory:
    """``count`` chunks at most; what is beyond is taken one by one from the system. The mapping takes memory only where it was written;
    ``idle_max`` free chunks keep theirs."""

    def __init__(self, count: int, chunk_bytes: int, idle_max: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._idle_max = idle_max
        self._warm: list[int] = []
        self._cold: list[int] = []
        self._next = 0
        self._count = count
        self._base = self._skip = 0
        self._map: mmap.mmap | None = None
        self._whole = np.empty(0, np.uint8)

    def take(self) -> Bytes:
        """A chunk of undefined contents."""
        if self._map is None:
            self._open()
        if self._warm:
            number = self._warm.pop()
        elif self._cold:
            number = self._cold.pop()
        elif self._next < self._count:
            number = self._next
            self._next += 1
        else:
            return np.empty(self._chunk_bytes, np.uint8)
        return self._whole[number * self._chunk_bytes : (number + 1) * self._chunk_bytes]

    def give(self, chunk: Bytes) -> None:
        """It is not used any more."""
        offset = chunk.ctypes.data - self._base
        if not 0 <= offset < self._whole.size:
            return
        number = offset // self._chunk_bytes
        if len(self._warm) < self._idle_max:
            self._warm.append(number)
        else:
            assert self._map is not None
            self._map.madvise(mmap.MADV_DONTNEED, offset + self._skip, self._chunk_bytes)
            self._cold.append(number)

    def _open(self) -> None:
        try:
            self._map = mmap.mmap(-1, (self._count + 1) * self._chunk_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError):  # more than a process can map here: chunk by chunk then
            self._map, self._count = mmap.mmap(-1, mmap.PAGESIZE), 0
            return
        for advice in (mmap.MADV_HUGEPAGE, mmap.MADV_DONTFORK):
            with contextlib.suppress(OSError):
                self._map.madvise(advice)
        mapped = np.frombuffer(self._map, np.uint8)
        self._skip = -mapped.ctypes.data % self._chunk_bytes
        self._whole = mapped[self._skip : self._skip + self._count * self._chunk_bytes]
        self._base = self._whole.ctypes.data
