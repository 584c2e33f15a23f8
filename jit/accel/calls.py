"""Device calls of a plan's steps: launches of kernels, matrix products left to the device's own library, or reference steps.

The words of a launch are those of its row in the argument table (jit.accel.device): for every parameter in order offset and size in bytes
of a buffer, or the bits of a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jit.accel.device import BUFFER_WORDS
from jit.plan import calls
from jit.plan.calls import ArgBlock
from wis.dtypes import DType
from wis.kernel.model import RegType
from wis.program import Scalar
from wis.traps import index_key

__all__ = ["Arg", "Buf", "Site", "TrapWord", "Call", "KernelCall", "ProductCall", "Threads", "block_of", "bits_of"]

Threads = tuple[int, int, int]


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


_FLOATS = {RegType.F16: DType.F16, RegType.BF16: DType.BF16, RegType.F32: DType.F32, RegType.F64: DType.F64}


def bits_of(kind: RegType, value: int | float) -> int:
    """The bits of a number as a register of ``kind`` holds it, as a signed word of 64 bits whose upper part is zero for narrower kinds."""
    if kind in _FLOATS:
        return int(np.asarray(value, np.float64).astype(_FLOATS[kind].numpy).view(f"u{kind.bits // 8}").astype(np.int64))
    if kind is RegType.PRED:
        return int(bool(value))
    bits = int(value) & (1 << kind.bits) - 1
    return bits - (bits >> 63 << 64)


def block_of(kinds: Sequence[RegType | None], args: Sequence[Arg]) -> ArgBlock:
    """The words of a launch: ``kinds`` has the register type of every parameter, None for a buffer."""
    words: list[int] = []
    pointers: list[tuple[int, int, int]] = []
    scalars: list[tuple[DType, int, int]] = []
    traps: list[int] = []
    sites: list[int] = []
    for kind, x in zip(kinds, args, strict=True):
        if kind is None:
            assert isinstance(x, Buf | TrapWord), x
            if isinstance(x, Buf):
                pointers.append((len(words), x.buffer, 0))
            else:
                traps.append(len(words))
            words += (0,) * BUFFER_WORDS
            continue
        assert not isinstance(x, Buf | TrapWord), x
        if isinstance(x, Scalar):
            scalars.append((x.dtype, len(words), x.slot))
        if isinstance(x, Site):
            sites.append(len(words))
            x = index_key(x.dimension, 0)
        words.append(0 if isinstance(x, Scalar) else bits_of(kind, x))
    table = np.array(pointers, np.int64).reshape(-1, 3)
    return ArgBlock(np.array(words, np.int64), table, tuple(traps), tuple(scalars), tuple(sites))
