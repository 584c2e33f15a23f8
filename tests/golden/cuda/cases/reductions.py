"""Many values to one: sums, extremes, norms. Sums of floats follow the tree that the kernel's source prescribes, so they are exact."""

from __future__ import annotations

import numpy as np

from tests.golden.cuda.case import Array, Given, case
from tests.golden.cuda.cases.draw import Rng, f32, integers


def halved(x: Array) -> Array:
    """Sums along the last axis (a power of two long) by adding its upper half to its lower, again and again."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


@case("reductions/tree_sum", grid=7, block=256)
def tree_sum(rng: Rng) -> Given:
    x = f32(rng, 1700)
    padded = np.concatenate([x, np.zeros(7 * 256 - 1700, np.float32)])
    return Given((x, np.zeros(7, np.float32), np.int32(1700)), {1: halved(padded.reshape(7, 256))})


@case("reductions/shuffle_sum", grid=5, block=192)
def shuffle_sum(rng: Rng) -> Given:
    x = f32(rng, 900)
    warps = halved(np.concatenate([x, np.zeros(60, np.float32)]).reshape(5, 6, 32))
    return Given((x, np.zeros(5, np.float32), np.int32(900)), {1: halved(np.concatenate([warps, np.zeros((5, 26), np.float32)], 1))})


@case("reductions/argmax", grid=9, block=128)
def argmax(rng: Rng) -> Given:
    x = np.round(f32(rng, 9, 300) * 4)  # many equal values
    return Given((x, np.zeros(9, np.float32), np.zeros(9, np.int32), np.int32(300)), {1: x.max(1), 2: x.argmax(1).astype(np.int32)})


@case("reductions/minmax_atomic", grid=4, block=128)
def minmax_atomic(rng: Rng) -> Given:
    x = integers(rng, np.int32, 2000)
    lo, hi = np.array([2**31 - 1], np.int32), np.array([-(2**31)], np.int32)
    return Given((x, lo, hi, np.int32(2000)), {1: x.min(keepdims=True), 2: x.max(keepdims=True)})


@case("reductions/row_softmax", grid=6, block=128, rtol=1e-5)
def row_softmax(rng: Rng) -> Given:
    x = f32(rng, 6, 200) * 5
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return Given((x, np.zeros_like(x), np.int32(200)), {1: (e / e.sum(1, keepdims=True)).astype(np.float32)})


@case("reductions/layer_norm", grid=3, block=(32, 4), rtol=1e-4, atol=1e-5)
def layer_norm(rng: Rng) -> Given:
    x, gamma, beta = f32(rng, 12, 150) * 3 + 7, f32(rng, 150), f32(rng, 150)
    wide = x.astype(np.float64)
    y = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * gamma + beta
    return Given((x, gamma, beta, np.zeros_like(x), np.int32(150), np.float32(1e-5)), {3: y.astype(np.float32)})


@case("reductions/dot_f64", grid=3, block=128)
def dot_f64(rng: Rng) -> Given:
    a, b = integers(rng, np.int32, 1111, low=-1000, high=1000), integers(rng, np.int32, 1111, low=-1000, high=1000)
    answer = np.array([float(np.dot(a.astype(np.int64), b.astype(np.int64)))])
    return Given((a.astype(np.float64), b.astype(np.float64), np.zeros(1), np.int32(1111)), {2: answer})


@case("reductions/count_if", grid=6, block=160)
def count_if(rng: Rng) -> Given:
    n, lo, hi = 900, -50, 60
    x = integers(rng, np.int16, n, low=-300, high=300)
    x[160:320], x[320:480] = 5, 200
    blocks = [x[i : i + 160] for i in range(0, 960, 160)]
    inside = [(b >= lo) & (b < hi) for b in blocks]
    zeros = [np.zeros(6, np.int32) for _ in range(3)]
    expect = {3 + k: np.array([int(f(m)) for m in inside], np.int32) for k, f in enumerate((np.sum, np.any, np.all))}
    return Given((x, np.int32(lo), np.int32(hi), *zeros, np.int32(n)), dict(expect))
