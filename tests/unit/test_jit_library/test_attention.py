"""Attention and its gradient against the reference: causal, masks of every stride, several tiles, rows that see nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from wis.dtypes import ACCUMULATE, DType

TOLERANCE = {DType.F32: 1e-5, DType.F64: 1e-12, DType.F16: 4e-3, DType.BF16: 3e-2}
BHMD = (0, 1, 2, 3)
BMHD = (0, 2, 1, 3)
BHDM = (0, 1, 3, 2)


class Problem:
    def __init__(self, bench: Any, sizes: tuple[int, ...], dtype: DType, order: Any = BHMD) -> None:
        b, h, m, n, d, e = sizes
        self.bench, self.sizes, self.dtype, self.order, self.wide = bench, sizes, dtype, order, ACCUMULATE.get(dtype, dtype)
        self.q, self.k, self.v, self.do = (self.draw((b, h, *s)) for s in ((m, d), (n, d), (n, e), (m, e)))
        self.scale = bench.scalar(1 / math.sqrt(d), DType.F64)

    def draw(self, shape: tuple[int, ...]) -> Any:
        return self.bench.dense(self.bench.rng.standard_normal(shape).astype(self.dtype.numpy), self.order)

    def check(self, causal: int, masks: list[Any]) -> None:
        b, h, m, n, d, e = self.sizes
        bench, tolerance = self.bench, TOLERANCE[self.dtype]
        o, lse = bench.like((b, h, m, e), self.dtype, self.order), bench.like((b, h, m), self.wide)
        bench.check("sdpa", [o, lse], [self.q, self.k, self.v, self.scale, *masks], [causal], tolerance)
        outs = [bench.like(shape, self.dtype, self.order) for shape in ((b, h, m, d), (b, h, n, d), (b, h, n, e))]
        bench.check("sdpa_dx", outs, [self.do, self.q, self.k, self.v, o, lse, self.scale, *masks], [causal], tolerance)


@pytest.mark.parametrize("order", [BHMD, BMHD, BHDM])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(
    "sizes", [(2, 3, 5, 7, 4, 6), (1, 2, 40, 40, 16, 16), (1, 1, 150, 70, 8, 8), (2, 2, 1, 33, 8, 9), (1, 1, 300, 600, 8, 8)]
)
def test_layouts(bench: Any, sizes: tuple[int, ...], causal: int, order: Any) -> None:
    Problem(bench, sizes, DType.F32, order).check(causal, [])


@pytest.mark.parametrize("dtype", [DType.F64, DType.F16, DType.BF16])
@pytest.mark.parametrize("causal", [0, 1])
def test_types(bench: Any, dtype: DType, causal: int) -> None:
    problem = Problem(bench, (2, 2, 19, 21, 8, 8), dtype)
    mask = bench.rng.standard_normal((2, 1, 19, 21)).astype(dtype.numpy)
    problem.check(causal, [bench.operand(np.broadcast_to(mask, (2, 2, 19, 21)), [19 * 21, 0, 21, 1])])


@pytest.mark.parametrize("strides", [(2000, 500, 23, 1), (0, 0, 23, 1), (40, 0, 0, 1), (0, 0, 1, 20), (0, 0, 1, 0)])
def test_masks(bench: Any, strides: tuple[int, ...]) -> None:
    problem = Problem(bench, (2, 3, 19, 21, 8, 8), DType.F32)
    kept = tuple(1 if s == 0 else n for s, n in zip(strides, (2, 3, 19, 21), strict=True))
    mask = np.where(bench.rng.random(kept) < 0.3, -np.inf, bench.rng.standard_normal(kept)).astype(np.float32)
    problem.check(0, [bench.operand(np.broadcast_to(mask, (2, 3, 19, 21)), strides)])


def test_rows_that_see_nothing_give_zero(bench: Any) -> None:
    problem = Problem(bench, (1, 2, 5, 6, 4, 4), DType.F32)
    mask = np.zeros((1, 2, 5, 6), np.float32)
    mask[:, 1, 2] = -np.inf
    problem.check(0, [bench.dense(mask)])


def test_shared_key_heads(bench: Any) -> None:
    """Grouped queries: keys and values repeated by stride 0."""
    problem = Problem(bench, (2, 4, 9, 11, 8, 8), DType.F32)
    one = bench.rng.standard_normal((2, 1, 11, 8)).astype(np.float32)
    problem.k = bench.operand(np.broadcast_to(one, (2, 4, 11, 8)), [88, 0, 8, 1])
    problem.check(1, [])
