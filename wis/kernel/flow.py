"""Control-flow analysis of a kernel: reachability, dominators, post-dominators, loops, and the registers written on every path.

Works on block numbers and successor lists whose references exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import Block, Ret, successors, terminator_reads

__all__ = ["Flow", "Loop", "analyse", "definitely_assigned", "live_before", "is_ordered", "mask_of", "post_dominators"]

Graph = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop: entered at ``head`` only; ``blocks`` with the head and those of loops inside; ``depth`` 1 for the outermost."""

    head: int
    blocks: frozenset[int]
    depth: int


@dataclass(frozen=True, slots=True)
class Flow:
    """Facts of the graph. ``ipdom[b]``: the immediate post-dominator of b, None when that is only the end of the thread."""

    succ: tuple[tuple[int, ...], ...]
    pred: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]  # reachable blocks in reverse postorder
    ipdom: tuple[int | None, ...]
    endless: frozenset[int]  # reachable blocks from which no thread can end
    irreducible: tuple[tuple[int, int], ...]  # edges that enter a loop beside its head
    loops: tuple[Loop, ...]  # outer ones before those inside of them; none when there are irreducible edges


def analyse(blocks: Sequence[Block]) -> Flow:
    """All analyses of the graph of ``blocks``, whose branch targets exist."""
    succ = tuple(successors(block.end) for block in blocks)
    pred = _reverse(succ)
    order = _reverse_postorder(succ, 0)
    idom = _dominators(succ, pred, order)
    ends = [b for b, block in enumerate(blocks) if isinstance(block.end, Ret)]
    ipdom, ending = _backwards(pred, ends)
    number = {b: i for i, b in enumerate(order)}
    # A retreating edge must lead to a dominator: the head of its loop.
    spans = _spans(idom)
    retreating = [(a, b) for a in order for b in succ[a] if number[b] <= number[a]]
    irreducible = tuple((a, b) for a, b in retreating if not spans[b][0] <= spans[a][0] < spans[b][1])
    return Flow(
        succ,
        pred,
        tuple(order),
        tuple(ipdom),
        frozenset(set(order) - ending),
        irreducible,
        () if irreducible else _loops(pred, number, retreating),
    )


def post_dominators(succ: Graph, ends: Sequence[int]) -> list[int | None]:
    """For every node the one where all paths from it to ``ends`` meet; None when they only meet behind them."""
    return _backwards(_reverse(succ), ends)[0]


def _backwards(pred: Graph, ends: Sequence[int]) -> tuple[list[int | None], set[int]]:
    """Immediate post-dominators, and the nodes from which an end can be reached."""
    n = len(pred)
    succ = [*pred, ends]  # backwards, from one more node that all ends lead to
    order = _reverse_postorder(succ, n)
    idom = _dominators(succ, _reverse(succ), order)
    return [None if d == n else d for d in idom[:n]], set(order)


def _reverse(graph: Graph) -> tuple[tuple[int, ...], ...]:
    result: list[list[int]] = [[] for _ in graph]
    for a, targets in enumerate(graph):
        for b in targets:
            result[b].append(a)
    return tuple(tuple(sources) for sources in result)


def _reverse_postorder(graph: Graph, root: int) -> list[int]:
    seen = {root}
    post: list[int] = []
    stack = [(root, iter(graph[root]))]
    while stack:
        node, children = stack[-1]
        for child in children:
            if child not in seen:
                seen.add(child)
                stack.append((child, iter(graph[child])))
                break
        else:
            post.append(node)
            stack.pop()
    return post[::-1]


def _dominators(succ: Graph, pred: Graph, order: Sequence[int]) -> list[int | None]:
    """Immediate dominators by iteration to a fixed point over reverse postorder; None for the root and what is not reached."""
    number = {node: i for i, node in enumerate(order)}
    idom: dict[int, int] = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            best: int | None = None
            for p in pred[node]:
                if p not in idom:
                    continue
                best = p if best is None else _meet(idom, number, p, best)
            assert best is not None, "a node comes after one of its predecessors"
            if idom.get(node) != best:
                idom[node] = best
                changed = True
    return [None if node == order[0] else idom.get(node) for node in range(len(succ))]


