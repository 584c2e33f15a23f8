"""Warp ops for work-items that run one thread each, on devices with warps of 32: all lanes of a warp (mask ``wm``) run them together."""

from __future__ import annotations

from collections.abc import Callable

from jit.kernels.cfamily.warp import folding, kind_of, source_lane, vote
from wis.kernel.model import Kernel, Op
from wis.kernel.ops import BY_CODE, Sig

__all__ = ["lane_statement"]

_EACH = "for (u32 l = 0; l < 32; l++) if (wm >> l & 1)"


def lane_statement(kernel: Kernel, op: Op, register: Callable[[int], str]) -> str:
    """One warp op of the thread."""
    x, out = [register(r) for r in op.ins], [register(r) for r in op.outs]
    match BY_CODE[op.op].sig:
        case Sig.WARPSYNC:
            return "WARP_SYNC(wm);"
        case Sig.ACTIVEMASK:
            return f"{out[0]} = wm;"
        case Sig.SHFL:
            kind = kind_of(kernel, op)
            lane = source_lane(op, "(t & 31u)", x[1], x[2])
            return (
                f"{{ {lane} ok &= wm >> j; const {kind} v = WARP_SHFL(wm, {x[0]}, j); {out[0]} = ok & 1 ? v : {x[0]}; {out[1]} = ok & 1; }}"
            )
        case Sig.VOTE:
            return f"{{ const u32 m = {x[1]} & wm, h = WARP_BALLOT(wm, {x[0]}) & m; {out[0]} = {vote(op, 'h', 'm')}; }}"
        case Sig.BALLOT:
            return f"{out[0]} = WARP_BALLOT(wm, {x[0]}) & {x[1]} & wm;"
        case Sig.MATCH_ANY:
            return f"{{ u32 h = 0; {_EACH} h |= (u32)(WARP_SHFL(wm, {x[0]}, l) == {x[0]}) << l; {out[0]} = h & {x[1]}; }}"
        case Sig.MATCH_ALL:
            wanted = f"const {kind_of(kernel, op)} v = WARP_SHFL(wm, {x[0]}, m ? 31u - CLZ32(m & (0u - m)) : 0u);"
            every = f"u32 h = 0; {_EACH} h |= (u32)(WARP_SHFL(wm, {x[0]}, l) == v) << l;"
            return f"{{ const u32 m = {x[1]} & wm; {wanted} {every} h = (h & m) == m; {out[0]} = h ? m : 0u; {out[1]} = h; }}"
        case _:
            start, fold = folding(op)
            step = f"{{ const u32 v = WARP_SHFL(wm, {x[0]}, l); if (m >> l & 1) h = {fold('h', 'v')}; }}"
            return f"{{ const u32 m = {x[1]}; u32 h = {start}; {_EACH} {step} {out[0]} = h; }}"
