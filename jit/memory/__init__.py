"""The memory of one device: its capacity, where blocks lie, and the buffers of spaces.

Blocks (block.py) are what buffers stand on; capacity.py accounts for all of them; buffers.py keeps those of one space by key.
"""

from jit.memory.block import ALIGN_BYTES, Block, Bytes, new_block, room_for
from jit.memory.buffers import SharedBlock, SpaceMemory
from jit.memory.capacity import Blocks, Capacity

__all__ = ["Block", "Blocks", "Bytes", "Capacity", "SharedBlock", "SpaceMemory", "ALIGN_BYTES", "new_block", "room_for"]
