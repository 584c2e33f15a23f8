"""Device calls of a plan's steps (launches of kernels, matrix products left to the device's own library, or reference steps), and the plan
that they become: the argument table and the steps that use it. A run only fills in scalars.

The words of a launch are those of its row in the table (jit.accel.device): for every parameter in order offset and size in bytes of a
buffer, or the bits of a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jit.accel.device import GRID_WORDS
from jit.accel.memory import TRAP_AT
from jit.kernels.scalar_ops import memory_kind
from jit.plan import calls
from jit.plan.calls import Fallback, WholeInstr, bits_of
from jit.plan.planner import Planned
from wis.dtypes import DType
from wis.program import BoundInstr
from wis.reference.access import Number, immediate
from wis.traps import site_key

__all__ = ["KernelStep", "ProductStep", "Plan", "make_plan", "fill", "Call", "KernelCall", "ProductCall"]


@dataclass(slots=True)
class Call(calls.Call):
    """Something that a device runs."""


@dataclass(slots=True)
class KernelCall(Call):
    """A launch; ``kernel`` names it in the lowering's table."""

    kernel: str
    blocks: int
    threads: int


@dataclass(slots=True)
class ProductCall(Call):
    """out[batch] = a[batch] b[batch]: pointers are out, a, b; each operand's shape, strides and offset in elements."""

    dtype: DType
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KernelStep:
    """A launch: ``kernel`` names it, ``bases`` says which memory each buffer parameter is in, ``at`` where its row starts.

    ``slice_at``: where the words stand that say which blocks to run.
    """

    kernel: str
    blocks: int
    bases: tuple[int, ...]
    at: int
    slice_at: int


@dataclass(frozen=True, slots=True)
class ProductStep:
    """A matrix product: (base, offset in bytes, shape, strides in elements) of out, a and b."""

    dtype: DType
    operands: tuple[tuple[int, int, tuple[int, ...], tuple[int, ...]], ...]


Step = KernelStep | ProductStep | WholeInstr


@dataclass(slots=True, kw_only=True)
class Plan:
    """``words``: the argument table but for ``scalars``: (word, element type, scalar number).

    A base is the number of an EXTERNAL or CREATED buffer among those, then the arena, then the engine's state.
    ``places``: the program's instruction of each step.
    """

    words: npt.NDArray[np.uint64]
    scalars: list[tuple[int, DType, int]]
    steps: list[Step]
    places: list[int]
    constants: tuple[float, ...]
    arena: Any
    temp_nbytes: dict[int, int]
    cleared: list[tuple[int, int]]  # arena ranges (offset, size) that start as zeros
    n_buffers: int
    calls: list[Call | WholeInstr]
    instructions: int

    @property
    def kernels(self) -> list[str]:
        """The kernels that it needs, each once."""
        return list(dict.fromkeys(step.kernel for step in self.steps if isinstance(step, KernelStep)))

    @property
    def fallbacks(self) -> list[BoundInstr]:
        """The instructions that have no kernel."""
        return [step.instr for step in self.steps if isinstance(step, Fallback)]


def make_plan(planned: Planned[Call]) -> Plan:
    """The tables of what was planned."""
    base_of = {b: at for at, b in enumerate(planned.keyed)}
    offsets = planned.arena.offsets
    arena = len(planned.keyed)
    words: list[int] = []
    scalars: list[tuple[int, DType, int]] = []
    steps: list[Step] = []
    for call, place in zip(planned.calls, planned.places, strict=True):
        if isinstance(call, WholeInstr):
            steps.append(call)
        elif isinstance(call, ProductCall):
            steps.append(_product(call, base_of, offsets, arena))
        else:
            assert isinstance(call, KernelCall)
            at = len(words)
            row = call.block.words.tolist()
            bases = []
            for slot, buffer in sorted([*call.block.pointers[:, :2].tolist(), *([slot, -1] for slot in call.block.traps)]):
                if buffer < 0:
                    bases.append(arena + 1)
                    row[slot], row[slot + 1] = TRAP_AT, 8
                else:
                    bases.append(base_of.get(buffer, arena))
                    row[slot], row[slot + 1] = offsets.get(buffer, 0), planned.nbytes[buffer]
            for slot in call.block.sites:
                row[slot] += site_key(place)
            scalars += [(at + slot, dtype, number) for dtype, slot, number in call.block.scalars]
            words += [*row, call.blocks, 1, 1, 0, call.blocks]
            steps.append(KernelStep(call.kernel, call.blocks, tuple(bases), at, len(words) - 2))
    cleared = [(offsets[b], planned.temp_nbytes[b]) for b in planned.zeroed if b in offsets]
    table = np.array(words or [0], np.int64).view(np.uint64)
    return Plan(
        words=table, scalars=scalars, steps=steps, places=planned.places, constants=planned.constants, arena=planned.arena,
        temp_nbytes=planned.temp_nbytes, cleared=cleared, n_buffers=planned.n_buffers, calls=planned.calls,
        instructions=planned.instructions,
    )  # fmt: skip


assert GRID_WORDS == 5  # as written above


def _product(call: ProductCall, base_of: Mapping[int, int], offsets: Mapping[int, int], arena: int) -> ProductStep:
    found = []
    for (_, buffer, _), shape, strides, offset in zip(call.block.pointers.tolist(), call.shapes, call.strides, call.offsets, strict=True):
        place = offsets.get(buffer, 0) + offset * call.dtype.itemsize
        found.append((base_of.get(buffer, arena), place, shape, strides))
    return ProductStep(call.dtype, tuple(found))


def fill(plan: Plan, values: Sequence[Number]) -> npt.NDArray[np.uint64]:
    """The argument table with the scalars of one run."""
    table = plan.words.copy()
    known: dict[tuple[DType, int], int] = {}
    for word, dtype, number in plan.scalars:
        bits = known.get((dtype, number))
        if bits is None:
            value = immediate(values[number], dtype)
            plain = float(value) if dtype.is_float else int(value)
            bits = known[dtype, number] = bits_of(memory_kind(dtype), plain) & (1 << 64) - 1
        table[word] = bits
    return table
