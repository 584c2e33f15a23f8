"""The store of swapped memory: in the host's memory first, the oldest of it on disk when that is full.

Used by the thread that moves (put, get, tidy) and the launching one (leave); a lock is held for one chunk at a time at most.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from services.server.executor.errors import SwapFull
from services.server.executor.swap.disk import DiskTier

__all__ = ["ChunkMemory", "CHUNK_BYTES", "Kept", "SwapStore"]

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


CHUNK_BYTES: Final = 4 << 20
_IDLE_MAX: Final = 256
"""Free chunks that keep their pages for the next swap: to have them from the system costs as much as the copy."""

_FORGOTTEN_MAX: Final = 8
"""Chunks of what was left that are given up with each one put, if its room is needed."""


@dataclass(slots=True, eq=False)
class _Chunk:
    """In the host's memory (``memory``), or on disk under ``name``; ``number`` is its place in the order of arrival."""

    nbytes: int
    number: int
    memory: Bytes | None
    name: bytes = b""


@dataclass(slots=True, eq=False)
class Kept:
    """One buffer's bytes, in order."""

    nbytes: int
    chunks: list[_Chunk] = field(default_factory=list)


class SwapStore:
    """``host_bytes``: the most that is kept in memory. ``disk`` None: nothing goes to disk."""

    def __init__(self, host_bytes: int, disk: DiskTier | None) -> None:
        self._host_bytes = host_bytes
        self._disk = disk
        self._lock = threading.Lock()
        self._in_memory: OrderedDict[int, _Chunk] = OrderedDict()
        self._left: deque[Kept] = deque()
        self._memory = ChunkMemory(host_bytes // CHUNK_BYTES + 2, CHUNK_BYTES, _IDLE_MAX)
        self._arrived = 0
        self.host_used_bytes = 0

    @property
    def disk_used_bytes(self) -> int:
        return self._disk.used_bytes if self._disk is not None else 0

    def put(self, kept: Kept, read: Callable[[int, Bytes], None]) -> Iterator[None]:
        """Keep the buffer whose bytes from ``offset`` on ``read(offset, into)`` puts into an array as ``kept``, a chunk a step. Raises
        SwapFull, and nothing of it is kept."""
        try:
            for at in range(0, kept.nbytes, CHUNK_BYTES):
                self._put(kept, at, min(CHUNK_BYTES, kept.nbytes - at), read)
                yield
        except BaseException:  # also when the generator is closed early
            self.leave(kept)
            raise

    def get(self, kept: Kept, write: Callable[[int, Bytes], None]) -> Iterator[None]:
        """Give a buffer's bytes to ``write(offset, data)``, a chunk a step. Raises SwapCorrupt. What is kept stays until it is dropped."""
        at = 0
        for chunk in kept.chunks:
            with self._lock:
                self._forget()
                memory = chunk.memory
                if memory is None:
                    assert self._disk is not None
                    memory = self._take(chunk.nbytes)
                    try:
                        self._disk.read(chunk.name, memory[: chunk.nbytes])
                        write(at, memory[: chunk.nbytes])
                    finally:
                        self._rest(memory)
                else:
                    write(at, memory[: chunk.nbytes])
            at += chunk.nbytes
            yield

    def leave(self, kept: Kept) -> None:
        """Mark this as no longer needed: ``tidy``, or the next put or get, deletes it. Any thread. Returns at once, since removing the file
        of a chunk takes a millisecond, and there may be gigabytes."""
        self._left.append(kept)

    def tidy(self) -> bool:
        """Give up a chunk of what was left; is there more?"""
        with self._lock:
            self._forget()
            return bool(self._left)

    def drop(self, kept: Kept) -> None:
        """``leave`` it, and give up all that was left."""
        self.leave(kept)
        while self.tidy():
            pass

    # -- with the lock held ----------------------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        """One chunk of what was left."""
        if not self._left:
            return
        chunks = self._left[0].chunks
        if chunks:
            chunk = chunks.pop()
            if chunk.memory is not None:
                del self._in_memory[chunk.number]
                self.host_used_bytes -= chunk.nbytes
                self._rest(chunk.memory)
                chunk.memory = None
            else:
                assert self._disk is not None
                self._disk.drop(chunk.name)
        if not chunks:
            self._left.popleft()

    def _fits(self, nbytes: int) -> bool:
        return self.host_used_bytes + nbytes <= self._host_bytes

    def _put(self, kept: Kept, at: int, nbytes: int, read: Callable[[int, Bytes], None]) -> None:
        with self._lock:
            for _ in range(_FORGOTTEN_MAX):  # before something that is still wanted makes room
                self._forget()
                if self._fits(nbytes):
                    break
            while not self._fits(nbytes) and self._in_memory:
                self._to_disk(next(iter(self._in_memory.values())))
            memory = self._take(nbytes)
            read(at, memory[:nbytes])
            self._arrived += 1
            chunk = _Chunk(nbytes, self._arrived, memory)
            if not self._fits(nbytes):  # the host's memory has no room for a single one
                self._named(chunk)
            else:
                self._in_memory[chunk.number] = chunk
                self.host_used_bytes += nbytes
            kept.chunks.append(chunk)

    def _to_disk(self, chunk: _Chunk) -> None:
        self._named(chunk)
        del self._in_memory[chunk.number]
        self.host_used_bytes -= chunk.nbytes

    def _named(self, chunk: _Chunk) -> None:
        """Write a chunk's bytes to disk. Raises SwapFull, and it stays in memory."""
        memory = chunk.memory
        assert memory is not None
        if self._disk is None:
            raise SwapFull(f"{self._host_bytes >> 20} MiB of the host's memory for swapping are in use, and there is no disk for it")
        data = memory[: chunk.nbytes]
        try:
            chunk.name = self._disk.put(data)
        except SwapFull:
            if not self._left:
                raise
            while self._left:
                self._forget()
            chunk.name = self._disk.put(data)
        chunk.memory = None
        self._rest(memory)

    def _take(self, nbytes: int) -> Bytes:
        return self._memory.take() if nbytes > CHUNK_BYTES // 2 else np.empty(nbytes, np.uint8)

    def _rest(self, memory: Bytes) -> None:
        if memory.nbytes == CHUNK_BYTES:
            self._memory.give(memory)
