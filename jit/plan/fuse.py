"""Which instructions run together: one pass over the code in order, then stores that nobody needs are dropped.

Each instruction tries to join a recent group: it may move back over steps it does not depend on, never over one it does. What cannot be
fused becomes a step of its own (a library record or the reference). The result is in program order by dependence, one step after the other.

Values of one element made from scalars alone (coefficients of an optimiser, say) are not steps: they are computed inside whatever reads them.

May live here: the choice of groups. May not: legality inside a group (group), loop forms (form), memory (arena).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jit.plan.access import Access, access, may_overlap
from jit.plan.group import Candidate, Constant, Group, Supported, candidate
from wis.ops import Kind
from wis.program import BoundInstr, BufferKind, Operand, Scalar

__all__ = ["Step", "fuse"]

LOOK_BACK = 32
"""How many steps back a group is looked for; further ones are seldom free to take more."""


class Step:
    """A fused group, or a single instruction (``group`` None). ``reads`` and ``writes``: accesses by buffer."""

    __slots__ = ("group", "instr", "reads", "writes")

    def __init__(self, instr: BoundInstr, group: Group | None) -> None:
        self.group = group
        self.instr = instr
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
        maker.take(instr, None if place in alone else candidate(instr, supported))
    return _drop_dead(maker.steps, kinds)


class _Maker:
    def __init__(self, kinds: Sequence[int], separate: bool) -> None:
        self.steps: list[Step] = []
        self._kinds = kinds
        self._separate = separate
        self._touched: set[int] = set()
        self._constants: dict[int, tuple[Access, Constant, BoundInstr]] = {}

    def take(self, instr: BoundInstr, c: Candidate | None) -> None:
        if c is None:
            self._alone(instr)
            return
        if self._constant(c):
            return
        c = self._with_constants(c)
        reads = [x for x in c.reads if isinstance(x, Access)]
        self._forget(c.writes)
        if self._separate or not (self._merge(c, reads) or self._join(c, reads)):
            self._append(instr, Group(c), reads, c.writes)

    def _join(self, c: Candidate, reads: Sequence[Access]) -> bool:
        """Add to the nearest group that takes it, if nothing in between stands in the way."""
        for step in self.steps[: -LOOK_BACK - 1 : -1]:
            if step.group is not None and step.group.join(c):
                step.add(reads, c.writes)
                self._touched.update(x.buffer for x in c.writes)
                return True
            if step.blocks(reads, c.writes):
                return False
        return False

    def _merge(self, c: Candidate, reads: Sequence[Access]) -> bool:
        """Two groups that both feed this instruction become one, where the earlier one stands, if the later one can move there."""
        if len(reads) < 2 or c.total == 1:
            return False
        steps = self.steps
        first_seen = max(0, len(steps) - LOOK_BACK)
        makers = [
            at
            for at in range(len(steps) - 1, first_seen - 1, -1)
            if (group := steps[at].group) is not None and group.total == c.total and any(group.makes(x) for x in reads)
        ][:2]
        if len(makers) < 2:
            return False
        late, early = makers
        moving = steps[late]
        moved_reads = [x for xs in moving.reads.values() for x in xs]
        moved_writes = [x for xs in moving.writes.values() for x in xs]
        if any(steps[at].blocks(moved_reads, moved_writes) for at in range(early + 1, late)):
            return False
        if any(steps[at].blocks(reads, c.writes) for at in range(early + 1, len(steps)) if at != late):
            return False
        first, second = steps[early].group, moving.group
        assert first is not None and second is not None
        group = Group.merged(first, second, c)
        if group is None:
            return False
        steps[early].group = group
        steps[early].add((*moved_reads, *reads), (*moved_writes, *c.writes))
        self._touched.update(x.buffer for x in c.writes)
        del steps[late]
        return True

    def _append(self, instr: BoundInstr, group: Group | None, reads: Iterable[Access], writes: Iterable[Access]) -> None:
        step = Step(instr, group)
        step.add(reads, writes)
        self._touched.update(step.reads, step.writes)
        self.steps.append(step)

    def _alone(self, instr: BoundInstr) -> None:
        reads = [access(x) for x in instr.ins if isinstance(x, Operand)]
        writes = [access(x) for x in instr.outs]
        if instr.op.rmw:
            reads += writes
        for x in reads:
            self._materialise(x.buffer)
        self._forget(writes)
        self._append(instr, None, reads, writes)

    # --- values that depend on scalars only
    def _constant(self, c: Candidate) -> bool:
        """Take note of a one-element value made from scalars, if it is one in a temp of its own."""
        (out,) = c.writes
        if c.total != 1 or c.pattern is not None or c.instr.op.kind is not Kind.MAP or self._kinds[out.buffer] != BufferKind.TEMP:
            return False
        args: list[Constant | Scalar] = []
        for x in c.reads:
            value = self._constant_at(x) if isinstance(x, Access) else x
            if not isinstance(value, (Constant, Scalar)):
                return False
            args.append(value)
        self._forget(c.writes)
        if out.buffer in self._touched:
            return False
        self._constants[out.buffer] = (out, Constant(c.instr.op.name, out.dtype, tuple(args)), c.instr)
        return True

    def _constant_at(self, x: Access) -> Constant | None:
        """The constant that every element of this access is, if it is one."""
        known = self._constants.get(x.buffer)
        if known is None or any(stride for _, stride in x.dims):
            return None
        return known[1] if known[0].dtype is x.dtype and known[0].offset == x.offset else None

    def _with_constants(self, c: Candidate) -> Candidate:
        if not self._constants:
            return c
        reads = []
        for x in c.reads:
            value = self._constant_at(x) if isinstance(x, Access) else None
            if value is None and isinstance(x, Access):
                self._materialise(x.buffer)
            reads.append(x if value is None else value)
        return c._replace(reads=tuple(reads))

    def _materialise(self, buffer: int) -> None:
        """Something needs the value in memory after all."""
        known = self._constants.pop(buffer, None)
        if known is not None:
            out, value, instr = known
            c = Candidate(instr, 1, None, value.args, (out,))
            self._append(instr, Group(c), (), c.writes)

    def _forget(self, writes: Iterable[Access]) -> None:
        """A buffer is written anew: what it held is gone."""
        for x in writes:
            self._constants.pop(x.buffer, None)


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
