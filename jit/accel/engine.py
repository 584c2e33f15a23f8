"""The engine of devices that run kernels: plans as launches in order, and spaces of device memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from jit.accel.calls import Call
from jit.accel.device import Device
from jit.accel.foreign import UserKernels
from jit.accel.lowering import Lowering
from jit.accel.memory import STATE_BYTES, Scratch, device_memory
from jit.accel.run import AccelPrepared, AccelRun
from jit.accel.tables import Plan, make_plan
from jit.engine import EngineConfig, EngineInfo, Launch, MemoryUse, Number, Prepared
from jit.errors import Interrupted
from jit.kernels.scalar_ops import supported
from jit.memory import Capacity
from jit.plan.planner import Target
from jit.prepared import PlanningEngine
from jit.runs import ByteSpace, check_begin
from wis.verify import Verified

__all__ = ["AccelEngine"]


class AccelSpace(ByteSpace):
    """Buffers and an arena for temporaries, which is never shared with another space."""

    def __init__(self, engine: AccelEngine, capacity: Capacity) -> None:
        super().__init__(capacity)
        self._engine = engine

    def alloc(self, key: int, nbytes: int) -> None:
        with self._engine.lock:
            super().alloc(key, nbytes)

    def write(self, key: int, offset: int, data: bytes | bytearray | memoryview) -> None:
        source = np.frombuffer(data, np.uint8)
        with self._engine.lock:
            block = self._memory.writable(key, offset, source.size)
            self._engine.device.write(block.store, offset, source)

    def read(self, key: int, offset: int, nbytes: int) -> memoryview:
        block = self._memory.at(key, offset, nbytes)
        with self._engine.lock:
            return self._engine.device.read(block.store, offset, nbytes).data.toreadonly()

    def unpark(self, key: int) -> None:
        with self._engine.lock:
            super().unpark(key)

    def unshare(self, key: int) -> None:
        with self._engine.lock:
            super().unshare(key)

    def begin(self, prepared: Prepared, scalars: Sequence[Number], keys: Sequence[int]) -> AccelRun:
        ready = cast(AccelPrepared, prepared)
        check_begin(self._run, len(scalars), ready.n_scalars)
        with self._engine.lock:
            arena = self._reserve(ready.workspace_bytes)
            blocks = self._blocks(ready.specs, keys, ready.writes)
        run = self._run = AccelRun(self._engine, self._memory, ready, scalars, keys, blocks, arena)
        return run

    def run(self, prepared: Prepared, scalars: Sequence[Number], keys: Sequence[int]) -> Launch:
        run = self.begin(prepared, scalars, keys)
        launch = run.go()
        if launch.stopped:
            run.drop()
            raise Interrupted("the run was stopped between two steps")
        return launch


class AccelEngine(PlanningEngine[Call, Plan, AccelPrepared]):
    """One device of this family. ``cut_after``: for tests, every piece of a run is so many launches (0: all of them).

    ``state``: device memory where kernels of the engine say which index was out of bounds; ``stop``: set to stop the piece in progress.
    """

    def __init__(self, device: Device, backend: str, config: EngineConfig) -> None:
        self._lowering = Lowering(device.facts)
        super().__init__(Target(self._lowering, supported, lambda calls, before: [], make_plan))
        self.device = device
        self.lock = threading.RLock()
        self.info = EngineInfo(device.facts.name, backend, device.facts.units, config.vram_bytes)
        self.fuel = config.fuel
        self._capacity = Capacity(config.vram_bytes, device_memory(device, config.vram_bytes), self.lock)
        self._kernels: dict[str, Any] = {}
        self.stop = threading.Event()
        self.state = device.allocate(STATE_BYTES)
        self.scratch = Scratch(device)
        self.cut_after = 0
        self._closed = False

    @property
    def memory(self) -> MemoryUse:
        return self._capacity.memory

    def open_space(self) -> AccelSpace:
        return AccelSpace(self, self._capacity)

    def _ready(self, verified: Verified, plan: Plan) -> AccelPrepared:
        foreign = UserKernels(self.device, verified, plan, self.scratch, self.fuel)
        missing = [name for name in plan.kernels if name not in self._kernels]
        # Not under the lock: launches go on meanwhile.
        made = self.device.compile([self._lowering.requests[name] for name in missing])
        self._kernels.update(zip(missing, made, strict=True))
        foreign.compile()
        with self.lock:
            foreign.allocate()
            table = self.device.allocate(plan.words.nbytes)
        return AccelPrepared(verified, plan, {name: self._kernels[name] for name in plan.kernels}, foreign, table)

    @property
    def kernels(self) -> int:
        """How many different kernels were compiled so far."""
        return len(self._kernels)

    def interrupt(self) -> None:
        self.stop.set()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with self.lock:
                self._prepared.clear()
                self._kernels.clear()
                self.device.close()
