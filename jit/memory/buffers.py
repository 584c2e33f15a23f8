"""The buffers of one space, by key: on the device, parked, or on a block that several share.

A buffer is in one of three states. *Own*: it has a block of its own. *Parked*: it has none, only a size. *Shared*: its block is also
another buffer's, and is read-only.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from jit.errors import BadBuffer, JitError
from jit.memory.block import Block, Bytes
from jit.memory.capacity import Capacity

_owners = itertools.count()


class SharedBlock:
    """A read-only, reference-counted block of one engine. With the last of its ``holders`` buffers it is freed (or becomes that one's own),
    and no buffer can be attached to it any more."""

    __slots__ = ("block", "capacity", "holders")

    def __init__(self, capacity: Capacity, block: Block) -> None:
        self.capacity = capacity
        self.block = block
        self.holders = 1

    @property
    def nbytes(self) -> int:
        return self.block.nbytes


class SpaceMemory:
    """The buffers of one space, by key."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._owner = next(_owners)
        self._blocks: dict[int, Block] = {}
        self.find = self._blocks.get
        """The block of a key that is on the device, else None. (A run asks it for each of its buffers, so it is a call less.)"""
        self._shared: dict[int, SharedBlock] = {}
        self._parked: dict[int, Block] = {}
        self.resident_bytes = 0
        self.shared_bytes = 0

    def __contains__(self, key: int) -> bool:
        return key in self._blocks or key in self._parked

    def __getitem__(self, key: int) -> Block:
        try:
            return self._blocks[key]
        except KeyError:
            raise self._absent(key) from None

    def _absent(self, key: int) -> BadBuffer:
        if key in self._parked:
            return BadBuffer(f"buffer {key} is parked: it has no memory on the device until it is brought back")
        return BadBuffer(f"there is no buffer {key}; it was freed or never allocated")

    def size(self, key: int) -> int:
        """Bytes of a buffer, parked or not."""
        parked = self._parked.get(key)
        return self[key].nbytes if parked is None else parked.nbytes

    def alloc(self, key: int, nbytes: int, *, zero: bool = True) -> Block:
        """A new buffer; ``zero`` False only when every byte is written before any is read."""
        if key in self._blocks or key in self._parked:
            raise _exists(key)
        if nbytes < 0:
            raise BadBuffer(f"a buffer cannot have {nbytes} bytes")
        block = self._blocks[key] = self._capacity.allocate(nbytes, self._owner, zero=zero)
        self.resident_bytes += nbytes
        return block

    def free(self, key: int) -> None:
        """Forget a buffer; its memory may serve this space again."""
        block = self._blocks.pop(key, None)
        if block is None:
            if self._parked.pop(key, None) is None:
                raise self._absent(key)
            return
        self.resident_bytes -= block.nbytes
        if key in self._shared:
            self._leave(key)
        else:
            self._capacity.release(block, self._owner)

    def at(self, key: int, offset: int, nbytes: int) -> Block:
        """The block of a buffer that has these bytes; raises BadBuffer when they reach outside."""
        block = self[key]
        if offset < 0 or nbytes < 0 or offset + nbytes > block.nbytes:
            raise BadBuffer(f"bytes {offset}..{offset + nbytes} reach outside buffer {key} of {block.nbytes} bytes")
        return block

    def window(self, key: int, offset: int, nbytes: int) -> Bytes:
        """A view of part of a buffer; raises BadBuffer when it reaches outside."""
        return self.at(key, offset, nbytes).data[offset : offset + nbytes]

    def writable(self, key: int, offset: int, nbytes: int) -> Block:
        """The same for a buffer that is about to be written: the block is its own."""
        block = self.at(key, offset, nbytes)
        if key in self._shared:
            self.unshare(key)
            return self._blocks[key]
        return block

    # --- off the device and back
    def park(self, key: int) -> None:
        """Give the memory of a buffer back; it keeps its size."""
        block = self[key]
        if key in self._shared:
            raise BadBuffer(f"buffer {key} shares its memory; only a buffer with memory of its own can be parked")
        del self._blocks[key]
        self._parked[key] = block
        self.resident_bytes -= block.nbytes
        self._capacity.park(block)

    def unpark(self, key: int) -> None:
        """Memory for a parked buffer again. Raises OutOfMemory, and it stays parked."""
        block = self._parked.get(key)
        if block is None:
            raise BadBuffer(f"buffer {key} is not parked")
        self._capacity.unpark(block)
        del self._parked[key]
        self._blocks[key] = block
        self.resident_bytes += block.nbytes

    # --- several buffers on one block
    def share(self, key: int) -> SharedBlock:
        """Make the block of a buffer a shared one, or find that it is."""
        block = self[key]
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = SharedBlock(self._capacity, block)
            self.shared_bytes += block.nbytes
        return shared

    def attach(self, key: int, shared: SharedBlock) -> None:
        """A new buffer on a shared block."""
        if key in self:
            raise _exists(key)
        if shared.capacity is not self._capacity or not shared.holders:
            raise BadBuffer("the shared block was freed, or is another device's")
        shared.holders += 1
        self._shared[key] = shared
        self._blocks[key] = shared.block
        self.resident_bytes += shared.nbytes
        self.shared_bytes += shared.nbytes

    def unshare(self, key: int) -> None:
        """A block of its own for a shared buffer. Raises OutOfMemory, and nothing changed."""
        block = self[key]
        if key not in self._shared:
            return
        if self._shared[key].holders > 1:
            own = self._capacity.allocate(block.nbytes, self._owner, zero=False)
            self._take_over(key, own)
        else:  # the only holder
            self._drop_shared(key)

    def _take_over(self, key: int, own: Block) -> None:
        """Copy-on-write: copy the bytes of ``key`` to ``own``, which backs it from now on."""
        self._capacity.placed.copy(self._blocks[key], own)
        self._leave(key)
        self._blocks[key] = own

    def _drop_shared(self, key: int) -> SharedBlock:
        shared = self._shared.pop(key)
        shared.holders -= 1
        self.shared_bytes -= shared.nbytes
        return shared

    def _leave(self, key: int) -> None:
        """Drop a reference to a shared block; the last one frees it, without putting its memory aside for an owner."""
        shared = self._drop_shared(key)
        if not shared.holders:
            self._capacity.release(shared.block)

    # --- runs
    def apart(self, nbytes: int) -> Block:
        """A block without a key, of undefined contents."""
        return self._capacity.allocate(nbytes, self._owner, zero=False)

    def release(self, block: Block) -> None:
        """Give back what ``apart`` gave."""
        self._capacity.release(block, self._owner)

    def gather(self, keys: Sequence[int], made: Sequence[tuple[int, int, bool]], written: Collection[int]) -> list[Block]:
        """The blocks of ``keys``, of which ``made`` (key, bytes, whether zeroed) are new and ``written`` get blocks of their own where they
        are shared. On any error nothing changed."""
        new: dict[int, Block] = {}
        try:
            for key, nbytes, zero in made:
                self.alloc(key, nbytes, zero=zero)
                new[key] = self._blocks[key]
            blocks = self._all(keys)
            if self._shared:
                self._part(keys, blocks, written)
        except JitError:
            for key in new:
                self.free(key)
            raise
        return blocks

    def _all(self, keys: Sequence[int]) -> list[Block]:
        own = self._blocks
        try:
            return [own[key] for key in keys]
        except KeyError as absent:
            raise self._absent(absent.args[0]) from None

    def _part(self, keys: Sequence[int], blocks: list[Block], written: Collection[int]) -> None:
        """Own blocks for what a run writes: all, or an error and none."""
        own: dict[int, Block] = {}
        left = {at: self._shared[keys[at]] for at in written if keys[at] in self._shared}
        try:
            for at, shared in left.items():
                if shared.holders > 1:
                    own[at] = self._capacity.allocate(blocks[at].nbytes, self._owner, zero=False)
        except JitError:
            for block in own.values():
                self._capacity.release(block, self._owner)
            raise
        for at in left:
            if at in own:
                blocks[at] = own[at]
                self._take_over(keys[at], own[at])
            else:
                self._drop_shared(keys[at])

    def clear(self) -> None:
        """Drop everything."""
        for key, block in self._blocks.items():
            if key not in self._shared:
                self._capacity.release(block)
        for key in list(self._shared):
            self._leave(key)
        self._blocks.clear()
        self._parked.clear()
        self.resident_bytes = 0
        self._capacity.forget(self._owner)


def _exists(key: int) -> BadBuffer:
    return BadBuffer(f"buffer {key} exists already")
