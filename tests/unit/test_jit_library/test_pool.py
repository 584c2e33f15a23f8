"""Pooling against the reference, bit for bit: padding, dilation, NaN, every walk, every type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wis.dtypes import DType

# name, n, c, sizes, kernel, stride, pad, dilation
CASES: list[Any] = [
    ("two by two", 3, 5, (8, 8), (2, 2), (2, 2), (0, 0), (1, 1)),
    ("wide rows", 2, 2, (6, 70), (2, 2), (2, 2), (0, 0), (1, 1)),
    ("overlapping", 2, 3, (9, 21), (3, 3), (2, 2), (1, 1), (1, 1)),
    ("neighbours", 2, 3, (7, 20), (3, 2), (1, 1), (1, 1), (1, 1)),
    ("dilated", 1, 2, (11, 25), (2, 3), (2, 3), (1, 1), (2, 3)),
    ("line", 2, 3, (40,), (4,), (3,), (2,), (1,)),
    ("volume", 2, 2, (4, 6, 7), (2, 2, 3), (2, 1, 2), (1, 0, 1), (1, 1, 1)),
    ("one window", 2, 3, (5, 6), (5, 6), (1, 1), (0, 0), (1, 1)),
]
TYPES = [DType.F32, DType.F64, DType.F16, DType.BF16, DType.I64, DType.I32, DType.I8, DType.U8]


def counts(case: Any) -> tuple[int, ...]:
    _, _, _, size, k, stride, pad, dilation = case
    return tuple((s + 2 * p - d * (w - 1) - 1) // st + 1 for s, p, d, w, st in zip(size, pad, dilation, k, stride, strict=True))


def draw(rng: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    if dtype.is_integer:
        return rng.integers(0 if dtype is DType.U8 else -9, 9, shape).astype(dtype.numpy)
    value = np.round(rng.standard_normal(shape), 1)  # ties happen
    value[rng.random(shape) < 0.05] = np.nan
    value[rng.random(shape) < 0.05] = -np.inf
    return value.astype(dtype.numpy)


def last(rank: int) -> list[int]:
    return [0, *range(2, rank), 1]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("case, dtype", [*((case, DType.F32) for case in CASES), *((CASES[2], dtype) for dtype in TYPES[1:])], ids=str)
def test_max_pool(bench: Any, case: Any, dtype: DType, channels_last: bool) -> None:
    _, n, c, size, k, stride, pad, dilation = case
    x = draw(bench.rng, (n, c, *size), dtype)
    shape = (n, c, *counts(case))
    order = last(len(shape)) if channels_last else None
    outs = [bench.like(shape, dtype, order), bench.like(shape, DType.I64, order)]
    bench.check("max_pool", outs, [bench.dense(x, order)], [*k, *stride, *pad, *dilation])


def test_window_wholly_in_the_padding(bench: Any) -> None:
    x = bench.rng.standard_normal((1, 1, 1, 1)).astype(np.float32)
    outs = [bench.like((1, 1, 3, 3), DType.F32), bench.like((1, 1, 3, 3), DType.I64)]
    bench.check("max_pool", outs, [bench.dense(x)], [1, 1, 1, 1, 1, 1, 1, 1])


def test_windows_that_end_beyond_32_bits_are_left_to_the_reference(bench: Any) -> None:
    """A place 2^32 behind an element must not be taken for it."""
    x = bench.dense(np.zeros((1, 1, 1000), np.uint8))
    outs = [bench.like((1, 1, 1), DType.U8), bench.like((1, 1, 1), DType.I64)]
    far = (1 << 31) - 1
    assert bench.native("max_pool", outs, [x], [5, far, far, 3 << 29]) is None  # position 4 is at 2^32 + 1
    assert bench.native("max_pool", outs, [x], [5, 1000, 2, 1]) is not None


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("count_pad, divisor", [(0, 0), (1, 0), (0, 5)])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("case", [case for case in CASES if max(case[-1]) == 1], ids=str)
def test_avg_pool(bench: Any, case: Any, dtype: DType, count_pad: int, divisor: int, channels_last: bool) -> None:
    _, n, c, size, k, stride, pad, _ = case
    x = bench.rng.standard_normal((n, c, *size)).astype(dtype.numpy)
    shape = (n, c, *counts(case))
    order = last(len(shape)) if channels_last else None
    attrs = [count_pad, divisor, *k, *stride, *pad]
    bench.check("avg_pool", [bench.like(shape, dtype, order)], [bench.dense(x, order)], attrs)
    dy = bench.rng.standard_normal(shape).astype(dtype.numpy)
    bench.check("avg_pool_dx", [bench.like(x.shape, dtype, order)], [bench.dense(dy, order)], attrs)


def test_empty(bench: Any) -> None:
    x = np.zeros((0, 2, 4, 4), np.float32)
    assert bench.run("avg_pool", [bench.like((0, 2, 2, 2), DType.F32)], [bench.dense(x)], [0, 0, 2, 2, 2, 2, 0, 0])[0].size == 0
