"""A plan: everything a run needs, as arrays. A run only fills in addresses and scalars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jit.host.calls import Call
from jit.host.record import SCRATCH_BYTES
from jit.host.schedule import claims_of, cut
from jit.plan.arena import Arena
from jit.plan.calls import Fallback, WholeInstr, Words
from jit.plan.planner import Planned
from wis.dtypes import DType
from wis.program import BoundInstr
from wis.reference.access import Number, compute_type, convert, immediate
from wis.traps import site_key


@dataclass(frozen=True, slots=True)
class Native:
    """Phases to walk: ``phases`` holds where each begins in the claims, and the end; it is at ``address``."""

    phases: Words
    count: int
    address: int


@dataclass(slots=True, kw_only=True)
class Plan:
    """The tables. ``args`` holds all argument blocks; ``pointer_slots`` of it get bases[pointer_bases] + pointer_offsets.

    ``bases`` are the addresses of the EXTERNAL and CREATED buffers in order, then the arena's. ``parts`` alternate between native phases
    and instructions that run through the reference.
    """

    args: Words
    pointer_slots: Words
    pointer_bases: Words
    pointer_offsets: Words
    trap_slots: Words
    scalar_slots: dict[DType, tuple[Words, list[int]]]
    chunks: Words  # 4 a chunk: function, arguments, r0, r1
    claims: Words
    parts: list[Native | WholeInstr]
    places: list[int]  # of the parts that are instructions, in the program; -1 for native ones
    constants: tuple[float, ...]
    arena: Arena
    temp_nbytes: dict[int, int]
    cleared: list[tuple[int, int]]  # arena ranges (offset, size) that start as zeros
    n_buffers: int
    scratch_bytes: int
    scratch_units: int  # that need so much; each is run by one thread
    calls: list[Call | WholeInstr]
    instructions: int

    @property
    def fallbacks(self) -> list[BoundInstr]:
        """The instructions that have no native form."""
        return [part.instr for part in self.parts if isinstance(part, Fallback)]


def make_plan(planned: Planned[Call]) -> Plan:
    """The tables of what was planned."""
    calls, arena, temp_nbytes = planned.calls, planned.arena, planned.temp_nbytes
    native = [(number, call) for number, call in enumerate(calls) if isinstance(call, Call)]
    blocks = [call.block for _, call in native]
    lengths = np.array([block.words.size for block in blocks], np.int64)
    starts = np.zeros(len(calls), np.int64)
    starts[[number for number, _ in native]] = np.cumsum(lengths) - lengths
    args = np.concatenate([block.words for block in blocks]) if blocks else np.zeros(1, np.int64)
    slots, bases, offsets = _pointers(native, starts, arena, planned.keyed, planned.n_buffers)
    traps = [int(starts[number]) + slot for number, call in native for slot in call.block.traps]
    for number, call in native:
        for slot in call.block.sites:
            args[int(starts[number]) + slot] += site_key(planned.places[number])
    parts, places, chunks, claims = _phases(planned, starts, args.ctypes.data)
    scratch = max((call.scratch_bytes for _, call in native), default=SCRATCH_BYTES)
    units = sum(call.units for _, call in native if 2 * call.scratch_bytes > scratch)
    cleared = [(arena.offsets[b], temp_nbytes[b]) for b in planned.zeroed if b in arena.offsets]
    return Plan(
        args=args, pointer_slots=slots, pointer_bases=bases, pointer_offsets=offsets, trap_slots=np.array(traps, np.int64),
        scalar_slots=_scalars(native, starts), chunks=chunks, claims=claims, parts=parts, places=places, constants=planned.constants,
        arena=arena, temp_nbytes=temp_nbytes, cleared=cleared, n_buffers=planned.n_buffers, scratch_bytes=scratch, scratch_units=units,
        calls=calls, instructions=planned.instructions,
    )  # fmt: skip


def _pointers(
    native: Sequence[tuple[int, Call]], starts: Words, arena: Arena, keyed: Sequence[int], n_buffers: int
) -> tuple[Words, Words, Words]:
    """Slots, bases and offsets of all pointers."""
    base_of = np.full(n_buffers, len(keyed), np.int64)
    base_of[list(keyed)] = np.arange(len(keyed))
    offset_of = np.zeros(n_buffers, np.int64)
    offset_of[list(arena.offsets)] = list(arena.offsets.values())
    tables = [call.block.pointers for _, call in native]
    table = np.concatenate(tables) if tables else np.zeros((0, 3), np.int64)
    first = np.repeat(starts[[number for number, _ in native]], [t.shape[0] for t in tables]) if tables else np.zeros(0, np.int64)
    buffers = table[:, 1]
    return table[:, 0] + first, base_of[buffers], offset_of[buffers] + table[:, 2]


def _scalars(native: Sequence[tuple[int, Call]], starts: Words) -> dict[DType, tuple[Words, list[int]]]:
    lists: dict[DType, tuple[list[int], list[int]]] = {}
    for number, call in native:
        for dtype, slot, scalar in call.block.scalars:
            slots, numbers = lists.setdefault(dtype, ([], []))
            slots.append(int(starts[number]) + slot)
            numbers.append(scalar)
    return {dtype: (np.array(slots, np.int64), numbers) for dtype, (slots, numbers) in lists.items()}


def _phases(planned: Planned[Call], starts: Words, base: int) -> tuple[list[Native | WholeInstr], list[int], Words, Words]:
    """Parts and their places, chunks and claims: phases in order, broken where a reference step stands."""
    calls, levels = planned.calls, planned.levels
    places: list[int] = []
    members: dict[int, list[int]] = {}
    for number, level in enumerate(levels):
        members.setdefault(level, []).append(number)
    parts: list[Native | WholeInstr] = []
    rows: list[tuple[float, int, int, int]] = []
    claims: list[int] = []
    open_phases: list[int] = []

    def close() -> None:
        if open_phases:
            table = np.array([*open_phases, len(claims)], np.int64)
            parts.append(Native(table, len(open_phases), table.ctypes.data))
            places.append(-1)
            open_phases.clear()

    for level in sorted(members):
        first = calls[members[level][0]]
        if isinstance(first, WholeInstr):
            close()
            parts.append(first)
            places.append(planned.places[members[level][0]])
            continue
        phase: list[tuple[float, int, int, int]] = []
        for number in members[level]:
            call = calls[number]
            assert isinstance(call, Call), "other calls have a phase of their own"
            phase += [(ns, number, r0, r1) for ns, r0, r1 in cut(call)]
        if phase:
            phase.sort(key=lambda row: -row[0])
            open_phases.append(len(claims))
            claims += [len(rows) + at for at in claims_of(phase)]
            rows += phase
    close()
    which = np.array([row[1] for row in rows], np.int64)
    addresses = np.array([call.address if isinstance(call, Call) else 0 for call in calls], np.int64)
    chunks = np.empty((len(rows), 4), np.int64)
    if rows:
        chunks[:, 0] = addresses[which]
        chunks[:, 1] = base + 8 * starts[which]
        chunks[:, 2] = [row[2] for row in rows]
        chunks[:, 3] = [row[3] for row in rows]
    return parts, places, chunks.reshape(-1), np.array([*claims, len(rows)], np.int64)


# --- scalars as argument words: the meaning of a conversion is wis.reference.immediate; ordinary numbers take a vectorised path
def given_scalars(plan: Plan, n_scalars: int) -> list[tuple[DType, Words, list[int]]]:
    """Where the scalars that a run is given go: type, slots, numbers. The constants of the plan, whose numbers come after those, are put
    into its arguments here, once."""
    given = []
    for dtype, (slots, numbers) in plan.scalar_slots.items():
        own = np.array([number < n_scalars for number in numbers], bool)
        constants = [plan.constants[number - n_scalars] for number in numbers if number >= n_scalars]
        plan.args[slots[~own]] = scalar_words(dtype, constants)
        if own.any():
            given.append((dtype, slots[own], [number for number in numbers if number < n_scalars]))
    return given


def scalar_words(dtype: DType, values: Sequence[Number]) -> npt.NDArray[np.int64]:
    """One word a value: f16, bf16 and f32 as the bits of an f32, f64 as its bits, integers and bool widened."""
    kind = compute_type(dtype)
    try:
        array = _fast(dtype, kind, values)
    except (TypeError, OverflowError, ValueError):  # complex numbers, pairs, integers beyond 64 bits: one by one
        array = np.array([convert(immediate(x, dtype), dtype, kind) for x in values], kind.numpy)
    if kind is DType.F32:
        return array.view(np.uint32).astype(np.int64)
    return array.view(np.int64) if kind is DType.F64 else array.astype(np.int64)


def _fast(dtype: DType, kind: DType, values: Sequence[Number]) -> npt.NDArray[Any]:
    """All values at once; raises for what NumPy does not take as f64 or i64."""
    if dtype is DType.F64 or dtype is DType.F32:  # nearly all there are
        wide = np.array(values, np.float64)
        with np.errstate(over="ignore"):
            return wide if dtype is DType.F64 else wide.astype(np.float32)
    if dtype.is_float:
        return convert(convert(np.array([float(x) for x in values], np.float64), DType.F64, dtype), dtype, kind)  # type: ignore[arg-type]
    if any(type(x) is not int for x in values):
        raise TypeError("not all integers")
    return np.array(values, np.int64).astype(dtype.numpy)
