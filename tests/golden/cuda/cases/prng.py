"""Pseudo-random numbers: integer recurrences, exact."""

from __future__ import annotations

from functools import partial

import numpy as np

from tests.golden.cuda.case import Given, case
from tests.golden.cuda.cases.draw import Rng, integers

_M32, _M64 = 2**32 - 1, 2**64 - 1


def _philox(counter: int, key: tuple[int, int]) -> list[int]:
    c, (k0, k1) = [counter & _M32, counter >> 32, 0, 0], key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k0, p1 & _M32, p0 >> 32 ^ c[3] ^ k1, p0 & _M32]
        k0, k1 = k0 + 0x9E3779B9 & _M32, k1 + 0xBB67AE85 & _M32
    return c


@case("prng/philox", grid=3, block=64)
def philox(rng: Rng) -> Given:
    n, first = 150, 2**32 - 70
    # A published vector of the ten-round form: counter and key zero.
    assert _philox(0, (0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    answer = np.array([_philox(first + i, (0xDEADBEEF, 0x12345678)) for i in range(n)], np.uint32)
    return Given((np.zeros_like(answer), np.uint32(0xDEADBEEF), np.uint32(0x12345678), np.uint64(first), np.int32(n)), {0: answer})


@case("prng/xorshift128", grid=2, block=64)
def xorshift128(rng: Rng) -> Given:
    n, draws, seed = 100, 9, 0xFEEDFACECAFEBEEF
    answer = np.zeros((draws, n), np.uint64)
    for i in range(n):
        state, words = seed + i, []
        for _ in range(2):
            state = state + 0x9E3779B97F4A7C15 & _M64
            z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _M64
            z = (z ^ z >> 27) * 0x94D049BB133111EB & _M64
            words.append(z ^ z >> 31)
        a, b = words
        for k in range(draws):
            t = a ^ a << 23 & _M64
            t = t ^ t >> 17 ^ b ^ b >> 26
            a, b = b, t
            answer[k, i] = a + b & _M64
    return Given((np.uint64(seed), np.zeros_like(answer), np.int32(draws), np.int32(n)), {1: answer})


@case("prng/lcg_jump", grid=2, block=32)
def lcg_jump(rng: Rng) -> Given:
    n, x, answer = 400, 42, []
    for _ in range(n):
        x = x * 6364136223846793005 + 1442695040888963407 & _M64
        answer.append(x >> 32)
    return Given((np.uint64(42), np.zeros(n, np.uint32), np.int32(7), np.int32(n)), {1: np.array(answer, np.uint32)})


def _congruential(increment: int, state: int) -> int:
    return state * 6364136223846793005 + increment & _M64


@case("prng/pcg32", grid=2, block=64)
def pcg32(rng: Rng) -> Given:
    n, draws, seed = 90, 6, 0x853C49E6748FEA9B
    answer = np.zeros((n, draws), np.float32)
    for i in range(n):
        step = partial(_congruential, 2 * i + 1)
        state = step(step(0) + seed & _M64)
        for k in range(draws):
            word = (state >> 18 ^ state) >> 27 & _M32
            turn = state >> 59
            word = (word >> turn | word << (32 - turn) % 32) & _M32
            answer[i, k] = (word >> 8) / 2**24
            state = step(state)
    return Given((np.zeros_like(answer), np.uint64(seed), np.int32(draws), np.int32(n)), {0: answer})


@case("prng/monte_carlo_pi", grid=3, block=64)
def monte_carlo_pi(rng: Rng) -> Given:
    seed, darts = 2463534242, 40
    x = np.uint32(seed) ^ np.arange(192, dtype=np.uint32) * np.uint32(0x9E3779B9)
    x[x == 0] = 1
    hits = 0
    for _ in range(darts):
        x = x ^ x << np.uint32(13)
        x = x ^ x >> np.uint32(17)
        x = x ^ x << np.uint32(5)
        a, b = (x & np.uint32(0xFFFF)).astype(np.uint64), (x >> np.uint32(16)).astype(np.uint64)
        hits += int((a * a + b * b < 2**32).sum())
    assert abs(4 * hits / (192 * darts) - np.pi) < 0.2
    return Given((np.zeros(1, np.uint32), np.uint32(seed), np.int32(darts)), {0: np.array([hits], np.uint32)})


@case("prng/box_muller", grid=2, block=96, rtol=1e-5, atol=2e-6)
def box_muller(rng: Rng) -> Given:
    words = integers(rng, np.uint32, 180, 2)
    u = ((words[:, 0] >> 8) + np.uint32(1)).astype(np.float64) / 2**24
    scale = np.float32(2.0**-24 * np.float32(6.2831853))
    angle = ((words[:, 1] >> 8).astype(np.float32) * scale).astype(np.float64)
    radius = np.sqrt(-2 * np.log(u))
    answer = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype(np.float32)
    return Given((words, np.zeros((180, 2), np.float32), np.int32(180)), {1: answer})
