"""Element by element: copies, scalings, transposes, gathers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from tests.golden.cuda.case import Given, case
from tests.golden.cuda.cases.draw import Rng, f32, f64, integers


@case("streaming/vadd", grid=8, block=128)
def vadd(rng: Rng) -> Given:
    a, b = f32(rng, 1000), f32(rng, 1000)
    return Given((a, b, np.zeros(1000, np.float32), np.int32(1000)), {2: a + b})


@case("streaming/saxpy", grid=3, block=96)
def saxpy(rng: Rng) -> Given:
    x, y = f32(rng, 1001), f32(rng, 1001)
    return Given((np.int32(1001), np.float32(2.7), x, y), {3: np.float32(2.7) * x + y})


@case("streaming/triad_f64", grid=5, block=64)
def triad_f64(rng: Rng) -> Given:
    b, c, s = f64(rng, 300), f64(rng, 300), 1.0 / 3.0
    answer = [float(Fraction(s) * Fraction(y) + Fraction(x)) for x, y in zip(b, c, strict=True)]
    return Given((np.zeros(300), b, c, np.float64(s), np.uint32(300)), {0: np.array(answer)})


@case("streaming/float4_scale", grid=4, block=64)
def float4_scale(rng: Rng) -> Given:
    x, scale, bias = f32(rng, 250, 4), f32(rng, 4), f32(rng, 4)
    return Given((x, np.zeros_like(x), scale.tobytes(), bias.tobytes(), np.int32(250)), {1: x * scale + bias})


@case("streaming/int2_swap", grid=3, block=100)
def int2_swap(rng: Rng) -> Given:
    pairs = integers(rng, np.int32, 257, 2)
    return Given((pairs, np.int64(257)), {0: np.sort(pairs, axis=1)})


@case("streaming/transpose_naive", grid=(4, 5), block=(16, 8))
def transpose_naive(rng: Rng) -> Given:
    x = integers(rng, np.int32, 37, 53)
    return Given((x, np.zeros((53, 37), np.int32), np.int32(37), np.int32(53)), {1: x.T})


@case("streaming/transpose_tiled", grid=(3, 2), block=(32, 8))
def transpose_tiled(rng: Rng) -> Given:
    x = f32(rng, 45, 70)
    return Given((x, np.zeros((70, 45), np.float32), np.int32(45), np.int32(70)), {1: x.T})


@case("streaming/gather_scatter", grid=4, block=128)
def gather_scatter(rng: Rng) -> Given:
    n, x = 500, integers(rng, np.int32, 90)
    source, to = integers(rng, np.int16, n, low=-5, high=90), rng.permutation(n).astype(np.uint16)
    answer = np.empty(n, np.int32)
    answer[to] = np.where(source < 0, -1, x[source])
    return Given((x, source, to, np.zeros(n, np.int32), np.int32(n)), {3: answer})


@case("streaming/rgb_to_gray", grid=3, block=128)
def rgb_to_gray(rng: Rng) -> Given:
    rgb = integers(rng, np.uint8, 333, 3)
    gray = (rgb.astype(np.int64) @ np.array([77, 150, 29]) + 128) // 256
    return Given((rgb, np.zeros(333, np.uint8), np.int32(333)), {1: gray.astype(np.uint8)})


@case("streaming/complex_multiply", grid=1, block=64)
def complex_multiply(rng: Rng) -> Given:
    a, b = f32(rng, 150, 2), f32(rng, 150, 2)
    real, imaginary = a[:, 0] * b[:, 0] - a[:, 1] * b[:, 1], a[:, 0] * b[:, 1] + a[:, 1] * b[:, 0]
    assert math.isfinite(real.sum())
    return Given((a, b, np.zeros_like(a), np.int32(150)), {2: np.stack([real, imaginary], 1)})
