"""Analyses of a kernel and a block shape for code generation: registers split into webs (definitions and the uses they reach get registers
of their own), where lanes may wait while others run, and what each register is.

The lanes of a gang that are at the block of code with the least number run first. So for every block it is known which later blocks lanes
may be *pending* at while it runs; a register that is written while pending lanes still need its old value has to be a vector, and so has
whatever differs between lanes by itself. Both depend on each other, so they are worked out together, from the optimistic side.

Front ends use one register for unrelated values (and expansion for many temporaries), which then look as if they differed between lanes
as much as the worst of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import msgspec

from jit.host.simt.shape import SAME, VECTOR, Fact, Gang, Same, Vector, join, lane_zeros, shape_of
from wis.kernel.flow import Flow, live_before
from wis.kernel.flow import analyse as flow_of
from wis.kernel.model import Bar, Block, Cbr, Kernel, Op, Ret, Space, Switch, Sync, Terminator, successors
from wis.kernel.ops import Sig, codes_of
from wis.kernel.uniformity import uniformity, varying_after

_STEPS_MAX: Final = 400_000
"""Work on where lanes wait after which the simplest answer is taken."""


def bits_of(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, least first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def waits(end: Terminator) -> bool:
    """Whether threads stop at this terminator until others have come."""
    return isinstance(end, Bar) or (isinstance(end, Sync) and not end.arrive)


@dataclass(slots=True)
class Analysis:
    """``facts[r]`` is about register r wherever it is read. Sets are the bits of integers: ``live[b]`` registers whose value block b or a
    later one reads; ``pending[b]`` where other lanes may be while block b runs (bit ``n_blocks + s``: waiting at the barrier that ends
    block s); ``mixed`` blocks whose barrier lanes reach while others of the gang are elsewhere; ``entry[b]`` whether all lanes that started
    are in block b whenever it runs."""

    facts: list[Fact]
    live: list[int]
    pending: list[int]
    mixed: int
    entry: list[bool]
    n_blocks: int

    def blocks_pending(self, b: int) -> int:
        return self.pending[b] & (1 << self.n_blocks) - 1

    def needed_elsewhere(self, b: int, kernel: Kernel) -> int:
        """Registers whose values lanes that are not in block b still need."""
        return _needed(self.live, self.pending[b], kernel)


def analyse(kernel: Kernel, gang: Gang) -> Analysis:
    """To a fixed point. Cost grows with blocks times pending blocks, in operations on sets."""
    live = live_before(kernel.blocks, range(len(kernel.blocks)))
    facts: list[Fact | None] = [None] * len(kernel.regs)
    while True:
        pending, mixed = _pending(kernel, facts)
        elsewhere = [_needed(live, p, kernel) for p in pending]
        entry = _entry(kernel, facts, pending)
        if not _classify(kernel, gang, facts, elsewhere, entry):
            break
    known = [fact or Fact(SAME, 0) for fact in facts]
    return Analysis(known, live, pending, mixed, entry, len(kernel.blocks))


def _needed(live: Sequence[int], pending: int, kernel: Kernel) -> int:
    n, result = len(kernel.blocks), 0
    for b in bits_of(pending):
        end = kernel.blocks[b - n].end if b >= n else None
        result |= live[b] if end is None else live[successors(end)[0]]
    return result


def splits(end: Terminator, facts: Sequence[Fact | None]) -> bool:
    """Whether lanes may go different ways from here."""
    if isinstance(end, (Cbr, Switch)):
        fact = facts[end.pred if isinstance(end, Cbr) else end.index]
        return fact is not None and not isinstance(fact.shape, Same) and len(successors(end)) > 1
    return False


def _pending(kernel: Kernel, facts: Sequence[Fact | None]) -> tuple[list[int], int]:
    """For each block where other lanes may be; and the blocks that end at barriers which lanes reach while others are elsewhere."""
    n = len(kernel.blocks)
    pending = [0] * n
    succ = [successors(block.end) for block in kernel.blocks]
    ends = [block.end for block in kernel.blocks]
    inside = (1 << n) - 1
    mixed = sum(1 << b for b in range(n) if waits(ends[b])) if judged(kernel) else 0
    steps_left = _STEPS_MAX
    changed = True
    while changed:
        changed = False

        def arrive(where: int, others: int) -> None:
            nonlocal changed
            if others & ~pending[where]:
                pending[where] |= others
                changed = True

        for b in range(n):
            there = pending[b]
            steps_left -= 1 + there.bit_count()
            if steps_left < 0:
                return _anywhere(kernel)
            if waits(ends[b]):
                if there and not mixed >> b & 1:
                    mixed |= 1 << b
                    changed = True
                _arrive_any(there | 1 << n + b, there & inside, arrive)
            elif isinstance(ends[b], Ret):
                _arrive_any(there, there & inside, arrive)
            elif splits(ends[b], facts):
                targets = sum(1 << s for s in succ[b])
                _arrive_any(there | targets, (there & inside) | targets, arrive)
            else:
                for s in succ[b]:
                    _arrive_any(there | 1 << s, there & (1 << s) - 1 | 1 << s, arrive)
        released = sum({1 << successors(ends[b])[0] for b in bits_of(mixed)})
        parked = sum(1 << n + b for b in bits_of(mixed)) if judged(kernel) else 0
        _arrive_any(released | parked, released, arrive)
    return pending, mixed


def _anywhere(kernel: Kernel) -> tuple[list[int], int]:
    """The answer for kernels that would take too long: lanes may be pending at all blocks behind this one, and at all barriers."""
    n = len(kernel.blocks)
    mixed = sum(1 << b for b, block in enumerate(kernel.blocks) if waits(block.end))
    everywhere = (1 << n) - 1 | mixed << n
    return [everywhere & ~((2 << b) - 1) for b in range(n)], mixed


def judged(kernel: Kernel) -> bool:
    """Whether some threads of a block may be let go on while others wait at another barrier: not while there is one barrier for all."""
    return any(isinstance(block.end, Sync) and (block.end.count >= 0 or block.end.barrier) for block in kernel.blocks)


def _arrive_any(everywhere: int, candidates: int, arrive: Callable[[int, int], None]) -> None:
    """Any of the candidates may be the next block: what is there and has a greater number stays pending."""
    for c in bits_of(candidates):
        arrive(c, everywhere & ~((2 << c) - 1))


def _classify(kernel: Kernel, gang: Gang, facts: list[Fact | None], elsewhere: Sequence[int], entry: Sequence[bool]) -> bool:
    """Shapes of all registers with these waiting lanes; whether anything changed."""
    changed, again = False, True
    while again:
        again = False
        for b, block in enumerate(kernel.blocks):
            for op in block.code:
                if not op.outs or any(facts[r] is None for r in op.ins):
                    continue
                together = entry[b] and not gang.ragged
                found = shape_of(op, gang, kernel.regs, facts, together)  # type: ignore[arg-type]  # checked above
                for r in op.outs:
                    needed = elsewhere[b] >> r & 1
                    if found == facts[r] and not needed:
                        continue
                    merged = join(facts[r], found)
                    if needed and merged.value is None and not isinstance(merged.shape, Vector):
                        merged = Fact(VECTOR, lane_zeros(merged))
                    if merged != facts[r]:
                        facts[r] = merged
                        again = changed = True
    return changed


def _entry(kernel: Kernel, facts: Sequence[Fact | None], pending: Sequence[int]) -> list[bool]:
    """Blocks that all lanes which started run together: none is elsewhere, and none has ended."""
    result = [not others for others in pending]
    changed = any(others for others, block in zip(pending, kernel.blocks, strict=True) if isinstance(block.end, Ret))
    while changed:
        changed = False
        for b, block in enumerate(kernel.blocks):
            whole = result[b] and not pending[b] and not splits(block.end, facts)
            for s in successors(block.end):
                if result[s] and (not whole or pending[s]):
                    result[s] = False
                    changed = True
    return result


_NODES_MAX: Final = 300_000
"""Registers alive at starts of blocks, above which a kernel is left as it is."""


class _Sets:
    """Union-find."""

    def __init__(self) -> None:
        self.parent: list[int] = []

    def new(self) -> int:
        self.parent.append(len(self.parent))
        return len(self.parent) - 1

    def find(self, x: int) -> int:
        parent = self.parent
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    def union(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[max(a, b)] = min(a, b)


def insert_barriers(kernel: Kernel, costs: Sequence[int]) -> tuple[Kernel, Sequence[int]]:
    """The kernel without write-after-read hazards of broadcasts in shared memory, and what its blocks cost: a barrier is inserted behind a
    load of one address by all threads, where a thread may store to that memory before the next barrier.

    On a GPU such kernels are right in practice, because the warps of a block leave a barrier at nearly the same time (furthest point
    sampling in PointNet++ and its copies). The host executes one gang up to the next barrier before it starts another. Loads in loops
    without a barrier are left as they are, because the inserted one would be executed in each iteration.
    """
    if not any(isinstance(block.end, Bar) for block in kernel.blocks):
        return kernel, costs
    flow = flow_of(kernel.blocks)
    uniform = uniformity(kernel, flow)
    stored = _stores_before_barriers(kernel, flow)
    has_barrier: dict[int, bool] = {}  # by block of a loop: the innermost loop has one
    for loop in flow.loops:
        has_barrier.update(dict.fromkeys(loop.blocks, any(waits(kernel.blocks[b].end) for b in loop.blocks)))
    ends: dict[int, int] = {}
    for b in flow.order:
        if b not in uniform.divergent and has_barrier.get(b, True):
            at = _end_of_hazard(kernel, b, uniform.varying[b].mask, stored[b])
            if at:
                ends[b] = at
    targets = list(accumulate((1 + (b in ends) for b in range(len(kernel.blocks) - 1)), initial=0))
    blocks: list[Block] = []
    new_costs: list[int] = []
    for b, block in enumerate(kernel.blocks):
        at = ends.get(b, 0)
        if at:
            blocks.append(Block(block.code[:at], Bar(targets[b] + 1)))
        blocks.append(Block(block.code[at:], _retargeted(block.end, targets)))
        new_costs += [costs[b], 0] if at else [costs[b]]
    return msgspec.structs.replace(kernel, blocks=tuple(blocks)), new_costs


_LOADS: Final = codes_of(Sig.LOAD, Sig.BYTES_LOAD)
_WRITES: Final = codes_of(Sig.STORE, Sig.BYTES_STORE, Sig.ATOM, Sig.RED)


def _memory_of(op: Op) -> int:
    """A bit for the shared memory that an op accesses; 0: none."""
    return 1 << op.attrs[1] if op.attrs[0] == Space.SHARED else 0


def _stores_before_barriers(kernel: Kernel, flow: Flow) -> list[int]:
    """For each block, as bits, the shared memories that a thread may store to after it and before a barrier."""
    own = [0] * len(kernel.blocks)
    for b, block in enumerate(kernel.blocks):
        for op in block.code:
            if op.op in _WRITES:
                own[b] |= _memory_of(op)
    after = [0] * len(kernel.blocks)
    todo = list(flow.order)
    while todo:
        b = todo.pop()
        found = 0
        for following in () if waits(kernel.blocks[b].end) else flow.succ[b]:
            found |= own[following] | after[following]
        if found != after[b]:
            after[b] = found
            todo += flow.pred[b]
    return after


def _end_of_hazard(kernel: Kernel, b: int, varying: int, stored: int) -> int:
    """How many ops of block b there are up to the last broadcast load whose memory is then stored to; 0: none. ``varying``: registers that
    differ between threads at its start. ``stored``: memories stored to after the block, before a barrier."""
    code, broadcasts = kernel.blocks[b].code, set()
    for i, op in enumerate(code):
        if op.op in _LOADS and not varying >> op.ins[0] & 1:
            broadcasts.add(i)
        varying = varying_after(kernel, op, varying)
    for i in reversed(range(len(code))):
        if code[i].op in _WRITES:
            stored |= _memory_of(code[i])
        elif i in broadcasts and _memory_of(code[i]) & stored:
            return i + 1
    return 0


def _retargeted(end: Terminator, targets: Sequence[int]) -> Terminator:
    if isinstance(end, Cbr):
        return Cbr(end.pred, targets[end.yes], targets[end.no])
    if isinstance(end, Switch):
        return Switch(end.index, tuple(targets[b] for b in end.targets), targets[end.default])
    return end if isinstance(end, Ret) else msgspec.structs.replace(end, target=targets[end.target])


def split_registers(kernel: Kernel) -> Kernel:
    """The same kernel on more registers."""
    live = live_before(kernel.blocks, range(len(kernel.blocks)))
    if sum(mask.bit_count() for mask in live) > _NODES_MAX:
        return kernel
    sets = _Sets()
    kinds: list[int] = []

    def new(r: int) -> int:
        kinds.append(kernel.regs[r])
        return sets.new()

    arriving = [{r: new(r) for r in bits_of(mask)} for mask in live]
    written: list[list[tuple[int, ...]]] = []
    read: list[list[tuple[int, ...]]] = []
    ends: list[dict[int, int]] = []
    for b, block in enumerate(kernel.blocks):
        now = dict(arriving[b])
        reads, writes = [], []
        for op in block.code:
            reads.append(tuple(now[r] for r in op.ins))
            fresh = tuple(new(r) for r in op.outs)
            now.update(zip(op.outs, fresh, strict=True))
            writes.append(fresh)
        read.append(reads)
        written.append(writes)
        ends.append(now)
        for s in successors(block.end):
            for r, node in arriving[s].items():
                if s > b:  # those of earlier blocks are joined below: theirs may not be known yet
                    sets.union(node, now[r])
    for b, block in enumerate(kernel.blocks):
        for s in successors(block.end):
            if s <= b:
                for r, node in arriving[s].items():
                    sets.union(node, ends[b][r])
    return _renamed(kernel, sets, kinds, read, written, ends)


def _renamed(
    kernel: Kernel,
    sets: _Sets,
    kinds: Sequence[int],
    read: Sequence[Sequence[tuple[int, ...]]],
    written: Sequence[Sequence[tuple[int, ...]]],
    ends: Sequence[dict[int, int]],
) -> Kernel:
    numbers: dict[int, int] = {}
    regs: list[int] = []

    def name(node: int) -> int:
        root = sets.find(node)
        if root not in numbers:
            numbers[root] = len(regs)
            regs.append(kinds[root])
        return numbers[root]

    blocks = []
    for b, block in enumerate(kernel.blocks):
        code = [
            Op(op.op, tuple(map(name, outs)), tuple(map(name, ins)), op.attrs)
            for op, ins, outs in zip(block.code, read[b], written[b], strict=True)
        ]
        blocks.append(Block(tuple(code), _renamed_end(block.end, lambda r, b=b: name(ends[b][r]))))
    return msgspec.structs.replace(kernel, regs=tuple(regs), blocks=tuple(blocks))


def _renamed_end(end: Terminator, name: object) -> Terminator:
    assert callable(name)
    if isinstance(end, Cbr):
        return Cbr(name(end.pred), end.yes, end.no)
    if isinstance(end, Switch):
        return Switch(name(end.index), end.targets, end.default)
    if isinstance(end, Sync) and end.count >= 0:
        return Sync(end.target, end.barrier, name(end.count), end.arrive)
    return end
