"""Layout of temporaries: offsets in one arena, reused as soon as the previous owner is dead.

Sizes are rounded up to classes, so that a program whose shapes grow by a little keeps its offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Arena", "lay_out", "size_class"]

ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True)
class Arena:
    """``offsets`` by temporary; ``before`` names, for each, those whose bytes it took over (it must wait for all their uses)."""

    nbytes: int
    offsets: dict[int, int]
    before: dict[int, tuple[int, ...]]


def size_class(nbytes: int) -> int:
    """At most an eighth larger, so that few distinct sizes exist."""
    grain = max(ALIGN_BYTES, 1 << max(0, nbytes.bit_length() - 4))
    return max(ALIGN_BYTES, -(-nbytes // grain) * grain)


def lay_out(uses: Sequence[Iterable[int]], nbytes: Mapping[int, int], pinned: frozenset[int]) -> Arena:
    """Offsets for every temporary in ``uses`` (the temporaries each call touches, in order). ``pinned`` ones share with no other."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, touched in enumerate(uses):
        for t in touched:
            first.setdefault(t, at)
            last[t] = at
    ending: dict[int, list[int]] = {}
    for t, at in last.items():
        ending.setdefault(at, []).append(t)
    starting: dict[int, list[int]] = {}
    for t, at in first.items():
        starting.setdefault(at, []).append(t)
    free: dict[int, list[tuple[int, int]]] = {}  # size class -> (offset, who had it)
    offsets: dict[int, int] = {}
    before: dict[int, tuple[int, ...]] = {}
    top = 0
    for at in range(len(uses)):
        for t in starting.get(at, ()):
            size = size_class(nbytes[t])
            shelf = free.get(size)
            if shelf and t not in pinned:
                offset, owner = shelf.pop()
                offsets[t], before[t] = offset, (owner,)
            else:
                offsets[t] = top
                top += size
        for t in ending.get(at, ()):
            if t not in pinned:
                free.setdefault(size_class(nbytes[t]), []).append((offsets[t], t))
    return Arena(top, offsets, before)
