"""Buffers: blocks, a space's free list, and the capacity all spaces of an engine share.

Memory of one space never reaches another unzeroed: what a freed buffer leaves is put aside for its own space only, and what is dropped goes
back to the operating system's allocator, from which only zeroed blocks are taken.

May live here: allocation and byte access. May not: programs, plans, threads.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from jit.errors import BadBuffer, OutOfMemory

__all__ = ["Block", "Capacity", "SpaceMemory", "ALIGN_BYTES", "new_block", "room_for"]

ALIGN_BYTES = 64
_owners = itertools.count()
Bytes = npt.NDArray[np.uint8]


@dataclass(slots=True, eq=False)
class Block:
    """Aligned memory: ``data`` has ``nbytes`` visible bytes, the memory behind it ``room`` of them, starting at ``address``.

    Memory that the host cannot reach has empty ``data``; ``store`` is then what its device knows it by.
    """

    room: int
    store: Any
    address: int
    nbytes: int
    data: Bytes


class Blocks(Protocol):
    """Where blocks come from."""

    def fresh(self, nbytes: int, room: int) -> Block:
        """Zeroed memory. Raises MemoryError."""
        ...

    def renewed(self, block: Block, nbytes: int, zero: bool) -> Block:
        """A block put aside, as a new one of the same room; zeroed if asked."""
        ...


class HostBlocks:
    """Blocks of the process's own memory."""

    def fresh(self, nbytes: int, room: int) -> Block:
        return new_block(nbytes, room)

    def renewed(self, block: Block, nbytes: int, zero: bool) -> Block:
        return _renewed(block, nbytes, zero)


class Capacity:
    """The configured device memory, shared by the spaces of one engine.

    ``used_bytes`` is what spaces hold. What they keep for their own later requests comes on top while there is room, and goes first.
    """

    def __init__(self, vram_bytes: int, blocks: Blocks | None = None) -> None:
        self.vram_bytes = vram_bytes
        self._blocks = HostBlocks() if blocks is None else blocks
        self.used_bytes = 0
        self.idle_bytes = 0
        self._shelves: dict[int, dict[int, list[Block]]] = {}
        self._lock = threading.Lock()

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
            return self._blocks.fresh(nbytes, room)
        except MemoryError:
            self.give(nbytes)
            raise OutOfMemory(nbytes, self.used_bytes, self.vram_bytes) from None

    def renewed(self, block: Block, nbytes: int, zero: bool) -> Block:
        """A block that was put aside, for the ``nbytes`` just taken."""
        return self._blocks.renewed(block, nbytes, zero)

    def give(self, nbytes: int) -> None:
        """Account for ``nbytes`` less."""
        with self._lock:
            self.used_bytes -= nbytes
            assert self.used_bytes >= 0

    def keep(self, owner: int, block: Block) -> None:
        """Put ``block``, already given back, aside for ``owner`` alone; it is dropped when there is no room for that."""
        with self._lock:
            if self.used_bytes + self.idle_bytes + block.room <= self.vram_bytes:
                self._shelves.setdefault(owner, {}).setdefault(block.room, []).append(block)
                self.idle_bytes += block.room

    def forget(self, owner: int) -> None:
        """Drop what ``owner`` put aside."""
        with self._lock:
            self.idle_bytes -= sum(block.room for shelf in self._shelves.pop(owner, {}).values() for block in shelf)


def room_for(nbytes: int) -> int:
    """The size class of a block: a multiple of 64 with at most 1/8 of waste, so that freed blocks fit later requests."""
    grain = max(ALIGN_BYTES, 1 << max(0, nbytes.bit_length() - 4))
    return max(ALIGN_BYTES, -(-nbytes // grain) * grain)


class SpaceMemory:
    """The buffers of one space, by key."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._owner = next(_owners)
        self._blocks: dict[int, Block] = {}
        self.resident_bytes = 0

    def __contains__(self, key: int) -> bool:
        return key in self._blocks

    def __getitem__(self, key: int) -> Block:
        try:
            return self._blocks[key]
        except KeyError:
            raise BadBuffer(f"there is no buffer {key}; it was freed or never allocated") from None

    def alloc(self, key: int, nbytes: int, *, zero: bool = True) -> Block:
        """A new buffer; ``zero`` False only when every byte is written before any is read."""
        if key in self._blocks:
            raise BadBuffer(f"buffer {key} exists already")
        if nbytes < 0:
            raise BadBuffer(f"a buffer cannot have {nbytes} bytes")
        room = room_for(nbytes)
        old = self._capacity.take(nbytes, self._owner, room)
        block = self._blocks[key] = self._capacity.fresh(nbytes, room) if old is None else self._capacity.renewed(old, nbytes, zero)
        self.resident_bytes += nbytes
        return block

    def free(self, key: int) -> None:
        """Forget a buffer; its memory may serve this space again."""
        block = self[key]
        del self._blocks[key]
        self._capacity.give(block.nbytes)
        self.resident_bytes -= block.nbytes
        self._capacity.keep(self._owner, block)

    def at(self, key: int, offset: int, nbytes: int) -> Block:
        """The block of a buffer that has these bytes; raises BadBuffer when they reach outside."""
        block = self[key]
        if offset < 0 or nbytes < 0 or offset + nbytes > block.nbytes:
            raise BadBuffer(f"bytes {offset}..{offset + nbytes} reach outside buffer {key} of {block.nbytes} bytes")
        return block

    def window(self, key: int, offset: int, nbytes: int) -> Bytes:
        """A view of part of a buffer; raises BadBuffer when it reaches outside."""
        return self.at(key, offset, nbytes).data[offset : offset + nbytes]

    def clear(self) -> None:
        """Drop everything."""
        self._capacity.give(self.resident_bytes)
        self.resident_bytes = 0
        self._blocks.clear()
        self._capacity.forget(self._owner)


def _renewed(block: Block, nbytes: int, zero: bool) -> Block:
    """A block put aside, as a new one of the same room."""
    data = block.data if block.nbytes == nbytes else _aligned(block.store, block.room)[1][:nbytes]
    if zero:
        data[:] = 0
    return Block(block.room, block.store, block.address, nbytes, data)


def new_block(nbytes: int, room: int) -> Block:
    """Fresh zeroed memory."""
    store = np.zeros(room + ALIGN_BYTES, np.uint8)
    address, data = _aligned(store, room)
    return Block(room, store, address, nbytes, data[:nbytes])


def _aligned(store: Bytes, room: int) -> tuple[int, Bytes]:
    base = store.ctypes.data
    skip = -base % ALIGN_BYTES
    return base + skip, store[skip : skip + room]
