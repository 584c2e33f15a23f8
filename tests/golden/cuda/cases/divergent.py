"""Threads that part ways: loops of different lengths, breaks, interpreters."""

from __future__ import annotations

import math

import numpy as np

from tests.golden.cuda.case import Given, case
from tests.golden.cuda.cases.draw import Rng, f32, integers


@case("divergent/mandelbrot", grid=(3, 5), block=(16, 8))
def mandelbrot(rng: Rng) -> Given:
    width, height, most = 45, 37, 64
    f = np.float32
    cx = (f(-2) + f(3) * np.arange(width, dtype=np.float32) / f(width))[None, :]
    cy = (f(-1.5) + f(3) * np.arange(height, dtype=np.float32) / f(height))[:, None]
    zx, zy, steps = np.zeros((height, width), f), np.zeros((height, width), f), np.zeros((height, width), np.int32)
    for _ in range(most):
        inside = zx * zx + zy * zy <= f(4)
        steps += inside
        zx, zy = np.where(inside, zx * zx - zy * zy + cx, zx), np.where(inside, f(2) * zx * zy + cy, zy)
    return Given((np.zeros_like(steps), np.int32(width), np.int32(height), np.int32(most)), {0: steps})


@case("divergent/collatz", grid=2, block=64)
def collatz(rng: Rng) -> Given:
    n, first = 100, 837799 - 50  # the longest path below a million is among these
    length, peak = np.zeros(n, np.uint32), np.zeros(n, np.uint64)
    for i in range(n):
        path = [first + i]
        while path[-1] != 1:
            path.append(3 * path[-1] + 1 if path[-1] % 2 else path[-1] // 2)
        length[i], peak[i] = len(path) - 1, max(path)
    return Given((np.uint32(first), np.zeros_like(length), np.zeros_like(peak), np.int32(n)), {1: length, 2: peak})


@case("divergent/binary_gcd", grid=3, block=64)
def binary_gcd(rng: Rng) -> Given:
    common = integers(rng, np.uint64, 150, low=1, high=1 << 20)
    a, b = common * integers(rng, np.uint64, 150, low=1, high=1 << 40), common * integers(rng, np.uint64, 150, low=0, high=1 << 40)
    a[:3], b[2:6] = 0, 0
    answer = np.array([math.gcd(int(x), int(y)) for x, y in zip(a, b, strict=True)], np.uint64)
    return Given((a, b, np.zeros_like(a), np.int32(150)), {2: answer})


@case("divergent/ray_march", grid=3, block=96)
def ray_march(rng: Rng) -> Given:
    n, f = 250, np.float32
    d = f32(rng, n, 3)
    d = (d / np.sqrt((d * d).sum(1, keepdims=True))).astype(f)
    t, why, alive = np.full(n, f(0.05)), np.full(n, 2, np.uint8), np.ones(n, bool)
    for _ in range(60):
        x, y, z = f(0.5) + t * d[:, 0], f(0.5) + t * d[:, 1], t * d[:, 2]
        x, y, z = x - np.rint(x), y - np.rint(y), z - np.rint(z)
        away = np.sqrt(x * x + y * y + z * z) - f(0.3)
        hit = alive & (away < f(0.001))
        alive &= ~hit
        t = np.where(alive, t + away, t)
        far = alive & (t > f(6))
        alive &= ~far
        why[hit], why[far] = 0, 1
    return Given((d, np.zeros(n, f), np.zeros(n, np.uint8), np.int32(n)), {1: t, 2: why})


@case("divergent/binary_search", grid=2, block=64)
def binary_search(rng: Rng) -> Given:
    there, needles = np.sort(rng.integers(0, 500, 333)).astype(np.float64), rng.integers(-20, 520, 300).astype(np.float64)
    places = np.searchsorted(there, needles, side="left").astype(np.int64)
    return Given((there, np.int64(333), needles, np.zeros(300, np.int64), np.int64(300)), {3: places})


def _factors(number: int, bound: int) -> tuple[int, int]:
    for a in range(bound, 41):
        if number % a == 0:
            b = number // a
            if a <= b <= 120 and (b - a) % 3 == 0 and (a % 2 or b % 2):
                return a, b
    return 0, 0


@case("divergent/nested_breaks", grid=2, block=64)
def nested_breaks(rng: Rng) -> Given:
    numbers = integers(rng, np.int32, 40, low=2, high=41) * integers(rng, np.int32, 40, low=2, high=121)
    numbers = np.concatenate([numbers, integers(rng, np.int32, 60, low=1, high=4000)])
    answer = np.array([_factors(int(v), 3) for v in numbers], np.int32)
    assert answer.any()
    return Given((numbers, np.zeros((100, 2), np.int32), np.int32(3), np.int32(100)), {1: answer})


@case("divergent/stack_machine", grid=2, block=48)
def stack_machine(rng: Rng) -> Given:
    square_plus, negate_mix = [2, 6, 5, 1, 7, 3, 0], [2, 9, 10, 0]
    power = [2, 1, 1, 7, 1, 3, 5, 7, 1, 1, 4, 6, 8, 8, 0]  # x, y = input, 1: do swap, times 3, swap, x - 1 while x
    difference = [1, 200, 2, 4, 0]
    code, places = np.array(square_plus + negate_mix + power + difference, np.uint8), np.array([0, 7, 11, 26], np.int32)
    which, x = rng.integers(0, 4, 90), integers(rng, np.int32, 90, low=1, high=9)
    results = [x * x + 7, -(x ^ 0x5A5A), np.zeros_like(x), 200 - x]
    answer = np.choose(which, results).astype(np.int32)
    return Given((code, places[which], x, np.zeros(90, np.int32), np.int32(90)), {3: answer})
