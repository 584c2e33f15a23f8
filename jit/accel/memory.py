"""The memory of a device: an arena in one allocation of it, or single allocations where it gives none so large; the state of a run (that of
every kernel, then the trap word of indices), and scratch of launches.

An arena's memory is set to zero when it is allocated, since freed memory still holds the bytes of its last owner. It is allocated with the
first block, so that an engine takes nothing of a device before it is used.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jit.accel.device import Bytes, Compiled, Device
from jit.kernels.cfamily import fresh_state
from jit.memory import NO_DATA, Arena, Block, Placed, arena_bytes
from wis.traps import NO_TRAP

_BOUNCE_BYTES: Final = 64 << 20


def device_memory(device: Device, vram_bytes: int) -> Placed:
    """Where the blocks of a device of this capacity lie."""
    return LazyArena(device, arena_bytes(vram_bytes))


def _window(device: Device, store: Any, nbytes: int) -> Bytes:
    whole = device.view(store)
    return NO_DATA if whole is None else whole[:nbytes]


class _Blocks:
    """What blocks of both kinds have in common: ``Block.store`` is the device's buffer of ``room`` bytes, ``data`` is empty unless the
    device's memory is the host's too."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.align_bytes = device.facts.align_bytes

    def zero(self, block: Block) -> None:
        self._device.zero(block.store, 0, block.nbytes)

    def copy(self, source: Block, target: Block) -> None:
        self._device.copy(source.store, 0, target.store, 0, source.nbytes)


class DeviceMemory(_Blocks):
    """One allocation as the backing of an arena."""

    def __init__(self, device: Device, store: Any, size_bytes: int) -> None:
        super().__init__(device)
        self._store = store
        self.size_bytes = size_bytes

    def bind(self, block: Block, offset: int) -> None:
        if block.offset != offset:  # the same part is the same argument of a kernel, which need not be set again
            block.store, block.offset = self._device.part(self._store, offset, block.room), offset
        block.data = _window(self._device, block.store, block.nbytes)

    def taken(self, offset: int, nbytes: int) -> None:
        self._device.zero(self._store, offset, nbytes)

    def given(self, offset: int, nbytes: int) -> None:
        """It is set to zero when it is taken."""

    def move(self, source: int, target: int, nbytes: int) -> None:
        """In pieces that do not overlap; by way of the host where those would be very small."""
        step = min(nbytes, abs(source - target))
        if step < nbytes and step < 1 << 20:
            step = _BOUNCE_BYTES
        by_host = step > abs(source - target)
        for at in range(0, nbytes, step):
            size = min(step, nbytes - at)
            if by_host:
                self._device.write(self._store, target + at, self._device.read(self._store, source + at, size).copy())
            else:
                self._device.copy(self._store, source + at, self._store, target + at, size)


class SingleBlocks(_Blocks):
    """An allocation for each block: nothing ever has to move, and the driver's overhead is not seen."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.footprint_bytes = 0

    def place(self, block: Block) -> bool:
        try:
            block.store = self._device.allocate(block.room)
        except MemoryError:
            return False
        block.data = _window(self._device, block.store, block.nbytes)
        self.footprint_bytes += block.room
        return True

    def drop(self, block: Block) -> None:
        self.footprint_bytes -= block.room
        block.store, block.data = None, NO_DATA

    def make_room(self, room: int) -> bool:
        return False

    def renew(self, block: Block, nbytes: int) -> None:
        block.nbytes = nbytes
        block.data = _window(self._device, block.store, nbytes)


class LazyArena:
    """An arena from the first block on; single allocations when the device gives no memory of this size in one piece."""

    def __init__(self, device: Device, size_bytes: int) -> None:
        self._device = device
        self.align_bytes = device.facts.align_bytes
        self._size_bytes = size_bytes
        self._made: Placed | None = None

    @property
    def placed(self) -> Placed:
        if self._made is None:
            store = self._device.reserve(self._size_bytes)
            self._made = SingleBlocks(self._device) if store is None else Arena(DeviceMemory(self._device, store, self._size_bytes))
        return self._made

    @property
    def footprint_bytes(self) -> int:
        return self._made.footprint_bytes if self._made is not None else 0

    def place(self, block: Block) -> bool:
        return self.placed.place(block)

    def drop(self, block: Block) -> None:
        self.placed.drop(block)

    def make_room(self, room: int) -> bool:
        return self.placed.make_room(room)

    def renew(self, block: Block, nbytes: int) -> None:
        self.placed.renew(block, nbytes)

    def zero(self, block: Block) -> None:
        self.placed.zero(block)

    def copy(self, source: Block, target: Block) -> None:
        self.placed.copy(source, target)


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
