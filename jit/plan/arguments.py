"""What the parameters of a kernel are given, and the words of a launch that say it.

A back end gives every parameter a fixed number of words in its argument table, the first of which are written here: a pointer (or what
stands for one), or the bits of a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jit.kernels.lower import Argument, What
from jit.plan.access import Access
from jit.plan.calls import ArgBlock
from wis.dtypes import DType
from wis.kernel.model import Kernel, RegType, ScalarParam
from wis.program import Scalar
from wis.traps import index_key

__all__ = ["Arg", "Buf", "Site", "TrapWord", "arguments", "bits_of", "block_of"]


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
