"""Planning one program, for the first and for further dims.

The first dims of a program are planned in full. For further ones (a cache that grows by a token) only instructions whose operands changed
are lowered again, each inside the step it was in; grouping, order and phases stay. They may, because everything they were decided on is
either structure, or is checked again here:

 - groups are formed anew from their instructions, under the same rules (``fuse.regroup``);
 - what was taken as disjoint (two parts of one buffer, one of them written) must still be disjoint; what overlapped was kept in order,
   which stays right if it no longer does;
 - decompositions, calls and temporaries must keep their number and kind.

Whenever one of these fails, the program is planned in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from jit.plan.access import Access, access, may_overlap
from jit.plan.arena import Arena, lay_out, size_class
from jit.plan.calls import Call, Fallback, UserLaunch, WholeInstr
from jit.plan.fuse import Step, fuse, regroup
from jit.plan.group import Group, Supported
from jit.plan.memo import Memo, Names
from wis.cost import count, count_instr
from wis.decompose import decompose_instr
from wis.ops import Kind
from wis.program import BoundInstr, BoundProgram, BufferKind, Operand
from wis.verify import Verified

__all__ = ["Planner", "Planned", "PlanOptions", "Target", "Lowering"]

C = TypeVar("C", bound=Call)
P = TypeVar("P")
C_co = TypeVar("C_co", bound=Call, covariant=True)

CONSTANTS_MAX = 256
PAIRS_MAX = 20_000
"""A program with more disjoint pairs of operands than this is planned in full each time; checking them would cost as much."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """``fusion`` False: every instruction alone (to compare with)."""

    fusion: bool = True


class _Changed(Exception):
    """The new dims do not fit the decisions made for the old ones."""


@dataclass(slots=True)
class _Source:
    """One instruction of the program: where its replacement starts in the flat code, how long it is, and the temporaries it added."""

    start: int
    count: int
    temps: list[int]


class Lowering(Protocol[C_co]):
    """How a back end makes calls. ``new_temp(nbytes)`` gives the number of a new TEMP buffer."""

    def group(self, group: Group) -> C_co:
        """A fused group as one call."""
        ...

    def has(self, instr: BoundInstr) -> bool:
        """Whether there is a native form of this instruction as a whole."""
        ...

    def single(self, instr: BoundInstr, new_temp: Callable[[int], int]) -> Sequence[C_co | Fallback]:
        """One unfused instruction, other than a launch."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Generic[C]):
    """What was decided about one program. ``keyed``: the EXTERNAL and CREATED buffers in order; ``zeroed``: temporaries whose zeros can be
    seen; ``nbytes``: by buffer; ``temp_nbytes``: of temporaries that calls touch; ``constants`` follow the program's scalars;
    ``places``: the instruction of the program that each call belongs to (of a fused group, one of them)."""

    calls: list[C | WholeInstr]
    places: list[int]
    levels: list[int]
    arena: Arena
    nbytes: list[int]
    temp_nbytes: dict[int, int]
    keyed: list[int]
    zeroed: list[int]
    n_buffers: int
    constants: tuple[float, ...]
    instructions: int


@dataclass(frozen=True, slots=True)
class Target(Generic[C, P]):
    """A back end as the planner sees it. ``levels``: phases of calls, given which temporaries took over whose bytes."""

    lowering: Lowering[C]
    supported: Supported
    levels: Callable[[Sequence[C | WholeInstr], Mapping[int, tuple[int, ...]]], list[int]]
    tables: Callable[[Planned[C]], P]


@dataclass(slots=True)
class _Lowered(Generic[C]):
    """The calls of one step; ``kept``: the buffers its group stores to."""

    step: Step
    calls: list[C | WholeInstr]
    temps: list[int]
    kept: frozenset[int] = field(default_factory=frozenset)


class Planner(Generic[C, P]):
    """Plans of one program structure."""

    def __init__(self, target: Target[C, P], memo: Memo[C], options: PlanOptions) -> None:
        self._target = target
        self._memo = memo
        self._options = options
        self._last: _State[C, P] | None = None
        self.full = 0
        self.patched = 0

    def plan(self, verified: Verified) -> P:
        """The plan for these dims."""
        if self._last is not None:
            last, self._last = self._last, None  # an error half way must not leave a mixture behind
            try:
                plan = last.redim(verified)
                self._last = last
                self.patched += 1
                return plan
            except _Changed:
                pass
        state = _State(verified, self._target, self._memo, self._options)
        plan = state.tables()
        self._last = state
        self.full += 1
        return plan


