"""Shared parts of the spaces and runs of all back ends."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from jit.engine import Run, Shared, Stop
from jit.errors import BadBuffer
from jit.memory import Block, Capacity, SharedBlock, SpaceMemory
from wis.kernel.traps import Trap, describe_trap
from wis.launches import KernelCall
from wis.program import BoundProgram, BufferKind
from wis.traps import describe, trap_of

OVER: Final = "the run is over: there is nothing to go on with"


def fuel_text(kernel: str) -> str:
    """What a run reports of a launch that ran out of fuel."""
    return f"kernel {kernel}: the launch executed more thread-instructions than it may"


@dataclass(slots=True)
class LaunchTotals:
    """What the launches of one run left behind: thread-instructions, messages of traps, and (or None) that of the launch that ran out of
    fuel, after which nothing may run."""

    instructions: int = 0
    texts: list[str] = field(default_factory=list)
    out_of_fuel: str | None = None

    def add(self, call: KernelCall, instructions: int, trap: Trap | None, *, out_of_fuel: bool) -> None:
        """A launch that came to its end."""
        self.instructions += instructions
        if out_of_fuel:
            self.out_of_fuel = fuel_text(call.kernel.kernel.name)
        elif trap is not None:
            self.texts.append(describe_trap(call.kernel, call.grid, call.block, trap))


def written_keys(bound: BoundProgram) -> frozenset[int]:
    """Which of a run's keys (EXTERNAL and CREATED buffers, in program order) name EXTERNAL buffers that it may write."""
    outs = {out.buffer for instr in bound.code for out in instr.outs}
    kinds = bound.program.buffers
    keyed = [number for number, kind in enumerate(kinds) if kind != BufferKind.TEMP]
    return frozenset(at for at, number in enumerate(keyed) if kinds[number] == BufferKind.EXTERNAL and number in outs)


def trap_of_run(bound: BoundProgram, texts: Sequence[str], key: int) -> tuple[str | None, int]:
    """What a run says of its traps (``Launch.trap`` and ``trap_at``): what happened in its kernels, and the first index out of bounds."""
    trap = trap_of(key)
    said = [*texts, *([describe(bound, trap)] if trap is not None else [])]
    return "; ".join(said) or None, trap.instruction if trap is not None else -1


def reached(stop: Stop | None) -> bool:
    """Whether a run that was given ``stop`` has to stop now."""
    return stop is not None and ctypes.c_uint64.from_address(stop.address).value >= stop.value


def check_begin(before: Run | None, given: int, wanted: int) -> None:
    """Whether a run may begin after ``before``, with so many scalars. Raises ValueError."""
    if before is not None and not before.over:
        raise ValueError("a run of this space is under way: go on with it to its end, or drop it")
    if given != wanted:
        raise ValueError(f"the program has {wanted} scalars, {given} were given")


def check_there(memory: SpaceMemory, keys: Sequence[int], blocks: Sequence[Block]) -> None:
    """Check that the buffers of a run are all on the device and still the ones it began with. Raises BadBuffer."""
    for key, block in zip(keys, blocks, strict=True):
        if memory[key] is not block:
            raise BadBuffer(f"buffer {key} was replaced while a run that uses it was under way")


# --- spaces
class KeySpec:
    """What a run needs to know about one EXTERNAL or CREATED buffer."""

    __slots__ = ("created", "nbytes", "zero")

    def __init__(self, nbytes: int, created: bool, zero: bool) -> None:
        self.nbytes = nbytes
        self.created = created
        self.zero = zero


class ByteSpace:
    """Byte access to one session's buffers (the non-running half of ``jit.engine.Space``).

    ``_run``: what ``begin`` made last; ``_workspace``: memory for its temporaries, which no other space ever uses.
    """

    def __init__(self, capacity: Capacity) -> None:
        self._memory = SpaceMemory(capacity)
        self._run: Run | None = None
        self._workspace: Block | None = None

    @property
    def resident_bytes(self) -> int:
        return self._memory.resident_bytes

    @property
    def shared_bytes(self) -> int:
        return self._memory.shared_bytes

    def alloc(self, key: int, nbytes: int) -> None:
        self._memory.alloc(key, nbytes)

    def free(self, key: int) -> None:
        self._memory.free(key)

    def write(self, key: int, offset: int, data: bytes | bytearray | memoryview) -> None:
        source = np.frombuffer(data, np.uint8)
        self._memory.writable(key, offset, source.size).data[offset : offset + source.size] = source

    def read(self, key: int, offset: int, nbytes: int) -> memoryview:
        return self._memory.window(key, offset, nbytes).data.toreadonly()

    def size(self, key: int) -> int:
        return self._memory.size(key)

    def park(self, key: int) -> None:
        self._memory.park(key)

    def unpark(self, key: int) -> None:
        self._memory.unpark(key)

    def share(self, key: int) -> Shared:
        return self._memory.share(key)

    def attach(self, key: int, shared: Shared) -> None:
        if not isinstance(shared, SharedBlock):
            raise BadBuffer("what a buffer is attached to must come from `share`")
        self._memory.attach(key, shared)

    def unshare(self, key: int) -> None:
        self._memory.unshare(key)

    @property
    def workspace_bytes(self) -> int:
        return self._workspace.room if self._workspace is not None else 0

    def trim(self) -> None:
        if self._workspace is not None and (self._run is None or self._run.over):
            self._memory.release(self._workspace)
            self._workspace = None

    def close(self) -> None:
        if self._run is not None:
            self._run.drop()
            self._run = None
        self.trim()
        self._memory.clear()

    def _reserve(self, nbytes: int) -> Block | None:
        """Memory for temporaries, at least this large, with any contents of this space; None when none was ever needed. Raises
        OutOfMemory."""
        if self.workspace_bytes < nbytes:
            self.trim()  # free the old one first
            self._workspace = self._memory.apart(nbytes)
        return self._workspace

    def _blocks(self, specs: Sequence[KeySpec], keys: Sequence[int], writes: Collection[int] = ()) -> list[Block]:
        """The block of each key: CREATED ones freshly allocated, shared ones among the positions ``writes`` with a block of their own; on
        any error nothing was allocated or changed."""
        if len(keys) != len(specs):
            raise BadBuffer(f"the program needs {len(specs)} keys, not {len(keys)}")
        if len(set(keys)) != len(keys):
            raise BadBuffer("a run names one buffer twice; views of one buffer are operands, not buffers")
        made: list[tuple[int, int, bool]] = []
        memory, find = self._memory, self._memory.find
        for spec, key in zip(specs, keys, strict=True):
            if spec.created:
                made.append((key, spec.nbytes, spec.zero))
                continue
            block = find(key) or memory[key]  # which says what is the matter with it
            if block.nbytes < spec.nbytes:
                raise BadBuffer(f"buffer {key} has {block.nbytes} bytes, the program needs {spec.nbytes}")
        return self._memory.gather(keys, made, writes)
