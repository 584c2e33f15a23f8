"""Ops by which the lanes of a warp see each other.

Formulas are those of the definition: what a lane gets follows from who is *there* (the warp's lanes that execute the op together, a mask),
which of them are *members* (in the lane's own mask too), and their values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jit.kernels.cfamily.language import REGISTER
from wis.kernel.model import Atomic, Kernel, Op, RegType, Shuffle, Vote
from wis.kernel.ops import BY_CODE, Sig

__all__ = ["MATRIX_SIGS", "WARP_SIGS", "asks_lanes", "source_lane", "vote", "folding", "kind_of"]

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