def _meet(idom: dict[int, int], number: dict[int, int], a: int, b: int) -> int:
    while a != b:
        while number[a] > number[b]:
            a = idom[a]
        while number[b] > number[a]:
            b = idom[b]
    return a


def _spans(idom: Sequence[int | None]) -> list[tuple[int, int]]:
    """For every block, the half-open range of places that it and what it dominates have in a walk of the dominator tree."""
    children: list[list[int]] = [[] for _ in idom]
    for b, d in enumerate(idom):
        if d is not None:
            children[d].append(b)
    spans = [(-1, -1)] * len(idom)
    clock, stack = 0, [(0, False)]
    while stack:
        b, leaving = stack.pop()
        if leaving:
            spans[b] = (spans[b][0], clock)
            continue
        spans[b] = (clock, clock)
        clock += 1
        stack.append((b, True))
        stack.extend((c, False) for c in children[b])
    return spans


def _loops(pred: Graph, number: dict[int, int], retreating: Sequence[tuple[int, int]]) -> tuple[Loop, ...]:
    """Outer loops first. The result ends at the first loop that is nested too deep: the verifier rejects a kernel with such a loop."""
    tails: dict[int, list[int]] = {}
    for a, head in retreating:
        tails.setdefault(head, []).append(a)
    loops: list[Loop] = []
    depth: dict[int, int] = {}  # of the innermost loop so far that a block is in
    for head in sorted(tails, key=number.__getitem__):
        inside = {head}
        todo = list(tails[head])
        while todo:
            b = todo.pop()
            if b not in inside:
                inside.add(b)
                todo.extend(p for p in pred[b] if p in number)
        loops.append(Loop(head, frozenset(inside), 1 + depth.get(head, 0)))
        if loops[-1].depth > KERNEL_LIMITS.loop_depth_max:
            break
        depth.update(dict.fromkeys(inside, loops[-1].depth))
    return tuple(loops)


def is_ordered(flow: Flow) -> bool:
    """Whether blocks are numbered so that threads of a warp reconverge: only edges to the head of an own loop lead backwards, and a loop's
    blocks are neighbours, its head the first."""
    heads = {(b, loop.head) for loop in flow.loops for b in loop.blocks}
    forward = all(a < b or (a, b) in heads for a in flow.order for b in flow.succ[a])
    return forward and all(min(x.blocks) == x.head and max(x.blocks) - x.head == len(x.blocks) - 1 for x in flow.loops)


def mask_of(registers: Sequence[int]) -> int:
    """A set of registers as the bits of a number."""
    mask = 0
    for r in registers:
        mask |= 1 << r
    return mask


def definitely_assigned(blocks: Sequence[Block], flow: Flow, n_regs: int, given: Sequence[int] = ()) -> list[int]:
    """For every block, the registers (as bits) that every path from the start has written before it; ``given`` are written at the start."""
    everything, start = (1 << n_regs) - 1, mask_of(given)
    writes = [mask_of([r for op in block.code for r in op.outs]) for block in blocks]
    for b, block in enumerate(blocks):
        outs = getattr(block.end, "outs", ())  # a call's results
        writes[b] |= mask_of(outs)
    reached = set(flow.order)
    before = [everything] * len(blocks)
    before[0] = start
    changed = True
    while changed:
        changed = False
        for b in flow.order[1:]:  # threads start at block 0 with nothing else
            value = everything
            for p in flow.pred[b]:
                if p in reached:
                    value &= before[p] | writes[p]
            if value != before[b]:
                before[b] = value
                changed = True
    return before


def live_before(blocks: Sequence[Block], order: Sequence[int]) -> list[int]:
    """For every block in ``order`` (all that are reachable; reverse postorder is quickest), without a call, the registers (as bits) whose
    values some path from its start reads."""
    reads, writes = [], []
    for block in blocks:
        read = written = 0
        for op in block.code:
            read |= mask_of(op.ins) & ~written
            written |= mask_of(op.outs)
        reads.append(read | mask_of(terminator_reads(block.end)) & ~written)
        writes.append(written)
    succ = [successors(block.end) for block in blocks]
    before = reads.copy()
    changed = True
    while changed:
        changed = False
        for b in reversed(order):
            after = 0
            for c in succ[b]:
                after |= before[c]
            value = reads[b] | after & ~writes[b]
            if value != before[b]:
                before[b] = value
                changed = True
    return before
