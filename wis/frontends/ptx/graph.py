"""Control flow of lowered code: reachable blocks, blocks merged, loops made reducible, the order blocks are numbered in, and registers
split into webs: one with several independent uses becomes several registers.

The order is *loop-compact reverse postorder*: forward edges lead to greater numbers and the blocks of a loop are side by side. Threads of a
warp that diverged reconverge as early as they can, because those at the least number run first.

Compilers write code in which a register has one purpose; people do not, and then an address and a number in one register would make every
access through it one by address.
"""

from __future__ import annotations

from collections import Counter
from copy import copy
from typing import Final

from wis.frontends.ptx.code import Code, End, Node, Part
from wis.frontends.ptx.syntax import PtxError
from wis.kernel.model import RegType

_COPIES_MAX: Final = 2_000  # ops that making a graph reducible may add


def reachable(code: Code) -> list[int]:
    """Reachable blocks in reverse postorder."""
    seen = {code.entry}
    post: list[int] = []
    stack = [(code.entry, iter(_targets(code, code.entry)))]
    while stack:
        number, targets = stack[-1]
        for target in targets:
            if target not in seen:
                seen.add(target)
                stack.append((target, iter(_targets(code, target))))
                break
        else:
            post.append(number)
            stack.pop()
    return post[::-1]


def _targets(code: Code, number: int) -> list[int]:
    end = code.parts[number].end
    assert end is not None, "blocks end"
    return end.targets


def merge(code: Code) -> None:
    """Drop blocks that cannot be reached or only lead on; put together what always follows each other."""
    for _ in range(2):
        forward = {number: _skipped(code, number) for number in code.parts}
        for part in code.parts.values():
            if part.end is not None:
                part.end.targets = [forward[target] for target in part.end.targets]
                if part.end.kind == "cbr" and part.end.targets[0] == part.end.targets[1]:
                    part.end = End("br", part.end.targets[:1], ptx=part.end.ptx)
        order = reachable(code)
        code.parts = {number: code.parts[number] for number in order}
        _join(code, order)


def _skipped(code: Code, number: int) -> int:
    """Where a block that only leads on leads to."""
    seen = {number}
    while True:
        part = code.parts[number]
        if part.nodes or part.end is None or part.end.kind != "br" or part.end.targets[0] in seen:
            return number
        number = part.end.targets[0]
        seen.add(number)


def _join(code: Code, order: list[int]) -> None:
    sources = dict.fromkeys(order, 0)
    sources[code.entry] = 1
    for number in order:
        for target in _targets(code, number):
            sources[target] += 1
    for number in order:
        part = code.parts.get(number)
        if part is None:
            continue
        while part.end is not None and part.end.kind == "br":
            target = part.end.targets[0]
            if sources[target] != 1 or target == code.entry or target == number:
                break
            following = code.parts.pop(target)
            part.nodes += following.nodes
            part.end = following.end


# -- reducibility ----------------------------------------------------------------------------------------------------------------------


def reducible(code: Code) -> None:
    """Split regions until every loop has one head. Raises PtxError when that takes too much."""
    budget = _COPIES_MAX
    while True:
        order = reachable(code)
        left = _limit(code, order)
        if left is None:
            return
        region, sources = left
        size = sum(len(code.parts[number].nodes) + 1 for number in region)
        budget -= size * (len(sources) - 1)
        if budget < 0:
            part = code.parts[region[0]]
            line = part.nodes[0].ptx if part.nodes else part.end.ptx if part.end else 0
            raise PtxError(line, "a loop with more than one entry, too large to be untangled", hint="avoid goto into loops")
        for source in sources[1:]:
            copies = {number: _copied(code, code.parts[number]) for number in region}
            for copied in copies.values():
                _retarget(code, copied, copies)
            for number in source:
                _retarget(code, number, {region[0]: copies[region[0]]})


def _copied(code: Code, part: Part) -> int:
    number = code.part()
    copied = code.parts[number]
    copied.nodes = [Node(n.name, list(n.outs), list(n.ins), n.attrs, n.line, n.ptx) for n in part.nodes]
    if part.end is not None:
        copied.end = copy(part.end)
        copied.end.targets, copied.end.ins, copied.end.outs = list(part.end.targets), list(part.end.ins), list(part.end.outs)
    return number


def _retarget(code: Code, number: int, moved: dict[int, int]) -> None:
    end = code.parts[number].end
    assert end is not None, "blocks end"
    end.targets = [moved.get(target, target) for target in end.targets]


