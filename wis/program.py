"""Programs of the tensor tier: the structure, its parameters, and the two bound together.

A *program* is what stays the same from step to step: operations, wiring, element types, ranks, attributes. Its *dims* (sizes, strides,
offsets, buffer sizes) and its *scalars* (immediates) are parameters, so a growing KV cache or a counting optimiser step is the same
program each time. ``bind`` joins a program with its dims; back ends accept only what ``wis.verify.verify`` returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from wis.dtypes import DType
from wis.limits import LIMITS
from wis.ops import BY_CODE, Op

VERSION: Final = 1
KERNELS_VERSION: Final = 2
"""The version of programs that name kernels; only they have the field ``kernels``."""
_DTYPES: Final = {int(dtype): dtype for dtype in DType}  # several times faster than calling DType


class BufferKind(IntEnum):
    """How long a buffer of a program lives."""

    EXTERNAL = 0  # existed before; may be read and written
    CREATED = 1  # made by this program, zero bytes at first, kept after it
    TEMP = 2  # made and dropped inside; never visible outside


class Ref(msgspec.Struct, frozen=True, array_like=True, tag=0, gc=False):
    """A buffer operand: index into the program's buffers, element type code, rank. Sizes are in the dims."""

    buffer: int
    dtype: int
    rank: int


class Imm(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """An immediate operand: index into the scalars, and the element type it is converted to."""

    scalar: int
    dtype: int


class Instr(msgspec.Struct, frozen=True, array_like=True):
    """One instruction of the structure."""

    op: int
    outs: tuple[Ref, ...]
    ins: tuple[Ref | Imm, ...]
    attrs: tuple[int, ...] = ()


class Program(msgspec.Struct, frozen=True, array_like=True):
    """The structure of a program."""

    version: int
    #: a BufferKind for each buffer
    buffers: Annotated[tuple[int, ...], Meta(max_length=LIMITS.buffers_max)]
    #: slots of immediates
    n_scalars: int
    code: Annotated[tuple[Instr, ...], Meta(max_length=LIMITS.instructions_max)]
    #: digests (32 bytes) of the kernels that ``launch`` instructions name by their place here
    kernels: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Operand:
    """A buffer operand with its dims; strides and offset count elements of ``dtype``."""

    buffer: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def numel(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return n

    def span(self) -> tuple[int, int]:
        """First and one-past-last element touched, in elements from the buffer's start; (0, 0) when empty."""
        low = high = self.offset
        for size, stride in zip(self.shape, self.strides, strict=True):
            if size == 0:
                return 0, 0
            if stride >= 0:
                high += (size - 1) * stride
            else:
                low += (size - 1) * stride
        return low, high + 1


@dataclass(frozen=True, slots=True)
class Scalar:
    """An immediate operand: slot in the scalars, and the type it is converted to."""

    slot: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class BoundInstr:
    """An instruction with its operands' dims."""

    op: Op
    outs: tuple[Operand, ...]
    ins: tuple[Operand | Scalar, ...]
    attrs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """A program with its dims. ``nbytes`` has one entry a buffer (for EXTERNAL ones: the least size required)."""

    program: Program
    nbytes: tuple[int, ...]
    code: tuple[BoundInstr, ...]


def _refs(instr: Instr) -> Iterator[Ref]:
    yield from instr.outs
    for operand in instr.ins:
        if isinstance(operand, Ref):
            yield operand


def dims_layout(program: Program) -> tuple[int, ...]:
    """Where each instruction's numbers start in the dims, and (last) how many numbers there are.

    The dims hold one byte size a buffer, then shape, strides, offset of each Ref (outs before ins), all i64.
    """
    at = len(program.buffers)
    starts = [at]
    for instr in program.code:
        at += sum(2 * ref.rank + 1 for ref in _refs(instr))
        starts.append(at)
    return tuple(starts)


def dims_length(program: Program) -> int:
    """How many i64 the dims of ``program`` hold."""
    return dims_layout(program)[-1]


def bind_instr(instr: Instr, values: Sequence[int], at: int) -> BoundInstr:
    """``instr`` with its numbers, which start at ``values[at]``."""

    def operand(ref: Ref) -> Operand:
        nonlocal at
        start, rank = at, ref.rank
        at += 2 * rank + 1
        shape, strides = tuple(values[start : start + rank]), tuple(values[start + rank : at - 1])
        return Operand(ref.buffer, _DTYPES[ref.dtype], shape, strides, values[at - 1])

    outs = tuple(operand(ref) for ref in instr.outs)
    ins = tuple(operand(x) if isinstance(x, Ref) else Scalar(x.scalar, _DTYPES[x.dtype]) for x in instr.ins)
    return BoundInstr(BY_CODE[instr.op], outs, ins, instr.attrs)


def bind(program: Program, dims: bytes) -> BoundProgram:
    """Join structure and dims (little-endian i64). Raises ValueError when the length does not match; checks nothing else."""
    starts = dims_layout(program)
    if len(dims) != 8 * starts[-1]:
        raise ValueError(f"dims hold {len(dims)} bytes, the program needs {8 * starts[-1]}")
    values: list[int] = np.frombuffer(dims, "<i8").tolist()
    code = tuple(bind_instr(instr, values, at) for instr, at in zip(program.code, starts, strict=False))
    return BoundProgram(program, tuple(values[: len(program.buffers)]), code)


def unbind(
    kinds: Sequence[int], nbytes: Sequence[int], code: Sequence[BoundInstr], n_scalars: int, kernels: tuple[bytes, ...] = ()
) -> tuple[Program, bytes]:
    """Split bound instructions into structure and dims: the inverse of ``bind``."""
    values = list(nbytes)
    instrs = []

    def ref(x: Operand) -> Ref:
        values.extend(x.shape)
        values.extend(x.strides)
        values.append(x.offset)
        return Ref(x.buffer, int(x.dtype), len(x.shape))

    for instr in code:
        outs = tuple(ref(x) for x in instr.outs)
        ins = tuple(ref(x) if isinstance(x, Operand) else Imm(x.slot, int(x.dtype)) for x in instr.ins)
        instrs.append(Instr(instr.op.code, outs, ins, instr.attrs))
    version = KERNELS_VERSION if kernels else VERSION
    program = Program(version, tuple(int(kind) for kind in kinds), n_scalars, tuple(instrs), kernels)
    return program, np.array(values, "<i8").tobytes()
