"""The block of a device's memory that backs a buffer, and its size class."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

ALIGN_BYTES: Final = 64
Bytes = npt.NDArray[np.uint8]


@dataclass(slots=True, eq=False)
class Block:
    """Aligned memory: ``data`` has ``nbytes`` visible bytes, the memory behind it ``room`` of them, starting at ``address``, which is
    ``offset`` bytes into its arena.

    Memory that the host cannot reach has empty ``data``; ``store`` is then what its device knows it by. A block stays the same object when
    its memory moves, so address, store and data hold until the next call that allocates, and are looked up again after it.
    """

    room: int
    store: Any
    address: int
    nbytes: int
    data: Bytes
    offset: int = -1


@lru_cache(maxsize=4096)
def room_for(nbytes: int) -> int:
    """The size class of a block: a multiple of 64, from 2 KiB on with at most 1/32 of waste, so that freed blocks fit later requests."""
    grain = max(ALIGN_BYTES, 1 << max(0, nbytes.bit_length() - 6))
    return max(ALIGN_BYTES, -(-nbytes // grain) * grain)


def new_block(nbytes: int, room: int) -> Block:
    """Fresh zeroed memory of the process, outside every arena."""
    store = np.zeros(room + ALIGN_BYTES, np.uint8)
    base = store.ctypes.data
    skip = -base % ALIGN_BYTES
    return Block(room, store, base + skip, nbytes, store[skip : skip + nbytes])
