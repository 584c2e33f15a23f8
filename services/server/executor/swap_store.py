"""The store of swapped memory: in the host's memory first, the oldest of it on disk when that is full, as chunks in encrypted
files that are named by their content and checked on the way back.

Large chunks go past the page cache where the file system lets them: memory is short when this is used, and filling the cache with data that
is not read soon takes more of it, and several times as long (docs/memory.md).

Used by the thread that moves (put, get, tidy) and the launching one (leave); a lock is held for one chunk at a time at most.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from services.kit.at_rest import CIPHER_BYTES, crypt
from services.server.executor.errors import SwapAway, SwapCorrupt, SwapFull

__all__ = ["CHUNK_BYTES", "DiskTier", "Kept", "SwapStore"]

_SHORT: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""The process or the machine is short of something: that says nothing of the file."""

_DIRECT_BYTES_MIN: Final = 1 << 20
"""Smaller chunks wait for the medium longer than the cache costs."""
_BLOCK_BYTES: Final = 4096
"""What goes past the cache begins and ends at multiples of this, in the file and in memory."""

Bytes = npt.NDArray[np.uint8]


class DiskTier:
    """Files in ``folder``, which is this tier's own: what an earlier process left there is removed. Equal chunks are one file, removed with
    the last that names it. Nothing is forced to the medium: after a crash the files are not read, and cannot be, because they are encrypted
    (AES-256 in counter mode) under a key that is only in this process. A chunk's name is its keyed hash, and the counter begins with it: no
    two chunks have the same."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._names: dict[bytes, tuple[int, int]] = {}
        self._direct = True
        self._aside = _aligned(0)
        self._plain = np.empty(0, np.uint8)
        self._key = secrets.token_bytes(32)
        self.used_bytes = 0
        if folder.is_dir():
            for path in folder.iterdir():
                if path.suffix in (".chunk", ".part"):
                    path.unlink(missing_ok=True)

    def put(self, data: Bytes) -> bytes:
        """Keep a chunk; its name. Raises SwapFull when the limit or the disk says no; nothing is left of it then."""
        name = blake3(data.data, key=self._key).digest()
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
            whole = self._open(self._path(name), os.O_RDONLY, name, into, self._fill)
        except OSError as error:
            if error.errno in _SHORT:
                raise SwapAway(f"chunk {name.hex()[:16]} of swapped memory cannot be read now: {error.strerror}") from None
            raise SwapCorrupt(f"chunk {name.hex()[:16]} of swapped memory cannot be read: {error.strerror or error}") from None
        if not whole or blake3(into.data, key=self._key).digest() != name:
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
            self._open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, name, data, self._pour)
            part.rename(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise SwapFull(f"swapping to disk failed: {error.strerror or error}") from None

    def _open(self, path: Path, flags: int, name: bytes, data: Bytes, work: Callable[[int, bytes, Bytes, bool], bool]) -> bool:
        """Do ``work(file, name, data, direct)`` on an open file; again through the cache when the file system cannot do it without. Raises
        OSError."""
        direct = self._direct and data.nbytes >= _DIRECT_BYTES_MIN
        try:
            file = os.open(path, flags | (os.O_DIRECT if direct else 0), 0o600)
            try:
                return work(file, name, data, direct)
            finally:
                os.close(file)
        except OSError as error:
            if not direct or error.errno != errno.EINVAL:
                raise
        self._direct = False
        return self._open(path, flags, name, data, work)

    def _pour(self, file: int, name: bytes, data: Bytes, direct: bool) -> bool:
        """All of ``data``, encrypted, into an empty file."""
        room = self._room(data.nbytes)
        crypt(self._key, name, data.data, room.data)
        view = room.data[: -(-data.nbytes // _BLOCK_BYTES) * _BLOCK_BYTES if direct else data.nbytes]
        while view:
            view = view[os.write(file, view) :]
        os.ftruncate(file, data.nbytes)
        return True

    def _fill(self, file: int, name: bytes, into: Bytes, direct: bool) -> bool:
        """``into`` from a file of that size; False when the file has another."""
        if os.fstat(file).st_size != into.nbytes:
            return False
        room, at = self._room(into.nbytes), 0
        while at < into.nbytes:
            got = os.readv(file, [room.data[at:]])
            if not got:
                return False
            at += got
        if self._plain.nbytes < into.nbytes + CIPHER_BYTES:
            self._plain = np.empty(into.nbytes + CIPHER_BYTES, np.uint8)
        crypt(self._key, name, room[: into.nbytes].data, self._plain.data)
        into[:] = self._plain[: into.nbytes]
        return True

    def _room(self, nbytes: int) -> Bytes:
        """Memory at and of multiples of a block, for so many bytes and ``CIPHER_BYTES``."""
        room = -(-(nbytes + CIPHER_BYTES) // _BLOCK_BYTES) * _BLOCK_BYTES
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