class _State(Generic[C, P]):
    """All decisions about one program, with its current dims."""

    def __init__(self, verified: Verified, target: Target[C, P], memo: Memo[C], options: PlanOptions) -> None:
        bound = verified.bound
        self._target = target
        self._lowering = target.lowering
        self._memo = memo
        self._bound = bound
        self._kinds = list(bound.program.buffers)
        self._nbytes = list(bound.nbytes)
        self._keyed = [b for b, kind in enumerate(self._kinds) if kind != BufferKind.TEMP]
        self._zeroed = sorted(b for b in verified.zeroed if self._kinds[b] == BufferKind.TEMP)
        self.instructions = count(bound)
        self._constants: dict[float, int] = {}
        self._code: list[BoundInstr] = []
        self._sources: list[_Source] = []
        for instr in bound.code:
            temps: list[int] = []
            flat = self._flat(instr, self._new_temp(temps))
            self._sources.append(_Source(len(self._code), len(flat), temps))
            self._code += flat
        self._origin = [number for number, source in enumerate(self._sources) for _ in range(source.count)]
        steps = fuse(self._code, self._kinds, target.supported, separate=not options.fusion)
        self._lowered = [self._lower(step) for step in steps]
        self._steps_of: dict[int, list[int]] = {}
        for number, lowered in enumerate(self._lowered):
            for place in lowered.step.members:
                self._steps_of.setdefault(place, []).append(number)
        self._disjoint = _disjoint_pairs(self._code)
        self._uses = [[b for b in _buffers(call) if self._kinds[b] == BufferKind.TEMP] for call in self._calls()]
        self._classes: dict[int, int] = {}
        self._arena = Arena(0, {}, {})
        self._place_temps()
        self._levels = self._target.levels(list(self._calls()), self._arena.before)

    # --- expansion
    def _flat(self, instr: BoundInstr, new_temp: Callable[[int], int]) -> list[BoundInstr]:
        if instr.op.kind is not Kind.COARSE:
            return [instr]
        if instr.op.name in _WHOLE and self._lowering.has(instr):
            return [instr]
        return decompose_instr(instr, new_temp, self._constant)

    def _new_temp(self, made: list[int]) -> Callable[[int], int]:
        """A source of new temporaries, noted in ``made``."""

        def new(nbytes: int) -> int:
            self._kinds.append(BufferKind.TEMP)
            self._nbytes.append(nbytes)
            made.append(len(self._kinds) - 1)
            return made[-1]

        return new

    def _old_temps(self, known: list[int]) -> Callable[[int], int]:
        """The temporaries made before, in order, with new sizes."""
        left = iter(known)

        def again(nbytes: int) -> int:
            number = next(left, None)
            if number is None:
                raise _Changed
            self._nbytes[number] = nbytes
            return number

        return again

    def _constant(self, value: float) -> int:
        return self._constants.setdefault(value, self._bound.program.n_scalars + len(self._constants))

    # --- lowering
    def _lower(self, step: Step) -> _Lowered[C]:
        temps: list[int] = []
        new_temp = self._new_temp(temps)
        group = step.group
        if group is None:
            return _Lowered(step, self._remembered(step, None, new_temp, temps, lambda: self._single(step.instr, new_temp)), temps)
        kept = frozenset(x.buffer for x in group.stores)
        return _Lowered(step, self._remembered(step, kept, new_temp, temps, lambda: [self._lowering.group(group)]), temps, kept)

    def _single(self, instr: BoundInstr, new_temp: Callable[[int], int]) -> Sequence[C | WholeInstr]:
        return [UserLaunch.of(instr)] if instr.op.kind is Kind.LAUNCH else self._lowering.single(instr, new_temp)

    def _lower_again(self, lowered: _Lowered[C]) -> list[C | WholeInstr]:
        step, again = lowered.step, self._old_temps(lowered.temps)
        if step.group is None:
            (place,) = step.members
            return self._remembered(step, None, again, lowered.temps, lambda: self._single(self._code[place], again))

        def work() -> list[C | WholeInstr]:
            members = [(place, self._code[place]) for place in sorted(step.members)]
            group = regroup(members, self._kinds, self._target.supported, lowered.kept)
            if group is None:
                raise _Changed
            return [self._lowering.group(group)]

        return self._remembered(step, lowered.kept, again, lowered.temps, work)

    def _remembered(
        self,
        step: Step,
        kept: frozenset[int] | None,
        new_temp: Callable[[int], int],
        temps: list[int],
        work: Callable[[], Sequence[C | WholeInstr]],
    ) -> list[C | WholeInstr]:
        """The calls of a step, from memory or by ``work``, which draws on ``new_temp`` and so fills or checks ``temps``."""
        code = [self._code[place] for place in sorted(step.members)]
        names = Names(code, self._kinds, kept)
        calls = self._memo.find(names, new_temp, code[-1])
        if calls is None:
            calls = list(work())
            self._memo.put(names, calls, temps, [self._nbytes[t] for t in temps])
        return calls

    def _calls(self) -> Iterator[C | WholeInstr]:
        for lowered in self._lowered:
            yield from lowered.calls

    def _places(self) -> list[int]:
        """The program's instruction of each call."""
        return [self._origin[min(lowered.step.members)] for lowered in self._lowered for _ in lowered.calls]

    # --- memory
    def _place_temps(self) -> bool:
        """Lay the arena out if a size class changed; returns whether some temporary took over other bytes than before."""
        classes = {b: size_class(self._nbytes[b]) for uses in self._uses for b in uses}
        if classes == self._classes:
            return False
        before = self._arena.before
        self._classes = classes
        self._arena = lay_out(self._uses, {b: self._nbytes[b] for b in classes}, frozenset(self._zeroed))
        return before != self._arena.before

    def tables(self) -> P:
        """The plan of the current dims."""
        sizes = {b: self._nbytes[b] for b in self._classes}
        return self._target.tables(
            Planned(
                calls=list(self._calls()), places=self._places(), levels=self._levels, arena=self._arena, nbytes=list(self._nbytes),
                temp_nbytes=sizes, keyed=self._keyed, zeroed=self._zeroed, n_buffers=len(self._kinds),
                constants=tuple(self._constants), instructions=self.instructions,
            )
        )  # fmt: skip

    # --- further dims
    def redim(self, verified: Verified) -> P:
        """The plan for other dims of the same structure; raises _Changed when the old decisions do not carry over."""
        bound = verified.bound
        if [b for b in self._zeroed if b not in verified.zeroed] or len(self._constants) > CONSTANTS_MAX or self._disjoint is None:
            raise _Changed
        if any(self._kinds[b] == BufferKind.TEMP and b not in self._zeroed for b in verified.zeroed):
            raise _Changed
        self._nbytes[: len(bound.nbytes)] = bound.nbytes
        changed = self._expand_again(bound)
        for i, a, j, b in self._disjoint:
            if (i in changed or j in changed) and may_overlap(_operand(self._code[i], a), _operand(self._code[j], b)):
                raise _Changed
        for number in sorted({number for place in changed for number in self._steps_of.get(place, ())}):
            lowered = self._lowered[number]
            calls = self._lower_again(lowered)
            if not _alike(calls, lowered.calls):
                raise _Changed
            lowered.calls = calls
        if self._place_temps():
            self._levels = self._target.levels(list(self._calls()), self._arena.before)
        self._bound = bound
        return self.tables()

    def _expand_again(self, bound: BoundProgram) -> set[int]:
        """Put the new instructions into the flat code; returns the places that changed."""
        changed: set[int] = set()
        for source, old, new in zip(self._sources, self._bound.code, bound.code, strict=True):
            if old is new or old == new:
                continue
            have = self._code[source.start : source.start + source.count]
            whole = len(have) == 1 and have[0].op is new.op
            flat = [new] if whole else self._flat(new, self._old_temps(source.temps))
            self.instructions += count_instr(new) - count_instr(old)
            if [x.op for x in flat] != [x.op for x in have]:
                raise _Changed
            for place, instr in enumerate(flat, source.start):
                if instr != self._code[place]:
                    self._code[place] = instr
                    changed.add(place)
        return changed


