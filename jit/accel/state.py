"""Device memory beside buffers: the state of a run (that of every kernel, then the trap word of indices), and scratch of launches."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jit.accel.device import Compiled, Device
from jit.kernels.cfamily import fresh_state
from wis.traps import NO_TRAP

__all__ = ["SCRATCH_BYTES_MAX", "STATE_BYTES", "TRAP_AT", "Scratch", "engine_state", "trap_key"]

TRAP_AT: Final = fresh_state(None).nbytes
"""Byte offset of the trap word (``wis.traps``)."""
STATE_BYTES: Final = TRAP_AT + 8


def engine_state() -> npt.NDArray[np.uint8]:
    """The bytes before a piece of a run."""
    return np.append(fresh_state(None), np.uint64(NO_TRAP)).view(np.uint8)


def trap_key(state: npt.NDArray[Any]) -> int:
    """The key that kernels left in ``STATE_BYTES`` bytes of state."""
    return int(state.view(np.uint64)[TRAP_AT // 8])


SCRATCH_BYTES_MAX: Final = 256 << 20
"""What the blocks of one launch may need together; more blocks run in several launches."""


class Scratch:
    """Memory that blocks of a launch need beside their buffers: one piece, which launches use one after the other. Grows to what was
    needed most."""

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
