"""Semantics of ops between threads: between the lanes of a warp, where a lane takes part when it executes the op with the others
(``Lanes``); and barriers of the blocks of a batch: which threads wait where, and when a barrier is complete.

They are judged when no thread of a block can run, so the outcome does not depend on an order. Barrier n, at which threads wait, is complete
- if the lowest of them gave no count: when all threads of the block that have not ended wait at n;
- if it gave a count: when so many have arrived at n, waiting or not, since it was last complete.
When none is, the block can never go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from wis.kernel.interpret.memory import FOLDS
from wis.kernel.interpret.scalar import Array
from wis.kernel.matrix import INTEGERS, SIGNED, a_lanes, b_lanes
from wis.kernel.model import WARP, Atomic, Matrix, Shuffle, Vote
from wis.kernel.ops import Sig
from wis.reference.numeric import fma

__all__ = ["FUNCTIONS", "Barriers", "Lanes"]


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


def _elements(words: Array, form: Matrix, signed: bool) -> Array:
    """The elements of a table of registers, in a last dimension; f32 or i32."""
    bits = np.ascontiguousarray(words).view(np.uint32)[..., None]
    if form in INTEGERS:
        return bits.view(np.int8 if signed else np.uint8).astype(np.int32)
    if form is Matrix.TF32:
        return (bits & np.uint32(0xFFFFE000)).view(np.float32)
    if form is Matrix.BF16:
        return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16).astype(np.float32)


def _product(lanes: Lanes, lefts: Sequence[Array], right: Array, sums: Sequence[Array]) -> list[Array]:
    """``lefts``, ``right``: tables of elements by warp, lane and place in the register; ``sums``: two for every one of ``lefts``."""
    tables = [lanes.table(c) for c in sums]
    for t in range(4):
        for at in range(right.shape[-1]):
            for place in range(len(sums)):
                x = lefts[place // 2][:, a_lanes(t), at]
                y = right[:, b_lanes(t, place % 2), at]
                table = tables[place]
                with np.errstate(all="ignore"):
                    tables[place] = table + x * y if table.dtype == np.int32 else fma(x, y, table)
    return [table[lanes.row, lanes.lane] for table in tables]


def _mma(lanes: Lanes, attrs: tuple[int, ...], ins: Sequence[Array]) -> list[Array]:
    form = Matrix(attrs[0])
    a_signed, b_signed = SIGNED.get(form, (False, False))
    lefts = [_elements(lanes.table(a), form, a_signed) for a in ins[:2]]
    return _product(lanes, lefts, _elements(lanes.table(ins[2]), form, b_signed), ins[3:])


def _mma_f64(lanes: Lanes, attrs: tuple[int, ...], ins: Sequence[Array]) -> list[Array]:
    return _product(lanes, [lanes.table(ins[0])[..., None]], lanes.table(ins[1])[..., None], ins[2:])


FUNCTIONS: Final[dict[Sig, Callable[[Lanes, tuple[int, ...], Sequence[Array]], list[Array]]]] = {
    Sig.SHFL: _shfl,
    Sig.VOTE: _vote,
    Sig.BALLOT: _ballot,
    Sig.MATCH_ANY: _match_any,
    Sig.MATCH_ALL: _match_all,
    Sig.ACTIVEMASK: _activemask,
    Sig.REDUX: _redux,
    Sig.MMA: _mma,
    Sig.MMA_F64: _mma_f64,
}


BARRIERS: Final = 16


class Barriers:
    """``number``: the barrier that each thread waits at, or -1; ``count``: what it gave, or -1 for all."""

    def __init__(self, blocks: int, threads: int) -> None:
        self._blocks, self._threads = blocks, threads
        self._number = np.full((blocks, threads), -1, np.int8)
        self._count = np.full((blocks, threads), -1, np.int64)
        self._counted = np.zeros((blocks, threads), np.bool_)
        self._arrivals = np.zeros((blocks, BARRIERS), np.int64)
        self.any_waiting = False

    def arrive(self, threads: Array, barrier: int, count: Array | None, *, wait: bool) -> None:
        """Threads (numbers in the batch) arrive at a barrier; ``count``: how many complete it, None: all."""
        np.add.at(self._arrivals.reshape(-1), threads // self._threads * BARRIERS + barrier, 1)
        if not wait:
            return
        self._number.reshape(-1)[threads] = barrier
        self._counted.reshape(-1)[threads] = count is not None
        if count is not None:
            self._count.reshape(-1)[threads] = count
        self.any_waiting = True

    def judge(self, idle: Array, ended: Array) -> tuple[Array, list[tuple[int, int]]]:
        """Threads that go on, and for every block that never can, its number and its lowest waiting thread.

        ``idle``: which threads of the batch wait or have ended; ``ended``: which have ended.
        """
        shape = (self._blocks, self._threads)
        waiting = self._number >= 0
        ready = np.flatnonzero(idle.reshape(shape).all(axis=1) & waiting.any(axis=1))
        free = np.zeros(shape, np.bool_)
        stuck: list[tuple[int, int]] = []
        number, alive = self._number[ready], ~ended.reshape(shape)[ready]
        # Almost always all threads wait at one barrier that takes all.
        first = number.max(axis=1, initial=-1)
        simple = ((number == first[:, None]) | ~alive).all(axis=1) & ~(self._counted[ready] & waiting[ready]).any(axis=1)
        free[ready[simple]] = waiting[ready[simple]]
        self._arrivals[ready[simple], first[simple]] = 0
        for local in ready[~simple].tolist():
            complete = self._complete(local, ~ended.reshape(shape)[local])
            if complete:
                free[local] = np.isin(self._number[local], complete)
                self._arrivals[local, complete] = 0
            else:
                stuck.append((local, int(np.flatnonzero(waiting[local])[0])))
                self._number[local] = -1
        self._number[free] = -1
        self.any_waiting = bool((self._number >= 0).any())
        return np.flatnonzero(free.reshape(-1)), stuck

    def _complete(self, local: int, alive: Array) -> list[int]:
        number = self._number[local]
        complete = []
        for n in np.unique(number[number >= 0]).tolist():
            lowest = int(np.flatnonzero(number == n)[0])
            if not self._counted[local, lowest]:
                done = bool((number[alive] == n).all())
            else:
                done = bool(self._arrivals[local, n] >= self._count[local, lowest])
            if done:
                complete.append(n)
        return complete
