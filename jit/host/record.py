"""Records: what a plan is made of. One record is one native function, its argument block and a range of units.

Every native function has the signature ``void fn(i64 *args, i64 r0, i64 r1, char *scratch)`` and does the units ``r0 <= r < r1``.
The result must not depend on where a range is cut: the walker cuts ``[0, units)`` into chunks and lets any thread run any of them.
All units of one record are independent of each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from wis.dtypes import DType
from wis.program import Operand

SCRATCH_BYTES = 1 << 20
"""Scratch every thread owns; 64-byte aligned, contents undefined at the start of each call."""


@dataclass(frozen=True, slots=True)
class Ptr:
    """Address of byte ``byte_offset`` of a program buffer."""

    buffer: int
    byte_offset: int = 0


@dataclass(frozen=True, slots=True)
class TempRef:
    """Memory between a lowering's own records: ``nbytes`` (64-byte aligned, not zeroed); ``id`` is unique within one ``lower`` call."""

    id: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class TempPtr:
    """Address of byte ``byte_offset`` of the temporary with this id (declared by a TempRef in ``reads`` or ``writes``)."""

    id: int
    byte_offset: int = 0


@dataclass(frozen=True, slots=True)
class ScalarArg:
    """A program scalar converted to ``dtype``: floats as their bits (f16, bf16 and f32 as f32 in the low half), integers widened."""

    slot: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Symbol:
    """Address of an external function, resolved by ``jit.host.library.blas.address(name)``."""

    name: str


Arg = int | Ptr | TempPtr | ScalarArg | Symbol


@dataclass(frozen=True, slots=True)
class Record:
    """One call. ``reads`` and ``writes`` are what hazards are computed from, so they must cover every byte touched.

    ``grain`` is the estimated cost of one unit in ns.
    """

    fn: str
    args: tuple[Arg, ...]
    units: int
    grain: float
    reads: tuple[Operand | TempRef, ...]
    writes: tuple[Operand | TempRef, ...]
    scratch_bytes: int = 0
