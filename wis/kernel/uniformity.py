"""Uniformity analysis: which registers may differ between threads, and which blocks of code may be divergent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

from wis.kernel.flow import Flow, is_ordered, mask_of, post_dominators
from wis.kernel.model import WARP, Access, Bar, BufferParam, Kernel, Op, Space, Special, Sync, branch_register
from wis.kernel.ops import BY_NAME, Sig, codes_of


class Registers(Set[int]):
    """A set of registers, kept as the bits of ``mask``."""

    __slots__ = ("mask",)

    def __init__(self, mask: int = 0) -> None:
        self.mask = mask

    def __contains__(self, register: object) -> bool:
        return isinstance(register, int) and register >= 0 and bool(self.mask >> register & 1)

    def __iter__(self) -> Iterator[int]:
        rest = self.mask
        while rest:
            low = rest & -rest
            yield low.bit_length() - 1
            rest ^= low

    def __len__(self) -> int:
        return self.mask.bit_count()

    def __hash__(self) -> int:
        return hash(self.mask)

    def __eq__(self, other: object) -> bool:
        return self.mask == other.mask if isinstance(other, Registers) else Set.__eq__(self, other)

    @classmethod
    def _from_iterable(cls, registers: Iterable[int]) -> Registers:  # type: ignore[override]  # what Set's own operators make sets with
        return cls(mask_of(list(registers)))

    def __repr__(self) -> str:
        return f"Registers({sorted(self)})"


@dataclass(frozen=True, slots=True)
class Uniformity:
    """What may differ between the threads of a block."""

    #: by block of code: registers that may differ when it starts
    varying: tuple[Registers, ...]
    #: blocks of code that only some threads may be in
    divergent: frozenset[int]
    #: blocks whose branch may send threads different ways
    split: frozenset[int]


_VARYING_SPECIALS: Final = frozenset({Special.TID_X, Special.TID_Y, Special.TID_Z, Special.LANE, Special.WARP})
_ANSWERS: Final = codes_of(Sig.VOTE, Sig.BALLOT, Sig.MATCH_ALL, Sig.ACTIVEMASK, Sig.REDUX)  # the same for the lanes that ask together
_ALWAYS: Final = _ANSWERS | codes_of(Sig.ATOM, Sig.SHFL, Sig.MATCH_ANY, Sig.MMA, Sig.MMA_F64)
_LOADS: Final = codes_of(Sig.LOAD, Sig.BYTES_LOAD)
_REGIONS_MAX: Final = 300_000  # blocks between branches and their reconvergence points, visited until an analysis is given up
_SPECIAL, _ATOM, _SHFL = BY_NAME["special"].code, BY_NAME["atom"].code, BY_NAME["shfl"].code


def uniformity(kernel: Kernel, flow: Flow) -> Uniformity:
    """What may differ between the threads of a block, in whatever order they run: a sound approximation, to a fixed point.

    Sources are thread numbers, what warps and atomics answer, and loads that another thread could have changed. A branch on a varying
    register makes the blocks up to its reconvergence point divergent, and what is written there varying (so also what threads carry out of
    a loop they leave at different times).
    """
    entry = [0] * len(kernel.blocks)
    divergent: set[int] = set()
    split: set[int] = set()
    steps = [[(_spreads(kernel, op), mask_of(op.ins), mask_of(op.outs)) for op in block.code] for block in kernel.blocks]
    work = 0
    changed = True
    while changed:
        changed = False
        for b in flow.order:
            state, only_some = entry[b], b in divergent
            for spreads, ins, outs in steps[b]:
                state = state | outs if only_some or spreads or state & ins else state & ~outs
            if b not in split and _decides(kernel, b, state):
                region = _region(flow.succ, b, flow.ipdom[b])
                work += len(region)
                if work > _REGIONS_MAX:
                    return _anything(kernel, flow)
                split.add(b)
                divergent |= region
                changed = True
            for c in flow.succ[b]:
                if state & ~entry[c]:
                    entry[c] |= state
                    changed = True
    return Uniformity(tuple(Registers(mask) for mask in entry), frozenset(divergent), frozenset(split))


def varying_after(kernel: Kernel, op: Op, varying: int) -> int:
    """The registers, as bits, that may differ between threads after all of them executed ``op``; ``varying``: before it."""
    outs = mask_of(op.outs)
    return varying | outs if _spreads(kernel, op) or varying & mask_of(op.ins) else varying & ~outs


def _anything(kernel: Kernel, flow: Flow) -> Uniformity:
    """Nothing is known: every register may differ, every branch part threads."""
    all_registers = Registers((1 << len(kernel.regs)) - 1)
    forks = frozenset(b for b in flow.order if len(flow.succ[b]) > 1)
    return Uniformity((all_registers,) * len(kernel.blocks), frozenset(flow.order), forks)


def _decides(kernel: Kernel, b: int, varying: int) -> bool:
    """Whether block b ends in a branch on a register of ``varying``."""
    register = branch_register(kernel.blocks[b].end)
    return register is not None and bool(varying >> register & 1)


def _spreads(kernel: Kernel, op: Op) -> bool:
    """Whether an op gives different threads different values out of equal operands."""
    if op.op == _SPECIAL:
        return op.attrs[0] in _VARYING_SPECIALS
    if op.op in _LOADS:
        if op.attrs[0] == Space.GLOBAL:
            param = kernel.params[op.attrs[1]]
            return not (isinstance(param, BufferParam) and param.access == Access.READ)
        return op.attrs[0] != Space.CONST
    return op.op in _ALWAYS


def _region(succ: Sequence[Sequence[int]], branch: int, stop: int | None) -> set[int]:
    """Blocks on paths from ``branch`` before its reconvergence point ``stop``."""
    region: set[int] = set()
    todo = [b for b in succ[branch] if b != stop]
    while todo:
        b = todo.pop()
        if b not in region:
            region.add(b)
            todo += [c for c in succ[b] if c != stop]
    return region


def warp_uniformity(kernel: Kernel, flow: Flow, block: tuple[int, int, int] | None = None) -> Uniformity:
    """What may differ between the lanes of a warp that execute a block of code *together*, in the order that the tier prescribes.

    Weaker than ``uniformity``: a register that only some lanes write, all of them to one value, is uniform among those, and becomes varying
    where they meet lanes that came another way. So a loop that some lanes skip keeps uniform counters. ``block``: the shape of blocks of
    threads, when it is known: rows of whole warps make tid.y and tid.z uniform. Where the numbering of blocks or barriers that only some
    lanes reach may keep lanes from meeting, the answer is that of ``uniformity``.
    """
    if not is_ordered(flow):
        return uniformity(kernel, flow)
    rows = block is not None and (block[0] % WARP == 0 or block[1] == block[2] == 1)
    same = {Special.WARP, Special.TID_Y, Special.TID_Z} if rows else {Special.WARP}
    result = _Together(kernel, flow, _LaneSources(_VARYING_SPECIALS - same), in_step=True).run()
    waits = frozenset(b for b, c in enumerate(kernel.blocks) if isinstance(c.end, Bar | Sync))
    return result if waits.isdisjoint(apart(flow, result.split, waits)) else uniformity(kernel, flow)


def block_uniformity(kernel: Kernel, flow: Flow) -> Uniformity:
    """What may differ between the threads of a block that are at the same point of the same way through the code: the same iteration of
    every loop they are in. Says which branches may part threads, whatever the order they run in; a register that is uniform so may still
    hold different values in threads that are at different places at one time."""
    return _Together(kernel, flow, _ThreadSources(kernel), in_step=False).run()


def apart(flow: Flow, split: Set[int], waits: Set[int]) -> frozenset[int]:
    """Blocks that, after a branch of ``split``, only some of the threads come to that have not ended and will not end before they wait.

    ``waits``: blocks that end in a barrier. Threads at blocks from which no barrier can be reached are on their way to the end: no
    thread waits for them, so branches to such blocks do not count.
    """
    staying = set(waits)
    todo = list(waits)
    while todo:
        new = [p for p in flow.pred[todo.pop()] if p not in staying]
        staying.update(new)
        todo += new
    if 0 not in staying:
        return frozenset()
    succ = [[c for c in targets if c in staying] if b in staying else [] for b, targets in enumerate(flow.succ)]
    ends = [b for b in staying if not succ[b]]
    # Round a loop that is left only towards the end of the thread, every way out counts as an end: more ends, later reconvergence points.
    stops = post_dominators(succ, ends or [b for b in staying if len(succ[b]) < len(flow.succ[b])])
    result: set[int] = set()
    work = 0
    for b in split & staying:
        if len(succ[b]) > 1:
            region = _region(succ, b, stops[b])
            work += len(region)
            if work > _REGIONS_MAX:
                return frozenset(staying)
            result |= region
    return frozenset(result)


class _Step(NamedTuple):
    """An op, its registers as bits, and whether it gives different values out of equal operands."""

    op: Op
    ins: int
    outs: int
    spreads: bool


class _ThreadSources:
    """Ops that give threads of a block different values out of equal operands."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def spreads(self, op: Op) -> bool:
        return _spreads(self._kernel, op)

    def outs(self, step: _Step, varying: int) -> int:
        """The results that vary when the registers ``varying`` do."""
        return step.outs if step.spreads or varying & step.ins else 0


