"""What the language offers: functions, structs, templates, variables of the module, pointers chosen at run time, named barriers."""

from __future__ import annotations

import struct
from itertools import product

import numpy as np

from tests.golden.cuda.case import Array, Given, case
from tests.golden.cuda.cases.draw import Rng, f32, f64, integers


@case("language/noinline_calls", grid=2, block=64)
def noinline_calls(rng: Rng) -> Given:
    n, x = 100, f32(rng, 103)
    v = integers(rng, np.int32, n, low=-(10**6), high=10**6)
    sums = np.zeros((n, 3), np.int64)
    for d in range(1, 6):
        rest = np.fmod(v, d)
        sums += np.stack([(v - rest) // d, rest, rest == 0], 1)
    s = np.zeros(n, np.float32)
    for k in range(4):
        s = s + x[k : k + n]
    args = (v, x, np.zeros((n, 3), np.int32), np.zeros(n, np.float32), np.int32(n))
    return Given(args, {2: sums.astype(np.int32), 3: s / np.float32(4)})


@case("language/jump_table", grid=3, block=64)
def jump_table(rng: Rng) -> Given:
    n = 180
    ops, a, b = integers(rng, np.uint8, n, low=0, high=16), integers(rng, np.int32, n), integers(rng, np.int32, n, low=-40, high=40)
    answer = []
    for op, x, y in zip(ops.tolist(), a.tolist(), b.tolist(), strict=True):
        quotient = abs(x) // abs(y) * (1 if x * y > 0 else -1) if y else -1
        simple = [x + y, x - y, x * y, quotient, x & y, x | y, x ^ y, x << (y & 31), x >> (y & 31), min(-x, y), min(x, y), max(x, y), ~x]
        answer.append(simple[op] if op < 13 else 12345)
    wrapped = np.array([v & 2**32 - 1 for v in answer], np.uint32).view(np.int32)
    return Given((ops, a, b, np.zeros(n, np.int32), np.int32(n)), {3: wrapped})


@case("language/struct_by_value", grid=2, block=64)
def struct_by_value(rng: Rng) -> Given:
    n, ranges, weights = 110, [(-50, 20), (0, 90), (15, 16)], f32(rng, 5)
    settings = struct.pack("<b7xd6h5fB7x", -3, 1.0 / 3.0, *sum(ranges, ()), *weights, 200)
    assert len(settings) == 56
    v = integers(rng, np.int32, n, low=-100, high=100)
    hits = sum(((v >= lo) & (v <= hi)).astype(int) for lo, hi in ranges)
    answer = (1.0 / 3.0) * weights[v.view(np.uint32) % 5].astype(np.float64) + hits * 100 + -3 * 1000 + 200
    return Given((settings, v, np.zeros(n), np.int32(n)), {2: answer})


@case("language/templates:sum of long", kernel="fold<long long, 128, Plus>", grid=3, block=128)
def templates_sum(rng: Rng) -> Given:
    x = integers(rng, np.int64, 3, 128)
    return Given((x, np.zeros(3, np.int64)), {1: x.sum(1)})


@case("language/templates:larger float", kernel="fold<float, 64, Larger>", grid=4, block=64)
def templates_larger(rng: Rng) -> Given:
    x = f32(rng, 4, 64)
    return Given((x, np.zeros(4, np.float32)), {1: x.max(1)})


@case("language/device_variables", grid=1, block=64)
def device_variables(rng: Rng) -> Given:
    n, x = 50, integers(rng, np.int32, 50, low=-30, high=30)
    v = (x + np.tile([10, 20, 30, 40], 13)[:n]).astype(np.int32)
    results = np.concatenate([v * np.float32(0.5), np.zeros(14)]).astype(np.float32)
    visits = np.array([100 + (v > 25).sum()], np.uint32)
    return Given((x, np.zeros(n, np.int32), np.int32(n)), {1: v, "results": results, "visits": visits})


@case("language/dynamic_shared", grid=2, block=96, shared=96 * 13)
def dynamic_shared(rng: Rng) -> Given:
    x = f32(rng, 2, 96)
    values = x + np.tile(np.arange(4, dtype=np.float32) * np.float32(0.25), 24)
    sums = np.roll(values, -1, 1).astype(np.float64) + np.where(np.roll(values, -2, 1) > 0, 1.0, -1.0)
    return Given((x, np.zeros((2, 96)), np.int32(96)), {1: sums[:, ::-1]})


@case("language/early_return", grid=3, block=128)
def early_return(rng: Rng) -> Given:
    n, x = 330, integers(rng, np.int32, 330, low=-20, high=100)
    answer = np.zeros(n, np.int32)
    padded = np.concatenate([x, np.full(54, -1, np.int32)]).reshape(3, 128)
    t = np.arange(128)
    for b, v in enumerate(padded):
        s = np.where(v >= 0, v, 0)
        stays = (v >= 0) & (t % 3 != 0)
        s = np.where(stays, s + s[::-1], s)
        out = s + s[(t + 3) & 127]
        places = b * 128 + t[stays]
        answer[places] = out[stays]
    return Given((x, np.zeros(n, np.int32), np.int32(n)), {1: answer})


@case("language/grid_3d", grid=(3, 2, 2), block=(5, 4, 3))
def grid_3d(rng: Rng) -> Given:
    answer = []
    for bz, by, bx in product(range(2), range(2), range(3)):
        for thread, (tz, ty, tx) in enumerate(product(range(3), range(4), range(5))):
            answer.append((bx | by << 3 | bz << 6 | tx << 9 | ty << 13 | tz << 17, thread % 32 | thread // 32 << 8 | 2 << 16 | 3 << 24))
    return Given((np.zeros((720, 2), np.uint32),), {0: np.array(answer, np.uint32)})


@case("language/small_types", grid=2, block=64)
def small_types(rng: Rng) -> Given:
    n, v = 100, integers(rng, np.int8, 100)
    a, b, c, d, e, f, g = -77, 201, -3000, 51000, True, -7, -(2**40)
    wide, unsigned = v.astype(np.int64), v.view(np.uint8).astype(np.int64)
    s, u = (wide * c).astype(np.int16).astype(np.int64), (unsigned * d).astype(np.uint16).astype(np.int64)
    narrow = ((wide + a).astype(np.uint8) >> 1) ^ ((unsigned + b).astype(np.int8) >> 1).view(np.uint8)
    scalars = (np.int8(a), np.uint8(b), np.int16(c), np.uint16(d), np.bool_(e), np.int8(f), np.int64(g))
    return Given((*scalars, v, np.zeros(n, np.int64), np.zeros(n, np.uint8), np.int32(n)), {8: a + b + s + u + e + f + g, 9: narrow})


def _determinant(matrix: Array) -> float:
    m, det = [[float(v) for v in row] for row in matrix], 1.0
    for k in range(4):
        pivot = max(range(k, 4), key=lambda r: abs(m[r][k]))
        if m[pivot][k] == 0.0:
            return 0.0
        if pivot != k:
            det, m[k], m[pivot] = -det, m[pivot], m[k]
        det *= m[k][k]
        for r in range(k + 1, 4):
            f = m[r][k] / m[k][k]
            m[r] = [*m[r][:k], *(m[r][c] - f * m[k][c] for c in range(k, 4))]
    return det


@case("language/local_matrix", grid=2, block=32)
def local_matrix(rng: Rng) -> Given:
    x = f64(rng, 45, 4, 4)
    x[3, 2], x[7, :, 1] = x[3, 0], 0.0
    answer = np.array([_determinant(m) for m in x])
    return Given((x, np.zeros(45), np.int32(45)), {1: answer})


@case("language/chosen_buffer", grid=1, block=64)
def chosen_buffer(rng: Rng) -> Given:
    n, a, b = 60, integers(rng, np.int32, 60, low=-999, high=999), integers(rng, np.int32, 60, low=-999, high=999)
    t, s = np.arange(n), np.arange(n, dtype=np.int32) + 1000
    following = (t + 1) % n
    source = np.where(t % 5 == 0, s, np.where(t % 2 == 1, a, b))
    value = source + np.choose(t % 3, [a[following], b[following], s[following]])
    out, other = np.where(t % 3 != 0, value, 0), np.where(t % 3 == 0, value, 0)
    args = (a, b, np.zeros(n, np.int32), np.zeros(n, np.int32), np.int32(n))
    return Given(args, {2: out.astype(np.int32), 3: other.astype(np.int32)})


@case("language/named_barriers", grid=1, block=64)
def named_barriers(rng: Rng) -> Given:
    x = integers(rng, np.int32, 7, 32, low=-(10**8), high=10**8)
    return Given((x, np.zeros_like(x), np.int32(7)), {1: x[:, ::-1] * 3})
