"""What a buffer stands on: a block of some device's memory, and its size class.

May live here: the value type and the memory of the process itself. May not: capacity (capacity.py), keys (buffers.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["Block", "Bytes", "ALIGN_BYTES", "new_block", "room_for"]

ALIGN_BYTES: Final = 64
Bytes = npt.NDArray[np.uint8]


@dataclass(slots=True, eq=False)
class Block:
    """Aligned memory: ``data`` has ``nbytes`` visible bytes, the memory behind it ``room`` of them, starting at ``address``.

    Memory that the host cannot reach has empty ``data``; ``store`` is then what its device knows it by. A block stays the same object when
    its memory moves, so address, store and data hold until the next call that allocates, and are looked up again after it.
    """

    room: int
    store: Any
    address: int
    nbytes: int
    data: Bytes


def room_for(nbytes: int) -> int:
    """The size class of a block: a multiple of 64 with at most 1/8 of waste, so that freed blocks fit later requests."""
    grain = max(ALIGN_BYTES, 1 << max(0, nbytes.bit_length() - 4))
    return max(ALIGN_BYTES, -(-nbytes // grain) * grain)


def new_block(nbytes: int, room: int) -> Block:
    """Fresh zeroed memory of the process."""
    store = np.zeros(room + ALIGN_BYTES, np.uint8)
    address, data = aligned(store, room)
    return Block(room, store, address, nbytes, data[:nbytes])


def aligned(store: Bytes, room: int) -> tuple[int, Bytes]:
    """The aligned part of a store, with its address."""
    base = store.ctypes.data
    skip = -base % ALIGN_BYTES
    return base + skip, store[skip : skip + room]
