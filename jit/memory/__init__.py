"""The memory of one device: its capacity, where blocks lie, and the buffers of spaces.

A request goes down: buffers.py keeps the buffers of one space by key; capacity.py accounts for all of them and keeps what a space freed for
that space; arena.py puts blocks into the device's one memory, where addresses.py says which address serves whom.

May live here: capacity, addresses, buffers. May not: programs, quotas of tenants (scheduler.vram).
"""

from jit.memory.arena import NO_DATA, Arena, Backing, Placed
from jit.memory.block import ALIGN_BYTES, Block, Bytes, new_block, room_for
from jit.memory.buffers import SharedBlock, SpaceMemory
from jit.memory.capacity import Capacity, arena_bytes, capacity_bytes
from jit.memory.host import HostMemory

__all__ = [
    "Arena", "Backing", "Block", "Bytes", "Capacity", "HostMemory", "Placed", "SharedBlock", "SpaceMemory",
    "ALIGN_BYTES", "NO_DATA", "arena_bytes", "capacity_bytes", "new_block", "room_for",
]  # fmt: skip
