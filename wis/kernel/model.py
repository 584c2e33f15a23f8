"""Kernels as data. May live here: data types and their codes. May not: rules (verify), bytes (encoding), meaning (interpret).

Codes are wire format: never renumber, only append. Registers are mutable; a kernel is not in SSA form.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

__all__ = [
    "KERNEL_VERSION", "RegType", "Space", "Special", "Access", "Math", "BufferParam", "ScalarParam", "Shared", "Op", "Br", "Cbr", "Ret",
    "Bar", "Terminator", "Block", "Kernel", "successors",
]  # fmt: skip

KERNEL_VERSION: Final = 1


class RegType(IntEnum):
    """What a register holds. Integers are signless: signedness is the op's."""

    PRED = 0
    I16 = 1
    I32 = 2
    I64 = 3
    F16 = 4
    BF16 = 5
    F32 = 6
    F64 = 7

    @property
    def text(self) -> str:
        return self.name.lower()

    @property
    def bits(self) -> int:
        """Width in bits; 1 for pred."""
        return (1, 16, 32, 64, 16, 16, 32, 64)[self]


class Space(IntEnum):
    """Which memory a load or store means. Local, const and the tenant's arena get the next codes."""

    GLOBAL = 0  # a buffer parameter
    SHARED = 1  # an array of the block of threads


class Special(IntEnum):
    """Values that a thread is given. ``ctaid`` and ``nctaid`` are logical: a slice of a grid sees the whole grid's numbers."""

    TID_X = 0
    TID_Y = 1
    TID_Z = 2
    NTID_X = 3
    NTID_Y = 4
    NTID_Z = 5
    CTAID_X = 6
    CTAID_Y = 7
    CTAID_Z = 8
    NCTAID_X = 9
    NCTAID_Y = 10
    NCTAID_Z = 11
    LANE = 12  # position in the warp of 32

    @property
    def text(self) -> str:
        return self.name.lower().replace("_", ".")


class Access(IntEnum):
    """What a kernel may do with a buffer parameter (a set of bits)."""

    READ = 1
    WRITE = 2
    READ_WRITE = 3


class Math(IntEnum):
    """How named functions (exp, sin, ...) are evaluated: to the same bits everywhere, or by the device's own within a tolerance."""

    STRICT = 0
    NATIVE = 1


class BufferParam(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A buffer of elements; ``dtype`` is a wis.dtypes code, a hint for addressing (each load and store names its own)."""

    dtype: int
    access: int


class ScalarParam(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A number, the same for all threads; ``reg_type`` is a RegType."""

    reg_type: int


class Shared(msgspec.Struct, frozen=True, array_like=True):
    """An array in the block's shared memory: ``n`` elements of ``dtype`` (a wis.dtypes code), zeros when a block of threads starts."""

    dtype: int
    n: int


class Op(msgspec.Struct, frozen=True, array_like=True):
    """One operation: registers written, registers read, integer attributes."""

    op: int
    outs: tuple[int, ...]
    ins: tuple[int, ...]
    attrs: tuple[int, ...] = ()


class Br(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Go on at ``target``."""

    target: int


class Cbr(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Go on at ``yes`` where register ``pred`` is true, else at ``no``."""

    pred: int
    yes: int
    no: int


class Ret(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The thread ends."""


class Bar(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Wait for all threads of the block that have not ended, then go on at ``target``."""

    target: int


Terminator = Br | Cbr | Ret | Bar


class Block(msgspec.Struct, frozen=True, array_like=True):
    """A basic block."""

    code: tuple[Op, ...]
    end: Terminator


class Kernel(msgspec.Struct, frozen=True, array_like=True):
    """One kernel. ``threads_max``: threads a block of a launch may have; ``regs``: a RegType a register; threads start at block 0."""

    version: int
    name: str
    math: int
    threads_max: int
    params: tuple[BufferParam | ScalarParam, ...]
    shared: tuple[Shared, ...]
    regs: tuple[int, ...]
    blocks: tuple[Block, ...]


def successors(end: Terminator) -> tuple[int, ...]:
    """Blocks that may follow a terminator."""
    if isinstance(end, Cbr):
        return (end.yes, end.no) if end.yes != end.no else (end.yes,)
    return (end.target,) if isinstance(end, Br | Bar) else ()
