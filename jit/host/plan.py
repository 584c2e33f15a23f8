"""A plan: everything a run needs, as arrays. Made once for a program and its dims; a run only fills in addresses and scalars.

May live here: putting calls, arena and schedule into tables. May not: choosing groups (plan), running (engine).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from jit.host import library
from jit.host.calls import Call, Fallback, Lowering
from jit.host.emit.ops import supported
from jit.host.record import F32, F64, SCRATCH_BYTES, Arg, Ptr, ScalarArg, Symbol, TrapPtr
from jit.host.schedule import Segment, schedule
from jit.plan.arena import Arena, lay_out
from jit.plan.fuse import Step, fuse
from wis.decompose import decompose
from wis.dtypes import DType
from wis.program import BoundInstr, BoundProgram, BufferKind
from wis.verify import Verified

__all__ = ["Plan", "make_plan", "PlanOptions"]

Words = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """``fusion`` False: every instruction alone (to compare with)."""

    fusion: bool = True


@dataclass(slots=True)
class Plan:
    """The tables. ``args`` holds all argument blocks; ``pointer_slots`` of it get bases[pointer_bases] + pointer_offsets.

    ``bases`` are the addresses of the EXTERNAL and CREATED buffers in order, then the arena's.
    """

    args: Words
    pointer_slots: Words
    pointer_bases: Words
    pointer_offsets: Words
    trap_slots: Words
    scalar_slots: dict[DType, tuple[Words, list[int]]]
    chunks: Words  # 4 a chunk: function, arguments, r0, r1
    claims: Words
    native: list[tuple[Words, int] | int]  # (phase table, number of phases), or the place of a fallback in ``fallbacks``
    fallbacks: list[BoundInstr]
    constants: tuple[float, ...]
    arena: Arena
    arena_nbytes: dict[int, int]
    cleared: list[tuple[int, int]]  # arena ranges (offset, size) that start as zeros
    n_program_buffers: int
    scratch_bytes: int
    calls: list[Call | Fallback] = field(default_factory=list)


def make_plan(verified: Verified, lowering: Lowering, options: PlanOptions) -> Plan:
    """Plan a verified program."""
    bound, constants = _expand(verified.bound)
    kinds = list(bound.program.buffers)
    nbytes = list(bound.nbytes)

    def new_temp(size: int) -> int:
        kinds.append(BufferKind.TEMP)
        nbytes.append(size)
        return len(kinds) - 1

    calls: list[Call | Fallback] = []
    for step in fuse(bound.code, kinds, supported, separate=not options.fusion):
        calls.extend(_calls(step, lowering, new_temp))
    return _tables(verified, calls, kinds, nbytes, constants)


def _calls(step: Step, lowering: Lowering, new_temp: Any) -> Sequence[Call | Fallback]:
    if step.group is not None:
        return [lowering.group(step.group)]
    return lowering.single(step.instr, new_temp)


def _expand(bound: BoundProgram) -> tuple[BoundProgram, tuple[float, ...]]:
    """Coarse instructions taken apart."""
    return decompose(bound)


def _tables(
    verified: Verified, calls: list[Call | Fallback], kinds: Sequence[int], nbytes: Sequence[int], constants: tuple[float, ...]
) -> Plan:
    def temps(call: Call | Fallback) -> list[int]:
        touched = dict.fromkeys(x.buffer for x in (*call.reads, *call.writes))
        return [b for b in touched if kinds[b] == BufferKind.TEMP]

    zeroed = frozenset(b for b in verified.zeroed if kinds[b] == BufferKind.TEMP)
    sizes = {b: size for b, size in enumerate(nbytes) if kinds[b] == BufferKind.TEMP}
    arena = lay_out([temps(call) for call in calls], sizes, zeroed)
    segments = schedule(calls, arena.before)
    keyed = [b for b, kind in enumerate(verified.bound.program.buffers) if kind != BufferKind.TEMP]
    table = _Table(calls, {b: (at, 0) for at, b in enumerate(keyed)} | {b: (len(keyed), at) for b, at in arena.offsets.items()})
    native: list[tuple[Words, int] | int] = []
    fallbacks: list[BoundInstr] = []
    for segment in segments:
        if segment.fallback is not None:
            call = calls[segment.fallback]
            assert isinstance(call, Fallback)
            native.append(len(fallbacks))
            fallbacks.append(call.instr)
        else:
            native.append(table.add(segment))
    scratch = max((c.scratch_bytes for c in calls if isinstance(c, Call)), default=SCRATCH_BYTES)
    cleared = [(arena.offsets[b], sizes[b]) for b in sorted(zeroed) if b in arena.offsets]
    return Plan(
        table.args, *table.pointers(), table.traps(), table.scalars(), *table.finish(), native, fallbacks, constants, arena, sizes, cleared,
        len(kinds), scratch, calls,
    )  # fmt: skip


class _Table:
    """Argument blocks and chunk tables under construction."""

    def __init__(self, calls: Sequence[Call | Fallback], places: dict[int, tuple[int, int]]) -> None:
        """``places``: for each buffer its base and the offset from it."""
        self._places = places
        self._starts: list[int] = []
        self._calls = calls
        words: list[int] = []
        self._pointers: list[tuple[int, int, int]] = []
        self._traps: list[int] = []
        self._scalars: dict[DType, tuple[list[int], list[int]]] = {}
        for call in calls:
            self._starts.append(len(words))
            if isinstance(call, Call):
                for x in call.args:
                    words.append(self._word(len(words), x))
        self.args = np.array(words or [0], np.int64)
        self._chunks: list[tuple[int, int, int, int]] = []
        self._claims: list[int] = []

    def _word(self, slot: int, x: Arg) -> int:
        """The value of an argument, or 0 with a note of what a run puts there."""
        if isinstance(x, int):
            return x
        if isinstance(x, Ptr):
            base, offset = self._places[x.buffer]
            self._pointers.append((slot, base, offset + x.byte_offset))
        elif isinstance(x, ScalarArg):
            slots, numbers = self._scalars.setdefault(x.dtype, ([], []))
            slots.append(slot)
            numbers.append(x.slot)
        elif isinstance(x, TrapPtr):
            self._traps.append(slot)
        elif isinstance(x, F32):
            return int(np.float32(x.value).view(np.uint32))
        elif isinstance(x, F64):
            return int(np.float64(x.value).view(np.int64))
        elif isinstance(x, Symbol):
            return library.blas.address(x.name)
        else:
            raise TypeError(x)
        return 0

    def add(self, segment: Segment) -> tuple[Words, int]:
        """The phase table of a native segment."""
        phases = [len(self._claims)]
        base = self.args.ctypes.data
        for claims in segment.phases:
            for claim in claims:
                self._claims.append(len(self._chunks))
                for chunk in claim:
                    call = self._calls[chunk.call]
                    assert isinstance(call, Call)
                    self._chunks.append((call.address, base + 8 * self._starts[chunk.call], chunk.r0, chunk.r1))
            phases.append(len(self._claims))
        # The walker takes the end of a claim from the start of the next one, so claims of one table must be contiguous.
        return np.array(phases, np.int64), len(phases) - 1

    def pointers(self) -> tuple[Words, Words, Words]:
        table = np.array(self._pointers, np.int64).reshape(-1, 3)
        return np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1]), np.ascontiguousarray(table[:, 2])

    def traps(self) -> Words:
        return np.array(self._traps, np.int64)

    def scalars(self) -> dict[DType, tuple[Words, list[int]]]:
        return {dtype: (np.array(slots, np.int64), numbers) for dtype, (slots, numbers) in self._scalars.items()}

    def finish(self) -> tuple[Words, Words]:
        chunks = np.array(self._chunks, np.int64).reshape(-1)
        return chunks, np.array([*self._claims, len(self._chunks)], np.int64)
