"""Semantics of ops between the lanes of a warp. A lane takes part when it executes the op with the others (``Lanes``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from wis.kernel.interpret.atomics import FOLDS
from wis.kernel.interpret.scalar import Array
from wis.kernel.model import WARP, Atomic, Shuffle, Vote
from wis.kernel.ops import Sig

__all__ = ["FUNCTIONS", "Lanes"]


class Lanes:
    """Threads in order, each with its warp's number and its lane. A *table* has a row for every warp and a column for every lane."""

    def __init__(self, warp: Array, lane: Array) -> None:
        self.lane = lane
        self.row = np.cumsum(np.diff(warp, prepend=-1) != 0) - 1
        self.rows = int(self.row[-1]) + 1 if len(warp) else 0
        self.there = self.bits(np.ones(len(warp), np.bool_))

    def table(self, values: Array) -> Array:
        """``values`` of the threads by warp and lane, zeros for lanes that are not there."""
        result = np.zeros((self.rows, WARP), values.dtype)
        result[self.row, self.lane] = values
        return result

    def bits(self, flags: Array) -> Array:
        """For every thread, the u32 whose bit l is lane l's flag."""
        return np.asarray(_packed(self.table(flags))[self.row])

    def members(self, mask: Array) -> Array:
        """Bit l: lane l is there and in the thread's own mask."""
        return np.asarray(self.there & mask.view(np.uint32))


def _packed(flags: Array) -> Array:
    """A row of 32 flags as the bits of a u32."""
    return np.packbits(flags, axis=1, bitorder="little").view("<u4").reshape(-1).astype(np.uint32)


def _signless(bits: Array) -> Array:
    return np.asarray(bits, np.uint32).view(np.int32)


def _shfl(lanes: Lanes, attrs: tuple[int, ...], ins: Sequence[Array]) -> list[Array]:
    value, b, c, _ = ins
    lane, by, clamp, segment = lanes.lane, (b & 31).astype(np.int64), (c & 31).astype(np.int64), (c >> 8 & 31).astype(np.int64)
    least, most = lane & segment, (lane & segment) | (clamp & ~segment)
    if attrs[0] == Shuffle.UP:
        source, inside = lane - by, lane - by >= most
    else:
        source = {Shuffle.DOWN: lane + by, Shuffle.BFLY: lane ^ by, Shuffle.IDX: least | (by & ~segment)}[Shuffle(attrs[0])]
        inside = source <= most
    source = np.where(inside, source, lane) & 31
    inside &= (lanes.there >> source.astype(np.uint32) & 1) != 0
    return [np.where(inside, lanes.table(value)[lanes.row, source], value), inside]


def _vote(lanes: Lanes, attrs: tuple[int, ...], ins: Sequence[Array]) -> list[Array]:
    members = lanes.members(ins[1])
    holds = lanes.bits(ins[0]) & members
    if attrs[0] == Vote.ANY:
        return [holds != 0]
    return [holds == members] if attrs[0] == Vote.ALL else [(holds == members) | (holds == 0)]


def _ballot(lanes: Lanes, attrs: tuple[int, ...], ins: Sequence[Array]) -> list[Array]:
    return [_signless(lanes.bits(ins[0]) & lanes.members(ins[1]))]


def _match_any(lanes: Lanes, attrs: tuple[int, ...], ins: Sequence[Array]) -> list[Array]:
    value, mask = ins
    members, table = lanes.members(mask), lanes.table(value)
    return [_signless(_packed(table[lanes.row] == value[:, None]) & members)]


def _match_all(lanes: Lanes, attrs: tuple[int, ...], ins: Sequence[Array]) -> list[Array]:
    """Whether *members* have one value: the thread itself need not be one, so its own value does not count."""
    members, table = lanes.members(ins[1]), lanes.table(ins[0])[lanes.row]
    lowest = np.log2((members & (~members + np.uint32(1))).astype(np.float64), where=members != 0, out=np.zeros(len(members)))
    wanted = np.take_along_axis(table, lowest.astype(np.int64)[:, None], axis=1)
    same = _packed(table == wanted) & members == members
    return [_signless(np.where(same, members, np.uint32(0))), same]


def _activemask(lanes: Lanes, attrs: tuple[int, ...], ins: Sequence[Array]) -> list[Array]:
    return [_signless(lanes.there)]


def _redux(lanes: Lanes, attrs: tuple[int, ...], ins: Sequence[Array]) -> list[Array]:
    """With no member: the value that changes nothing."""
    function, signed = Atomic(attrs[0]), bool(attrs[1])
    kind = np.dtype(np.int32 if signed else np.uint32)
    info = np.iinfo(kind)
    neutral = {Atomic.MIN: info.max, Atomic.MAX: info.min, Atomic.AND: -1 if signed else info.max}.get(function, 0)
    table, members = lanes.table(ins[0].view(kind))[lanes.row], lanes.members(ins[1])
    chosen = (members[:, None] >> np.arange(WARP, dtype=np.uint32) & 1) != 0
    folded = FOLDS[function].reduce(np.where(chosen, table, kind.type(neutral)), axis=1, dtype=kind)
    return [np.asarray(folded).view(np.int32)]


FUNCTIONS: Final[dict[Sig, Callable[[Lanes, tuple[int, ...], Sequence[Array]], list[Array]]]] = {
    Sig.SHFL: _shfl,
    Sig.VOTE: _vote,
    Sig.BALLOT: _ballot,
    Sig.MATCH_ANY: _match_any,
    Sig.MATCH_ALL: _match_all,
    Sig.ACTIVEMASK: _activemask,
    Sig.REDUX: _redux,
}
