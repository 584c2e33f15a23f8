"""Blocks in one arena: addresses (addresses.py) with memory behind them.

Free memory of an arena may hold its last owner's bytes; it is set to zero when it is allocated. Blocks move only in
``make_room``, and keep being the same objects.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from jit.memory.addresses import Addresses, Move
from jit.memory.block import Block

NO_DATA: Final = np.zeros(0, np.uint8)
"""What a block has that has no memory, or none that the host reaches."""


class Backing(Protocol):
    """The memory of one arena."""

    @property
    def align_bytes(self) -> int:
        """Blocks begin at multiples of this, a power of two."""
        ...

    @property
    def size_bytes(self) -> int: ...

    def bind(self, block: Block, offset: int) -> None:
        """The block is at ``offset`` from now on (or was there and has another size)."""
        ...

    def zero(self, block: Block) -> None:
        """Set the bytes of a block to zero."""
        ...

    def copy(self, source: Block, target: Block) -> None:
        """The bytes of one block into another of the same size."""
        ...

    def taken(self, offset: int, nbytes: int) -> None:
        """Free memory is about to be allocated: set it to zero."""
        ...

    def given(self, offset: int, nbytes: int) -> None:
        """The memory is free from now on."""
        ...

    def move(self, source: int, target: int, nbytes: int) -> None:
        """Bytes to a lower address; the two may overlap."""
        ...


class Placed(Protocol):
    """Where blocks come from: an ``Arena``, or single allocations of a device that has none."""

    @property
    def align_bytes(self) -> int:
        """Rooms are multiples of this, a power of two."""
        ...

    @property
    def footprint_bytes(self) -> int:
        """What the blocks take, rounding and what is lost between them included."""
        ...

    def place(self, block: Block) -> bool:
        """Zeroed memory for a block that has none; False when there is none for its room."""
        ...

    def drop(self, block: Block) -> None:
        """The block has no memory any more."""
        ...

    def make_room(self, room: int) -> bool:
        """Move blocks so that one of this room can be placed; False when that is impossible."""
        ...

    def renew(self, block: Block, nbytes: int) -> None:
        """The block, of unchanged room and contents, has so many bytes now."""
        ...

    def zero(self, block: Block) -> None: ...

    def copy(self, source: Block, target: Block) -> None: ...


@dataclass(slots=True)
class Moved:
    """What ``make_room`` cost so far."""

    times: int = 0
    nbytes: int = 0
    ns: int = 0
    longest_ns: int = 0


class Arena:
    """One address space over one memory."""

    def __init__(self, backing: Backing) -> None:
        self.addresses = Addresses(backing.size_bytes)
        self.align_bytes = backing.align_bytes
        self.moved = Moved()
        self._backing = backing
        self.zero = backing.zero
        self.copy = backing.copy
        self._live: dict[int, Block] = {}

    @property
    def footprint_bytes(self) -> int:
        return self.addresses.footprint_bytes

    def place(self, block: Block) -> bool:
        offset = self.addresses.take(block.room)
        if offset is None:
            return False
        self._backing.taken(offset, block.room)
        self._live[offset] = block
        self._backing.bind(block, offset)
        return True

    def drop(self, block: Block) -> None:
        del self._live[block.offset]
        self._backing.given(block.offset, block.room)
        self.addresses.give(block.offset, block.room)
        block.store, block.address, block.data, block.offset = None, 0, NO_DATA, -1

    def renew(self, block: Block, nbytes: int) -> None:
        block.nbytes = nbytes
        self._backing.bind(block, block.offset)

    def make_room(self, room: int) -> bool:
        """Emptied slabs first; then what lies between free ranges slides together."""
        start_ns = time.monotonic_ns()
        self._carry_out(self.addresses.squeeze())
        fits = self.addresses.fits(room)
        if not fits:
            moves = self.addresses.slide(room)
            self._carry_out(moves)
            fits = bool(moves)
        took_ns = time.monotonic_ns() - start_ns
        self.moved.times += 1
        self.moved.ns += took_ns
        self.moved.longest_ns = max(self.moved.longest_ns, took_ns)
        return fits

    def _carry_out(self, moves: Sequence[Move]) -> None:
        order = sorted(self._live)
        for source, target, nbytes in moves:
            if source == target:
                continue
            self._backing.move(source, target, nbytes)
            self.moved.nbytes += nbytes
            for at in order[bisect_left(order, source) : bisect_left(order, source + nbytes)]:
                block = self._live.pop(at)
                self._live[at + target - source] = block
                self._backing.bind(block, at + target - source)
