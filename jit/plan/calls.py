"""The calls of a step: native calls with their argument blocks, launches of kernels that the program brings, and instructions for the
reference. Back ends add what running them takes.

Buffers and scalars of a call stand only in its block and its accesses, so a call can be carried over to other ones (memo). A back end gives
every parameter of a kernel a fixed number of words in its argument table, the first of which are written here: a pointer (or what stands
for one), or the bits of a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from jit.kernels.lower import Argument, What
from jit.plan.access import Access, access
from wis.dtypes import DType
from wis.kernel.model import Kernel, RegType, ScalarParam
from wis.program import BoundInstr, Operand, Scalar
from wis.traps import index_key

Words = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ArgBlock:
    """``pointers`` has a row a pointer: slot, buffer, byte offset. ``scalars``: (element type, slot, scalar number). ``traps``: slots that
    take the run's trap word; ``sites``: slots to which the instruction's place is added (``wis.traps.site_key``)."""

    words: Words
    pointers: Words
    traps: tuple[int, ...]
    scalars: tuple[tuple[DType, int, int], ...]
    sites: tuple[int, ...] = ()


@dataclass(slots=True)
class Call:
    """One native call before addresses are known; temporaries have become buffers."""

    block: ArgBlock
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]


@dataclass(slots=True)
class WholeInstr:
    """One instruction that has no native calls. It runs alone: no other call shares its phase."""

    instr: BoundInstr
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]

    @classmethod
    def of(cls, instr: BoundInstr) -> Self:
        reads = tuple(access(x) for x in instr.ins if isinstance(x, Operand))
        writes = tuple(access(x) for x in instr.outs)
        return cls(instr, reads + writes if instr.op.rmw else reads, writes)


class Fallback(WholeInstr):
    """An instruction that the reference executes."""

    __slots__ = ()


class UserLaunch(WholeInstr):
    """A launch of a kernel that the program brings."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Buf:
    """The whole of a program buffer."""

    buffer: int


@dataclass(frozen=True, slots=True)
class TrapWord:
    """The run's trap word (i64), as a buffer: lowered to the key of an index that is out of bounds (``wis.traps``)."""


@dataclass(frozen=True, slots=True)
class Site:
    """The key of index 0 of ``dimension`` of the instruction."""

    dimension: int = 0


Arg = int | float | Buf | TrapWord | Site | Scalar
"""A parameter: a buffer, a number (in the type of the parameter's register), or a scalar of the program."""

_FLOATS = {RegType.F16: DType.F16, RegType.BF16: DType.BF16, RegType.F32: DType.F32, RegType.F64: DType.F64}


def arguments(wanted: Sequence[Argument], given: Sequence[int | Access | Scalar]) -> list[Arg]:
    """The parameters of a fused kernel from the slots of its loop kernel's layout."""
    found: list[Arg] = []
    for what, slot in wanted:
        x = given[slot]
        found.append(x if not isinstance(x, Access) else Buf(x.buffer) if what is What.BUFFER else x.offset)
    return found


def bits_of(kind: RegType, value: int | float) -> int:
    """The bits of a number as a register of ``kind`` holds it, as a signed word of 64 bits whose upper part is zero for narrower kinds."""
    if kind in _FLOATS:
        return int(np.asarray(value, np.float64).astype(_FLOATS[kind].numpy).view(f"u{kind.bits // 8}").astype(np.int64))
    if kind is RegType.PRED:
        return int(bool(value))
    bits = int(value) & (1 << kind.bits) - 1
    return bits - (bits >> 63 << 64)


def block_of(kernel: Kernel, args: Sequence[Arg], *, buffer_words: int, number_words: int, head: Sequence[int] = ()) -> ArgBlock:
    """The words of a launch: ``head``, then for every parameter of ``kernel`` its words; those that only a run knows are 0."""
    words = list(head)
    pointers: list[tuple[int, int, int]] = []
    scalars: list[tuple[DType, int, int]] = []
    traps: list[int] = []
    sites: list[int] = []
    for param, x in zip(kernel.params, args, strict=True):
        at, word = len(words), 0
        if not isinstance(param, ScalarParam):
            assert isinstance(x, Buf | TrapWord), x
            if isinstance(x, Buf):
                pointers.append((at, x.buffer, 0))
            else:
                traps.append(at)
        elif isinstance(x, Scalar):
            scalars.append((x.dtype, at, x.slot))
        else:
            assert not isinstance(x, Buf | TrapWord), x
            if isinstance(x, Site):
                sites.append(at)
                x = index_key(x.dimension, 0)
            word = bits_of(RegType(param.reg_type), x)
        words += (word, *(0,) * ((number_words if isinstance(param, ScalarParam) else buffer_words) - 1))
    table = np.array(pointers, np.int64).reshape(-1, 3)
    return ArgBlock(np.array(words, np.int64), table, tuple(traps), tuple(scalars), tuple(sites))
