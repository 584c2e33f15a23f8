"""Scheduling of divergent threads and barriers between them: text for the block form.

The threads at the least block of code go first. In kernels whose threads may wait for what others store, the least is that of each warp,
and warps take turns. Barriers are judged when no thread can run: one at which the lowest waiting thread gave no count is complete when all
threads that have not ended wait there; else when as many as that thread said have arrived since it was last complete. When none is, the
block of threads ends with a trap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jit.kernels.cfamily.memory import trap_code
from wis.kernel.model import Sync, TrapKind

if TYPE_CHECKING:
    from jit.kernels.cfamily.block_form import BlockForm

_BARRIERS = 16


def counts(form: BlockForm) -> bool:
    """Whether some barrier is given a number of threads."""
    return any(isinstance(block.end, Sync) and block.end.count >= 0 for block in form.kernel.blocks)


def barrier_arrays(form: BlockForm) -> list[tuple[str, str, int]]:
    """Type, name and length of what is remembered of waiting threads: where they go on; the count they gave, and whether they did."""
    arrays = [("u32", "to", form.threads)]
    return (
        [*arrays, ("u32", "many", form.threads), ("u8", "counted", form.threads), ("u32", "arrived", _BARRIERS)] if counts(form) else arrays
    )


def park(form: BlockForm, barrier: int, target: int, count: str, *, arrive: bool) -> str:
    """Thread ``t`` comes to a barrier. ``count``: how many complete it, "" for all."""
    if arrive:
        return f"arrived[{barrier}]++; pc[t] = {target}u;"
    text = f"pc[t] = {form.ended + 1 + barrier}u; to[t] = {target}u;"
    if counts(form):
        text += f" arrived[{barrier}]++; counted[t] = {int(bool(count))}; many[t] = {count or '0'};"
    return text


def schedule(form: BlockForm) -> list[str]:
    """From SCHED on: the next unit, the block where all have met, or the end."""
    cases = [f"case {b}u: goto S{b};" for b in sorted(form.units)]
    meets = sorted({m for b in form.parting() if (m := form.meet_of(b)) is not None})
    met = [f"case {m}u: goto B{m};" for m in meets]
    return [
        "SCHED:;",
        *([form.ask()] if form.polls else []),
        *(_fair(form) if form.regions.fair else _least(form)),
        f"if (cur < {form.ended}u) {{ switch (cur) {{", *cases, "default: goto DONE; } }",
        "switch (rc) {", *met, "default: break; }",
        *(_judge(form) if form.waits else []),
        "goto DONE;",
    ]  # fmt: skip


def _least(form: BlockForm) -> list[str]:
    each = f"for (u32 t = 0; t < {form.threads}u; t++)"
    return [f"cur = {form.ended}u;", f"{each} {{ const u32 v = pc[t] == rc ? {form.ended}u : pc[t]; cur = v < cur ? v : cur; }}"]


def _fair(form: BlockForm) -> list[str]:
    """``lw[w]``: the least block of warp w; ``last``: the block that ran last. The next greater one that is some warp's least follows."""
    ended, warps = form.ended, form.warps
    return [
        f"for (u32 i = 0; i < {warps}u; i++) lw[i] = {ended}u;",
        f"for (u32 t = 0; t < {form.threads}u; t++) if (pc[t] != rc && pc[t] < lw[t >> 5]) lw[t >> 5] = pc[t];",
        f"cur = {ended}u;",
        f"{{ u32 least = {ended}u; for (u32 i = 0; i < {warps}u; i++) {{ least = lw[i] < least ? lw[i] : least;",
        "if (lw[i] > last && lw[i] < cur) cur = lw[i]; }",
        f"if (cur == {ended}u) cur = least; last = cur; }}",
    ]


def _judge(form: BlockForm) -> list[str]:
    """No thread can run. ``low``: of each barrier the lowest waiting thread; ``done``: bits of the complete ones."""
    n, ended = form.threads, form.ended
    complete = "at[k] == alive"
    if counts(form):
        complete = f"counted[low[k]] ? (s64)arrived[k] >= (s64)(s32)many[low[k]] : {complete}"
    key = f"first << 19 | {trap_code(len(form.verified.sites), TrapKind.BARRIER)}u"
    return [
        f"{{ u32 low[{_BARRIERS}], at[{_BARRIERS}], alive = 0, done = 0, first = {n}u;",
        f"for (u32 k = 0; k < {_BARRIERS}; k++) {{ low[k] = 0; at[k] = 0; }}",
        f"for (u32 i = {n}u; i-- > 0;) {{ alive += pc[i] != {ended}u;",
        f"if (pc[i] > {ended}u) {{ const u32 k = pc[i] - {ended + 1}u; low[k] = i; at[k]++; first = i; }} }}",
        f"for (u32 k = 0; k < {_BARRIERS}; k++) if (at[k] && ({complete})) done |= 1u << k;",
        f"if (done) {{ for (u32 t = 0; t < {n}u; t++) if (pc[t] > {ended}u && (done >> (pc[t] - {ended + 1}u) & 1)) pc[t] = to[t];",
        *([f"for (u32 k = 0; k < {_BARRIERS}; k++) if (done >> k & 1) arrived[k] = 0;"] if counts(form) else []),
        "goto SCHED; }",
        f"if (first < {n}u) {{ const u32 code_ = {key}; tr = code_ < tr ? code_ : tr; }} }}",
    ]
