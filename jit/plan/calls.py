"""The calls of a step: native calls with their argument blocks, launches of kernels that the program brings, and instructions for the
reference. Back ends add what running them takes.

Buffers and scalars of a call stand only in its block and its accesses, so a call can be carried over to other ones (memo).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from jit.plan.access import Access, access
from wis.dtypes import DType
from wis.program import BoundInstr, Operand

__all__ = ["Words", "ArgBlock", "Call", "WholeInstr", "Fallback", "UserLaunch"]

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
