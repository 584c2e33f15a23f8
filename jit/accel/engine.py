"""The engine of devices that run kernels: plans as launches in order, spaces of device memory, and the account of each run.

A run queues its launches and waits for them a few dozen at a time, so that it can be stopped in between. What the account calls the cores
of a launch is the compute units that its blocks can occupy; the time between launches counts as one.

May live here: gluing plans to memory and a device. May not: planning, kernels, any one device.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np

from jit.accel.calls import Call
from jit.accel.device import Bytes, Device, Matrix
from jit.accel.foreign import Foreign, Ran
from jit.accel.lowering import Lowering, supported
from jit.accel.memory import DeviceBlocks
from jit.accel.scratch import SCRATCH_BYTES_MAX, Scratch
from jit.accel.tables import KernelStep, Plan, ProductStep, fill, make_plan
from jit.engine import EngineConfig, EngineInfo, Launch, MemoryUse, Number, Prepared
from jit.errors import Interrupted
from jit.kernels.cfamily import fresh_state
from jit.memory import Block, Capacity, room_for
from jit.plan.memo import Memo
from jit.plan.planner import Planner, PlanOptions, Target
from jit.space import ByteSpace, KeySpec
from wis import reference
from wis.kernel.traps import NO_TRAP
from wis.launches import addresses
from wis.program import BoundInstr, BufferKind, Operand
from wis.verify import Verified

__all__ = ["AccelEngine", "AccelPrepared"]

PREPARED_MAX = 256
PLANNERS_MAX = 256
QUEUED_MAX: Final = 64
"""Launches that may be under way before the run looks up: what an interruption has to wait for."""


class AccelPrepared:
    """A planned program with its kernels. ``table``: device memory for the argument table."""

    def __init__(self, verified: Verified, plan: Plan, kernels: dict[str, Any], foreign: Foreign, table: Any) -> None:
        bound = verified.bound
        self.verified = verified
        self.plan = plan
        self.kernels = kernels
        self.foreign = foreign
        self.table = table
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
        self._capacity = capacity
        self._arena: Block | None = None

    @property
    def workspace_bytes(self) -> int:
        return self._arena.room if self._arena is not None else 0

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

    def run(self, prepared: Prepared, scalars: Sequence[Number], keys: Sequence[int]) -> Launch:
        ready = cast(AccelPrepared, prepared)
        with self._engine.lock:
            arena = self._reserve(ready.workspace_bytes)
            blocks = self._blocks(ready.specs, keys)
            return self._engine.launch(ready, scalars, blocks, arena, keys)

    def trim(self) -> None:
        self._capacity.give(self.workspace_bytes)
        self._arena = None

    def close(self) -> None:
        super().close()
        self.trim()

    def _reserve(self, nbytes: int) -> Block | None:
        """Memory for temporaries, at least this large. Raises OutOfMemory."""
        if self.workspace_bytes < nbytes:
            self.trim()  # free the old one first
            self._capacity.take(nbytes)
            self._arena = self._capacity.fresh(nbytes, nbytes)
        return self._arena


class AccelEngine:
    """One device of this family."""

    def __init__(self, device: Device, backend: str, config: EngineConfig) -> None:
        self.device = device
        self.lock = threading.RLock()
        self.info = EngineInfo(device.facts.name, backend, device.facts.units, config.vram_bytes)
        self.options = PlanOptions()
        self._fuel = config.fuel
        self._lowering = Lowering(device.facts)
        self._target: Target[Call, Plan] = Target(self._lowering, supported, lambda calls, before: [], make_plan)
        self._memo: Memo[Call] = Memo()
        self._capacity = Capacity(config.vram_bytes, DeviceBlocks(device))
        self._kernels: dict[str, Any] = {}
        self._prepared: OrderedDict[tuple[bytes, bytes], AccelPrepared] = OrderedDict()
        self._planners: OrderedDict[bytes, Planner[Call, Plan]] = OrderedDict()
        self._preparing = threading.Lock()
        self._stop = threading.Event()
        self._state = device.allocate(fresh_state(None).nbytes)
        self._scratch = Scratch(device)
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
        foreign = Foreign(self.device, verified, plan, self._scratch)
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
        self._stop.set()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with self.lock:
                self._prepared.clear()
                self._kernels.clear()
                self.device.close()

    def launch(
        self, ready: AccelPrepared, scalars: Sequence[Number], blocks: Sequence[Block], arena: Block | None, keys: Sequence[int]
    ) -> Launch:
        """Fill in scalars and run every step."""
        if len(scalars) != ready.n_scalars:
            raise ValueError(f"the program has {ready.n_scalars} scalars, {len(scalars)} were given")
        start_ns = time.monotonic_ns()
        self._stop.clear()
        values = [*scalars, *ready.plan.constants]
        run = _Run(self.device, ready, values, blocks, arena, self._stop, self._state, self._scratch)
        run.prepare(fill(ready.plan, values))
        outcome = ready.foreign.begin(self._fuel, addresses(ready.verified.bound, keys), values)
        try:
            for step in ready.plan.steps:
                run.step(step, outcome)
                if outcome.out_of_fuel is not None:
                    break
        finally:
            self.device.finish()
        trapped = run.finish()
        end_ns = time.monotonic_ns()
        core_ns, cores = run.account(end_ns - start_ns, self.device.facts.units)
        texts = outcome.texts or (["an index was out of range"] if trapped else [])
        instructions = ready.instructions + outcome.instructions
        return Launch(start_ns, end_ns, core_ns, cores, instructions, "; ".join(texts) or None, outcome.out_of_fuel)


class _Run:
    """One run of one plan."""

    def __init__(
        self, device: Device, ready: AccelPrepared, values: Sequence[Number], blocks: Sequence[Block], arena: Block | None,
        stop: threading.Event, state: Any, scratch: Scratch,
    ) -> None:  # fmt: skip
        self.device, self.ready, self.values, self._stop, self._state, self._scratch = device, ready, values, stop, state, scratch
        self.blocks, self.arena = blocks, arena
        self.bases = [block.store for block in blocks] + ([arena.store] if arena is not None else [])
        self._marks: list[Any] = []
        self._units: list[int] = []
        self._queued = 0
        self._trapped = False

    def prepare(self, table: Any) -> None:
        """What has to be in memory before the first step."""
        device, plan = self.device, self.ready.plan
        device.write(self.ready.table, 0, table.view(np.uint8))
        device.write(self._state, 0, fresh_state(None).view(np.uint8))
        for offset, nbytes in plan.cleared:
            assert self.arena is not None
            device.zero(self.arena.store, offset, nbytes)

    def step(self, step: KernelStep | ProductStep | BoundInstr, outcome: Ran) -> None:
        """Queue or run one step. Raises Interrupted."""
        if self._stop.is_set():
            raise Interrupted("the run was stopped between two steps")
        if isinstance(step, KernelStep):
            self._launch(step)
        elif isinstance(step, ProductStep):
            operands = [Matrix(self.bases[base], offset, shape, strides) for base, offset, shape, strides in step.operands]
            mark = self.device.product(step.dtype, *operands)
            if mark is not None:
                self.mark(mark, self.device.facts.units)
        elif step.op.name == "launch":
            self.ready.foreign.run(step, outcome, self)
        else:
            self._trapped |= self._by_reference(step)

    def _launch(self, step: KernelStep) -> None:
        """One launch; more where blocks need so much memory beside their buffers that only some can run at a time."""
        kernel, device, table = self.ready.kernels[step.kernel], self.device, self.ready.table
        buffers = [self.bases[base] for base in step.bases]
        most = step.blocks
        if kernel.scratch_bytes:
            most = min(most, max(1, SCRATCH_BYTES_MAX // kernel.scratch_bytes))
        for first in range(0, step.blocks, most):
            count = min(most, step.blocks - first)
            if most < step.blocks:
                device.finish()
                device.write(table, 8 * step.slice_at, np.array([first, count], np.uint64).view(np.uint8))
            self.mark(device.launch(kernel, count, buffers, table, step.at, self._state, self._scratch(kernel, count)), count)

    def mark(self, mark: Any, blocks: int) -> None:
        """Take note of a launch for the account; wait when many are under way."""
        self._marks.append(mark)
        self._units.append(blocks)
        self._queued += 1
        if self._queued >= QUEUED_MAX:
            self.device.finish()
            self._queued = 0

    def region(self, buffer: int) -> tuple[Any, int, int]:
        """Where a program's buffer is: memory, offset and size in bytes."""
        plan, keyed = self.ready.plan, self.ready.keyed
        if buffer in plan.arena.offsets:
            assert self.arena is not None
            return self.arena.store, plan.arena.offsets[buffer], plan.temp_nbytes[buffer]
        block = self.blocks[keyed.index(buffer)]
        return block.store, 0, block.nbytes

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def _by_reference(self, instr: BoundInstr) -> bool:
        """One instruction by the definition, in place where the host reaches the memory, else on copies."""
        self.device.finish()
        arrays: list[Bytes | None] = [None] * self.ready.plan.n_buffers
        touched = {x.buffer for x in (*instr.outs, *instr.ins) if isinstance(x, Operand)}
        written = {x.buffer for x in instr.outs}
        places = {buffer: self.region(buffer) for buffer in touched}
        for buffer, (store, offset, nbytes) in places.items():
            whole = self.device.view(store)
            arrays[buffer] = self.device.read(store, offset, nbytes).copy() if whole is None else whole[offset : offset + nbytes]
        trapped = reference.step(instr, self.values, arrays)
        for buffer in written:
            store, offset, _ = places[buffer]
            data = arrays[buffer]
            if data is not None and self.device.view(store) is None:
                self.device.write(store, offset, data)
        return trapped

    def finish(self) -> bool:
        """Whether something trapped in a kernel of the engine or a reference step; everything is done."""
        state = self.device.read(self._state, 0, 8).view(np.uint64)
        return self._trapped or int(state[0]) != NO_TRAP

    def account(self, wall_ns: int, units: int) -> tuple[int, int]:
        """(core ns, most cores at once): time on the device by the units that a launch could occupy, the rest by one."""
        spent = total = 0
        most = 1
        for ns, blocks in zip(self.device.elapsed_ns(self._marks), self._units, strict=True):
            cores = max(1, min(blocks, units))
            spent += ns * cores
            total += ns
            most = max(most, cores)
        return max(1, min(spent + max(0, wall_ns - total), wall_ns * most)), most
