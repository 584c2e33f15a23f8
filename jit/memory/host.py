"""The memory of the process as an arena: one anonymous mapping, of which the system gives a page when it is touched first.

Free memory is kept zero: what is given back is wiped at once, whole pages by giving them to the system. So an arena takes from the machine
what its blocks take, and nothing is left to do when memory is handed on.

May live here: that mapping. May not: addresses (addresses.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from typing import Final

import numpy as np

from jit.memory.block import ALIGN_BYTES, Block

__all__ = ["HostMemory"]

_LARGEST: Final = 1 << 46
"""More than that no process can map."""
_WIPED_IN_PLACE: Final = 1 << 20
"""Up to here writing zeros is cheaper than giving pages back and getting them again."""


class HostMemory:
    """``size_bytes`` of zeros; less where that is more than the machine has, so that out of memory stays an error of whoever asks."""

    def __init__(self, size_bytes: int) -> None:
        self.align_bytes = ALIGN_BYTES
        self._map = _mapped(min(size_bytes, _LARGEST))
        self._whole = np.frombuffer(self._map, np.uint8)
        self._base = self._whole.ctypes.data
        self.size_bytes = self._whole.size

    def bind(self, block: Block, offset: int) -> None:
        block.store, block.offset = self._whole, offset
        block.address = self._base + offset
        block.data = self._whole[offset : offset + block.nbytes]

    def zero(self, block: Block) -> None:
        block.data.fill(0)

    def copy(self, source: Block, target: Block) -> None:
        target.data[:] = source.data

    def taken(self, offset: int, nbytes: int) -> None:
        """It was wiped when it was given."""

    def given(self, offset: int, nbytes: int) -> None:
        if nbytes <= _WIPED_IN_PLACE:
            self._whole[offset : offset + nbytes] = 0
            return
        end = offset + nbytes
        first, last = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        self._whole[offset:first] = 0
        self._whole[last:end] = 0
        self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def move(self, source: int, target: int, nbytes: int) -> None:
        ctypes.memmove(self._base + target, self._base + source, nbytes)


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
