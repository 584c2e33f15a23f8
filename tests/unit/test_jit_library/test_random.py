"""Random numbers: the very bits of the reference, for any size, seed and offset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wis.dtypes import DType
from wis.ops import Dist

KINDS = [
    *((Dist.UNIFORM, dtype) for dtype in (DType.F32, DType.F64, DType.F16, DType.BF16)),
    *((Dist.NORMAL, dtype) for dtype in (DType.F32, DType.F16, DType.BF16)),
    (Dist.BITS, DType.I64),
    (Dist.BITS, DType.I32),
]


@pytest.mark.parametrize("dist, dtype", KINDS)
@pytest.mark.parametrize("n", [1, 63, 64, 4097, 20000])
def test_bits_of_the_reference(bench: Any, n: int, dist: Dist, dtype: DType) -> None:
    scalars = [bench.scalar(0x1234567890ABCDEF, DType.I64), bench.scalar((1 << 40) + 7, DType.I64)]
    bench.check("random", [bench.like((n,), dtype)], scalars, [dist])


@pytest.mark.parametrize("seed, offset", [(0, 0), (-1, -5), (1, (1 << 32) - 3), (-(1 << 63), (1 << 63) - 1)])
def test_seeds_and_counters_wrap(bench: Any, seed: int, offset: int) -> None:
    scalars = [bench.scalar(seed, DType.I64), bench.scalar(offset, DType.I64)]
    bench.check("random", [bench.like((500,), DType.F32)], scalars, [Dist.UNIFORM])


def test_strided_output_is_filled_in_row_major_order(bench: Any) -> None:
    scalars = [bench.scalar(3, DType.I64), bench.scalar(9, DType.I64)]
    bench.check("random", [bench.like((5, 6, 7), DType.F32, (2, 0, 1))], scalars, [Dist.NORMAL])


def test_normal_draws_in_f64_stay_with_the_reference(bench: Any) -> None:
    scalars = (bench.scalar(3, DType.I64), bench.scalar(9, DType.I64))
    assert bench.native("random", [bench.like((4,), DType.F64)], scalars, [Dist.NORMAL]) is None


def test_moments(bench: Any) -> None:
    scalars = [bench.scalar(11, DType.I64), bench.scalar(0, DType.I64)]
    [normal] = bench.run("random", [bench.like((1 << 18,), DType.F32)], scalars, [Dist.NORMAL])
    assert abs(float(np.mean(normal))) < 0.01 and abs(float(np.var(normal)) - 1) < 0.01
