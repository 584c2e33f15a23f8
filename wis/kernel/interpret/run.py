"""Runs a launch: checks its arguments, cuts the grid into batches of blocks that fit in memory, and combines their results. Threads of a
batch that are at the same block of code execute it together, as one array operation.

Of a warp, the threads at the least-numbered block of code run first, and those that are there at the same time are what warp ops see.
Between warps the order means nothing, so all threads of the batch at the least number run as one; in kernels whose threads may wait for
each other (``PreparedKernel.fair``), every warp gets its turn instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from wis.kernel.interpret import memory, warp
from wis.kernel.interpret.memory import AccessSite, BatchMemory
from wis.kernel.interpret.prepare import PreparedBlock, PreparedKernel, Step, prepare
from wis.kernel.interpret.scalar import NUMPY, WIS, Array, from_bits, value
from wis.kernel.interpret.warp import Barriers
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import (
    WARP,
    Bar,
    Br,
    BufferParam,
    Cbr,
    Kernel,
    RegType,
    Ret,
    Special,
    Switch,
    Sync,
    Terminator,
    TrapKind,
    shared_bytes,
)
from wis.kernel.ops import Sig
from wis.kernel.traps import NO_TRAP, Trap, trap_key, trap_of
from wis.kernel.verify import VerifiedKernel
from wis.reference.access import immediate

__all__ = ["Dim3", "Launch", "Outcome", "launch"]

Dim3 = tuple[int, int, int]
Indices = npt.NDArray[np.int64]
_ONE_THREAD: Final = trap_key(Trap(TrapKind(0), 0, 1, 0))
_ONE_BLOCK: Final = trap_key(Trap(TrapKind(0), 1, 0, 0))
_ONE_SITE: Final = trap_key(Trap(TrapKind(0), 0, 0, 1))


@dataclass(frozen=True, slots=True)
class Launch:
    """A grid of blocks, or a slice of it. Blocks are numbered in row-major order (x fastest)."""

    grid: Dim3
    block: Dim3
    first: int = 0
    """Number of the first block of the slice."""
    count: int | None = None
    """Blocks of the slice; None: all from ``first`` on."""
    dynamic_bytes: int = 0
    """By how much the last shared array of a kernel that is ``dynamic`` is longer."""


class Batch:
    """``pc``: the block of code each thread is at; ``ended`` when it has none; a waiting thread's is where it goes on, see ``_park``."""

    def __init__(
        self, plan: PreparedKernel, where: Launch, blocks: Indices, memory: BatchMemory, scalars: dict[int, Array], fuel: int | None
    ) -> None:
        self.plan, self.memory, self.scalars, self.fuel = plan, memory, scalars, fuel
        self.where, self.blocks = where, blocks
        self.threads = prod(where.block)
        self.n = len(blocks) * self.threads
        self.thread = np.tile(np.arange(self.threads), len(blocks))
        self.lane = self.thread % WARP
        warps = -(-self.threads // WARP)
        self.warp = np.repeat(np.arange(len(blocks)) * warps, self.threads) + self.thread // WARP
        self.cta = np.repeat(blocks, self.threads)
        self.regs: dict[int, Array] = {}
        self.owned: set[int] = set()  # registers whose array no other register shares
        self.trap_key = NO_TRAP
        self.instructions = 0
        self.executions = np.zeros(len(plan.blocks), np.int64)
        self.ended = len(plan.blocks)
        self.pc = np.zeros(self.n, np.int32)
        self.barriers = Barriers(len(blocks), self.threads)

    def run(self) -> bool:
        """Whether all threads ended (and not the fuel)."""
        with np.errstate(all="ignore"):
            return self._run_fairly() if self.plan.fair else self._run_least()

    def _run_least(self) -> bool:
        while True:
            at = int(self.pc.min(initial=self.ended))
            if at < self.ended:
                if not self._execute(at, np.flatnonzero(self.pc == at)):
                    return False
            elif not self._release():
                return True

    def _run_fairly(self) -> bool:
        starts = np.flatnonzero(np.diff(self.warp, prepend=-1))
        while True:
            least = np.minimum.reduceat(self.pc, starts) if self.n else self.pc
            for at in np.unique(least[least < self.ended]).tolist():
                if not self._execute(at, np.flatnonzero((self.pc == at) & (least == at)[self.warp])):
                    return False
            if not self._release() and not (self.pc < self.ended).any():
                return True

    def _release(self) -> bool:
        """Let threads go on whose barriers are complete, end blocks whose barriers can never be; whether any thread goes on."""
        if not self.barriers.any_waiting:
            return False
        free, stuck = self.barriers.judge(self.pc >= self.ended, self.pc == self.ended)
        for local, thread in stuck:
            key = trap_key(Trap(TrapKind.BARRIER, int(self.blocks[local]), thread, self.plan.sites))
            self.trap_key = min(self.trap_key, key)
            self.pc[local * self.threads : (local + 1) * self.threads] = self.ended
        self.pc[free] -= self.ended + 1
        return len(free) > 0

    def _execute(self, at: int, here: Indices) -> bool:
        """Run a block of code for the threads ``here``; False when the fuel is spent."""
        block = self.plan.blocks[at]
        run = _Here(self, here)
        for step in block.steps:
            _EXECUTE.get(step.row.sig, _compute)(run, step)
        self.pc[here] = self._next(block.end, run)
        run.keep(block)
        self.executions[at] += len(here)
        self.instructions += len(here) * block.cost
        return self.fuel is None or self.instructions <= self.fuel

    def _next(self, end: Terminator, run: _Here) -> Array | int:
        """Where the threads go on: a block of code, ``ended``, or that plus 1 plus the block behind a barrier."""
        match end:
            case Br(target):
                return target
            case Cbr(pred, yes, no):
                return np.where(run.full(pred), np.int32(yes), np.int32(no))
            case Switch(index, targets, default):
                table = np.array([*targets, default], np.int32)
                return table[np.minimum(run.full(index).view(np.uint32), np.uint32(len(targets)))]
            case Bar(target):
                self.barriers.arrive(run.here, 0, None, wait=True)
                return target + self.ended + 1
            case Sync(target, barrier, count, arrive):
                self.barriers.arrive(run.here, barrier, run.full(count) if count >= 0 else None, wait=not arrive)
                return target if arrive else target + self.ended + 1
            case Ret():
                return self.ended
        raise AssertionError("calls are inlined")

    def trap(self, kind: TrapKind, threads: Indices, site: int) -> None:
        """Remember the least of these threads' traps."""
        keys = self.cta[threads] * _ONE_BLOCK + self.thread[threads] * _ONE_THREAD + (site * _ONE_SITE + kind)
        self.trap_key = min(self.trap_key, int(keys.min()))

    def special(self, which: Special, here: Indices) -> Array:
        if which is Special.LANE:
            return self.lane[here]
        if which is Special.WARP:
            return self.thread[here] // WARP
        if which is Special.DYNAMIC:
            return np.array([self.where.dynamic_bytes])
        number, sizes = (self.thread[here], self.where.block) if which < Special.CTAID_X else (self.cta[here], self.where.grid)
        base = Special.TID_X if which < Special.CTAID_X else Special.CTAID_X
        d = (which - base) % 3
        if which - base >= 3:
            return np.array([sizes[d]])
        return number // prod(sizes[:d]) % sizes[d]


class _Here:
    """The threads that run one block of code together, with the registers that it read or wrote (one value, or one a thread)."""

    def __init__(self, batch: Batch, here: Indices) -> None:
        self.batch, self.here = batch, here
        self.whole = len(here) == batch.n
        self.values: dict[int, Array] = {}
        self.memory = batch.memory
        self.lanes: warp.Lanes | None = None

    def get(self, r: int) -> Array:
        found = self.values.get(r)
        if found is None:
            stored = self.batch.regs[r]
            if self.whole:
                self.batch.owned.discard(r)
            found = stored if self.whole or len(stored) == 1 else stored[self.here]
            self.values[r] = found
        return found

    def full(self, r: int) -> Array:
        """One value a thread."""
        found = self.get(r)
        return found if len(found) == len(self.here) else np.broadcast_to(found, len(self.here)).copy()

    def keep(self, block: PreparedBlock) -> None:
        """Write back what other blocks read."""
        batch = self.batch
        for r in block.keeps:
            new = self.values[r]
            if self.whole:
                batch.regs[r] = new
                batch.owned.discard(r)
                continue
            if r not in batch.owned:
                old = batch.regs.get(r)
                batch.regs[r] = np.zeros(batch.n, new.dtype) if old is None else np.array(np.broadcast_to(old, batch.n))
                batch.owned.add(r)
            batch.regs[r][self.here] = new

    def access(self, step: Step) -> AccessSite:
        return AccessSite(self.batch.trap, self.here, step.site)

    def together(self) -> warp.Lanes:
        """Who of which warp is here."""
        if self.lanes is None:
            self.lanes = warp.Lanes(self.batch.warp[self.here], self.batch.lane[self.here])
        return self.lanes


def _compute(run: _Here, step: Step) -> None:
    run.values[step.op.outs[0]] = value(step.row, step.op.attrs, step.types[0], [run.get(r) for r in step.op.ins])


def _const(run: _Here, step: Step) -> None:
    run.values[step.op.outs[0]] = from_bits(np.array([step.op.attrs[0]], np.int64), step.types[0])


def _special(run: _Here, step: Step) -> None:
    run.values[step.op.outs[0]] = run.batch.special(Special(step.op.attrs[0]), run.here).astype(np.int32)


def _param(run: _Here, step: Step) -> None:
    run.values[step.op.outs[0]] = run.batch.scalars[step.op.attrs[0]]


def _load_element(run: _Here, step: Step) -> None:
    space, which, dtype = step.op.attrs
    run.values[step.op.outs[0]] = run.memory.load_element(
        run.access(step), space, which, dtype, run.full(step.op.ins[0]), NUMPY[step.types[0]]
    )


def _store_element(run: _Here, step: Step) -> None:
    space, which, dtype = step.op.attrs
    run.memory.store_element(run.access(step), space, which, dtype, run.full(step.op.ins[0]), run.full(step.op.ins[1]))


def _load(run: _Here, step: Step) -> None:
    space, which, dtype, _, displacement, _ = step.op.attrs
    targets = [NUMPY[t] for t in step.types]
    found = run.memory.load(run.access(step), (space, which, dtype), run.full(step.op.ins[0]), displacement, targets)
    run.values.update(zip(step.op.outs, found, strict=True))


def _store(run: _Here, step: Step) -> None:
    space, which, dtype, _, displacement, _ = step.op.attrs
    values = [run.full(r) for r in step.op.ins[1:]]
    run.memory.store(run.access(step), (space, which, dtype), run.full(step.op.ins[0]), displacement, values)


def _addr(run: _Here, step: Step) -> None:
    run.values[step.op.outs[0]] = np.array([run.memory.address(*step.op.attrs)], np.int64)


def _atomic(run: _Here, step: Step) -> None:
    space, which, dtype, function, displacement = step.op.attrs
    offset, operands = run.full(step.op.ins[0]), [run.full(r) for r in step.op.ins[1:]]
    old = memory.atomic(run.memory, run.access(step), (space, which, dtype), offset, displacement, function, operands, bool(step.op.outs))
    if step.op.outs:
        assert old is not None
        run.values[step.op.outs[0]] = old


def _nothing(run: _Here, step: Step) -> None:
    """Threads see memory in one order here: a fence has nothing to do; neither has warpsync."""


def _raise(run: _Here, step: Step) -> None:
    run.batch.trap(TrapKind.RAISED, run.here, step.site)


def _warp(run: _Here, step: Step) -> None:
    results = warp.FUNCTIONS[step.row.sig](run.together(), step.op.attrs, [run.full(r) for r in step.op.ins])
    run.values.update(zip(step.op.outs, results, strict=True))


_EXECUTE: Final[dict[Sig, Callable[[_Here, Step], None]]] = {
    Sig.CONST: _const,
    Sig.SPECIAL: _special,
    Sig.PARAM: _param,
    Sig.LOAD: _load_element,
    Sig.STORE: _store_element,
    Sig.BYTES_LOAD: _load,
    Sig.BYTES_STORE: _store,
    Sig.ADDRESS: _addr,
    Sig.ATOM: _atomic,
    Sig.RED: _atomic,
    Sig.FENCE: _nothing,
    Sig.WARPSYNC: _nothing,
    Sig.RAISE: _raise,
    **dict.fromkeys(warp.FUNCTIONS, _warp),
}


_BATCH_THREADS: Final = 1 << 16
_BATCH_BYTES: Final = 1 << 27  # of registers, shared and local memory; a batch has at least one block


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a launch."""

    #: the one with the least key
    trap: Trap | None
    #: the run was cut short because ``instructions`` exceeded the fuel
    out_of_fuel: bool
    #: thread-instructions
    instructions: int
    #: by block of ``VerifiedKernel.flat``: threads that executed it, all times together
    executions: tuple[int, ...]

    @property
    def trapped(self) -> bool:
        return self.trap is not None


def launch(
    verified: VerifiedKernel,
    where: Launch,
    params: Sequence[Array | int | float],
    fuel: int | None = None,
    addresses: Sequence[int] | None = None,
) -> Outcome:
    """Run. ``params``: a 1-D u8 array a buffer (written in place), a number a scalar. ``fuel``: thread-instructions; more end the run.

    ``addresses``: of each parameter in the space ARENA (those of scalars mean nothing); None: ``(i + 1) << 40`` for parameter i.
    Raises ValueError when the launch or the parameters do not fit the kernel.
    """
    kernel = verified.flat
    count = _checked(kernel, where)
    buffers, scalars = _arguments(kernel, params)
    if addresses is None:
        addresses = [(i + 1) << 40 for i in range(len(params))]
    plan = prepare(verified)
    step = _blocks_at_once(kernel, plan, where)
    key, spent = NO_TRAP, 0
    executions = np.zeros(len(kernel.blocks), np.int64)
    for first in range(where.first, where.first + count, step):
        blocks = np.arange(first, min(first + step, where.first + count))
        memory = BatchMemory(kernel, buffers, addresses, len(blocks), prod(where.block), where.dynamic_bytes)
        batch = Batch(plan, where, blocks, memory, scalars, None if fuel is None else fuel - spent)
        finished = batch.run()
        key = min(key, batch.trap_key)
        spent += batch.instructions
        executions += batch.executions
        if not finished:
            return Outcome(trap_of(key), True, spent, tuple(executions.tolist()))
    return Outcome(trap_of(key), False, spent, tuple(executions.tolist()))


def _checked(kernel: Kernel, where: Launch) -> int:
    """The number of blocks to run."""
    threads, total = prod(where.block), prod(where.grid)
    if min(*where.grid, *where.block) < 1 or threads > kernel.threads_max:
        raise ValueError(f"{threads} threads a block, accepted is 1 to {kernel.threads_max}; grids and blocks have at least one of each")
    if total > KERNEL_LIMITS.grid_blocks_max:
        raise ValueError(f"{total} blocks, at most {KERNEL_LIMITS.grid_blocks_max} are accepted")
    count = total - where.first if where.count is None else where.count
    if where.first < 0 or count < 0 or where.first + count > total:
        raise ValueError(f"blocks {where.first} to {where.first + count} of {total}")
    if where.dynamic_bytes and not kernel.dynamic:
        raise ValueError(f"{where.dynamic_bytes} dynamic bytes of shared memory for a kernel that takes none")
    shared = shared_bytes(kernel, where.dynamic_bytes)
    if where.dynamic_bytes < 0 or shared > max(KERNEL_LIMITS.dynamic_shared_bytes_max, KERNEL_LIMITS.shared_bytes_max):
        raise ValueError(f"{shared} bytes of shared memory a block, at most {KERNEL_LIMITS.dynamic_shared_bytes_max} are accepted")
    return count


def _arguments(kernel: Kernel, params: Sequence[Array | int | float]) -> tuple[dict[int, Array], dict[int, Array]]:
    if len(params) != len(kernel.params):
        raise ValueError(f"the kernel has {len(kernel.params)} parameters, {len(params)} were given")
    buffers, scalars = {}, {}
    for number, (param, given) in enumerate(zip(kernel.params, params, strict=True)):
        if isinstance(param, BufferParam):
            if not isinstance(given, np.ndarray) or given.dtype != np.uint8 or given.ndim != 1 or not given.flags.c_contiguous:
                raise ValueError(f"parameter {number} must be a 1-D u8 array without gaps")
            buffers[number] = given
        else:
            if isinstance(given, np.ndarray):
                raise ValueError(f"parameter {number} must be a number")
            scalars[number] = immediate(given, WIS[RegType(param.reg_type)]).reshape(1)
    return buffers, scalars


def _blocks_at_once(kernel: Kernel, plan: PreparedKernel, where: Launch) -> int:
    threads = prod(where.block)
    nbytes = shared_bytes(kernel, where.dynamic_bytes) + threads * (kernel.local_bytes + 8 * plan.lasting + 64)
    return max(1, min(_BATCH_THREADS // threads, _BATCH_BYTES // nbytes))
