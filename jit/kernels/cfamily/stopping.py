"""Fuel-exit blocks: where threads that run out of fuel may go, in kernels whose threads wait for each other."""

from __future__ import annotations

from enum import Enum

from jit.errors import Unspelled
from jit.kernels.launch import Dim3
from wis.kernel.flow import Flow
from wis.kernel.uniformity import Uniformity, warp_uniformity
from wis.kernel.verify import VerifiedKernel

__all__ = ["FuelExits", "Place", "region"]


class Place(Enum):
    """Which threads decide together in a block of code."""

    BLOCK = "block"  # all threads of the block are there: they stop together
    WARP = "warp"  # all lanes of a warp are: they leave together
    ALONE = "alone"  # a thread leaves


def region(flow: Flow, branch: int, stop: int | None) -> frozenset[int]:
    """Blocks of code on paths from ``branch`` before ``stop`` (None: the end)."""
    found: set[int] = set()
    todo = [b for b in flow.succ[branch] if b != stop]
    while todo:
        b = todo.pop()
        if b not in found:
            found.add(b)
            todo += [c for c in flow.succ[b] if c != stop]
    return frozenset(found)


class FuelExits:
    """For every block of code: which threads decide together there, and where the threads that leave rejoin the others."""

    def __init__(self, verified: VerifiedKernel, block: Dim3) -> None:
        self._flow = verified.flow
        self._block = verified.uniformity
        self._regions: dict[int, frozenset[int]] = {}
        self._warp = warp_uniformity(verified.core, verified.flow, block) if verified.uses.warp else None

    @classmethod
    def known(cls, verified: VerifiedKernel, block: Dim3) -> bool:
        """Whether there is a fuel-exit block for every block that leads back."""
        exits, place = cls(verified, block), {b: i for i, b in enumerate(verified.flow.order)}
        try:
            for b in verified.flow.order:
                if any(place[c] <= place[b] for c in verified.flow.succ[b]):
                    exits.of(b)
        except Unspelled:
            return False
        return True

    def of(self, b: int) -> tuple[Place, int | None]:
        """Raises Unspelled when threads that leave could meet others in two places."""
        if b not in self._block.divergent:
            return Place.BLOCK, None
        if self._warp is None:
            return Place.ALONE, self._meeting(b, self._block)
        if b not in self._warp.divergent:
            return Place.WARP, self._meeting(b, self._block)
        return Place.ALONE, self._meeting(b, self._warp)

    def _region(self, branch: int) -> frozenset[int]:
        if branch not in self._regions:
            self._regions[branch] = region(self._flow, branch, self._flow.ipdom[branch])
        return self._regions[branch]

    def _meeting(self, b: int, same: Uniformity) -> int | None:
        """The reconvergence point of all threads that diverged before ``b``."""
        meets = {self._flow.ipdom[s] for s in same.split if b in self._region(s)}
        found = meets - same.divergent
        if len(found) != 1:
            raise Unspelled("threads that stop could meet the others in two places")
        return found.pop()
