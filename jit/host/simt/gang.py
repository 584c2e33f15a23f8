"""Gangs: how the threads of a block become vectors, and what is known about thread numbers once the shape of the block is."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

from jit.kernels.launch import Dim3
from wis.kernel.model import WARP, Special

__all__ = ["Gang", "gang_of"]

_NARROW: Final = 16


@dataclass(frozen=True)
class Gang:
    """``lanes`` threads of a block of shape ``block`` that run as one; thread t is lane ``t % lanes`` of gang ``t // lanes``."""

    block: Dim3
    lanes: int

    @property
    def threads(self) -> int:
        return prod(self.block)

    @property
    def n_gangs(self) -> int:
        return -(-self.threads // self.lanes)

    @property
    def ragged(self) -> bool:
        """Whether the last gang has lanes without a thread."""
        return self.threads % self.lanes != 0

    def pattern(self, special: Special) -> tuple[int, ...] | None:
        """By how much the number of each lane's thread exceeds that of lane 0, where that is the same in every gang (lanes without a thread
        may be given any number); else None."""
        numbers = self.numbers(special)
        rows = [numbers[at : at + self.lanes] for at in range(0, len(numbers), self.lanes)]
        first = tuple(v - rows[0][0] for v in rows[0])
        alive = self.threads - (len(rows) - 1) * self.lanes
        good = all(tuple(v - row[0] for v in row) == first for row in rows[:-1])
        return first if good and tuple(v - rows[-1][0] for v in rows[-1][:alive]) == first[:alive] else None

    def numbers(self, special: Special) -> list[int]:
        """This number for every thread, lanes without a thread included."""
        x, y, _ = self.block
        numbers = range(self.n_gangs * self.lanes)
        if special in (Special.LANE, Special.WARP):
            return [t % WARP if special is Special.LANE else t // WARP for t in numbers]
        below, size = {Special.TID_X: (1, x), Special.TID_Y: (x, y), Special.TID_Z: (x * y, self.block[2])}[special]
        return [t // below % size for t in numbers]


def gang_of(block: Dim3, warp: bool, judged: bool = False) -> Gang:
    """Warps where lanes see each other (``warp``); else rows of threads, so that most numbers are the same or consecutive in a gang. A
    block of one thread is a gang of one lane, which is scalar code, unless its barriers are ``judged`` (analysis), which takes vectors."""
    if not warp and not judged and prod(block) == 1:
        return Gang(block, 1)
    if not warp and ((block[0] % WARP and block[0] % _NARROW == 0) or prod(block) <= _NARROW):
        return Gang(block, _NARROW)
    return Gang(block, WARP)
