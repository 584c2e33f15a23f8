"""The engine of devices that run kernels: plans as launches in order, and spaces of device memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from jit.accel.calls import Call
from jit.accel.device import Device
from jit.accel.foreign import UserKernels
from jit.accel.lowering import Lowering, supported
from jit.accel.memory import device_memory
from jit.accel.run import AccelRun
from jit.accel.scratch import Scratch
from jit.accel.state import STATE_BYTES
from jit.accel.tables import Plan, make_plan
from jit.engine import EngineConfig, EngineInfo, Launch, MemoryUse, Number, Prepared
from jit.errors import Interrupted
from jit.memory import Capacity, room_for
from jit.plan.memo import Memo
from jit.plan.planner import Planner, PlanOptions, Target
from jit.runs import check_begin, written_keys
from jit.space import ByteSpace, KeySpec
from wis.program import BufferKind
from wis.verify import Verified

__all__ = ["AccelEngine", "AccelPrepared"]

PREPARED_MAX = 256
PLANNERS_MAX = 256


class AccelPrepared:
    """A planned program with its kernels. ``table``: device memory for the argument table; ``step_ns``: what each step took last."""

    def __init__(self, verified: Verified, plan: Plan, kernels: dict[str, Any], foreign: UserKernels, table: Any) -> None:
        bound = verified.bound
        self.verified = verified
        self.plan = plan
        self.kernels = kernels
        self.foreign = foreign
        self.table = table
        self.step_ns: dict[int, int] = {}
        self.writes = written_keys(bound)
        self.instructions = plan.instructions
        self.n_scalars = bound.program.n_scalars
        self.specs = [
            KeySpec(nbytes, kind == BufferKind.CREATED, number in verified.zeroed)
            for number, (kind, nbytes) in enumerate(zip(bound.program.buffers, bound.nbytes, strict=True))
            if kind != BufferKind.TEMP
        ]
        self.keyed = [n for n, kind in enumerate(bound.program.buffers) if kind != BufferKind.TEMP]

    @property
    def n_keys(self) -> int:
        return len(self.specs)

    @property
    def workspace_bytes(self) -> int:
        return room_for(self.plan.arena.nbytes) if self.plan.arena.nbytes else 0


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


class AccelEngine:
    """One device of this family. ``cut_after``: for tests, every piece of a run is so many launches (0: all of them).

    ``state``: device memory where kernels of the engine say which index was out of bounds; ``stop``: set to stop the piece in progress.
    """

    def __init__(self, device: Device, backend: str, config: EngineConfig) -> None:
        self.device = device
        self.lock = threading.RLock()
        self.info = EngineInfo(device.facts.name, backend, device.facts.units, config.vram_bytes)
        self.options = PlanOptions()
        self.fuel = config.fuel
        self._lowering = Lowering(device.facts)
        self._target: Target[Call, Plan] = Target(self._lowering, supported, lambda calls, before: [], make_plan)
        self._memo: Memo[Call] = Memo()
        self._capacity = Capacity(config.vram_bytes, device_memory(device, config.vram_bytes), self.lock)
        self._kernels: dict[str, Any] = {}
        self._prepared: OrderedDict[tuple[bytes, bytes], AccelPrepared] = OrderedDict()
        self._planners: OrderedDict[bytes, Planner[Call, Plan]] = OrderedDict()
        self._preparing = threading.Lock()
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

    def prepare(self, verified: Verified) -> AccelPrepared:
        key = (verified.digest, verified.dims_digest)
        with self._preparing:
            ready = self._prepared.get(key)
            if ready is None:
                ready = self._prepared[key] = self._plan(verified)
                if len(self._prepared) > PREPARED_MAX:
                    self._prepared.popitem(last=False)
            else:
                self._prepared.move_to_end(key)
            return ready

    def _plan(self, verified: Verified) -> AccelPrepared:
        plan = self.planner(verified.digest).plan(verified)
        foreign = UserKernels(self.device, verified, plan, self.scratch)
        missing = [name for name in plan.kernels if name not in self._kernels]
        with self.lock:
            made = self.device.compile([self._lowering.requests[name] for name in missing])
            self._kernels.update(zip(missing, made, strict=True))
            foreign.compile()
            table = self.device.allocate(plan.words.nbytes)
        return AccelPrepared(verified, plan, {name: self._kernels[name] for name in plan.kernels}, foreign, table)

    def planner(self, digest: bytes) -> Planner[Call, Plan]:
        """What is known about one program structure."""
        planner = self._planners.setdefault(digest, Planner(self._target, self._memo, self.options))
        self._planners.move_to_end(digest)
        if len(self._planners) > PLANNERS_MAX:
            self._planners.popitem(last=False)
        return planner

    @property
    def kernels(self) -> int:
        """How many different kernels were compiled so far."""
        return len(self._kernels)

    def plans(self) -> list[Plan]:
        """The plans that are ready."""
        with self._preparing:
            return [ready.plan for ready in self._prepared.values()]

    def interrupt(self) -> None:
        self.stop.set()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with self.lock:
                self._prepared.clear()
                self._kernels.clear()
                self.device.close()
