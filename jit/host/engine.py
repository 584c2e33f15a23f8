"""The engine of the host backend: prepared plans, spaces that run them, and the account of each run.

May live here: gluing plans to buffers and threads. May not: planning, code generation, memory management.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from jit.cache import ObjectCache
from jit.compiling.process import CompileProcess
from jit.engine import EngineConfig, EngineInfo, Launch, Number, Prepared
from jit.errors import Interrupted
from jit.host.calls import Call, Lowering
from jit.host.emit.ops import supported
from jit.host.foreign import Foreign, Launches, Ran
from jit.host.scalars import scalar_words
from jit.host.schedule import levels_of
from jit.host.simt.compile import KernelCompiler
from jit.host.simt.run import GridRunner, Region
from jit.host.tables import Native, Plan, make_plan
from jit.host.toolchain import Toolchain
from jit.host.walker import Walker
from jit.memory import ALIGN_BYTES, Block, Capacity, new_block, room_for
from jit.plan.memo import Memo
from jit.plan.planner import Planner, PlanOptions, Target
from jit.space import ByteSpace, KeySpec
from wis import reference
from wis.launches import addresses
from wis.ops import Kind
from wis.program import BoundInstr, BufferKind
from wis.verify import Verified

__all__ = ["HostEngine"]

_NOTHING: Final = new_block(0, ALIGN_BYTES)
"""The arena of a space that has had no temporaries: zero bytes, which nobody reads or writes."""
PREPARED_MAX = 256
PLANNERS_MAX = 256


class HostPrepared:
    """A planned program."""

    def __init__(self, verified: Verified, plan: Plan, launches: Launches) -> None:
        bound = verified.bound
        self.plan = plan
        self.launches = launches
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


class HostSpace(ByteSpace):
    """A space of the host backend: buffers and an arena for temporaries, which is never shared with another space."""

    def __init__(self, engine: HostEngine, capacity: Capacity) -> None:
        super().__init__(capacity)
        self._engine = engine
        self._capacity = capacity
        self._arena = _NOTHING

    @property
    def workspace_bytes(self) -> int:
        return self._arena.room if self._arena is not _NOTHING else 0

    def run(self, prepared: Prepared, scalars: Sequence[Number], keys: Sequence[int]) -> Launch:
        ready = cast(HostPrepared, prepared)
        arena = self._reserve(ready.workspace_bytes)
        blocks = self._blocks(ready.specs, keys)
        return self._engine.launch(ready, scalars, blocks, arena, keys)

    def trim(self) -> None:
        self._capacity.give(self.workspace_bytes)
        self._arena = _NOTHING

    def close(self) -> None:
        super().close()
        self.trim()

    def _reserve(self, nbytes: int) -> Block:
        """Memory for temporaries, at least this large. Raises OutOfMemory."""
        if self.workspace_bytes < nbytes:
            self.trim()  # free the old one first
            self._capacity.take(nbytes)
            self._arena = self._capacity.fresh(nbytes, nbytes)
        return self._arena


class HostEngine:
    """One CPU as a device."""

    def __init__(self, config: EngineConfig) -> None:
        self._guard = CompileProcess()
        self.toolchain = Toolchain(ObjectCache(config.cache_dir), self._guard)
        self._lowering = Lowering(self.toolchain)
        self._target = Target(self._lowering, supported, levels_of, make_plan)
        self._memo: Memo[Call] = Memo()
        self._walker = Walker(self.toolchain, config.threads)
        self._runner = GridRunner(self._walker)
        self._fuel = config.fuel
        self._foreign_made: Foreign | None = None
        self.info = EngineInfo(self.toolchain.cpu, "host", self._walker.threads, config.vram_bytes)
        self.options = PlanOptions()
        self._capacity = Capacity(config.vram_bytes)
        self._prepared: OrderedDict[tuple[bytes, bytes], HostPrepared] = OrderedDict()
        self._planners: OrderedDict[bytes, Planner[Call, Plan]] = OrderedDict()
        self._preparing = threading.Lock()
        self._running = threading.Lock()
        self._trap = np.zeros(8, np.int64)
        self._closed = False

    def open_space(self) -> HostSpace:
        return HostSpace(self, self._capacity)

    def prepare(self, verified: Verified) -> HostPrepared:
        key = (verified.digest, verified.dims_digest)
        with self._preparing:
            ready = self._prepared.get(key)
            if ready is None:
                plan = self.planner(verified.digest).plan(verified)
                ready = self._prepared[key] = HostPrepared(verified, plan, self._launches(verified, plan))
                if len(self._prepared) > PREPARED_MAX:
                    self._prepared.popitem(last=False)
            else:
                self._prepared.move_to_end(key)
            return ready

    def _launches(self, verified: Verified, plan: Plan) -> Launches:
        """The kernels that the program brings, compiled. What they need besides is compiled when the first one comes."""
        if not verified.kernels:
            return Launches(verified, {})
        return self._foreign.prepare(verified, plan)

    @property
    def _foreign(self) -> Foreign:
        if self._foreign_made is None:
            self._foreign_made = Foreign(KernelCompiler(self.toolchain), self._runner, self._fuel)
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
        self._runner.interrupt()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._guard.close()
            self._walker.close()
            self._prepared.clear()

    def launch(self, ready: HostPrepared, scalars: Sequence[Number], blocks: Sequence[Block], arena: Block, keys: Sequence[int]) -> Launch:
        """Fill in addresses and scalars and run every segment."""
        if len(scalars) != ready.n_scalars:
            raise ValueError(f"the program has {ready.n_scalars} scalars, {len(scalars)} were given")
        plan, walker = ready.plan, self._walker
        with self._running:
            start_ns = time.monotonic_ns()
            self._runner.begin()
            walker.reserve(plan.scratch_bytes)
            values = [*scalars, *plan.constants]
            self._fill(ready, values, blocks, arena)
            walker.begin(plan.claims.ctypes.data, plan.chunks.ctypes.data)
            alone_ns, trapped = 0, False
            arrays: list[Any] | None = None
            ran = Ran()
            for part in plan.parts:
                if isinstance(part, BoundInstr) and part.op.kind is Kind.LAUNCH:
                    self._foreign.run(part, ready.launches, values, self._regions(ready, blocks, arena, keys), ran)
                    walker.tables(plan.claims.ctypes.data, plan.chunks.ctypes.data)
                    if ran.out_of_fuel is not None:
                        break
                elif not isinstance(part, Native):
                    before = time.monotonic_ns()
                    if arrays is None:
                        arrays = self._arrays(ready, blocks, arena)
                    trapped |= reference.step(part, values, arrays)
                    alone_ns += time.monotonic_ns() - before
                elif not walker.walk(part.phases.ctypes.data, part.count):
                    raise Interrupted("the run was stopped between two phases")
            end_ns = time.monotonic_ns()
            account = walker.account()
            trapped |= bool(self._trap[0])
        wall_ns = end_ns - start_ns
        native_ns = wall_ns - alone_ns
        core_ns = alone_ns + (native_ns * account.core_cycles // account.cycles if account.cycles > 0 else native_ns)
        trap = "; ".join([*ran.texts, *(["an index was out of range"] if trapped else [])]) or None
        instructions = ready.instructions + ran.instructions
        return Launch(start_ns, end_ns, core_ns, max(1, account.cores), instructions, trap, ran.out_of_fuel)

    def _fill(self, ready: HostPrepared, values: Sequence[Number], blocks: Sequence[Block], arena: Block) -> None:
        plan = ready.plan
        args = plan.args
        bases = np.array([*(block.address for block in blocks), arena.address], np.int64)
        args[plan.pointer_slots] = bases[plan.pointer_bases] + plan.pointer_offsets
        for dtype, (slots, numbers) in plan.scalar_slots.items():
            args[slots] = scalar_words(dtype, [values[n] for n in numbers])
        self._trap[0] = 0
        if plan.trap_slots.size:
            args[plan.trap_slots] = self._trap.ctypes.data
        for offset, nbytes in plan.cleared:
            arena.data[offset : offset + nbytes] = 0

    def _regions(self, ready: HostPrepared, blocks: Sequence[Block], arena: Block, keys: Sequence[int]) -> Callable[[int], Region]:
        """Where a buffer of the program is: here, how long, and for pointers that lost their buffer."""
        plan, bound = ready.plan, ready.launches.verified.bound
        places = addresses(bound, keys)
        block_of = dict(zip(ready.keyed, blocks, strict=True))

        def region(buffer: int) -> Region:
            block = block_of.get(buffer)
            address = block.address if block is not None else arena.address + plan.arena.offsets.get(buffer, 0)
            return address, bound.nbytes[buffer], places[buffer]

        return region

    def _arrays(self, ready: HostPrepared, blocks: Sequence[Block], arena: Block) -> list[npt.NDArray[np.uint8] | None]:
        """Every buffer as bytes, for reference steps."""
        plan = ready.plan
        arrays: list[npt.NDArray[np.uint8] | None] = [None] * plan.n_buffers
        for number, block in zip(ready.keyed, blocks, strict=True):
            arrays[number] = block.data
        whole = arena.data
        for number, offset in plan.arena.offsets.items():
            arrays[number] = whole[offset : offset + plan.temp_nbytes[number]]
        return arrays
