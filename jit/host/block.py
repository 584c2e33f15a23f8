"""Argument blocks: the words of one call, and notes of which of them a run fills in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jit.host.library import blas
from jit.host.record import F32, F64, Arg, Ptr, ScalarArg, Symbol, TrapPtr, TrapSite
from jit.plan.calls import ArgBlock, Words
from wis.dtypes import DType
from wis.traps import index_key

__all__ = ["Words", "ArgBlock", "arg_block"]


def arg_block(args: Sequence[Arg]) -> ArgBlock:
    """The block of these arguments; what only a run knows is 0 in ``words``."""
    words: list[int] = []
    pointers: list[tuple[int, int, int]] = []
    traps: list[int] = []
    sites: list[int] = []
    scalars: list[tuple[DType, int, int]] = []
    for slot, x in enumerate(args):
        value = 0
        if isinstance(x, int):
            value = x
        elif isinstance(x, Ptr):
            pointers.append((slot, x.buffer, x.byte_offset))
        elif isinstance(x, ScalarArg):
            scalars.append((x.dtype, slot, x.slot))
        elif isinstance(x, F32):
            value = int(np.float32(x.value).view(np.uint32))
        elif isinstance(x, F64):
            value = int(np.float64(x.value).view(np.int64))
        elif isinstance(x, Symbol):
            value = blas.address(x.name)
        elif isinstance(x, TrapPtr):
            traps.append(slot)
        elif isinstance(x, TrapSite):
            sites.append(slot)
            value = index_key(x.dimension, 0)
        else:
            raise TypeError(f"{x!r} is not resolved to a buffer")
        words.append(value)
    table = np.array(pointers, np.int64).reshape(-1, 3)
    return ArgBlock(np.array(words, np.int64), table, tuple(traps), tuple(scalars), tuple(sites))
