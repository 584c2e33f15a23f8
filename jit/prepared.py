"""Prepared programs: the half of an engine that plans, for back ends whose programs run from plans."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import prod
from typing import Any, Final, Generic, Protocol, TypeVar

from jit.engine import Launch, Number
from jit.memory import Block, SpaceMemory, room_for
from jit.plan.arena import Arena
from jit.plan.calls import Call
from jit.plan.memo import Lru, Memo
from jit.plan.planner import Planner, PlanOptions, Target
from jit.runs import OVER, KeySpec, LaunchTotals, check_there, trap_of_run, written_keys
from wis.program import BoundInstr, BufferKind, Operand
from wis.traps import NO_TRAP
from wis.verify import Verified

__all__ = ["PlannedProgram", "PlannedRun", "PlanningEngine"]

PREPARED_MAX = 256
PLANNERS_MAX = 256
SPARE_BYTES: Final = 64 << 20
"""What a thread of a run may take of the machine's memory beside buffers and temporaries. What is beyond that counts as its workspace."""


class Plan(Protocol):
    """What every plan has."""

    @property
    def arena(self) -> Arena: ...

    @property
    def instructions(self) -> int: ...

    @property
    def fallbacks(self) -> list[BoundInstr]: ...

    @property
    def constants(self) -> tuple[float, ...]: ...


C = TypeVar("C", bound=Call)
P = TypeVar("P", bound=Plan)
R = TypeVar("R", bound="PlannedProgram[Any]")


class PlannedProgram(Generic[P]):
    """A program with its plan. ``specs`` and ``keyed``: the EXTERNAL and CREATED buffers in order, as what a run needs of them, and their
    numbers in the program; ``writes``: positions among those that a run may write. ``beside_bytes``: what counts besides."""

    def __init__(self, verified: Verified, plan: P, beside_bytes: int = 0) -> None:
        program = verified.bound.program
        self.verified = verified
        self.plan = plan
        self.writes = written_keys(verified.bound)
        self.instructions = plan.instructions
        self.n_scalars = program.n_scalars
        self.keyed = [number for number, kind in enumerate(program.buffers) if kind != BufferKind.TEMP]
        self.specs = [
            KeySpec(verified.bound.nbytes[number], program.buffers[number] == BufferKind.CREATED, number in verified.zeroed)
            for number in self.keyed
        ]
        workspace = plan.arena.nbytes + max([beside_bytes, *(_repeated_bytes(instr) - SPARE_BYTES for instr in plan.fallbacks)])
        self.workspace_bytes = room_for(workspace) if workspace else 0


def _repeated_bytes(instr: BoundInstr) -> int:
    """What the reference may hold of elements that lie in memory once and are read many times."""
    total = 0
    for x in instr.ins:
        if isinstance(x, Operand):
            own = prod(size for size, stride in zip(x.shape, x.strides, strict=True) if stride)
            total += max(0, x.numel - own) * max(x.dtype.itemsize, 8)
    return total


class PlannedRun(Generic[R]):
    """A run of a planned program, but for its steps. ``blocks``: of its keys, in its space's ``memory``; ``arena``: for its temporaries."""

    def __init__(
        self, memory: SpaceMemory, ready: R, scalars: Sequence[Number], keys: Sequence[int], blocks: Sequence[Block], arena: Block | None
    ) -> None:
        self._memory, self._ready, self._keys, self._arena = memory, ready, keys, arena
        self._blocks: Sequence[Block] = blocks
        self._values: list[Number] = [*scalars, *ready.plan.constants]
        self._totals = LaunchTotals()
        self._trap = NO_TRAP
        self._begun = False
        self.over = False

    def drop(self) -> None:
        """Give up what is left. Safe to call twice, and when it is over."""
        self.over = True
        self._blocks, self._arena = (), None  # a space keeps its last run, which must not keep memory

    def _check_live(self) -> None:
        if self.over:
            raise ValueError(OVER)

    def _begin_piece(self) -> bool:
        """Check that the buffers are still the ones of the run; whether this is its first piece."""
        if self._begun:
            check_there(self._memory, self._keys, self._blocks)
        first, self._begun = not self._begun, True
        return first

    def _launched(self, start_ns: int, end_ns: int, core_ns: int, cores: int) -> Launch:
        """The account of a piece; the last one's is that of the run."""
        if not self.over:
            return Launch(start_ns, end_ns, core_ns, cores, 0, None, stopped=True)
        self.drop()
        totals, ready = self._totals, self._ready
        trap, trap_at = trap_of_run(ready.verified.bound, totals.texts, self._trap)
        instructions = ready.instructions + totals.instructions
        return Launch(start_ns, end_ns, core_ns, cores, instructions, trap, totals.out_of_fuel, trap_at=trap_at)


class PlanningEngine(Generic[C, P, R]):
    """Keeps prepared programs, and what is known about the structure of each; the least recently used are dropped."""

    def __init__(self, target: Target[C, P]) -> None:
        self.options = PlanOptions()
        self._target = target
        self._memo: Memo[C] = Memo()
        self._prepared: Lru[tuple[bytes, bytes], R] = Lru(PREPARED_MAX)
        self._planners: Lru[bytes, Planner[C, P]] = Lru(PLANNERS_MAX)
        self._preparing = threading.Lock()

    def prepare(self, verified: Verified) -> R:
        """As ``jit.engine.Engine`` says. Any thread may call it."""
        key = verified.digest, verified.dims_digest
        with self._preparing:
            ready = self._prepared.get(key)
            if ready is None:
                ready = self._prepared.put(key, self._ready(verified, self.planner(verified.digest).plan(verified)))
            return ready

    def _ready(self, verified: Verified, plan: P) -> R:
        """Compile what a new plan needs."""
        raise NotImplementedError

    def planner(self, digest: bytes) -> Planner[C, P]:
        """What is known about one program structure."""
        return self._planners.get(digest) or self._planners.put(digest, Planner(self._target, self._memo, self.options))

    def plans(self) -> list[P]:
        """The plans that are ready."""
        with self._preparing:
            return [ready.plan for ready in self._prepared.values()]

    def forget(self) -> None:
        """Drop all plans, for example after a change of ``options``."""
        with self._preparing:
            self._prepared.clear()
            self._planners.clear()
