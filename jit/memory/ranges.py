"""Free ranges of an address space: best fit with coalescing. Offsets only, no memory.

Invariants: free ranges do not overlap, no two of them touch, and together with what was taken and not given back they cover the space.
Best fit keeps large ranges large (Knuth, The Art of Computer Programming 1, 2.5); among equal ranges the lowest is taken.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

__all__ = ["Ranges", "SCRAP_BYTES"]

SCRAP_BYTES: Final = 64 << 10
"""A free range below this is counted as lost: few tensors that matter fit into it."""
_SHIFT: Final = 48
_LOW: Final = (1 << _SHIFT) - 1


class Ranges:
    """The free part of [0, ``size``). ``free_bytes``: all of it; ``scrap_bytes``: what of it lies in ranges below SCRAP_BYTES."""

    __slots__ = ("_ends", "_lengths", "_order", "free_bytes", "scrap_bytes", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.free_bytes = 0
        self.scrap_bytes = 0
        self._lengths: dict[int, int] = {}  # of the range that starts here
        self._ends: dict[int, int] = {}  # where the range that ends here starts
        self._order: list[int] = []  # length and start in one integer, ascending
        if size:
            self._put(0, size)

    @property
    def largest(self) -> int:
        """The longest free range."""
        return self._order[-1] >> _SHIFT if self._order else 0

    def take(self, nbytes: int) -> int | None:
        """The start of a range that was free and is so long; None when there is none."""
        at = bisect_left(self._order, nbytes << _SHIFT)
        if at == len(self._order):
            return None
        key = self._order.pop(at)
        start, length = key & _LOW, key >> _SHIFT
        self._forget(start, length)
        if length > nbytes:
            self._put(start + nbytes, length - nbytes)
        return start

    def give(self, start: int, nbytes: int) -> None:
        """The range is free again; it becomes one with its free neighbours."""
        before = self._ends.get(start)
        end = start + nbytes
        if before is not None:
            length = self._lengths[before]
            self._drop(before, length)
            start = before
        behind = self._lengths.get(end)
        if behind is not None:
            self._drop(end, behind)
            end += behind
        self._put(start, end - start)

    def cut(self, start: int, length: int) -> None:
        """Take exactly this free range."""
        self._drop(start, length)

    def listed(self) -> list[tuple[int, int]]:
        """(start, length) of every free range, by address."""
        return sorted(self._lengths.items())

    def _put(self, start: int, length: int) -> None:
        self._lengths[start] = length
        self._ends[start + length] = start
        insort(self._order, length << _SHIFT | start)
        self.free_bytes += length
        if length < SCRAP_BYTES:
            self.scrap_bytes += length

    def _drop(self, start: int, length: int) -> None:
        del self._order[bisect_left(self._order, length << _SHIFT | start)]
        self._forget(start, length)

    def _forget(self, start: int, length: int) -> None:
        del self._lengths[start]
        del self._ends[start + length]
        self.free_bytes -= length
        if length < SCRAP_BYTES:
            self.scrap_bytes -= length
