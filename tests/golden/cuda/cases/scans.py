"""Prefix sums and what is made of them."""

from __future__ import annotations

import numpy as np

from tests.golden.cuda.case import Given, case
from tests.golden.cuda.cases.draw import Rng, f32, integers


@case("scans/hillis_steele", grid=4, block=100, shared=800)
def hillis_steele(rng: Rng) -> Given:
    x = integers(rng, np.int32, 370)
    answer = np.concatenate([np.cumsum(x[i : i + 100], dtype=np.int32) for i in range(0, 370, 100)])
    return Given((x, np.zeros(370, np.int32), np.int32(370)), {1: answer})


@case("scans/blelloch", grid=3, block=256)
def blelloch(rng: Rng) -> Given:
    x = integers(rng, np.uint32, 3, 512)
    return Given((x, np.zeros_like(x)), {1: np.cumsum(x, axis=1, dtype=np.uint32) - x})


@case("scans/warp_block_scan", grid=3, block=224)
def warp_block_scan(rng: Rng) -> Given:
    x = integers(rng, np.uint32, 600) | np.uint32(1)
    answer = np.concatenate([np.cumprod(x[i : i + 224], dtype=np.uint32) for i in range(0, 600, 224)])
    return Given((x, np.zeros(600, np.uint32), np.int32(600)), {1: answer})


@case("scans/segmented_scan", grid=3, block=128)
def segmented_scan(rng: Rng) -> Given:
    n = 350
    x, heads = integers(rng, np.int32, n, low=-99, high=99), (rng.random(n) < 0.1).astype(np.uint8)
    answer, running = np.zeros(n, np.int32), 0
    for i in range(n):
        running = int(x[i]) if heads[i] or i % 128 == 0 else running + int(x[i])
        answer[i] = running
    return Given((x, heads, np.zeros(n, np.int32), np.int32(n)), {2: answer})


@case("scans/compact", grid=1, block=256)
def compact(rng: Rng) -> Given:
    x = f32(rng, 1100)
    kept = x[x > np.float32(0.4)]
    return Given(
        (x, np.zeros(1100, np.float32), np.zeros(1, np.int32), np.float32(0.4), np.int32(1100)),
        {1: np.concatenate([kept, np.zeros(1100 - len(kept), np.float32)]), 2: np.array([len(kept)], np.int32)},
    )
