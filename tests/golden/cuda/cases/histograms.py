"""Counting into bins."""

from __future__ import annotations

import numpy as np

from tests.golden.cuda.case import Given, case
from tests.golden.cuda.cases.draw import Rng, f32, integers


@case("histograms/global_atomic", grid=3, block=128)
def global_atomic(rng: Rng) -> Given:
    x = integers(rng, np.uint8, 3000)
    return Given((x, np.zeros(256, np.uint32), np.int32(3000)), {1: np.bincount(x, minlength=256).astype(np.uint32)})


@case("histograms/privatized", grid=4, block=128)
def privatized(rng: Rng) -> Given:
    x, lo, width = f32(rng, 2500), np.float32(-2), np.float32(0.0625)
    place = np.floor((x - lo) / width)
    answer = np.bincount(place[(place >= 0) & (place < 64)].astype(int), minlength=64)
    return Given((x, np.zeros(64, np.int32), lo, width, np.int32(2500)), {1: answer.astype(np.int32)})


@case("histograms/weighted", grid=6, block=128)
def weighted(rng: Rng) -> Given:
    classes, weights = integers(rng, np.int32, 700, low=-2, high=14), integers(rng, np.int32, 700, low=-50, high=50).astype(np.float32)
    kept = (classes >= 0) & (classes < 12)
    answer = np.bincount(classes[kept], weights=weights[kept], minlength=12).astype(np.float32)
    return Given((classes, weights, np.zeros(12, np.float32), np.int32(12), np.int32(700)), {2: answer})


@case("histograms/joint_2d", grid=1, block=256)
def joint_2d(rng: Rng) -> Given:
    x = integers(rng, np.uint16, 1500, 2)
    answer, _, _ = np.histogram2d(x[:, 1], x[:, 0], bins=(10, 12), range=((0, 65536), (0, 65536)))
    return Given((x, np.zeros((10, 12), np.uint64), np.int32(1500)), {1: answer.astype(np.uint64)})


@case("histograms/aggregated", grid=5, block=96)
def aggregated(rng: Rng) -> Given:
    keys = integers(rng, np.int32, 450, low=0, high=9)
    return Given((keys, np.zeros(9, np.int32), np.int32(450)), {1: np.bincount(keys, minlength=9).astype(np.int32)})
