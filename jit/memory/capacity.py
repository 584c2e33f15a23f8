"""The capacity that all spaces of an engine share, and what each of them put aside.

Memory of one space never reaches another unzeroed: what a freed buffer leaves is put aside for its own space only, and what is dropped goes
back to where only zeroed blocks are taken from.

May live here: accounting and free blocks. May not: keys, programs, plans.
"""

from __future__ import annotations

import threading
from typing import Final, Protocol

import numpy as np

from jit.engine import MemoryUse
from jit.errors import OutOfMemory
from jit.memory.block import Block, aligned, new_block, room_for

__all__ = ["Blocks", "Capacity"]


_NONE: Final = np.zeros(0, np.uint8)


class Blocks(Protocol):
    """Where blocks come from."""

    def fresh(self, nbytes: int, room: int) -> Block:
        """Zeroed memory. Raises MemoryError."""
        ...

    def renewed(self, block: Block, nbytes: int, zero: bool) -> Block:
        """A block put aside, as a new one of the same room; zeroed if asked."""
        ...

    def copy(self, source: Block, target: Block) -> None:
        """The bytes of one block into another of the same size."""
        ...


class HostBlocks:
    """Blocks of the process's own memory."""

    def fresh(self, nbytes: int, room: int) -> Block:
        return new_block(nbytes, room)

    def renewed(self, block: Block, nbytes: int, zero: bool) -> Block:
        data = block.data if block.nbytes == nbytes else aligned(block.store, block.room)[1][:nbytes]
        if zero:
            data[:] = 0
        return Block(block.room, block.store, block.address, nbytes, data)

    def copy(self, source: Block, target: Block) -> None:
        target.data[:] = source.data


class Capacity:
    """The configured device memory, shared by the spaces of one engine.

    ``used_bytes`` is what spaces hold. What they keep for their own later requests comes on top while there is room, and goes first.
    """

    def __init__(self, vram_bytes: int, blocks: Blocks | None = None) -> None:
        self.vram_bytes = vram_bytes
        self.blocks = HostBlocks() if blocks is None else blocks
        self.used_bytes = 0
        self.idle_bytes = 0
        self._rooms_bytes = 0
        self._shelves: dict[int, dict[int, list[Block]]] = {}
        self._lock = threading.Lock()

    @property
    def memory(self) -> MemoryUse:
        """The account of the device."""
        with self._lock:
            return MemoryUse(self.vram_bytes, self.used_bytes, self._rooms_bytes, self.idle_bytes)

    def allocate(self, nbytes: int, owner: int = -1, *, zero: bool = True) -> Block:
        """A block of so many bytes; raises OutOfMemory and changes nothing when they do not fit.

        ``zero`` False: it may have the old contents of a block that the same owner released.
        """
        room = room_for(nbytes)
        old = self.take(nbytes, owner, room)
        block = self.fresh(nbytes, room) if old is None else self.blocks.renewed(old, nbytes, zero)
        self._rooms_bytes += room
        return block

    def release(self, block: Block, owner: int = -1) -> None:
        """The block is free; with an owner, its memory is put aside for that one as long as nobody else needs it."""
        self.give(block.nbytes)
        self._rooms_bytes -= block.room
        if owner >= 0:
            self._keep(owner, block)

    def park(self, block: Block) -> None:
        """The block, which stays the same object, has no memory until ``unpark``."""
        self.release(Block(block.room, block.store, block.address, block.nbytes, block.data))
        block.store, block.address, block.data = None, 0, _NONE

    def unpark(self, block: Block) -> None:
        """Memory for it again, of undefined contents. Raises OutOfMemory."""
        found = self.allocate(block.nbytes)
        block.room, block.store, block.address, block.data = found.room, found.store, found.address, found.data

    def take(self, nbytes: int, owner: int = -1, room: int = 0) -> Block | None:
        """Account for ``nbytes`` more; raises OutOfMemory and changes nothing when they do not fit.

        Returns a block of ``room`` that ``owner`` put aside, with its old contents, if there is one.
        """
        with self._lock:
            if self.used_bytes + nbytes > self.vram_bytes:
                raise OutOfMemory(nbytes, self.used_bytes, self.vram_bytes)
            self.used_bytes += nbytes
            shelf = self._shelves.get(owner, {}).get(room)
            block = shelf.pop() if shelf else None
            if block is not None:
                self.idle_bytes -= room
            if self.used_bytes + self.idle_bytes > self.vram_bytes:
                self._shelves.clear()
                self.idle_bytes = 0
            return block

    def fresh(self, nbytes: int, room: int) -> Block:
        """A zeroed block for the ``nbytes`` just taken; raises OutOfMemory, and they are given back, when the machine has less than was
        configured."""
        try:
            return self.blocks.fresh(nbytes, room)
        except MemoryError:
            self.give(nbytes)
            raise OutOfMemory(nbytes, self.used_bytes, self.vram_bytes) from None

    def give(self, nbytes: int) -> None:
        """Account for ``nbytes`` less."""
        with self._lock:
            self.used_bytes -= nbytes
            assert self.used_bytes >= 0

    def _keep(self, owner: int, block: Block) -> None:
        with self._lock:
            if self.used_bytes + self.idle_bytes + block.room <= self.vram_bytes:
                self._shelves.setdefault(owner, {}).setdefault(block.room, []).append(block)
                self.idle_bytes += block.room

    def forget(self, owner: int) -> None:
        """Drop what ``owner`` put aside."""
        with self._lock:
            self.idle_bytes -= sum(block.room for shelf in self._shelves.pop(owner, {}).values() for block in shelf)
