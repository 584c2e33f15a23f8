"""Scans, extremes, sorting and searching against the reference, bit for bit: NaN, both zeros, ties, every type, lines in any direction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wis.dtypes import DType

TYPES = [DType.F32, DType.F64, DType.F16, DType.BF16, DType.I64, DType.I32, DType.I16, DType.I8, DType.U8]
SHAPES: list[Any] = [
    ((3, 4, 21), (0, 1, 2)),
    ((7, 70), (0, 1)),
    ((7, 70), (1, 0)),
    ((5, 1, 300), (2, 0, 1)),
    ((33,), (0,)),
    ((1, 1), (0, 1)),
]


def draw(rng: Any, shape: tuple[int, ...], dtype: DType, nan: bool = True) -> Any:
    """Values with many ties; floats with NaN, infinities and both zeros."""
    if dtype is DType.BOOL:
        return np.asarray(rng.random(shape) < 0.4)
    if dtype.is_integer:
        return np.asarray(rng.integers(0 if dtype is DType.U8 else -9, 9, shape)).astype(dtype.numpy)
    value = np.asarray(np.round(rng.standard_normal(shape) * 2) / 2 * np.where(rng.random(shape) < 0.5, -1, 1))
    if nan:
        value[rng.random(shape) < 0.05] = np.nan
        value[rng.random(shape) < 0.05] = np.inf
        value[rng.random(shape) < 0.05] = -np.inf
    return value.astype(dtype.numpy)


def lines(types: list[DType]) -> Any:
    """Every type along one dimension, and every shape, order and dimension for two types."""
    places = [(shape, order, dim) for shape, order in SHAPES for dim in range(len(shape))]
    cases = [(dtype, *places[1]) for dtype in types] + [(dtype, *place) for dtype in (DType.F32, DType.I64) for place in places]
    return [pytest.param(*case, id="-".join(map(str, (case[0].text, *case[1:])))) for case in dict.fromkeys(cases)]


@pytest.mark.parametrize("dtype, shape, order, dim", lines(TYPES))
def test_running(bench: Any, shape: Any, order: Any, dim: int, dtype: DType) -> None:
    x = bench.dense(draw(bench.rng, shape, dtype, nan=False), order)
    bench.check("cumsum", [bench.like(shape, dtype, order)], [x], [dim])
    bench.check("cumprod", [bench.like(shape, dtype)], [x], [dim])


@pytest.mark.parametrize("dtype, shape, order, dim", lines([*TYPES, DType.BOOL]))
def test_running_extremes(bench: Any, shape: Any, order: Any, dim: int, dtype: DType) -> None:
    x = bench.dense(draw(bench.rng, shape, dtype), order)
    for name in ("cummax", "cummin"):
        bench.check(name, [bench.like(shape, dtype, order), bench.like(shape, DType.I64, order)], [x], [dim])


@pytest.mark.parametrize("dtype, shape, order, dim", lines([*TYPES, DType.BOOL]))
def test_places_of_extremes(bench: Any, shape: Any, order: Any, dim: int, dtype: DType) -> None:
    x = bench.dense(draw(bench.rng, shape, dtype), order)
    out = tuple(1 if d == dim else n for d, n in enumerate(shape))
    for name in ("argmax", "argmin"):
        bench.check(name, [bench.like(out, DType.I64)], [x], [dim])


@pytest.mark.parametrize("dtype, shape, order, dim", lines([*TYPES, DType.BOOL]))
@pytest.mark.parametrize("descending", [0, 1])
def test_sort(bench: Any, descending: int, shape: Any, order: Any, dim: int, dtype: DType) -> None:
    x = bench.dense(draw(bench.rng, shape, dtype), order)
    bench.check("sort", [bench.like(shape, dtype), bench.like(shape, DType.I64, order)], [x], [dim, descending])


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.I64, DType.I32])
@pytest.mark.parametrize("descending", [0, 1])
def test_sort_of_wide_values(bench: Any, descending: int, dtype: DType) -> None:
    """Values that differ in every byte."""
    value = bench.rng.standard_normal((2, 3000)) * 1e9
    x = (
        value.astype(dtype.numpy)
        if not dtype.is_integer
        else (value * (1e9 if dtype is DType.I64 else 1)).astype(np.int64).astype(dtype.numpy)
    )
    bench.check("sort", [bench.like(x.shape, dtype), bench.like(x.shape, DType.I64)], [bench.dense(x)], [1, descending])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("n, k", [(200, 5), (200, 200), (200, 60), (40, 3), (1, 1), (300, 1), (9, 0)])
def test_topk(bench: Any, n: int, k: int, largest: int, dtype: DType) -> None:
    x = bench.dense(draw(bench.rng, (3, n), dtype))
    bench.check("topk", [bench.like((3, k), dtype), bench.like((3, k), DType.I64)], [x], [1, largest])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("right", [0, 1])
@pytest.mark.parametrize("n", [0, 1, 17])
def test_search_sorted(bench: Any, n: int, right: int, dtype: DType) -> None:
    line = np.sort(draw(bench.rng, (2, 3, n), dtype), axis=-1)
    values = draw(bench.rng, (2, 3, 5), dtype)
    bench.check("search_sorted", [bench.like((2, 3, 5), DType.I64)], [bench.dense(line, (1, 0, 2)), bench.dense(values)], [right])


@pytest.mark.parametrize("dtype", [*TYPES, DType.BOOL])
@pytest.mark.parametrize("shape, order", [*SHAPES, ((), ()), ((0, 3), (0, 1))])
def test_nonzero(bench: Any, shape: Any, order: Any, dtype: DType) -> None:
    x = draw(bench.rng, shape, dtype)
    outs = [bench.like((x.size, x.ndim), DType.I64), bench.like((1,), DType.I64)]
    bench.check("nonzero", outs, [bench.dense(np.asarray(x), order)], [])
