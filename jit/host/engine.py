"""The engine of the host backend: prepared plans, spaces that run them, and the account of each run; and launches of kernels that a program
brings: compiled when the program is prepared, run by the walker's threads.

A run can be stopped and resumed. How far it came is a place in the plan: a part, in a native part a phase and a claim of it, in a launch of
a kernel a block. Plans are shared by the spaces that run them, so every piece fills in addresses and scalars anew; regions that start as
zeros are cleared once. Reference steps run whole.

All pieces of all spaces run on the engine's one pool of threads, one piece at a time, in the order in which they are asked for: the share
of the pool that a tenant gets is the share of the time that the order of pieces gives it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from jit.cache import ObjectCache
from jit.compiling.process import CompileLimits, CompileProcess
from jit.engine import EngineConfig, EngineInfo, Launch, MemoryUse, Number, Prepared, Stop
from jit.errors import Interrupted, KernelRefused
from jit.host.calls import Call, Lowering, supported
from jit.host.schedule import levels_of
from jit.host.simt.run import Grid, GridRunner, HostKernel, KernelCompiler, Region
from jit.host.tables import Native, Plan, given_scalars, make_plan, scalar_words
from jit.host.toolchain import Toolchain
from jit.host.walker import Walker
from jit.kernels.launch import CHECKED, KernelLaunch
from jit.memory import ALIGN_BYTES, Block, Capacity, SpaceMemory, new_block
from jit.plan.calls import Fallback, UserLaunch
from jit.plan.planner import Target
from jit.prepared import SPARE_BYTES, PlannedProgram, PlannedRun, PlanningEngine
from jit.runs import ByteSpace, LaunchTotals, check_begin
from wis import reference
from wis.cost import count_instr
from wis.launches import KernelCall, addresses, kernel_call
from wis.program import BoundInstr, Operand
from wis.traps import NO_TRAP, site_key
from wis.verify import Verified

__all__ = ["HostEngine"]

_NOTHING: Final = new_block(0, ALIGN_BYTES)
"""The arena of a space that has had no temporaries: zero bytes, which are never read or written."""

_LONGEST_NS: Final = 600_000_000_000
_REFERENCE_NS: Final = 5.0
"""Of an element-instruction that the reference executes, about."""

Launches = Mapping[tuple[int, ...], HostKernel]
"""The compiled kernels of one program, by the attributes of its launches."""


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A launch, and how far it came."""

    call: KernelCall
    grid: Grid


class UserKernels:
    """Compiles and runs the launches of all programs of an engine."""

    def __init__(self, compiler: KernelCompiler, runner: GridRunner, fuel: int) -> None:
        self._compiler, self._runner, self._fuel = compiler, runner, fuel

    def prepare(self, verified: Verified, plan: Plan) -> Launches:
        """Raises KernelRefused."""
        wanted = {part.instr.attrs for part in plan.parts if isinstance(part, UserLaunch)}
        return {
            (number, x, y, z, dynamic): self._compiler.prepare(verified.kernels[number], (x, y, z), dynamic, CHECKED, foreign=True)
            for number, x, y, z, dynamic in wanted
        }

    def open(self, instr: BoundInstr, verified: Verified, launches: Launches, values: Sequence[Number]) -> UnderWay:
        """A launch of which nothing ran. Raises LaunchError for a grid beyond the limits."""
        call = kernel_call(instr, verified.kernels, values)
        where = KernelLaunch(call.grid, call.block, call.dynamic_bytes, fuel=self._fuel)
        return UnderWay(call, self._runner.open(launches[instr.attrs], where))

    def go(self, launch: UnderWay, region: Callable[[int], Region], totals: LaunchTotals) -> bool:
        """Run what is left of it; whether it came to its end. ``region``: a whole buffer of the program.

        Raises Interrupted when the run was stopped within a block.
        """
        call = launch.call
        params = [_part(region(x.buffer), x) if isinstance(x, Operand) else x for x in call.params]
        outcome = self._runner.go(launch.grid, params)
        if outcome is None:
            return False
        totals.add(call, outcome.instructions, outcome.trap, out_of_fuel=outcome.out_of_fuel)
        return True


def _part(whole: Region, x: Operand) -> Region:
    """A region of a buffer; an empty one is a null pointer."""
    address, _, place = whole
    return (address + x.offset, x.shape[0], place + x.offset) if x.shape[0] else (address, 0, 0)


class HostPrepared(PlannedProgram[Plan]):
    """A planned program with the kernels it brings."""

    def __init__(self, verified: Verified, plan: Plan, launches: Launches, trap_at: int, threads: int) -> None:
        """``trap_at``: address of the engine's word for traps. Whatever is the same for every run goes into the arguments here."""
        super().__init__(verified, plan, max(0, plan.scratch_bytes - SPARE_BYTES) * min(threads, plan.scratch_units))
        self.claims_at, self.chunks_at = plan.claims.ctypes.data, plan.chunks.ctypes.data  # asking each time takes microseconds
        self.launches = launches
        plan.args[plan.trap_slots] = trap_at
        self.given = given_scalars(plan, self.n_scalars)


