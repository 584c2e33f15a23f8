"""Blocks of a device's memory, under the same accounting as the host's.

May live here: that adapter. May not: capacity and free lists (jit.memory), transfers.
"""

from __future__ import annotations

import numpy as np

from jit.accel.device import Bytes, Device
from jit.memory import Block

__all__ = ["DeviceBlocks"]


class DeviceBlocks:
    """``Block.store`` is the device's buffer of ``room`` bytes; ``data`` is empty unless the device's memory is the host's too."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def fresh(self, nbytes: int, room: int) -> Block:
        store = self._device.allocate(room)
        return Block(room, store, 0, nbytes, self._window(store, nbytes))

    def renewed(self, block: Block, nbytes: int, zero: bool) -> Block:
        if zero:
            self._device.zero(block.store, 0, nbytes)
        return Block(block.room, block.store, 0, nbytes, self._window(block.store, nbytes))

    def copy(self, source: Block, target: Block) -> None:
        self._device.write(target.store, 0, self._device.read(source.store, 0, source.nbytes))

    def _window(self, store: object, nbytes: int) -> Bytes:
        whole = self._device.view(store)
        return np.zeros(0, np.uint8) if whole is None else whole[:nbytes]
