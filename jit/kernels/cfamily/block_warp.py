"""Warp ops for a work-item that runs all threads of a block: a loop over warps, in it loops over lanes.

``act`` is the mask of the lanes that are there. What a lane gets is worked out for all of them before any gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jit.kernels.cfamily.helpers import INTEGER_HELPERS
from jit.kernels.cfamily.warp import folding, kind_of, source_lane, vote
from wis.kernel.model import Kernel, Op
from wis.kernel.ops import BY_CODE, Sig

__all__ = ["matrix_loop", "warp_loop"]

_LANES = "for (u32 l = 0; l < 32; l++) if (act >> l & 1)"


def warp_loop(kernel: Kernel, op: Op, value: Callable[[int, str], str], there: Sequence[str], lane: Sequence[str], warps: int) -> list[str]:
    """The statements. ``value(register, thread)``: a register of a thread; ``there``: statements that declare ``act`` of warp ``wp``, whose
    first thread is ``base``; ``lane``: what is declared for thread ``t``."""
    sig = BY_CODE[op.op].sig
    if sig is Sig.WARPSYNC:
        return []
    before, body, results = _lane(kernel, op, sig, value)
    kinds = [f"{kind} y{k}[32];" for k, (_, kind) in enumerate(results)]
    start = ["{ const u32 t = base + l;", *lane]
    asked = [_LANES, *start, before, "}"] if before else []
    keep = "".join(f"{value(r, 't')} = y{k}[l]; " for k, (r, _) in enumerate(results))
    return [
        f"for (u32 wp = 0; wp < {warps}u; wp++) {{ const u32 base = wp << 5;", *there, *kinds, "u32 h = 0;", *asked,
        _LANES, *start, body, "}", _LANES, f"{{ const u32 t = base + l; {keep}}}", "}",
    ]  # fmt: skip


def _lane(kernel: Kernel, op: Op, sig: Sig, value: Callable[[int, str], str]) -> tuple[str, str, list[tuple[int, str]]]:
    """What every lane adds to ``h`` first, how it sets ``y0[l]`` (and ``y1[l]``), and the registers and types of these."""
    x = [value(r, "t") for r in op.ins]
    match sig:
        case Sig.ACTIVEMASK:
            return "", "y0[l] = act;", [(op.outs[0], "u32")]
        case Sig.SHFL:
            lane = source_lane(op, "l", x[1], x[2])
            got = f"y0[l] = ok ? {value(op.ins[0], '(base + j)')} : {x[0]}; y1[l] = ok;"
            return "", f"{lane} ok = ok && (act >> j & 1); {got}", [(op.outs[0], kind_of(kernel, op)), (op.outs[1], "u8")]
        case Sig.VOTE:
            return f"h |= (u32){x[0]} << l;", f"const u32 m = {x[1]} & act, g = h & m; y0[l] = {vote(op, 'g', 'm')};", [(op.outs[0], "u8")]
        case Sig.BALLOT:
            return f"h |= (u32){x[0]} << l;", f"y0[l] = h & {x[1]} & act;", [(op.outs[0], "u32")]
    each = "for (u32 k = 0; k < 32; k++) if (m >> k & 1)"
    other = value(op.ins[0], "(base + k)")
    match sig:
        case Sig.MATCH_ANY:
            body = f"const u32 m = {x[1]} & act; u32 g = 0; {each} g |= (u32)({other} == {x[0]}) << k; y0[l] = g;"
            return "", body, [(op.outs[0], "u32")]
        case Sig.MATCH_ALL:
            first = value(op.ins[0], "(base + 31 - CLZ32(m & (0u - m)))")
            same = f"u32 g = 1; if (m) {{ const {kind_of(kernel, op)} v = {first}; {each} g &= {other} == v; }}"
            body = f"const u32 m = {x[1]} & act; {same} y0[l] = g ? m : 0; y1[l] = g;"
            return "", body, [(op.outs[0], "u32"), (op.outs[1], "u8")]
    begin, fold = folding(op)
    body = f"const u32 m = {x[1]} & act; u32 g = {begin}; {each} {{ const u32 v = {other}; g = {fold('g', 'v')}; }} y0[l] = g;"
    return "", body, [(op.outs[0], "u32")]


def matrix_loop(helper: str, op: Op, value: Callable[[int, str], str], there: Sequence[str], lane: Sequence[str], warps: int) -> list[str]:
    """The same of a product of matrices: ``helper`` takes all lanes' operands, one after the other, and changes the sums behind them."""
    first = len(op.ins) - len(op.outs)
    double = BY_CODE[op.op].sig is Sig.MMA_F64
    words, sums = ("f64", "f64") if double else ("u32", "u32" if helper in INTEGER_HELPERS else "f32")
    places = [f"x[{32 * i}u + l]" for i in range(first)] + [f"s[{32 * i}u + l]" for i in range(len(op.outs))]
    taken = "".join(f"{place} = {value(r, 't')}; " for place, r in zip(places, op.ins, strict=True))
    empty = "".join(f"{place} = 0; " for place in places)
    given = "".join(f"{value(r, 't')} = {place}; " for place, r in zip(places[first:], op.outs, strict=True))
    return [
        f"for (u32 wp = 0; wp < {warps}u; wp++) {{ const u32 base = wp << 5;", *there,
        f"{words} x[{32 * first}]; {sums} s[{32 * len(op.outs)}];",
        f"for (u32 l = 0; l < 32; l++) {{ {empty}}}", _LANES, "{ const u32 t = base + l;", *lane, taken, "}", f"{helper}(x, s);", _LANES,
        f"{{ const u32 t = base + l; {given}}}", "}",
    ]  # fmt: skip