_WHOLE = frozenset({"sdpa", "sdpa_dx"})
"""Coarse operations for which a native form of the whole beats fusing the parts."""


def _buffers(call: Call | WholeInstr) -> list[int]:
    return list(dict.fromkeys(x.buffer for x in (*call.reads, *call.writes)))


def _alike(a: Sequence[Call | WholeInstr], b: Sequence[Call | WholeInstr]) -> bool:
    """Whether calls touch the same buffers in the same order, so that liveness and phases still hold."""
    return len(a) == len(b) and all(
        type(x) is type(y)
        and {r.buffer for r in x.reads} == {r.buffer for r in y.reads}
        and {w.buffer for w in x.writes} == {w.buffer for w in y.writes}
        for x, y in zip(a, b, strict=True)
    )


def _operand(instr: BoundInstr, number: int) -> Access:
    """Operand ``number`` of an instruction (outs first, then ins)."""
    x = (*instr.outs, *instr.ins)[number]
    assert isinstance(x, Operand)
    return access(x)


def _disjoint_pairs(code: list[BoundInstr]) -> list[tuple[int, int, int, int]] | None:
    """(place, operand, place, operand) of operands on one buffer, one of them written, that share no byte; None when they are too many."""
    touched: dict[int, dict[Access, list[tuple[int, int, bool]]]] = {}
    for place, instr in enumerate(code):
        for number, x in enumerate((*instr.outs, *instr.ins)):
            if isinstance(x, Operand):
                touched.setdefault(x.buffer, {}).setdefault(access(x), []).append((place, number, number < len(instr.outs)))
    pairs: list[tuple[int, int, int, int]] = []
    for accesses in touched.values():
        known = list(accesses.items())
        for at, (a, users_a) in enumerate(known):
            for b, users_b in known[:at]:
                if len(pairs) + len(users_a) * len(users_b) > PAIRS_MAX:
                    return None
                if not may_overlap(a, b):
                    pairs += [(i, x, j, y) for i, x, w in users_a for j, y, v in users_b if w or v]
    return pairs
