"""Sorting and merging."""

from __future__ import annotations

import numpy as np

from tests.golden.cuda.case import Given, case
from tests.golden.cuda.cases.draw import Rng, integers


@case("sorts/bitonic", grid=2, block=256)
def bitonic(rng: Rng) -> Given:
    x = integers(rng, np.uint32, 2, 512)
    return Given((x,), {0: np.sort(x, axis=1)})


@case("sorts/odd_even", grid=3, block=32)
def odd_even(rng: Rng) -> Given:
    x = integers(rng, np.int8, 3, 45)
    return Given((x, np.int32(45)), {0: np.sort(x, axis=1)})


@case("sorts/rank_sort", grid=3, block=64)
def rank_sort(rng: Rng) -> Given:
    n = 150
    keys, values = rng.integers(0, 40, n).astype(np.float32), integers(rng, np.int32, n)
    order = np.argsort(keys, kind="stable")
    return Given((keys, values, np.zeros(n, np.float32), np.zeros(n, np.int32), np.int32(n)), {2: keys[order], 3: values[order]})


@case("sorts/radix_lsd", grid=1, block=256)
def radix_lsd(rng: Rng) -> Given:
    keys = integers(rng, np.uint32, 250)
    return Given((keys, np.int32(250)), {0: np.sort(keys)})


@case("sorts/merge_path", grid=2, block=32)
def merge_path(rng: Rng) -> Given:
    a, b = np.sort(integers(rng, np.int32, 170, low=0, high=300)), np.sort(integers(rng, np.int32, 263, low=0, high=300))
    return Given((a, np.int32(170), b, np.int32(263), np.zeros(433, np.int32)), {4: np.sort(np.concatenate([a, b]))})


@case("sorts/insertion_local", grid=2, block=64)
def insertion_local(rng: Rng) -> Given:
    x = integers(rng, np.int64, 100, 12)
    return Given((x, np.zeros_like(x), np.int32(100)), {1: np.sort(x, axis=1)})
