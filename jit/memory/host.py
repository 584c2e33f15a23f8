"""The memory of the process as an arena: one anonymous mapping, of which the system gives a page when it is touched first.

Untouched pages are zero; the rest is set to zero when it is allocated. Pages of freed memory are kept up to a bound, because to get
one from the system costs more than to clear it; beyond that they go back to the system.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from typing import Final

import numpy as np

from jit.memory.block import ALIGN_BYTES, Block

_LARGEST: Final = 1 << 46
"""More than that no process can map."""
_CHUNK_SHIFT: Final = 21
"""Of the note which parts were touched: 2 MiB."""
_KEPT_BYTES: Final = 1 << 30
"""So much freed memory stays the process's, or a quarter of the arena where that is more."""
_RETURNED_BYTES: Final = 1 << 20
"""Smaller pieces are not worth a system call."""


class HostMemory:
    """``size_bytes`` of zeros; less where that is more than the machine has, so that running out of memory stays an error of the caller."""

    def __init__(self, size_bytes: int) -> None:
        self.align_bytes = ALIGN_BYTES
        self._map = _mapped(min(size_bytes, _LARGEST))
        self._whole = np.frombuffer(self._map, np.uint8)
        self._base = self._whole.ctypes.data
        self.size_bytes = self._whole.size
        self._touched = np.zeros((self.size_bytes >> _CHUNK_SHIFT) + 1, np.bool_)
        self._chunks = 0  # that were touched
        self._live_bytes = 0
        self._kept_bytes = max(_KEPT_BYTES, self.size_bytes // 4)

    def bind(self, block: Block, offset: int) -> None:
        block.store, block.offset = self._whole, offset
        block.address = self._base + offset
        block.data = self._whole[offset : offset + block.nbytes]

    def zero(self, block: Block) -> None:
        block.data.fill(0)

    def copy(self, source: Block, target: Block) -> None:
        target.data[:] = source.data

    def taken(self, offset: int, nbytes: int) -> None:
        self._live_bytes += nbytes
        end = offset + nbytes
        first, last = offset >> _CHUNK_SHIFT, (end - 1) >> _CHUNK_SHIFT
        if first == last and self._touched[first]:
            self._whole[offset:end].fill(0)
            return
        for chunk in (first + np.flatnonzero(self._touched[first : last + 1])).tolist():
            start = chunk << _CHUNK_SHIFT
            self._whole[max(start, offset) : min(start + (1 << _CHUNK_SHIFT), end)].fill(0)
        self._touch(first, last)

    def given(self, offset: int, nbytes: int) -> None:
        self._live_bytes -= nbytes
        if nbytes < _RETURNED_BYTES or (self._chunks << _CHUNK_SHIFT) - self._live_bytes <= self._kept_bytes:
            return
        end = offset + nbytes
        first, last = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
        inside = self._touched[-(-offset >> _CHUNK_SHIFT) : end >> _CHUNK_SHIFT]
        self._chunks -= int(np.count_nonzero(inside))
        inside[:] = False

    def move(self, source: int, target: int, nbytes: int) -> None:
        ctypes.memmove(self._base + target, self._base + source, nbytes)
        self._touch(target >> _CHUNK_SHIFT, (target + nbytes - 1) >> _CHUNK_SHIFT)

    def _touch(self, first: int, last: int) -> None:
        chunks = self._touched[first : last + 1]
        self._chunks += chunks.size - int(np.count_nonzero(chunks))
        chunks[:] = True


def _mapped(size: int) -> mmap.mmap:
    """Private, so that no other process sees it; not even a child has it."""
    size = max(-(-size // mmap.PAGESIZE) * mmap.PAGESIZE, mmap.PAGESIZE)
    while True:
        try:
            found = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            break
        except (OSError, ValueError, OverflowError):
            if size <= mmap.PAGESIZE:
                raise
            size = max(min(size // 2, os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE) // mmap.PAGESIZE * mmap.PAGESIZE, mmap.PAGESIZE)
    for advice in (mmap.MADV_HUGEPAGE, mmap.MADV_DONTFORK):
        with contextlib.suppress(OSError):  # a kernel without it does without it
            found.madvise(advice)
    return found
