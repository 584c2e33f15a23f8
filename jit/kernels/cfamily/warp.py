"""Ops by which the lanes of a warp see each other.

Formulas are those of the definition: what a lane gets follows from who is *there* (the warp's lanes that execute the op together, a mask),
which of them are *members* (in the lane's own mask too), and their values. Where a work-item runs all threads of a block they become a loop
over warps, in it loops over lanes: ``act`` is the mask of the lanes that are there, and what a lane gets is worked out for all of them
before any gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from jit.kernels.cfamily.helpers import INTEGER_HELPERS
from jit.kernels.cfamily.language import REGISTER
from wis.kernel.model import Atomic, Kernel, Op, RegType, Shuffle, Vote
from wis.kernel.ops import BY_CODE, Sig

MATRIX_SIGS: Final = frozenset({Sig.MMA, Sig.MMA_F64})
WARP_SIGS: Final = MATRIX_SIGS | {
    Sig.SHFL, Sig.VOTE, Sig.BALLOT, Sig.MATCH_ANY, Sig.MATCH_ALL, Sig.ACTIVEMASK, Sig.REDUX, Sig.WARPSYNC,
}  # fmt: skip


def asks_lanes(kernel: Kernel) -> bool:
    """Whether lanes of a warp see, or wait for, each other."""
    return any(BY_CODE[op.op].sig in WARP_SIGS for block in kernel.blocks for op in block.code)


def source_lane(op: Op, lane: str, b: str, c: str) -> str:
    """Statements that set ``j`` (the lane a shuffle reads, the lane's own when out of range) and ``ok`` (whether it was in range)."""
    mode = Shuffle(op.attrs[0])
    bounds = f"const u32 seg = {c} >> 8 & 31u, by = {b} & 31u, most = ({lane} & seg) | ({c} & 31u & ~seg);"
    j = {
        Shuffle.UP: f"{lane} - by", Shuffle.DOWN: f"{lane} + by", Shuffle.BFLY: f"{lane} ^ by",
        Shuffle.IDX: f"({lane} & seg) | (by & ~seg)",
    }[mode]  # fmt: skip
    inside = "(s32)j >= (s32)most" if mode is Shuffle.UP else "j <= most"
    return f"{bounds} u32 j = {j}; u32 ok = {inside}; j = ok ? j : {lane};"


def vote(op: Op, bits: str, members: str) -> str:
    """The answer to a vote: ``bits``: members whose predicate holds."""
    holds = {Vote.ANY: "{0} != 0", Vote.ALL: "{0} == {1}", Vote.UNI: "{0} == {1} || {0} == 0"}[Vote(op.attrs[0])]
    return holds.format(bits, members)


_FOLDS: Final = {
    Atomic.ADD: ("0u", "{0} + {1}"), Atomic.AND: ("~0u", "{0} & {1}"), Atomic.OR: ("0u", "{0} | {1}"), Atomic.XOR: ("0u", "{0} ^ {1}"),
}  # fmt: skip


def folding(op: Op) -> tuple[str, Callable[[str, str], str]]:
    """Of ``redux``: the value that changes nothing, and the fold of two values."""
    function, is_signed = Atomic(op.attrs[0]), bool(op.attrs[1])
    if function in _FOLDS:
        start, text = _FOLDS[function]
        return start, text.format
    cast, sign = "(s32)" if is_signed else "", "<" if function is Atomic.MIN else ">"
    least, most = ("0x80000000u", "0x7fffffffu") if is_signed else ("0u", "~0u")
    return most if function is Atomic.MIN else least, lambda a, b: f"{cast}{a} {sign} {cast}{b} ? {a} : {b}"


def kind_of(kernel: Kernel, op: Op) -> str:
    """The C type of the values that lanes exchange."""
    return REGISTER[RegType(kernel.regs[op.ins[0]])]


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
