"""Device memory as the client counts it: bytes of live buffers, their peak, and the quota.

Counting at the client makes out-of-memory an ordinary exception at the line that asked, as on a local device.
"""

from __future__ import annotations

import gc
from typing import Final

from wooly.errors import from_fault


class MemoryCounter:
    """``allocated`` bytes live now, ``quota`` bytes allowed (0: not limited); ``refusals``: how often more was asked for.
    ``capacity``: bytes of the device, number ``index``, which no buffer can exceed (0: not known).

    The hot path adds to ``allocated`` and compares it with ``mark`` only; ``mark`` is the lower of the quota and the highest use so
    far, so everything rare (a new peak, too much, the first use of all) happens in ``over``.
    """

    __slots__ = ("allocated", "capacity", "index", "mark", "peak", "quota", "refusals")

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.allocated = 0
        self.peak = 0
        self.quota = 0
        self.capacity = 0
        self.mark = 0
        self.refusals = 0

    def over(self, nbytes: int) -> None:
        """``allocated`` has just grown by ``nbytes`` past the mark: note the peak, or take it back and raise."""
        if nbytes >= 1 << 63:
            self.allocated -= nbytes
            raise RuntimeError(f"Storage size calculation overflowed: {nbytes} bytes")
        if self.capacity and nbytes > self.capacity:
            self.allocated -= nbytes
            self.refusals += 1
            raise from_fault(
                "QuotaExceeded",
                f"CUDA out of memory. Tried to allocate {_mib(nbytes)}. GPU {self.index} has a total capacity of {_mib(self.capacity)}.",
            )
        if self.quota and self.allocated > self.quota:
            gc.collect()  # buffers kept alive by reference cycles only
            if self.allocated > self.quota:
                self.allocated -= nbytes
                self.refusals += 1
                raise from_fault(
                    "QuotaExceeded",
                    f"CUDA out of memory. Tried to allocate {_mib(nbytes)}. The quota of this task is {_mib(self.quota)}, of which "
                    f"{_mib(self.allocated)} are in use. Free tensors, or ask for more with REQUIRED_VRAM.",
                )
        self.peak = max(self.peak, self.allocated)
        self.mark = min(self.peak, self.quota) if self.quota else self.peak

    def limit(self, quota_bytes: int, capacity_bytes: int | None = None) -> None:
        """Set the quota (0: none) and, where it is given, the device's capacity."""
        self.quota = quota_bytes
        self.capacity = self.capacity if capacity_bytes is None else capacity_bytes
        self.mark = min(self.peak, quota_bytes) if quota_bytes else self.peak

    def reset_peak(self) -> None:
        """Forget the peak: it is what is in use now."""
        self.peak = self.mark = self.allocated


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.2f} MiB" if nbytes < 1 << 30 else f"{nbytes / (1 << 30):.2f} GiB"


MEMORY: Final = MemoryCounter()
"""The one device's memory in this process."""
