"""Neighbours on grids."""

from __future__ import annotations

import numpy as np

from tests.golden.cuda.case import Given, case
from tests.golden.cuda.cases.draw import Rng, f32, f64, integers


@case("stencils/heat_1d", grid=4, block=128)
def heat_1d(rng: Rng) -> Given:
    x, alpha, n = f32(rng, 450), np.float32(0.1), 450
    y = x.copy()
    y[1:-1] = x[1:-1] + alpha * (x[:-2] - np.float32(2) * x[1:-1] + x[2:])
    return Given((x, np.zeros(n, np.float32), alpha, np.int32(n)), {1: y})


@case("stencils/jacobi_2d", grid=(3, 4), block=(16, 8))
def jacobi_2d(rng: Rng) -> Given:
    x = f64(rng, 29, 41)
    y = np.zeros_like(x)
    y[1:-1, 1:-1] = 0.25 * (x[1:-1, :-2] + x[1:-1, 2:] + x[:-2, 1:-1] + x[2:, 1:-1])
    return Given((x, np.zeros_like(x), np.int32(41), np.int32(29)), {1: y})


@case("stencils/convolve_const", grid=(2, 4), block=(16, 8))
def convolve_const(rng: Rng) -> Given:
    x = f32(rng, 27, 31)
    row = np.array([1, 4, 6, 4, 1], np.float32)
    padded, y = np.pad(x, 2, mode="edge"), np.zeros_like(x)
    for dy in range(5):
        for dx in range(5):
            y = y + row[dy] * row[dx] * padded[dy : dy + 27, dx : dx + 31]
    return Given((x, np.zeros_like(x), np.int32(31), np.int32(27)), {1: y / np.float32(256)})


@case("stencils/life", grid=(2, 3), block=(16, 16))
def life(rng: Rng) -> Given:
    x = (rng.random((40, 30)) < 0.4).astype(np.uint8)
    around = np.sum([np.roll(x, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx], 0)
    return Given((x, np.zeros_like(x), np.int32(30), np.int32(40)), {1: ((around == 3) | ((around == 2) & (x == 1))).astype(np.uint8)})


@case("stencils/laplace_3d", grid=(2, 3, 3), block=(8, 4, 2))
def laplace_3d(rng: Rng) -> Given:
    x = f32(rng, 5, 9, 13)
    p, y = np.pad(x, 1), np.float32(-6) * x
    y = y + p[1:-1, 1:-1, :-2] + p[1:-1, 1:-1, 2:] + p[1:-1, :-2, 1:-1] + p[1:-1, 2:, 1:-1] + p[:-2, 1:-1, 1:-1] + p[2:, 1:-1, 1:-1]
    return Given((x, np.zeros_like(x), np.array([13, 9, 5], np.int32).tobytes()), {1: y})


@case("stencils/sobel", grid=(3, 4), block=(16, 8))
def sobel(rng: Rng) -> Given:
    x = integers(rng, np.uint8, 30, 37)
    p = np.pad(x.astype(np.int64), 1)
    smooth_y, smooth_x = p[:-2] + 2 * p[1:-1] + p[2:], p[:, :-2] + 2 * p[:, 1:-1] + p[:, 2:]
    size = np.abs(smooth_y[:, 2:] - smooth_y[:, :-2]) + np.abs(smooth_x[2:] - smooth_x[:-2])
    return Given((x, np.zeros_like(x), np.int32(37), np.int32(30)), {1: np.minimum(size, 255).astype(np.uint8)})


@case("stencils/median_3x3", grid=(3, 3), block=(16, 8))
def median_3x3(rng: Rng) -> Given:
    x = integers(rng, np.int16, 22, 40)
    y = np.zeros_like(x)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3))
    y[1:-1, 1:-1] = np.median(windows, axis=(2, 3))
    return Given((x, np.zeros_like(x), np.int32(40), np.int32(22)), {1: y})
