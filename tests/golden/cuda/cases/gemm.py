"""Products of matrices. The sums run over the inner index in order, so the float answers are exact."""

from __future__ import annotations

import numpy as np

from tests.golden.cuda.case import Array, Given, case
from tests.golden.cuda.cases.draw import Rng, f32, f64, integers
from tests.golden.cuda.cases.reductions import halved


def product(a: Array, b: Array) -> Array:
    """a @ b, rounding every product and every sum, in order."""
    sums = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for i in range(a.shape[1]):
        sums = sums + a[:, i : i + 1] * b[i]
    return sums


@case("gemm/naive", grid=(3, 5), block=(16, 8))
def naive(rng: Rng) -> Given:
    a, b = f32(rng, 37, 29), f32(rng, 29, 45)
    return Given((a, b, np.zeros((37, 45), np.float32), np.int32(37), np.int32(45), np.int32(29)), {2: product(a, b)})


@case("gemm/tiled", grid=(3, 3), block=(16, 16), rtol=1e-5, atol=1e-5)
def tiled(rng: Rng) -> Given:
    a, b, c = f32(rng, 35, 40), f32(rng, 40, 41), f32(rng, 35, 41)
    answer = (1.5 * (a.astype(np.float64) @ b) - 0.5 * c).astype(np.float32)
    sizes = (np.int32(35), np.int32(41), np.int32(40))
    return Given((a, b, c, *sizes, np.float32(1.5), np.float32(-0.5)), {2: answer})


@case("gemm/register_blocked", grid=(2, 3), block=64)
def register_blocked(rng: Rng) -> Given:
    a, b = f32(rng, 96, 24), f32(rng, 24, 64)
    return Given((a, b, np.zeros((96, 64), np.float32), np.int32(64), np.int32(24)), {2: product(a, b)})


@case("gemm/batched", grid=(1, 1, 6), block=(8, 8), rtol=1e-12, atol=1e-12)
def batched(rng: Rng) -> Given:
    a, b = f64(rng, 6, 9, 7), f64(rng, 6, 7, 11)
    return Given((a, b, np.zeros((6, 9, 11)), np.int32(9), np.int32(11), np.int32(7)), {2: a @ b})


@case("gemm/gemv_warp", grid=5, block=128)
def gemv_warp(rng: Rng) -> Given:
    a, x = f32(rng, 19, 75), f32(rng, 75)
    products = np.pad(a * x, ((0, 0), (0, 21))).reshape(19, 3, 32)
    answer = halved(products[:, 0] + products[:, 1] + products[:, 2])
    return Given((a, x, np.zeros(19, np.float32), np.int32(19), np.int32(75)), {2: answer})


@case("gemm/int8_dot", grid=(2, 2), block=(16, 8))
def int8_dot(rng: Rng) -> Given:
    a, b, u = integers(rng, np.int8, 11, 24), integers(rng, np.int8, 20, 24), integers(rng, np.uint8, 20, 24)
    wide, c, uc = u.astype(np.uint32), np.zeros((11, 20), np.int32), np.zeros((11, 20), np.uint32)
    sizes = (np.int32(11), np.int32(20), np.int32(6))
    return Given((a, b, c, u, uc, *sizes), {2: a.astype(np.int32) @ b.T.astype(np.int32), 4: wide[:11] @ wide.T})


@case("gemm/cholesky_batch", grid=2, block=32, rtol=2e-4, atol=1e-5)
def cholesky_batch(rng: Rng) -> Given:
    m = f32(rng, 50, 6, 6)
    spd = (m @ m.transpose(0, 2, 1) + np.eye(6)).astype(np.float32)
    return Given((spd, np.zeros_like(spd), np.int32(50)), {1: np.linalg.cholesky(spd.astype(np.float64)).astype(np.float32)})
