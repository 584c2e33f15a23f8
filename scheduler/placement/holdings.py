"""Holders of memory on each device: the link between the facts of tasks and sessions and the sums in the columns.

A live placed task holds its VRAM on each of its devices. An open session holds its quota, unless its task holds memory there for it.
May not live here: when a task or session is live (view).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler.placement.columns import Columns, clamp_bytes
from scheduler.placement.states import PRIORITY_MAX

__all__ = ["Hold", "Holdings"]


@dataclass(frozen=True, slots=True)
class Hold:
    """One holder on one device. ``priority``: 0-4."""

    node: str
    gpu: int
    nbytes: int
    noswap_bytes: int
    exclusive: bool
    priority: int

    @staticmethod
    def of(node: str, gpu: int, nbytes: int, *, noswap: bool, exclusive: bool, priority: int) -> Hold:
        """Within the limits of the columns, whatever the log says."""
        size = clamp_bytes(nbytes)
        return Hold(node, gpu, size, size if noswap else 0, exclusive, min(max(priority, 0), PRIORITY_MAX))


@dataclass(slots=True)
class Holdings:
    """``held``: by holder, (kind, id) with kind ``task`` or ``session``. ``freed``: the nodes on which a holder released memory, with the
    number of the last release; ``frees`` counts the releases."""

    columns: Columns
    frees: int = 0
    freed: dict[str, int] = field(default_factory=dict)
    held: dict[tuple[str, str], tuple[Hold, ...]] = field(default_factory=dict)

    def set(self, kind: str, name: str, holds: Iterable[Hold]) -> None:
        """From now on this holder holds exactly that."""
        after = tuple(holds)
        before = self.held.get((kind, name), ())
        if before == after:
            return
        self._add(before, -1)
        for hold in before:
            if hold not in after:
                self.free(hold.node)
        self._add(after, 1)
        if after:
            self.held[kind, name] = after
        else:
            self.held.pop((kind, name), None)

    def free(self, node: str) -> None:
        """Something on this node may make room."""
        self.frees += 1
        self.freed[node] = self.frees

    def freed_since(self, number: int) -> list[str]:
        """The nodes on which something may have made room after the ``number``-th time."""
        return [node for node, at in self.freed.items() if at > number]

    def refill(self, kind: str, name: str, node: str) -> None:
        """The rows of ``node`` were made anew: add what this holder has there."""
        self._add((hold for hold in self.held.get((kind, name), ()) if hold.node == node), 1)

    def _add(self, holds: Iterable[Hold], sign: int) -> None:
        for hold in holds:
            row = self.columns.row(hold.node, hold.gpu)
            if row >= 0:
                self.columns.hold(row, sign, hold.nbytes, hold.noswap_bytes, hold.exclusive, hold.priority)