def _limit(code: Code, order: list[int]) -> tuple[list[int], list[list[int]]] | None:
    """The region that is cheapest to split, its head first, and the regions that lead to it; None when the graph is reducible.

    By T1/T2: loops of a region to itself are taken away, and regions with one predecessor put into it, as long as there are any. What is
    left over of more than one region is irreducible, and a region is entered at its head only, so that copying it for each predecessor
    makes one region less.
    """
    targets = {number: set(_targets(code, number)) - {number} for number in order}
    sources: dict[int, set[int]] = {number: set() for number in order}
    members = {number: [number] for number in order}
    for number, following in targets.items():
        for target in following:
            sources[target].add(number)
    todo = [number for number in order if len(sources[number]) == 1]
    while todo:
        number = todo.pop()
        if number not in members or len(sources[number]) != 1 or number == code.entry:
            continue
        (into,) = sources[number]
        members[into] += members.pop(number)
        targets[into].discard(number)
        for target in targets.pop(number):
            sources[target].discard(number)
            if target != into:
                targets[into].add(target)
                sources[target].add(into)
            if len(sources[target]) == 1:
                todo.append(target)
    left = [number for number in members if number != code.entry]
    if not left:
        return None

    def cost(number: int) -> int:
        return (len(sources[number]) - 1) * sum(len(code.parts[block].nodes) + 1 for block in members[number])

    best = min(left, key=cost)
    return members[best], [members[source] for source in sorted(sources[best])]


# -- order -----------------------------------------------------------------------------------------------------------------------------


def compact_order(code: Code) -> list[int]:
    """The blocks of reducible code in loop-compact reverse postorder."""
    order = reachable(code)
    rank = {number: i for i, number in enumerate(order)}
    loops = _loops(code, order, rank)
    inner: dict[int, int] = {}  # block to the head of its innermost loop
    for head in sorted(loops, key=lambda h: -len(loops[h])):
        for number in loops[head]:
            inner[number] = head
    parent: dict[int, int | None] = {}
    for head in loops:
        around = [h for h in loops if h != head and head in loops[h]]
        parent[head] = min(around, key=lambda h: len(loops[h])) if around else None
    return _laid_out(code, None, set(order), code.entry, loops, inner, parent, rank)


def _loops(code: Code, order: list[int], rank: dict[int, int]) -> dict[int, set[int]]:
    """The blocks of each natural loop, by head: what reaches a back edge without passing the head."""
    sources: dict[int, list[int]] = {number: [] for number in order}
    for number in order:
        for target in _targets(code, number):
            sources[target].append(number)
    loops: dict[int, set[int]] = {}
    for number in order:
        for head in _targets(code, number):
            if rank[head] <= rank[number]:
                body = loops.setdefault(head, {head})
                todo = [number]
                while todo:
                    block = todo.pop()
                    if block not in body:
                        body.add(block)
                        todo += sources[block]
    return loops


def _laid_out(
    code: Code,
    head: int | None,
    blocks: set[int],
    first: int,
    loops: dict[int, set[int]],
    inner: dict[int, int],
    parent: dict[int, int | None],
    rank: dict[int, int],
) -> list[int]:
    """``blocks`` (of the loop at ``head``, or all) with each loop inside taken as one, in topological order, then each loop laid out."""

    def unit(number: int) -> int:
        """The head of the outermost loop inside of this one that a block is in, or the block."""
        at = inner.get(number)
        found = number
        while at is not None and at != head:
            found = at
            at = parent[at]
        return found

    waiting: dict[int, set[int]] = {}
    leads: dict[int, set[int]] = {}
    for number in blocks:
        source = unit(number)
        leads.setdefault(source, set())
        waiting.setdefault(source, set())
        for target in _targets(code, number):
            if target in blocks and target != head:
                to = unit(target)
                if to != source:
                    leads.setdefault(source, set()).add(to)
                    waiting.setdefault(to, set()).add(source)
    result: list[int] = []
    ready = [first]
    while ready:
        ready.sort(key=lambda number: -rank[number])
        at = ready.pop()
        if at in loops and at != head:
            result += _laid_out(code, at, loops[at], at, loops, inner, parent, rank)
        else:
            result.append(at)
        for to in leads[at]:
            waiting[to].discard(at)
            if not waiting[to]:
                ready.append(to)
    return result


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
