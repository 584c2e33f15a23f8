"""The capacity that all spaces of an engine share, and what each of them put aside.

What a freed buffer leaves is put aside for its own space, whose next request of that size class gets it without any work; when memory is
short, or many times what is in use was asked for meanwhile, it is given to any space that needs it, oldest first. (A cache that grows by a
token passes through size classes that never come again.) Memory of one space never reaches another unzeroed: that way leads through the
arena only.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from jit.engine import MemoryUse
from jit.errors import OutOfMemory
from jit.memory.arena import NO_DATA, Arena, Placed
from jit.memory.block import Block, room_for
from jit.memory.host import HostMemory

_SLACK_BYTES: Final = 8 << 20
_STALE_AFTER: Final = 16
"""What was put aside is stale when so many times the bytes in use at once have been asked for since."""


def arena_bytes(vram_bytes: int) -> int:
    """How large an arena must be so that what adds up to the capacity fits after rounding: 1/32, and a slab of each small size class."""
    return vram_bytes + vram_bytes // 32 + _SLACK_BYTES


def capacity_bytes(arena_bytes: int) -> int:
    """The capacity whose arena is no larger than this; below 0 where there is none."""
    return (arena_bytes - _SLACK_BYTES) * 32 // 33


class Capacity:
    """The configured device memory, shared by the spaces of one engine. ``running`` is held by runs while blocks must stay where they are.

    ``used_bytes`` is what spaces asked for. What they put aside comes on top while there is room, and goes first.
    """

    def __init__(self, vram_bytes: int, placed: Placed | None = None, running: AbstractContextManager[object] | None = None) -> None:
        self.vram_bytes = vram_bytes
        self.placed: Placed = Arena(HostMemory(arena_bytes(vram_bytes))) if placed is None else placed
        self.used_bytes = 0
        self.idle_bytes = 0
        self._unaligned = self.placed.align_bytes - 1
        self._running = nullcontext() if running is None else running
        self._shelves: dict[tuple[int, int], list[Block]] = {}  # by owner and room, oldest first
        self._asked_bytes = 0  # so far
        self._peak_bytes = self._peak_before_bytes = 0  # of what was in use, since the time below and in as long a time before it
        self._peak_since_bytes = 0  # what had been asked for then
        self._idle: dict[Block, tuple[int, int]] = {}  # owner, and what had been asked for, by block, oldest first
        self._lock = threading.Lock()

    @property
    def memory(self) -> MemoryUse:
        """The account of the device."""
        with self._lock:
            return MemoryUse(self.vram_bytes, self.used_bytes, self.placed.footprint_bytes - self.idle_bytes, self.idle_bytes)

    def allocate(self, nbytes: int, owner: int = -1, *, zero: bool = True) -> Block:
        """A block of so many bytes; raises OutOfMemory and changes nothing when they do not fit.

        ``zero`` False: it may have the old contents of a block that the same owner released.
        """
        room = room_for(nbytes)
        if room & self._unaligned:
            room += -room & self._unaligned
        with self._lock:
            used = self.used_bytes + nbytes
            if used > self.vram_bytes:
                raise OutOfMemory(nbytes, self.used_bytes, self.vram_bytes)
            self._asked_bytes += nbytes
            shelf = self._shelves.get((owner, room))
            if shelf:
                block = shelf.pop()
                del self._idle[block]
                self.idle_bytes -= room
                if block.nbytes != nbytes:
                    self.placed.renew(block, nbytes)
                if zero:
                    self.placed.zero(block)
            else:
                self._drop_stale()
                block = Block(room, None, 0, nbytes, NO_DATA)
                self._place(block)
            self.used_bytes = used
            if used > self._peak_bytes:
                self._peak_bytes = used
            if used + self.idle_bytes > self.vram_bytes:
                self._fit()
            return block

    def _check(self, nbytes: int) -> None:
        if self.used_bytes + nbytes > self.vram_bytes:
            raise OutOfMemory(nbytes, self.used_bytes, self.vram_bytes)

    def _fit(self) -> None:
        """What is put aside shrinks to what is left of the capacity."""
        while self._idle and self.used_bytes + self.idle_bytes > self.vram_bytes:
            self._drop_oldest()

    def _drop_stale(self) -> None:
        long_bytes = _STALE_AFTER * max(self._peak_bytes, self._peak_before_bytes)
        while self._idle and self._asked_bytes - next(iter(self._idle.values()))[1] > long_bytes:
            self._drop_oldest()
        if self._asked_bytes - self._peak_since_bytes > long_bytes:
            self._peak_before_bytes, self._peak_bytes, self._peak_since_bytes = self._peak_bytes, self.used_bytes, self._asked_bytes

    def _place(self, block: Block) -> None:
        """Memory for a block: free memory; then memory put aside; then by compaction."""
        placed = self.placed
        done = placed.place(block)
        while not done and self._idle:
            self._drop_oldest()
            done = placed.place(block)
        if not done:
            with self._running:
                done = placed.make_room(block.room) and placed.place(block)
        if not done:
            raise OutOfMemory(block.nbytes, self.used_bytes, self.vram_bytes)

    def release(self, block: Block, owner: int = -1) -> None:
        """The block is free; with an owner, its memory is put aside for that owner until another space needs it."""
        with self._lock:
            self.used_bytes -= block.nbytes
            assert self.used_bytes >= 0
            if owner < 0 or self.used_bytes + self.idle_bytes + block.room > self.vram_bytes:
                self.placed.drop(block)
                return
            shelf = self._shelves.get((owner, block.room))
            if shelf is None:
                self._shelves[owner, block.room] = [block]
            else:
                shelf.append(block)
            self._idle[block] = owner, self._asked_bytes
            self.idle_bytes += block.room

    def park(self, block: Block) -> None:
        """The block, which stays the same object, has no memory until ``unpark``."""
        self.release(block)

    def unpark(self, block: Block) -> None:
        """Memory for it again, of undefined contents. Raises OutOfMemory."""
        with self._lock:
            self._check(block.nbytes)
            self._place(block)
            self.used_bytes += block.nbytes
            self._fit()

    def take(self, nbytes: int) -> None:
        """Account for ``nbytes`` more, of memory that is elsewhere; raises OutOfMemory and changes nothing when they do not fit."""
        with self._lock:
            self._check(nbytes)
            self.used_bytes += nbytes
            self._fit()

    def give(self, nbytes: int) -> None:
        """Account for ``nbytes`` less of that."""
        with self._lock:
            self.used_bytes -= nbytes
            assert self.used_bytes >= 0

    def forget(self, owner: int) -> None:
        """Drop what ``owner`` put aside."""
        with self._lock:
            for place in [place for place in self._shelves if place[0] == owner]:
                for block in self._shelves.pop(place):
                    self._drop(block)

    def _drop_oldest(self) -> None:
        block, (owner, _) = next(iter(self._idle.items()))
        shelf = self._shelves[owner, block.room]
        assert shelf[0] is block, "blocks of a size are in order of age"
        del shelf[0]
        if not shelf:
            del self._shelves[owner, block.room]
        self._drop(block)

    def _drop(self, block: Block) -> None:
        del self._idle[block]
        self.idle_bytes -= block.room
        self.placed.drop(block)
