"""The allocator that the arena replaced, kept as a baseline: a zeroed array a block, and free lists by size class for each space."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Before"]

_ALIGN_BYTES = 64


@dataclass(slots=True, eq=False)
class _Block:
    room: int
    store: Any
    address: int
    nbytes: int
    data: Any


class Before:
    """One space on a device of its own."""

    def __init__(self, vram_bytes: int) -> None:
        self.vram_bytes, self.used_bytes, self.idle_bytes = vram_bytes, 0, 0
        self._shelves: dict[int, dict[int, list[_Block]]] = {}
        self._blocks: dict[int, _Block] = {}
        self._lock = threading.Lock()

    def __getitem__(self, key: int) -> _Block:
        return self._blocks[key]

    def alloc(self, key: int, nbytes: int, *, zero: bool = True) -> _Block:
        grain = max(_ALIGN_BYTES, 1 << max(0, nbytes.bit_length() - 4))
        room = max(_ALIGN_BYTES, -(-nbytes // grain) * grain)
        with self._lock:
            if self.used_bytes + nbytes > self.vram_bytes:
                raise MemoryError
            self.used_bytes += nbytes
            shelf = self._shelves.get(0, {}).get(room)
            old = shelf.pop() if shelf else None
            if old is not None:
                self.idle_bytes -= room
            if self.used_bytes + self.idle_bytes > self.vram_bytes:
                self._shelves.clear()
                self.idle_bytes = 0
        if old is None:
            store = np.zeros(room + _ALIGN_BYTES, np.uint8)
            address, data = _aligned(store, room)
            block = _Block(room, store, address, nbytes, data[:nbytes])
        else:
            data = old.data if old.nbytes == nbytes else _aligned(old.store, room)[1][:nbytes]
            if zero:
                data[:] = 0
            block = _Block(room, old.store, old.address, nbytes, data)
        self._blocks[key] = block
        return block

    def free(self, key: int) -> None:
        block = self._blocks.pop(key)
        with self._lock:
            self.used_bytes -= block.nbytes
            if self.used_bytes + self.idle_bytes + block.room <= self.vram_bytes:
                self._shelves.setdefault(0, {}).setdefault(block.room, []).append(block)
                self.idle_bytes += block.room

    def clear(self) -> None:
        self._blocks.clear()
        self._shelves.clear()
        self.used_bytes = self.idle_bytes = 0


def _aligned(store: Any, room: int) -> tuple[int, Any]:
    base = store.ctypes.data
    skip = -base % _ALIGN_BYTES
    return base + skip, store[skip : skip + room]
