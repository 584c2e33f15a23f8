"""The engine of the host backend: prepared plans, spaces that run them, and the account of each run."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, cast

import numpy as np

from jit.cache import ObjectCache
from jit.compiling.process import CompileLimits, CompileProcess
from jit.engine import EngineConfig, EngineInfo, Launch, MemoryUse, Number, Prepared
from jit.errors import Interrupted
from jit.host.calls import Call, Lowering, supported
from jit.host.run import HostPrepared, HostRun, Launches, UserKernels
from jit.host.schedule import levels_of
from jit.host.simt.run import GridRunner, KernelCompiler
from jit.host.tables import Plan, make_plan
from jit.host.toolchain import Toolchain
from jit.host.walker import Walker
from jit.memory import ALIGN_BYTES, Capacity, new_block
from jit.plan.planner import Target
from jit.prepared import PlanningEngine
from jit.runs import ByteSpace, check_begin
from wis.verify import Verified

__all__ = ["HostEngine"]

_NOTHING: Final = new_block(0, ALIGN_BYTES)
"""The arena of a space that has had no temporaries: zero bytes, which are never read or written."""


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


class HostEngine(PlanningEngine[Call, Plan, HostPrepared]):
    """One CPU as a device. ``cut_after``: for tests, every piece of a run ends after so many claims of its caller (0: it does not).

    ``trap``: the word where native functions say which index was out of bounds; ``walker``: the threads.
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
        return HostPrepared(verified, plan, self._launches(verified, plan), self.trap_at)

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
