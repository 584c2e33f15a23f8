"""Control flow of a kernel: reachability, dominators both ways, reducibility, and which registers may differ between threads.

Works on block numbers and successor lists whose references exist. May live here: graph analyses. May not: types, reporting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wis.kernel.model import Access, BufferParam, Cbr, Kernel, Ret, Space, Special, successors
from wis.kernel.ops import BY_CODE, Sig

__all__ = ["Flow", "analyse", "definitely_assigned", "Uniformity", "uniformity"]

Graph = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Flow:
    """What the graph says. ``ipdom[b]``: the block where all paths from b meet again; None when that is only the end of the thread."""

    succ: tuple[tuple[int, ...], ...]
    pred: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]  # reachable blocks in reverse postorder
    idom: tuple[int | None, ...]
    ipdom: tuple[int | None, ...]
    endless: frozenset[int]  # reachable blocks from which no thread can end
    irreducible: tuple[tuple[int, int], ...]  # edges that enter a loop beside its head


def analyse(kernel: Kernel) -> Flow:
    """All analyses of the graph of ``kernel``, whose branch targets exist."""
    n = len(kernel.blocks)
    succ = tuple(successors(block.end) for block in kernel.blocks)
    pred = _reverse(succ)
    order = _reverse_postorder(succ, 0)
    idom = _dominators(succ, pred, order)
    # Backwards, with one more node that every returning block leads to.
    back_succ = [list(p) for p in pred] + [[b for b, block in enumerate(kernel.blocks) if isinstance(block.end, Ret)]]
    back_order = _reverse_postorder(back_succ, n)
    back_idom = _dominators(back_succ, _reverse(back_succ), back_order)
    number = {b: i for i, b in enumerate(order)}
    # A retreating edge must lead to a dominator: the head of its loop.
    irreducible = tuple((a, b) for a in order for b in succ[a] if number[b] <= number[a] and not _dominates(idom, b, a))
    return Flow(
        succ,
        pred,
        tuple(order),
        tuple(idom),
        tuple(None if d == n else d for d in back_idom[:n]),
        frozenset(set(order) - set(back_order)),
        irreducible,
    )


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


def _dominates(idom: Sequence[int | None], a: int, b: int) -> bool:
    node: int | None = b
    while node is not None:
        if node == a:
            return True
        node = idom[node]
    return False


def definitely_assigned(kernel: Kernel, flow: Flow) -> list[set[int]]:
    """For every block, the registers that every path from the start has written before it."""
    everything = set(range(len(kernel.regs)))
    reached = set(flow.order)
    writes = [{r for op in block.code for r in op.outs} for block in kernel.blocks]
    before: list[set[int]] = [set(everything) for _ in kernel.blocks]
    before[0] = set()
    changed = True
    while changed:
        changed = False
        for b in flow.order:
            sources = [before[p] | writes[p] for p in flow.pred[b] if p in reached]
            value = set.intersection(*sources) if b != 0 else set()  # threads start at block 0 with nothing
            if value != before[b]:
                before[b] = value
                changed = True
    return before


@dataclass(frozen=True, slots=True)
class Uniformity:
    """What may differ between the threads of a block.

    ``varying[b]``: registers that may differ when block b of the code starts; ``divergent``: blocks of code that only some threads may be
    in; ``split``: blocks whose branch may send threads both ways.
    """

    varying: tuple[frozenset[int], ...]
    divergent: frozenset[int]
    split: frozenset[int]


_VARYING_SPECIALS = frozenset({Special.TID_X, Special.TID_Y, Special.TID_Z, Special.LANE})


def uniformity(kernel: Kernel, flow: Flow) -> Uniformity:
    """A sound approximation, to a fixed point.

    Sources are thread numbers and loads that another thread could have changed. A branch on a varying register makes everything from it to
    its meeting point divergent, and what is written there varying (so also what threads carry out of a loop they leave at different times).
    """
    entry: list[set[int]] = [set() for _ in kernel.blocks]
    divergent: set[int] = set()
    split: set[int] = set()
    changed = True
    while changed:
        changed = False
        for b in flow.order:
            state = set(entry[b])
            for op in kernel.blocks[b].code:
                differs = b in divergent or _spreads(kernel, op.op, op.attrs) or not state.isdisjoint(op.ins)
                state = state | set(op.outs) if differs else state - set(op.outs)
            end = kernel.blocks[b].end
            if isinstance(end, Cbr) and b not in split and end.pred in state:
                split.add(b)
                divergent |= _until(flow, b)
                changed = True
            for c in flow.succ[b]:
                if not state <= entry[c]:
                    entry[c] |= state
                    changed = True
    return Uniformity(tuple(frozenset(s) for s in entry), frozenset(divergent), frozenset(split))


def _spreads(kernel: Kernel, code: int, attrs: tuple[int, ...]) -> bool:
    """Whether an op gives different threads different values out of equal operands."""
    op = BY_CODE[code]
    if op.sig is Sig.SPECIAL:
        return attrs[0] in _VARYING_SPECIALS
    if op.sig is Sig.LOAD:
        if attrs[0] != Space.GLOBAL:
            return True
        param = kernel.params[attrs[1]]
        return not (isinstance(param, BufferParam) and param.access == Access.READ)
    return False


def _until(flow: Flow, branch: int) -> set[int]:
    """Blocks on paths from ``branch`` before its meeting point."""
    stop = flow.ipdom[branch]
    region: set[int] = set()
    todo = [b for b in flow.succ[branch] if b != stop]
    while todo:
        b = todo.pop()
        if b not in region:
            region.add(b)
            todo += [c for c in flow.succ[b] if c != stop]
    return region
