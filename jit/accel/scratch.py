"""Memory that blocks of a launch need beside their buffers: one piece, which launches use one after the other."""

from __future__ import annotations

from typing import Any, Final

from jit.accel.device import Compiled, Device

__all__ = ["Scratch", "SCRATCH_BYTES_MAX"]

SCRATCH_BYTES_MAX: Final = 256 << 20
"""What the blocks of one launch may need together; more blocks run in several launches."""


class Scratch:
    """Grows to what was needed most."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._memory: Any = None
        self._nbytes = 0

    def __call__(self, kernel: Compiled, count: int) -> Any:
        """Memory for ``count`` blocks; None when the kernel needs none."""
        wanted = kernel.scratch_bytes * count
        if wanted > self._nbytes:
            self._device.finish()
            self._memory = None  # free the old one first
            self._memory, self._nbytes = self._device.allocate(wanted), wanted
        return self._memory if wanted else None
