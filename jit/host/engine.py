"""The engine of the host backend: prepared plans, spaces that run them, and the account of each run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, cast

import numpy as np

from jit.cache import ObjectCache
from jit.compiling.process import CompileProcess
from jit.engine import EngineConfig, EngineInfo, Launch, MemoryUse, Number, Prepared
from jit.errors import Interrupted
from jit.host.calls import Call, Lowering
from jit.host.emit.ops import supported
from jit.host.foreign import Launches, UserKernels
from jit.host.run import HostRun
from jit.host.scalars import given_scalars
from jit.host.schedule import levels_of
from jit.host.simt.compile import KernelCompiler
from jit.host.simt.run import GridRunner
from jit.host.tables import Plan, make_plan
from jit.host.toolchain import Toolchain
from jit.host.walker import Walker
from jit.memory import ALIGN_BYTES, Capacity, new_block, room_for
from jit.plan.memo import Memo
from jit.plan.planner import Planner, PlanOptions, Target
from jit.runs import check_begin, written_keys
from jit.space import ByteSpace, KeySpec
from wis.program import BufferKind
from wis.verify import Verified

__all__ = ["HostEngine"]

_NOTHING: Final = new_block(0, ALIGN_BYTES)
"""The arena of a space that has had no temporaries: zero bytes, which are never read or written."""
PREPARED_MAX = 256
PLANNERS_MAX = 256


class HostPrepared:
    """A planned program."""

    def __init__(self, verified: Verified, plan: Plan, launches: Launches, trap_at: int) -> None:
        """``trap_at``: address of the engine's word for traps. Whatever is the same for every run goes into the arguments here."""
        bound = verified.bound
        self.plan = plan
        self.claims_at, self.chunks_at = plan.claims.ctypes.data, plan.chunks.ctypes.data  # asking each time takes microseconds
        self.launches = launches
        plan.args[plan.trap_slots] = trap_at
        self.writes = written_keys(bound)
        self.instructions = plan.instructions
        self.n_scalars = bound.program.n_scalars
        self.specs = [
            KeySpec(nbytes, kind == BufferKind.CREATED, number in verified.zeroed)
            for number, (kind, nbytes) in enumerate(zip(bound.program.buffers, bound.nbytes, strict=True))
            if kind != BufferKind.TEMP
        ]
        self.keyed = [n for n, kind in enumerate(bound.program.buffers) if kind != BufferKind.TEMP]
        self.given = given_scalars(plan, self.n_scalars)

    @property
    def n_keys(self) -> int:
        return len(self.specs)

    @property
    def workspace_bytes(self) -> int:
        return room_for(self.plan.arena.nbytes) if self.plan.arena.nbytes else 0


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


class HostEngine:
    """One CPU as a device. ``cut_after``: for tests, every piece of a run ends after so many claims of its caller (0: it does not).

    ``trap``: the word where native functions say which index was out of bounds; ``walker``: the threads.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._guard = CompileProcess()
        self.toolchain = Toolchain(ObjectCache(config.cache_dir), self._guard)
        self._lowering = Lowering(self.toolchain)
        self._target = Target(self._lowering, supported, levels_of, make_plan)
        self._memo: Memo[Call] = Memo()
        self.walker = Walker(self.toolchain, config.threads)
        self._runner = GridRunner(self.walker)
        self._fuel = config.fuel
        self._foreign_made: UserKernels | None = None
        self.info = EngineInfo(self.toolchain.cpu, "host", self.walker.threads, config.vram_bytes)
        self.options = PlanOptions()
        self._running = threading.Lock()
        self._capacity = Capacity(config.vram_bytes, running=self._running)
        self._prepared: OrderedDict[tuple[bytes, bytes], HostPrepared] = OrderedDict()
        self._planners: OrderedDict[bytes, Planner[Call, Plan]] = OrderedDict()
        self._preparing = threading.Lock()
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

    def prepare(self, verified: Verified) -> HostPrepared:
        key = (verified.digest, verified.dims_digest)
        with self._preparing:
            ready = self._prepared.get(key)
            if ready is None:
                plan = self.planner(verified.digest).plan(verified)
                ready = self._prepared[key] = HostPrepared(verified, plan, self._launches(verified, plan), self.trap_at)
                if len(self._prepared) > PREPARED_MAX:
                    self._prepared.popitem(last=False)
            else:
                self._prepared.move_to_end(key)
            return ready

    def _launches(self, verified: Verified, plan: Plan) -> Launches:
        """The kernels that the program brings, compiled. What they need besides is compiled when the first one comes."""
        if not verified.kernels:
            return Launches(verified, {})
        return self.foreign.prepare(verified, plan)

    @property
    def foreign(self) -> UserKernels:
        if self._foreign_made is None:
            self._foreign_made = UserKernels(KernelCompiler(self.toolchain), self._runner, self._fuel)
        return self._foreign_made

    def planner(self, digest: bytes) -> Planner[Call, Plan]:
        """What is known about one program structure."""
        planner = self._planners.setdefault(digest, Planner(self._target, self._memo, self.options))
        self._planners.move_to_end(digest)
        if len(self._planners) > PLANNERS_MAX:
            self._planners.popitem(last=False)
        return planner

    @property
    def kernels(self) -> int:
        """How many different fused kernels were needed so far."""
        return self._lowering.kernels

    def forget(self) -> None:
        """Drop all plans, for example after a change of ``options``."""
        with self._preparing:
            self._prepared.clear()
            self._planners.clear()

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
