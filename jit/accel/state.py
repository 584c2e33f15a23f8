"""Run state in device memory, written by the engine's own kernels: the state every kernel has, then the trap word of indices."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jit.kernels.cfamily import fresh_state
from wis.traps import NO_TRAP

__all__ = ["STATE_BYTES", "TRAP_AT", "engine_state", "trap_key"]

TRAP_AT: Final = fresh_state(None).nbytes
"""Byte offset of the trap word (``wis.traps``)."""
STATE_BYTES: Final = TRAP_AT + 8


def engine_state() -> npt.NDArray[np.uint8]:
    """The bytes before a piece of a run."""
    return np.append(fresh_state(None), np.uint64(NO_TRAP)).view(np.uint8)


def trap_key(state: npt.NDArray[Any]) -> int:
    """The key that kernels left in ``STATE_BYTES`` bytes of state."""
    return int(state.view(np.uint64)[TRAP_AT // 8])
