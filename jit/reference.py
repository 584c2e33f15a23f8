"""The reference backend: ``wis.reference`` over real buffers. Slow, single-threaded, and the definition of every result."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import cast

import numpy as np

from jit.engine import EngineConfig, EngineInfo, Launch, MemoryUse, Number, Prepared, Stop
from jit.memory import Block, Capacity, SpaceMemory
from jit.runs import OVER, ByteSpace, KeySpec, check_begin, check_there, fuel_text, reached, trap_of_run, written_keys
from wis import cost, reference
from wis.launches import addresses
from wis.program import BoundProgram, BufferKind
from wis.verify import Verified

__all__ = ["ReferenceEngine", "key_specs"]


def key_specs(bound: BoundProgram) -> list[KeySpec]:
    """One entry per EXTERNAL and CREATED buffer, in program order; every CREATED one starts zeroed."""
    return [
        KeySpec(nbytes, kind == BufferKind.CREATED, True)
        for kind, nbytes in zip(bound.program.buffers, bound.nbytes, strict=True)
        if kind != BufferKind.TEMP
    ]


class ReferencePrepared:
    """A verified program and its cost."""

    def __init__(self, verified: Verified) -> None:
        self.verified = verified
        self.specs = key_specs(verified.bound)
        self.writes = written_keys(verified.bound)
        self.instructions = cost.count(verified.bound)
        kinds = zip(verified.bound.program.buffers, verified.bound.nbytes, strict=True)
        self.workspace_bytes = sum(nbytes for kind, nbytes in kinds if kind == BufferKind.TEMP)


class ReferenceSpace(ByteSpace):
    """A space whose runs go through the interpreter. Temporaries live for one run only, so nothing is held for later ones."""

    def __init__(self, engine: ReferenceEngine, capacity: Capacity) -> None:
        super().__init__(capacity)
        self._engine = engine
        self._capacity = capacity

    def begin(self, prepared: Prepared, scalars: Sequence[Number], keys: Sequence[int]) -> ReferenceRun:
        plan = cast(ReferencePrepared, prepared)
        check_begin(self._run, len(scalars), plan.verified.bound.program.n_scalars)
        self._capacity.take(plan.workspace_bytes)
        try:
            blocks = self._blocks(plan.specs, keys, plan.writes)
        except BaseException:
            self._capacity.give(plan.workspace_bytes)
            raise
        run = self._run = ReferenceRun(self._engine, self._capacity, self._memory, plan, scalars, keys, blocks)
        return run

    def run(self, prepared: Prepared, scalars: Sequence[Number], keys: Sequence[int]) -> Launch:
        run = self.begin(prepared, scalars, keys)
        launch = run.go()
        while launch.stopped:  # as ``cut_after`` says; the interpreter is not interrupted
            launch = run.go()
        return launch


class ReferenceRun:
    """A program under way; it stops between two instructions. Its temporaries live until it is over."""

    def __init__(
        self, engine: ReferenceEngine, capacity: Capacity, memory: SpaceMemory, plan: ReferencePrepared, scalars: Sequence[Number],
        keys: Sequence[int], blocks: Sequence[Block],
    ) -> None:  # fmt: skip
        self._engine, self._capacity, self._memory, self._plan, self._keys, self._blocks = engine, capacity, memory, plan, keys, blocks
        bound = plan.verified.bound
        self._execution = reference.Execution(bound, scalars, reference.Kernels(plan.verified.kernels, engine.fuel, addresses(bound, keys)))
        kinds = zip(bound.program.buffers, bound.nbytes, strict=True)
        self._temps = [np.zeros(nbytes, np.uint8) if kind == BufferKind.TEMP else None for kind, nbytes in kinds]
        self.over = False

    def drop(self) -> None:
        """Give up what is left. Safe to call twice, and when it is over."""
        if not self.over:
            self.over = True
            self._temps, self._blocks = [], ()  # a space keeps its last run, which must not keep memory
            self._capacity.give(self._plan.workspace_bytes)

    def go(self, limit_ns: int = 0, stop: Stop | None = None) -> Launch:
        """Run on, as ``jit.engine.Run`` says. Raises BadBuffer when a buffer of the run is not there."""
        if self.over:
            raise ValueError(OVER)
        execution = self._execution
        start_ns = time.monotonic_ns()
        try:
            with self._engine.running:
                check_there(self._memory, self._keys, self._blocks)
                given = iter(self._blocks)
                buffers = [next(given).data if temp is None else temp for temp in self._temps]
                left = self._engine.cut_after or len(self._plan.verified.bound.code)
                while left and not execution.over and not reached(stop):
                    execution.step(buffers)
                    left -= 1
                    if limit_ns and time.monotonic_ns() - start_ns >= limit_ns:
                        break
        except BaseException:
            self.drop()
            raise
        end_ns = time.monotonic_ns()
        if not execution.over:
            return Launch(start_ns, end_ns, end_ns - start_ns, 1, 0, None, stopped=True)
        self.drop()
        traps = execution.traps
        instructions = self._plan.instructions + traps.instructions
        out_of_fuel = fuel_text(traps.out_of_fuel) if traps.out_of_fuel else None
        trap, trap_at = trap_of_run(self._plan.verified.bound, traps.texts, traps.key)
        return Launch(start_ns, end_ns, end_ns - start_ns, 1, instructions, trap, out_of_fuel, trap_at=trap_at)


class ReferenceEngine:
    """The engine of the ``reference`` backend. ``cut_after``: for tests, every piece of a run is so many instructions (0: all of them).

    ``running``: held by a piece of a run, so that no buffer moves meanwhile.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.info = EngineInfo("NumPy reference", "reference", 1, config.vram_bytes)
        self.running = threading.Lock()
        self._capacity = Capacity(config.vram_bytes, running=self.running)
        self.fuel = config.fuel
        self.cut_after = 0

    @property
    def memory(self) -> MemoryUse:
        return self._capacity.memory

    def open_space(self) -> ReferenceSpace:
        return ReferenceSpace(self, self._capacity)

    def prepare(self, verified: Verified) -> ReferencePrepared:
        return ReferencePrepared(verified)

    def interrupt(self) -> None:
        """The interpreter runs to its end; there is nothing to stop."""

    def close(self) -> None:
        """Nothing is held."""
