"""Any control flow keeps its meaning, and its blocks get an order in which threads of a warp reconverge."""

from __future__ import annotations

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.ptx_snippets import kernel_of, run
from wis.kernel.model import Kernel, successors

_STEPS = 24  # blocks a thread goes through before it leaves

Graph = list[tuple[int, int, int]]
"""For every block: the bit of the accumulator that decides, and where it leads when it is set and when not."""

_GRAPHS = st.integers(2, 9).flatmap(
    lambda n: st.lists(st.tuples(st.integers(0, 7), st.integers(0, n - 1), st.integers(0, n - 1)), min_size=n, max_size=n)
)


def _ptx(graph: Graph) -> str:
    """Blocks that mix their number into ``v`` and jump; every thread starts with its own ``v`` in block 0."""
    blocks = [
        f"B{i}: mad.lo.u32 v, v, 5, {i + 1}; add.u32 n, n, 1; setp.ge.u32 p, n, {_STEPS}; @p bra E;"
        f" bfe.u32 w, v, {bit}, 1; setp.ne.u32 p, w, 0; @p bra B{yes}; bra B{no};"
        for i, (bit, yes, no) in enumerate(graph)
    ]
    return f""".visible .entry k(.param .u64 o) {{ .reg .pred p; .reg .b32 t, v, w, n; .reg .b64 out, at, off;
        ld.param.u64 out, [o]; cvta.to.global.u64 out, out; mov.u32 t, %tid.x; mul.wide.u32 off, t, 4; add.s64 at, out, off;
        mov.u32 v, t; mov.u32 n, 0;
        {" ".join(blocks)}
        E: st.global.u32 [at], v; ret; }}"""


def _walked(graph: Graph, v: int) -> int:
    at = 0
    for _ in range(_STEPS):
        v = (v * 5 + at + 1) % 2**32
        bit, yes, no = graph[at]
        at = yes if v >> bit & 1 else no
    return v


def _loops(kernel: Kernel) -> dict[int, set[int]]:
    """By head, the blocks that reach an edge back to it without passing it."""
    sources: dict[int, list[int]] = {}
    for b, block in enumerate(kernel.blocks):
        for target in successors(block.end):
            sources.setdefault(target, []).append(b)
    found: dict[int, set[int]] = {}
    for b, block in enumerate(kernel.blocks):
        for head in successors(block.end):
            if head <= b:
                body, todo = found.setdefault(head, {head}), [b]
                while todo:
                    at = todo.pop()
                    if at not in body:
                        body.add(at)
                        todo += sources[at]
    return found


@settings(max_examples=100, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(_GRAPHS)
def test_any_graph_keeps_its_meaning_and_order(graph: Graph) -> None:
    verified = kernel_of(_ptx(graph))
    (out,), trap = run(verified, [np.zeros(8, np.uint32)], block=8)
    assert (list(out), trap) == ([_walked(graph, v) for v in range(8)], None)
    assert verified.ordered
    for head, body in _loops(verified.kernel).items():  # reducible and side by side, head first
        assert (min(body), max(body)) == (head, head + len(body) - 1)
