"""Splits registers into webs: a register with several independent uses becomes several registers.

Compilers write code in which a register has one purpose; people do not, and then an address and a number in one register would make every
access through it one by address.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from wis.frontends.ptx.code import Code, End, Node
from wis.frontends.ptx.graph import reachable
from wis.kernel.model import RegType

__all__ = ["split"]

_TYPES: Final = (RegType.I32, RegType.I64)
_Place = Node | End


def split(code: Code) -> bool:
    """Give each web (definitions that share a reader) of an integer register a register of its own. Whether there were any to split."""
    order = reachable(code)
    counts: Counter[int] = Counter()
    places: dict[int, list[_Place]] = {}
    for number in order:
        part = code.parts[number]
        places[number] = [*part.nodes, *([part.end] if part.end is not None else [])]
        for place in places[number]:
            counts.update(place.outs)
    fixed = {*code.ins, *code.outs}
    shared = {r for r, n in counts.items() if n > 1 and code.types[r] in _TYPES and r not in fixed}
    if not shared:
        return False
    webs = _Webs(code, order, places, shared)
    return webs.rename()


class _Webs:
    def __init__(self, code: Code, order: list[int], places: dict[int, list[_Place]], shared: set[int]) -> None:
        self.code, self.order, self.places, self.shared = code, order, places, shared
        self.definitions: list[tuple[_Place, int]] = []  # where, and which of its outs
        self.masks: dict[int, int] = dict.fromkeys(shared, 0)  # by register, its definitions
        self.number: dict[tuple[int, int], int] = {}
        for block in order:
            for place in places[block]:
                for k, register in enumerate(place.outs):
                    if register in shared:
                        self.number[id(place), k] = len(self.definitions)
                        self.masks[register] |= 1 << len(self.definitions)
                        self.definitions.append((place, k))
        self.parent = list(range(len(self.definitions)))
        self.reaching = self._reaching()

    def _reaching(self) -> dict[int, int]:
        """The definitions that may hold when each block starts."""
        made: dict[int, int] = {}
        killed: dict[int, int] = {}
        for block in self.order:
            last: dict[int, int] = {}
            for place in self.places[block]:
                for k, register in enumerate(place.outs):
                    if register in self.shared:
                        last[register] = 1 << self.number[id(place), k]
            made[block] = sum(last.values())
            killed[block] = 0
            for register in last:
                killed[block] |= self.masks[register]
        before = dict.fromkeys(self.order, 0)
        changed = True
        while changed:
            changed = False
            for block in self.order:
                after = made[block] | (before[block] & ~killed[block])
                end = self.code.parts[block].end
                for target in end.targets if end is not None else ():
                    if after & ~before[target]:
                        before[target] |= after
                        changed = True
        return before

    def _find(self, a: int) -> int:
        while self.parent[a] != a:
            a = self.parent[a]
        return a

    def rename(self) -> bool:
        readers: list[tuple[_Place, int, int]] = []  # where, which of its ins, one of the definitions it reads
        for block in self.order:
            now = self.reaching[block]
            for place in self.places[block]:
                for k, register in enumerate(place.ins):
                    mask = now & self.masks.get(register, 0)
                    if mask:
                        readers.append((place, k, self._joined(mask)))
                for k, register in enumerate(place.outs):
                    if register in self.shared:
                        now = now & ~self.masks[register] | 1 << self.number[id(place), k]
        names: dict[int, int] = {}
        taken: set[int] = set()
        for number, (place, k) in enumerate(self.definitions):
            root = self._find(number)
            if root not in names:
                register = place.outs[k]
                names[root] = register if register not in taken else self.code.temp(self.code.types[register])
                taken.add(register)
        fresh = [(place, k, names[self._find(number)]) for place, k, number in readers]
        for number, (place, k) in enumerate(self.definitions):
            place.outs[k] = names[self._find(number)]
        for place, k, register in fresh:
            place.ins[k] = register
        return len(names) > len(self.shared)

    def _joined(self, mask: int) -> int:
        """The definitions in a set put into one web."""
        first = (mask & -mask).bit_length() - 1
        rest = mask & (mask - 1)
        while rest:
            other = (rest & -rest).bit_length() - 1
            rest &= rest - 1
            a, b = self._find(first), self._find(other)
            if a != b:
                self.parent[b] = a
        return first
