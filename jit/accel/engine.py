"""The engine of devices that run kernels: plans as launches in order, spaces of device memory, and runs, which can be stopped and resumed.

A run queues its launches without waiting for each, but never more than about a millisecond of them, by what each took when it ran last:
that is what a stop has to wait for. How far it came is a step of the plan and, in a launch of a kernel that the program brings, a block.
Plans are shared by the spaces that run them, so every piece writes table and state anew; regions that start as zeros are cleared once.

What the account calls the cores of a launch is the compute units that its blocks can occupy; the time between launches counts as one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np

from jit.accel.device import Bytes, Device, Matrix
from jit.accel.foreign import UnderWay, UserKernels
from jit.accel.lowering import Lowering
from jit.accel.memory import SCRATCH_BYTES_MAX, STATE_BYTES, Scratch, device_memory, engine_state, trap_key
from jit.accel.tables import Call, KernelStep, Plan, ProductStep, Step, fill, make_plan
from jit.engine import EngineConfig, EngineInfo, Launch, MemoryUse, Number, Prepared, Stop
from jit.errors import Interrupted
from jit.kernels.scalar_ops import supported
from jit.memory import Block, Capacity, SpaceMemory
from jit.plan.calls import UserLaunch
from jit.plan.planner import Target
from jit.prepared import PlannedProgram, PlannedRun, PlanningEngine
from jit.runs import ByteSpace, check_begin, reached
from wis import reference
from wis.launches import addresses
from wis.program import BoundInstr, Operand
from wis.traps import NO_TRAP, site_key
from wis.verify import Verified

__all__ = ["AccelEngine"]

QUEUED_MAX: Final = 64
"""Launches under way at most."""
QUEUED_NS: Final = 1_000_000
"""How much of what a run queued may be under way; a launch that never ran counts as a ``QUEUED_MAX``-th of it."""


class AccelPrepared(PlannedProgram[Plan]):
    """A planned program with its kernels. ``table``: device memory for the argument table; ``step_ns``: what each step took last."""

    def __init__(self, verified: Verified, plan: Plan, kernels: dict[str, Any], foreign: UserKernels, table: Any) -> None:
        super().__init__(verified, plan)
        self.kernels = kernels
        self.foreign = foreign
        self.table = table
        self.step_ns: dict[int, int] = {}


class AccelRun(PlannedRun[AccelPrepared]):
    """One run. ``addresses``: where each buffer of the program is, for pointers of its kernels."""

    def __init__(
        self, engine: AccelEngine, memory: SpaceMemory, ready: AccelPrepared, scalars: Sequence[Number], keys: Sequence[int],
        blocks: Sequence[Block], arena: Block | None,
    ) -> None:  # fmt: skip
        super().__init__(memory, ready, scalars, keys, blocks, arena)
        self._engine = engine
        self._device, self._scratch = engine.device, engine.scratch
        self.addresses = addresses(ready.verified.bound, keys)
        self._at = 0
        self._launch: UnderWay | None = None
        self._bases: list[Any] = []
        self._marks: list[tuple[Any, int, int]] = []  # launches of this piece: mark, blocks, step
        self._queue: deque[tuple[Any, int]] = deque()  # those that may be under way: mark, ns by what is known
        self._queued_ns = 0
        self._deadline_ns = 0
        self._left = -1  # launches and reference steps of this piece, -1: any number
        self._stop: Stop | None = None

    def drop(self) -> None:
        super().drop()
        self._bases, self._marks, self._launch = [], [], None

    def go(self, limit_ns: int = 0, stop: Stop | None = None) -> Launch:
        """Run on, as ``jit.engine.Run`` says.

        Raises BadBuffer when a buffer of the run is not there, LaunchError for a grid beyond the limits; the run is over then.
        """
        self._check_live()
        engine = self._engine
        with engine.lock:
            start_ns = time.monotonic_ns()
            engine.stop.clear()
            self._deadline_ns, self._stop = start_ns + limit_ns if limit_ns else 0, stop
            try:
                self._prepare()
                try:
                    self._steps()
                finally:
                    self._device.finish()
                    self._queue.clear()
                    self._queued_ns = 0
            except BaseException:
                self.drop()
                raise
            self._trap = min(self._trap, trap_key(self._device.read(engine.state, 0, STATE_BYTES)))
            end_ns = time.monotonic_ns()
            core_ns, cores = self._account(end_ns - start_ns)
        return self._launched(start_ns, end_ns, core_ns, cores)

    def _prepare(self) -> None:
        """What has to be in memory before the first step of a piece."""
        device, ready, arena = self._device, self._ready, self._arena
        first = self._begin_piece()
        self._bases = [*(block.store for block in self._blocks), arena.store if arena is not None else None, self._engine.state]
        self._marks = []
        device.write(ready.table, 0, fill(ready.plan, self._values).view(np.uint8))
        device.write(self._engine.state, 0, engine_state())
        if first:
            for offset, nbytes in ready.plan.cleared:
                assert arena is not None
                device.zero(arena.store, offset, nbytes)

    def _steps(self) -> None:
        steps = self._ready.plan.steps
        self._left = self._engine.cut_after or -1
        first = self._at
        while self._at < len(steps) and self._totals.out_of_fuel is None:
            if self.stop_requested or (self._at > first and self.past_deadline):
                return
            if not self._step(steps[self._at]):
                return
            self._at += 1
        self.over = True

    @property
    def stop_requested(self) -> bool:
        """The run was stopped, interrupted, or has reached the place where it was to stop."""
        return not self._left or self._engine.stop.is_set() or reached(self._stop)

    @property
    def past_deadline(self) -> bool:
        """The deadline is over, or will be once the queued launches have run."""
        return 0 < self._deadline_ns <= time.monotonic_ns() + self._queued_ns

    @property
    def preemptible(self) -> bool:
        """The run may have to stop before its end."""
        return self._deadline_ns > 0 or self._stop is not None

    def _step(self, step: Step) -> bool:
        """Queue or run one step; whether it is done or under way as a whole."""
        if isinstance(step, KernelStep):
            self._kernel(step)
        elif isinstance(step, ProductStep):
            operands = [Matrix(self._bases[base], offset, shape, strides) for base, offset, shape, strides in step.operands]
            mark = self._device.product(step.dtype, *operands)
            if mark is not None:
                self.mark(mark, self._device.facts.units)
        elif isinstance(step, UserLaunch):
            foreign = self._ready.foreign
            if self._launch is None:
                self._launch = foreign.open(step.instr, self._values)
            if not foreign.go(self._launch, self._totals, self):
                return False
            self._launch = None
        else:
            key = self._by_reference(step.instr)
            if key != NO_TRAP:
                self._trap = min(self._trap, key + site_key(self._ready.plan.places[self._at]))
            self._left -= self._left > 0
        return True

    def _kernel(self, step: KernelStep) -> None:
        """One launch; more where blocks need so much memory beside their buffers that only some can run at a time."""
        kernel, device, table = self._ready.kernels[step.kernel], self._device, self._ready.table
        buffers = [self._bases[base] for base in step.bases]
        most = step.blocks
        if kernel.scratch_bytes:
            most = min(most, max(1, SCRATCH_BYTES_MAX // kernel.scratch_bytes))
        for first in range(0, step.blocks, most):
            count = min(most, step.blocks - first)
            if most < step.blocks:
                device.finish()
                device.write(table, 8 * step.slice_at, np.array([first, count], np.uint64).view(np.uint8))
            self.mark(device.launch(kernel, count, buffers, table, step.at, self._engine.state, self._scratch(kernel, count)), count)

    def mark(self, mark: Any, blocks: int) -> None:
        """Take note of a launch for the account; wait for earlier ones when much is under way."""
        self._left -= self._left > 0
        self._marks.append((mark, blocks, self._at))
        expected = self._ready.step_ns.get(self._at, QUEUED_NS // QUEUED_MAX)
        self._queue.append((mark, expected))
        self._queued_ns += expected
        while len(self._queue) > 1 and (self._queued_ns > QUEUED_NS or len(self._queue) > QUEUED_MAX):
            done, ns = self._queue.popleft()
            self._device.wait(done)
            self._queued_ns -= ns

    def region(self, buffer: int) -> tuple[Any, int, int]:
        """Where a program's buffer is: memory, offset and size in bytes."""
        plan, keyed = self._ready.plan, self._ready.keyed
        if buffer in plan.arena.offsets:
            assert self._arena is not None
            return self._arena.store, plan.arena.offsets[buffer], plan.temp_nbytes[buffer]
        block = self._blocks[keyed.index(buffer)]
        return block.store, 0, block.nbytes

    def _by_reference(self, instr: BoundInstr) -> int:
        """One instruction by the definition, in place where the host reaches the memory, else on copies; the key of its first trap."""
        self._device.finish()
        arrays: list[Bytes | None] = [None] * self._ready.plan.n_buffers
        touched = {x.buffer for x in (*instr.outs, *instr.ins) if isinstance(x, Operand)}
        written = {x.buffer for x in instr.outs}
        places = {buffer: self.region(buffer) for buffer in touched}
        for buffer, (store, offset, nbytes) in places.items():
            whole = self._device.view(store)
            arrays[buffer] = self._device.read(store, offset, nbytes).copy() if whole is None else whole[offset : offset + nbytes]
        trap = reference.step(instr, self._values, arrays)
        for buffer in written:
            store, offset, _ = places[buffer]
            data = arrays[buffer]
            if data is not None and self._device.view(store) is None:
                self._device.write(store, offset, data)
        return trap

    def _account(self, wall_ns: int) -> tuple[int, int]:
        """(core ns, most cores at once): time on the device by the units that a launch could occupy, the rest by one.

        What every step took is kept, for those who queue it next.
        """
        units = self._device.facts.units
        step_ns: dict[int, int] = {}
        spent = total = 0
        most = 1
        for ns, (_, blocks, step) in zip(self._device.elapsed_ns([mark for mark, _, _ in self._marks]), self._marks, strict=True):
            cores = max(1, min(blocks, units))
            spent += ns * cores
            total += ns
            most = max(most, cores)
            step_ns[step] = step_ns.get(step, 0) + ns
        self._ready.step_ns.update(step_ns)
        return max(1, min(spent + max(0, wall_ns - total), wall_ns * most)), most


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
    A piece of a run holds ``lock``.
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
