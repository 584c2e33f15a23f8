"""Lanes of a warp among themselves."""

from __future__ import annotations

import numpy as np

from tests.golden.cuda.case import Array, Given, case
from tests.golden.cuda.cases.draw import Rng, integers


@case("warp/reduce_modes", grid=1, block=64)
def reduce_modes(rng: Rng) -> Given:
    x = integers(rng, np.int32, 64)
    answer = np.empty((64, 6), np.int32)
    for t in range(64):
        w, lane = t // 32 * 32, t % 32
        low8, low16, low4 = lane // 8 * 8, lane // 16 * 16, lane // 4 * 4
        answer[t] = [
            x[w + (t * 5 + 3) % 32],
            x[w + lane - 3] if lane >= 3 else x[t],
            x[w + lane + 2] if lane + 2 < low8 + 8 else x[t],
            x[w + low16 + (lane - low16 ^ 5)],
            x[w + low4 + (t + 40) % 4],
            x[w + lane - 7] if lane - 7 >= low16 else x[t],
        ]
    return Given((x, np.zeros_like(answer)), {1: answer})


@case("warp/ballot_compact", grid=4, block=96)
def ballot_compact(rng: Rng) -> Given:
    n, x = 350, integers(rng, np.int32, 350)
    odd = x[x % 2 != 0]
    kept = np.sort(np.concatenate([odd, np.zeros(n - len(odd), np.int32)]))
    return Given((x, np.zeros(n, np.int32), np.zeros(1, np.int32), np.int32(n)), {1: kept, 2: np.array([len(odd)], np.int32)}, {1: np.sort})


def _bits(flags: Array) -> int:
    return sum(1 << i for i, f in enumerate(flags) if f)


@case("warp/votes", grid=1, block=128)
def votes(rng: Rng) -> Given:
    x = integers(rng, np.int32, 4, 32, low=0, high=100)
    x[1], x[2] = np.maximum(x[1], 11), x[2] // 2 * 2
    x[3, :16], x[3, 16:] = np.minimum(x[3, :16], 95), np.minimum(x[3, 16:], 98)
    answer = np.empty((4, 32, 2), np.uint32)
    for w, v in enumerate(x):
        whole = int((v > 90).any()) | int((v > 10).all()) << 1 | int(len(set(v % 2)) == 1) << 2
        lower, upper = whole | int((v[:16] > 95).any()) << 3, whole | int((v[16:] < 99).all()) << 4
        above = _bits(v > 50)
        answer[w, :16] = lower, above ^ _bits(v[:16] % 3 == 0)
        answer[w, 16:] = upper, above ^ _bits(v[16:] % 5 == 0) << 16
    return Given((x, np.zeros_like(answer)), {1: answer})


@case("warp/match", grid=2, block=64)
def match(rng: Rng) -> Given:
    a, b = integers(rng, np.int32, 4, 32, low=0, high=5), integers(rng, np.int64, 4, 32, low=0, high=3) << 33
    a[2] = 7
    answer = np.zeros((4, 32, 4), np.uint32)
    for w in range(4):
        for lane in range(32):
            answer[w, lane, :2] = _bits(a[w] == a[w, lane]), _bits(b[w] == b[w, lane])
    answer[2, :, 2:] = 2**32 - 1, 1
    return Given((a, b, np.zeros_like(answer)), {2: answer})


@case("warp/redux", grid=2, block=64)
def redux(rng: Rng) -> Given:
    x = integers(rng, np.int32, 4, 32)
    u = x.view(np.uint32)
    folds = [
        x.sum(1, dtype=np.int32),
        x.min(1),
        u.max(1).view(np.int32),
        np.bitwise_and.reduce(x | 0x1248, 1),
        np.bitwise_or.reduce(x & 0x0F0F0F0F, 1),
        np.bitwise_xor.reduce(x, 1),
    ]
    answer = np.repeat(np.stack(folds, 1)[:, None], 32, 1)
    return Given((x, np.zeros_like(answer)), {1: answer})


@case("warp/bitonic_shuffle", grid=2, block=96)
def bitonic_shuffle(rng: Rng) -> Given:
    keys = integers(rng, np.uint32, 5, 32) % 20
    order = np.argsort(keys, axis=1, kind="stable")
    args = (keys, np.zeros_like(keys), np.zeros_like(keys), np.int32(5))
    return Given(args, {1: np.take_along_axis(keys, order, 1), 2: order.astype(np.uint32)})


@case("warp/leader_broadcast", grid=2, block=64)
def leader_broadcast(rng: Rng) -> Given:
    work = integers(rng, np.int32, 4, 32, low=-3, high=9)
    work[1] = -1
    busy = work >= 0
    order = np.where(busy, np.cumsum(busy, 1) - 1, -5).astype(np.int32)
    total = np.repeat(np.where(busy, work, 0).sum(1, keepdims=True), 32, 1).astype(np.int32)
    return Given((work, np.full((4, 32), -5, np.int32), np.zeros_like(total), np.int32(128)), {1: order, 2: total})


@case("warp/transpose_shuffle", grid=2, block=64)
def transpose_shuffle(rng: Rng) -> Given:
    x = integers(rng, np.uint32, 4, 32)
    bits = (x[:, :, None] >> np.arange(32, dtype=np.uint32) & 1).astype(np.uint64)
    answer = (bits.transpose(0, 2, 1) << np.arange(32, dtype=np.uint64)).sum(2).astype(np.uint32)
    return Given((x, np.zeros_like(x)), {1: answer})


@case("warp/partial_warps", grid=1, block=90)
def partial_warps(rng: Rng) -> Given:
    x, n = integers(rng, np.int32, 90), 75
    sizes = [32, 32, 11]
    answer, active = np.zeros(90, np.int32), np.zeros(90, np.uint32)
    for w, size in enumerate(sizes):
        active[w * 32 : w * 32 + size] = 2**size - 1
        v = x[w * 32 : w * 32 + size]
        for d in (16, 8, 4, 2, 1):
            other = np.arange(size) ^ d
            v = np.where(other < size, np.maximum(v, v[np.minimum(other, size - 1)]), v)
        answer[w * 32 : w * 32 + size] = v
    return Given((x, np.zeros_like(answer), np.zeros_like(active), np.int32(n)), {1: answer, 2: active})
