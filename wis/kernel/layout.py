"""Memory layout: a block's shared arrays one after the other."""

from __future__ import annotations

from typing import Final

from wis.dtypes import DType
from wis.kernel.model import Kernel

__all__ = ["SHARED_ALIGN", "shared_offsets", "shared_bytes"]

SHARED_ALIGN: Final = 16
"""Every shared array starts at a multiple of this many bytes."""


def shared_offsets(kernel: Kernel) -> tuple[int, ...]:
    """Byte offsets of the shared arrays from SHARED_BASE, in order."""
    offsets, end = [], 0
    for array in kernel.shared:
        offsets.append(-(-end // SHARED_ALIGN) * SHARED_ALIGN)
        end = offsets[-1] + array.n * DType(array.dtype).itemsize
    return tuple(offsets)


def shared_bytes(kernel: Kernel, dynamic: int = 0) -> int:
    """Bytes of shared memory of a block whose launch adds ``dynamic`` bytes to the last array."""
    if not kernel.shared:
        return 0
    last = kernel.shared[-1]
    return shared_offsets(kernel)[-1] + last.n * DType(last.dtype).itemsize + dynamic
