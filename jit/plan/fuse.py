"""Fusion: which instructions run together. One pass over the code in order, then unread stores are dropped.

Each instruction tries to join a recent group: it may move back over steps it does not depend on, never over one it does. What cannot be
fused becomes a step of its own (a library record or the reference). The result is in program order by dependence, one step after the other.

Values of one element made from scalars alone (coefficients of an optimiser, say) are not steps: whatever reads them computes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from jit.plan.access import Access, access, may_overlap
from jit.plan.group import Candidate, Constant, Group, Read, Supported, candidate
from wis.ops import Kind
from wis.program import BoundInstr, BufferKind, Operand, Scalar

__all__ = ["Step", "fuse", "regroup"]

LOOK_BACK = 32
"""How many steps back any group is looked for."""
LOOK_FAR = 8
"""How many steps further back are looked at, of those that use what the instruction uses: an optimiser may treat all parameters in one
operation before any in the next."""


class Step:
    """A fused group, or a single instruction (``group`` None). ``reads`` and ``writes``: accesses by buffer.

    ``members`` are the places of its instructions in the code, with those of the constants it computes for itself. ``number``: its place
    among all steps that were made.
    """

    __slots__ = ("group", "instr", "members", "number", "reads", "writes")

    def __init__(self, instr: BoundInstr, group: Group | None, members: set[int], number: int) -> None:
        self.number = number
        self.group = group
        self.instr = instr
        self.members = members
        self.reads: dict[int, list[Access]] = {}
        self.writes: dict[int, list[Access]] = {}

    def add(self, reads: Iterable[Access], writes: Iterable[Access]) -> None:
        for x in reads:
            self.reads.setdefault(x.buffer, []).append(x)
        for x in writes:
            self.writes.setdefault(x.buffer, []).append(x)

    def blocks(self, reads: Iterable[Access], writes: Iterable[Access]) -> bool:
        """Whether something with these accesses must stay behind this step."""
        return (
            any(may_overlap(x, w) for x in reads for w in self.writes.get(x.buffer, ()))
            or any(may_overlap(x, w) for x in writes for w in self.writes.get(x.buffer, ()))
            or any(may_overlap(x, r) for x in writes for r in self.reads.get(x.buffer, ()))
        )


def fuse(
    code: Sequence[BoundInstr], kinds: Sequence[int], supported: Supported, *, separate: bool = False, alone: frozenset[int] = frozenset()
) -> list[Step]:
    """The steps of ``code``. ``separate``: no fusion (for comparison). ``alone``: places of instructions that must not be fused."""
    maker = _Maker(kinds, separate)
    for place, instr in enumerate(code):
        maker.take(place, instr, None if place in alone else candidate(place, instr, supported))
    return _drop_dead(maker.steps, kinds)


class _Maker:
    def __init__(self, kinds: Sequence[int], separate: bool) -> None:
        self.steps: list[Step] = []
        self._numbers = 0
        self._using: dict[int, dict[int, Step]] = {}
        """By buffer that was used: the steps that read or write it, by number."""
        self._kinds = kinds
        self._separate = separate
        self._constants: dict[int, list[_Known]] = {}
        """By buffer: constants that no step has stored, at places that do not overlap."""

    def take(self, place: int, instr: BoundInstr, c: Candidate | None) -> None:
        if c is None:
            self._alone(place, instr)
            return
        if self._constant(place, c):
            return
        c, members = self._with_constants(place, c)
        reads = [x for x in c.reads if isinstance(x, Access)]
        members |= self._overwrite(c.writes)
        if self._separate or not (self._merge(c, reads, members) or self._join(c, reads, members)):
            self._append(instr, Group(c), members, reads, c.writes)

    def _join(self, c: Candidate, reads: Sequence[Access], members: set[int]) -> bool:
        """Add to the nearest group that takes it, if nothing in between stands in the way."""
        for step in self._candidates((*reads, *c.writes)):
            if step.group is not None and step.group.join(c):
                self._add(step, reads, c.writes)
                step.members |= members
                return True
            if step.blocks(reads, c.writes):
                return False
        return False

    def _candidates(self, accesses: Iterable[Access]) -> Iterator[Step]:
        """The last steps, then earlier ones that use the same buffers; the nearest first. What is left out cannot stand in the way of
        these accesses, but for what lies behind the last one."""
        near = self.steps[: -LOOK_BACK - 1 : -1]
        yield from near
        if len(near) == LOOK_BACK:
            first = near[-1].number
            yield from islice((step for step in self._related(accesses) if step.number < first), LOOK_FAR)

    def _related(self, accesses: Iterable[Access]) -> list[Step]:
        """The steps that use the buffers of these accesses, the nearest first."""
        found: dict[int, Step] = {}
        for buffer in {x.buffer for x in accesses}:
            found.update(self._using.get(buffer, {}))
        return [found[number] for number in sorted(found, reverse=True)]

    def _merge(self, c: Candidate, reads: Sequence[Access], members: set[int]) -> bool:
        """Two groups that both feed this instruction become one, where the earlier one stands, if the later one can move there."""
        if len(reads) < 2 or c.total == 1:
            return False
        makers = (
            step
            for step in self._candidates(reads)
            if (group := step.group) is not None and group.total == c.total and any(group.makes(x) for x in reads)
        )
        late, early = next(makers, None), next(makers, None)
        if late is None or early is None:
            return False
        moved_reads = [x for xs in late.reads.values() for x in xs]
        moved_writes = [x for xs in late.writes.values() for x in xs]
        passed = (step for step in self._related((*moved_reads, *moved_writes)) if early.number < step.number < late.number)
        if any(step.blocks(moved_reads, moved_writes) for step in passed):
            return False
        passed = (step for step in self._related((*reads, *c.writes)) if step.number > early.number and step is not late)
        if any(step.blocks(reads, c.writes) for step in passed):
            return False
        first, second = early.group, late.group
        assert first is not None and second is not None
        group = Group.merged(first, second, c)
        if group is None:
            return False
        early.group = group
        early.members |= late.members | members
        self._add(early, (*moved_reads, *reads), (*moved_writes, *c.writes))
        self.steps.remove(late)
        for buffer in (*late.reads, *late.writes):
            self._using[buffer].pop(late.number, None)
        return True

    def _add(self, step: Step, reads: Sequence[Access], writes: Sequence[Access]) -> None:
        """Accesses to a step."""
        step.add(reads, writes)
        for x in (*reads, *writes):
            self._using.setdefault(x.buffer, {})[step.number] = step

    def _append(self, instr: BoundInstr, group: Group | None, members: set[int], reads: Sequence[Access], writes: Sequence[Access]) -> None:
        step = Step(instr, group, members, self._numbers)
        self._numbers += 1
        self._add(step, reads, writes)
        self.steps.append(step)

    def _alone(self, place: int, instr: BoundInstr) -> None:
        reads = [access(x) for x in instr.ins if isinstance(x, Operand)]
        writes = [access(x) for x in instr.outs]
        if instr.op.rmw:
            reads += writes
        for x in (*reads, *writes):  # an instruction that is not element by element may leave elements of what it writes as they were
            self._materialise(x)
        self._append(instr, None, {place}, reads, writes)

    # --- values that depend on scalars only
    def _constant(self, place: int, c: Candidate) -> bool:
        """Take note of a one-element value made from scalars, if it is one in a temp of its own."""
        (out,) = c.writes
        if c.total != 1 or c.pattern is not None or c.instr.op.kind is not Kind.MAP or self._kinds[out.buffer] != BufferKind.TEMP:
            return False
        if out.buffer in self._using:
            return False
        args: list[Constant | Scalar] = []
        members = {place}
        for x in c.reads:
            if isinstance(x, Access):
                known = self._constant_at(x)
                if known is None:
                    return False
                args.append(known.value)
                members |= known.members
            elif isinstance(x, Scalar):
                args.append(x)
            else:
                return False
        members |= self._overwrite(c.writes)
        known = _Known(out, Constant(c.instr.op.name, out.dtype, tuple(args)), c.instr, members)
        self._constants.setdefault(out.buffer, []).append(known)
        return True

    def _constant_at(self, x: Access) -> _Known | None:
        """The constant that every element of this access is, if it is one."""
        if any(stride for _, stride in x.dims):
            return None
        at = (known for known in self._constants.get(x.buffer, ()) if known.out.offset == x.offset and known.out.dtype is x.dtype)
        return next(at, None)

    def _with_constants(self, place: int, c: Candidate) -> tuple[Candidate, set[int]]:
        members = {place}
        if not self._constants:
            return c, members
        reads: list[Read] = []
        for x in c.reads:
            known = self._constant_at(x) if isinstance(x, Access) else None
            if known is not None:
                members |= known.members
                reads.append(known.value)
                continue
            if isinstance(x, Access):
                self._materialise(x)
            reads.append(x)
        return c._replace(reads=tuple(reads)), members

    def _materialise(self, x: Access) -> None:
        """Store the constants that share bytes with ``x``: their values are needed in memory."""
        for known in [known for known in self._constants.get(x.buffer, ()) if may_overlap(known.out, x)]:
            self._store(known)

    def _store(self, known: _Known) -> None:
        self._drop(known)
        c = Candidate(known.instr, 1, None, known.value.args, (known.out,), max(known.members))
        self._append(known.instr, Group(c), set(known.members), (), c.writes)

    def _overwrite(self, writes: Iterable[Access]) -> set[int]:
        """Before every element of ``writes`` is written: constants there that survive in part are stored, the others dropped.

        Returns the places of the instructions of those dropped. They become members of the step that overwrites them, so that other dims
        with which they survive are noticed.
        """
        places: set[int] = set()
        for x in writes:
            for known in [known for known in self._constants.get(x.buffer, ()) if may_overlap(known.out, x)]:
                if x.dense and x.low <= known.out.low and known.out.high <= x.high:
                    self._drop(known)
                    places |= known.members
                else:
                    self._store(known)
        return places

    def _drop(self, known: _Known) -> None:
        left = self._constants[known.out.buffer]
        left.remove(known)
        if not left:
            del self._constants[known.out.buffer]


class _Known(NamedTuple):
    """A constant: where its instruction would put it, what it is, and the places of the instructions it comes from."""

    out: Access
    value: Constant
    instr: BoundInstr
    members: set[int]


def regroup(code: Sequence[tuple[int, BoundInstr]], kinds: Sequence[int], supported: Supported, kept: frozenset[int]) -> Group | None:
    """The group of a step whose instructions have new dims: all of ``code`` in one group again, storing to the buffers ``kept``.

    None when they do not form one group any more.
    """
    maker = _Maker(kinds, True)
    group: Group | None = None
    for place, instr in code:
        c = candidate(place, instr, supported)
        if c is None:
            return None
        if maker._constant(place, c):
            continue
        c, _ = maker._with_constants(place, c)
        maker._overwrite(c.writes)
        if group is None:
            group = Group(c)
        elif not group.join(c, alone=True):
            return None
    unstored = [known for constants in maker._constants.values() for known in constants if known.out.buffer in kept]
    if group is None and len(unstored) == 1:  # a constant that had to be put into memory
        maker._store(unstored[0])
        return maker.steps[0].group if len(maker.steps) == 1 else None
    if group is None or maker.steps or unstored:
        return None
    group.drop_stores(lambda x: x.buffer not in kept)
    return group if {x.buffer for x in group.stores} == kept else None


def _drop_dead(steps: list[Step], kinds: Sequence[int]) -> list[Step]:
    """Backwards: a store to a TEMP that no later step loads is dropped, and with it what only it needed."""
    wanted: set[int] = set()
    result: list[Step] = []
    for step in reversed(steps):
        group = step.group
        if group is None:
            result.append(step)
            wanted.update(step.reads)
            continue

        def dead(x: Access) -> bool:
            return kinds[x.buffer] == BufferKind.TEMP and x.buffer not in wanted

        group.drop_stores(dead)
        if not group.stores:
            continue
        step.reads, step.writes = {}, {}
        step.add(group.loads, group.stores)
        wanted.update(step.reads)
        result.append(step)
    return result[::-1]