class _LaneSources:
    """Ops that give lanes, which execute them together, different values out of equal operands."""

    def __init__(self, specials: Set[Special]) -> None:
        self._specials = specials

    def spreads(self, op: Op) -> bool:
        """Lanes that load from one place together see one value; but local memory is each thread's own."""
        if op.op == _SPECIAL:
            return op.attrs[0] in self._specials
        if op.op in _LOADS:
            return op.attrs[0] in (Space.LOCAL, Space.ARENA)
        return op.op == _ATOM

    def outs(self, step: _Step, varying: int) -> int:
        op = step.op
        if op.op in _ANSWERS:  # lanes that ask with one mask get one answer
            return step.outs if op.ins and varying >> op.ins[-1] & 1 else 0
        if op.op == _SHFL:
            return step.outs if varying >> op.ins[0] & 1 else 1 << op.outs[1]
        return step.outs if step.spreads or varying & step.ins else 0


class _Together:
    """Which registers vary among threads that came the same way. ``entry[b]``: those, as bits, when block b starts.

    ``in_step``: threads at one block run it together whatever iteration they are in, as the lanes of a warp do. They go round a loop in
    step when they wait for each other at its last block, the only one that leads back, and not inside of a further loop; other loops are
    *ragged*.
    """

    def __init__(self, kernel: Kernel, flow: Flow, sources: _ThreadSources | _LaneSources, in_step: bool) -> None:
        self.kernel, self.flow, self.sources = kernel, flow, sources
        self.entry = [0] * len(kernel.blocks)
        self.divergent: set[int] = set()
        self.split: set[int] = set()
        self.work = 0  # blocks of regions looked at
        self.code = [[_Step(op, mask_of(op.ins), mask_of(op.outs), sources.spreads(op)) for op in block.code] for block in kernel.blocks]
        self.writes = [mask_of([r for op in block.code for r in op.outs]) for block in kernel.blocks]
        self.number = {b: i for i, b in enumerate(flow.order)}
        depth = {b: loop.depth for loop in flow.loops for b in loop.blocks}  # of the innermost loop: it comes last
        self.ragged = {
            loop.head
            for loop in flow.loops
            if in_step and [(b, depth[b]) for b in loop.blocks if loop.head in flow.succ[b]] != [(max(loop.blocks), loop.depth)]
        }

    def run(self) -> Uniformity:
        changed = True
        while changed:
            changed = False
            for b in self.flow.order:
                state = self.entry[b]
                for step in self.code[b]:
                    state = state & ~step.outs | self.sources.outs(step, state)
                if b not in self.split and _decides(self.kernel, b, state):
                    self._part(b)
                    if self.work > _REGIONS_MAX:
                        return _anything(self.kernel, self.flow)
                    changed = True
                for c in self.flow.succ[b]:
                    changed |= self._vary(c, state)
        return Uniformity(tuple(Registers(mask) for mask in self.entry), frozenset(self.divergent), frozenset(self.split))

    def _vary(self, b: int, registers: int) -> bool:
        new = registers & ~self.entry[b]
        self.entry[b] |= new
        return bool(new)

    def _written(self, blocks: Iterable[int]) -> int:
        written = 0
        for b in blocks:
            written |= self.writes[b]
        return written

    def _part(self, b: int) -> None:
        """Threads diverge at the end of block b: registers may differ at their reconvergence point."""
        self.split.add(b)
        stop = self.flow.ipdom[b]
        region = _region(self.flow.succ, b, stop)
        self.work += len(region)
        self.divergent |= region
        written = self._written(region)
        reach = region if stop is None else region | {stop}
        self._meet(set(self.flow.succ[b]), reach, written)
        for loop in self.flow.loops:
            if b not in loop.blocks:
                continue
            if loop.head in self.ragged:
                self._vary(loop.head, self._written(loop.blocks))
            if stop not in loop.blocks:  # threads leave the loop at different times, by any of its exits
                exits = {c for a in loop.blocks for c in self.flow.succ[a] if c not in loop.blocks}
                for c in exits:
                    self._vary(c, self._written(loop.blocks))
                self._meet(exits, reach, written)

    def _meet(self, sources: set[int], reach: set[int], written: int) -> None:
        """Let ``written`` vary at every block of ``reach`` that paths from different sources lead to.

        Every source gives its name to what it leads to; where two names come together is a reconvergence point, with its own name. Edges
        back to the head of a loop bring nothing new: threads on them entered the loop there, or are covered by its exits.
        """
        names: dict[int, int] = {}
        for b in sorted(reach, key=self.number.__getitem__):
            come = {names[a] for a in self.flow.pred[b] if a in names and self.number[a] < self.number[b]}
            if b in sources:
                come.add(b)
            if len(come) > 1:
                self._vary(b, written)
                names[b] = b
            elif come:
                names[b] = come.pop()
