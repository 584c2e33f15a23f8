"""Index traps: the first index of a program that was out of bounds, in one number that orders them.

Every back end keeps the least key of a run, so the trap that is reported is the same everywhere: that of the first instruction, in it of
the first dimension, in it of the least index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wis.limits import LIMITS
from wis.program import BoundProgram, Operand

NO_TRAP: Final = (1 << 63) - 1
"""The key of a run in which no index was out of bounds; greater than every other."""

_INDEX_BITS: Final = 44
_DIMENSION_BITS: Final = 4
INDEX_MIN: Final = -(1 << _INDEX_BITS - 1)
INDEX_MAX: Final = (1 << _INDEX_BITS - 1) - 1
"""Indices beyond these bounds are reported as the bound; no dimension is that large."""

assert LIMITS.rank_max <= 1 << _DIMENSION_BITS and LIMITS.instructions_max < 1 << 63 - _DIMENSION_BITS - _INDEX_BITS
assert LIMITS.elements_max < INDEX_MAX


@dataclass(frozen=True, slots=True)
class IndexTrap:
    """``instruction``: its place in the program; ``dimension``: of the operand that is indexed; ``index``: as the index operand has it."""

    instruction: int
    dimension: int
    index: int


def index_key(dimension: int, index: int) -> int:
    """The key of an index within its instruction; ``site_key`` of the instruction is to be added."""
    return (dimension << _INDEX_BITS) + min(max(index, INDEX_MIN), INDEX_MAX) - INDEX_MIN


def site_key(instruction: int) -> int:
    """What the place of an instruction adds to the keys of its indices."""
    return instruction << _DIMENSION_BITS + _INDEX_BITS


def trap_of(key: int) -> IndexTrap | None:
    """The trap with this key; None for NO_TRAP."""
    if key == NO_TRAP:
        return None
    site, index = key >> _INDEX_BITS, key & (1 << _INDEX_BITS) - 1
    return IndexTrap(site >> _DIMENSION_BITS, site & (1 << _DIMENSION_BITS) - 1, index + INDEX_MIN)


def describe(bound: BoundProgram, trap: IndexTrap) -> str:
    """One sentence, in torch's words."""
    instr = bound.code[trap.instruction]
    indexed = instr.outs[0] if instr.op.rmw else instr.ins[0]
    assert isinstance(indexed, Operand), "the data operand of an indexing instruction is a buffer"
    bound_text = {INDEX_MIN: "or less ", INDEX_MAX: "or more "}.get(trap.index, "")
    return f"index {trap.index} {bound_text}is out of bounds for dimension {trap.dimension} with size {indexed.shape[trap.dimension]}"