class HostRun(PlannedRun[HostPrepared]):
    """One run."""

    def __init__(
        self, engine: HostEngine, memory: SpaceMemory, ready: HostPrepared, scalars: Sequence[Number], keys: Sequence[int],
        blocks: Sequence[Block], arena: Block,
    ) -> None:  # fmt: skip
        super().__init__(memory, ready, scalars, keys, blocks, arena)
        self._engine = engine
        self._part = self._phase = self._claim = 0
        self._launch: UnderWay | None = None
        self._arrays: list[npt.NDArray[np.uint8] | None] | None = None

    def drop(self) -> None:
        super().drop()
        self._arrays, self._launch = None, None

    def go(self, limit_ns: int = 0, stop: Stop | None = None) -> Launch:
        """Run on, as ``jit.engine.Run`` says.

        Raises BadBuffer when a buffer of the run is not there, LaunchError for a grid beyond the limits; the run is over then.
        """
        return self._go(limit_ns, stop, whole=False)

    def run(self) -> Launch:
        """Run to the end; an interruption may end it within a block (Interrupted), after which it cannot go on."""
        return self._go(0, None, whole=True)

    def _go(self, limit_ns: int, stop: Stop | None, *, whole: bool) -> Launch:
        self._check_live()
        engine, plan = self._engine, self._ready.plan
        walker = engine.walker
        with engine.running(whole):
            start_ns = time.monotonic_ns()
            walker.reserve(plan.scratch_bytes, kept_bytes=SPARE_BYTES)
            walker.order(limit_ns, stop, 0 if whole else engine.cut_after)
            walker.begin(self._ready.claims_at, self._ready.chunks_at)
            try:
                self._fill()
                alone_ns = self._parts(start_ns + limit_ns if limit_ns else 0)
            except BaseException:
                self.drop()
                raise
            end_ns = time.monotonic_ns()
            account = walker.account()
            self._trap = min(self._trap, int(engine.trap[0]))
        wall_ns = end_ns - start_ns
        native_ns = wall_ns - alone_ns
        core_ns = alone_ns + (native_ns * account.core_cycles // account.cycles if account.cycles > 0 else native_ns)
        return self._launched(start_ns, end_ns, core_ns, max(1, account.cores))

    def _parts(self, deadline_ns: int) -> int:
        """Run parts until the end or until the walker stops; returns the ns that reference steps took."""
        walker, parts = self._engine.walker, self._ready.plan.parts
        alone_ns = 0
        while self._part < len(parts):
            if deadline_ns and alone_ns and time.monotonic_ns() >= deadline_ns:
                return alone_ns
            part = parts[self._part]
            if isinstance(part, Native):
                at = walker.walk(part.address, part.count, self._phase, self._claim)
                if at[0] < part.count:
                    self._phase, self._claim = at
                    return alone_ns
                self._phase = self._claim = 0
            elif isinstance(part, UserLaunch):
                if not self._foreign(part.instr):
                    return alone_ns
                if self._totals.out_of_fuel is not None:
                    break
            else:
                if walker.stopped:
                    return alone_ns
                before = time.monotonic_ns()
                self._by_reference(part.instr, self._ready.plan.places[self._part])
                walker.spend()
                alone_ns += time.monotonic_ns() - before
            self._part += 1
        self.over = True
        return alone_ns

    def _foreign(self, instr: BoundInstr) -> bool:
        """One launch of a kernel that the program brings; whether it came to its end."""
        engine, ready = self._engine, self._ready
        if self._launch is None:
            self._launch = engine.foreign.open(instr, ready.verified, ready.launches, self._values)
        if not engine.foreign.go(self._launch, self._regions(), self._totals):
            return False
        self._launch = None
        engine.walker.tables(ready.claims_at, ready.chunks_at)
        return True

    def _fill(self) -> None:
        """Addresses and scalars into the plan's arguments."""
        plan, arena = self._ready.plan, self._arena
        assert arena is not None
        first, args = self._begin_piece(), plan.args
        bases = np.array([*(block.address for block in self._blocks), arena.address], np.int64)
        args[plan.pointer_slots] = bases[plan.pointer_bases] + plan.pointer_offsets
        for dtype, slots, numbers in self._ready.given:
            args[slots] = scalar_words(dtype, [self._values[n] for n in numbers])
        self._engine.trap[0] = NO_TRAP
        if first:
            for offset, nbytes in plan.cleared:
                arena.data[offset : offset + nbytes] = 0
        self._arrays = None

    def _regions(self) -> Callable[[int], Region]:
        """Where a buffer of the program is: here, how long, and for pointers that lost their buffer."""
        ready = self._ready
        plan, bound, arena = ready.plan, ready.verified.bound, self._arena
        assert arena is not None
        places = addresses(bound, self._keys)
        block_of = dict(zip(ready.keyed, self._blocks, strict=True))

        def region(buffer: int) -> Region:
            block = block_of.get(buffer)
            address = block.address if block is not None else arena.address + plan.arena.offsets.get(buffer, 0)
            return address, bound.nbytes[buffer], places[buffer]

        return region

    def _by_reference(self, instr: BoundInstr, place: int) -> None:
        """One instruction by the definition; it is at ``place`` of the program."""
        if self._arrays is None:
            plan, arena = self._ready.plan, self._arena
            assert arena is not None
            arrays: list[Any] = [None] * plan.n_buffers
            for number, block in zip(self._ready.keyed, self._blocks, strict=True):
                arrays[number] = block.data
            for number, offset in plan.arena.offsets.items():
                arrays[number] = arena.data[offset : offset + plan.temp_nbytes[number]]
            self._arrays = arrays
        key = reference.step(instr, self._values, self._arrays)
        if key != NO_TRAP:
            self._trap = min(self._trap, key + site_key(place))


class HostSpace(ByteSpace):
    """A space of the host backend: buffers and an arena for temporaries, which is never shared with another space."""

    def __init__(self, engine: HostEngine, capacity: Capacity) -> None:
        super().__init__(capacity)
        self._engine = engine

    def begin(self, prepared: Prepared, scalars: Sequence[Number], keys: Sequence[int]) -> HostRun:
        ready = cast(HostPrepared, prepared)
        check_begin(self._run, len(scalars), ready.n_scalars)
        arena = self._reserve(ready.workspace_bytes) or _NOTHING
        blocks = self._blocks(ready.specs, keys, ready.writes)
        run = self._run = HostRun(self._engine, self._memory, ready, scalars, keys, blocks, arena)
        return run

    def run(self, prepared: Prepared, scalars: Sequence[Number], keys: Sequence[int]) -> Launch:
        run = self.begin(prepared, scalars, keys)
        launch = run.run()
        if launch.stopped:
            run.drop()
            raise Interrupted("the run was stopped between two claims")
        return launch


def _check_units(plan: Plan) -> None:
    """Whether a run of the plan can be stopped in time: units are not divisible, and one may read one element any number of times.

    Raises KernelRefused."""
    for call in plan.calls:
        if isinstance(call, Call):
            name, ns = call.name, call.grain
        elif isinstance(call, Fallback):
            name, ns = call.instr.op.name, count_instr(call.instr) * _REFERENCE_NS
        else:
            continue
        if ns > _LONGEST_NS:
            raise KernelRefused(
                f"{name}: a part that cannot be interrupted would take some {ns / 1e9:.0f} s, accepted are {_LONGEST_NS // 10**9} s; "
                "make the operation smaller"
            )


class HostEngine(PlanningEngine[Call, Plan, HostPrepared]):
    """One CPU as a device. ``cut_after``: for tests, every piece of a run ends after so many claims of its caller (0: it does not).

    ``trap``: the word where native functions say which index was out of bounds; ``walker``: the threads; ``foreign``: compiles and runs
    kernels that programs bring.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._guard = CompileProcess(CompileLimits.within(config.compile_ms))
        self.toolchain = Toolchain(ObjectCache(config.cache_dir), self._guard)
        self._lowering = Lowering(self.toolchain)
        super().__init__(Target(self._lowering, supported, levels_of, make_plan))
        self.walker = Walker(self.toolchain, config.threads)
        self._runner = GridRunner(self.walker)
        self._fuel = config.fuel
        self._foreign_made: UserKernels | None = None
        self.info = EngineInfo(self.toolchain.cpu, "host", self.walker.threads, config.vram_bytes)
        self._running = threading.Lock()
        self._capacity = Capacity(config.vram_bytes, running=self._running)
        self._interrupting = threading.Lock()
        self._whole = False
        self.trap = np.zeros(8, np.int64)
        self.trap_at = self.trap.ctypes.data
        self.cut_after = 0
        self._closed = False

    @property
    def memory(self) -> MemoryUse:
        return self._capacity.memory

    def open_space(self) -> HostSpace:
        return HostSpace(self, self._capacity)

    def _ready(self, verified: Verified, plan: Plan) -> HostPrepared:
        _check_units(plan)
        return HostPrepared(verified, plan, self._launches(verified, plan), self.trap_at, self.walker.threads)

    def _launches(self, verified: Verified, plan: Plan) -> Launches:
        """The kernels that the program brings, compiled. What they need besides is compiled when the first one comes."""
        if not verified.kernels:
            return {}
        return self.foreign.prepare(verified, plan)

    @property
    def foreign(self) -> UserKernels:
        if self._foreign_made is None:
            self._foreign_made = UserKernels(KernelCompiler(self.toolchain), self._runner, self._fuel)
        return self._foreign_made

    @property
    def kernels(self) -> int:
        """How many different fused kernels were needed so far."""
        return self._lowering.kernels

    def interrupt(self) -> None:
        with self._interrupting:
            if self._whole:
                self._runner.interrupt()
            else:
                self.walker.stop()

    @contextmanager
    def running(self, whole: bool) -> Iterator[None]:
        """Hold the engine's mutex while a piece of a run executes. ``whole``: the run need not be resumable after an interruption."""
        with self._running:
            with self._interrupting:
                self._whole = whole
                self._runner.begin()
            yield

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._guard.close()
            self.walker.close()
            self._prepared.clear()
