"""Indexing against the reference, bit for bit: strides, repeated positions, indices outside, every mode, every width."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wis.dtypes import DType
from wis.ops import ScatterMode
from wis.traps import NO_TRAP, index_key

MOVED = [DType.BOOL, DType.I16, DType.F16, DType.F32, DType.F64, DType.C64, DType.C128]
SUMMED = [DType.F32, DType.F64, DType.F16, DType.BF16, DType.I64, DType.I32, DType.U8, DType.C64]
ORDERS: list[Any] = [(0, 1, 2), (2, 0, 1), (1, 2, 0)]


def draw(rng: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    if dtype is DType.BOOL:
        return rng.random(shape) < 0.5
    if dtype.is_integer:
        return rng.integers(0, 9, shape).astype(dtype.numpy)
    value = rng.standard_normal(shape)
    if dtype.is_complex:
        return (value + 1j * rng.standard_normal(shape)).astype(dtype.numpy)
    return value.astype(dtype.numpy)


def places(rng: Any, shape: tuple[int, ...], size: int, stray: bool = False) -> Any:
    """Indices, negative ones too; ``stray``: some outside."""
    reach = size + 2 if stray else size
    return rng.integers(-reach, reach, shape).astype(np.int64)


@pytest.mark.parametrize("dtype, dim", [*((dtype, 1) for dtype in MOVED), (DType.F32, 0), (DType.F32, 2)])
@pytest.mark.parametrize("order", ORDERS)
def test_gather(bench: Any, order: Any, dim: int, dtype: DType) -> None:
    x = draw(bench.rng, (5, 6, 7), dtype)
    shape = (4, 6, 3)
    idx = places(bench.rng, shape, x.shape[dim])
    bench.check("gather", [bench.like(shape, dtype, order)], [bench.dense(x, order), bench.dense(idx)], [dim])


def test_gather_outside_gives_zero_and_traps(bench: Any) -> None:
    x = draw(bench.rng, (5, 6), DType.F32)
    idx = places(bench.rng, (5, 40), 6, stray=True)
    bench.check("gather", [bench.like((5, 40), DType.F32)], [bench.dense(x), bench.dense(idx)], [1])
    assert bench.trap == index_key(1, int(idx[(idx < -6) | (idx >= 6)].min()))


def test_gather_from_nothing(bench: Any) -> None:
    x, idx = np.zeros((0, 3), np.float32), np.zeros((2, 3), np.int64)
    bench.check("gather", [bench.like((2, 3), DType.F32)], [bench.dense(x), bench.dense(idx)], [0])
    assert bench.trap == index_key(0, 0)


@pytest.mark.parametrize("mode", list(ScatterMode))
@pytest.mark.parametrize("dtype, dim", [*((dtype, 1) for dtype in SUMMED), (DType.F32, 0), (DType.F32, 2)])
def test_scatter(bench: Any, dim: int, dtype: DType, mode: ScatterMode) -> None:
    if dtype.is_complex and mode > ScatterMode.ADD:
        return
    out, src = draw(bench.rng, (5, 6, 7), dtype), draw(bench.rng, (5, 6, 7), dtype)
    idx = places(bench.rng, (5, 6, 7), out.shape[dim], stray=True)
    order = ORDERS[dim]
    bench.check("scatter", [bench.dense(out, order)], [bench.dense(src), bench.dense(idx, order)], [dim, mode])


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [DType.BOOL, DType.C128, DType.I8])
def test_scatter_moves_any_type(bench: Any, dtype: DType, dim: int) -> None:
    out, src = draw(bench.rng, (4, 9), dtype), draw(bench.rng, (4, 9), dtype)
    idx = places(bench.rng, (4, 9), out.shape[dim])
    bench.check("scatter", [bench.dense(out)], [bench.dense(src), bench.dense(idx)], [dim, ScatterMode.SET])


@pytest.mark.parametrize("mode", list(ScatterMode))
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I64, DType.U8])
def test_scatter_of_a_value(bench: Any, dtype: DType, mode: ScatterMode) -> None:
    out, idx = draw(bench.rng, (6, 9), dtype), places(bench.rng, (6, 4), 9)
    bench.check("scatter", [bench.dense(out)], [bench.scalar(3, dtype), bench.dense(idx)], [1, mode])


def test_max_keeps_nan(bench: Any) -> None:
    out = np.array([np.nan, 1.0, 5.0], np.float32)
    src, idx = np.array([2.0, np.nan, 1.0], np.float32), np.array([0, 1, 2])
    bench.check("scatter", [bench.dense(out)], [bench.dense(src), bench.dense(idx)], [0, ScatterMode.MAX])


@pytest.mark.parametrize("stray", [False, True])
@pytest.mark.parametrize("dtype, k", [*((dtype, 2) for dtype in MOVED), (DType.F32, 1), (DType.F32, 3)])
@pytest.mark.parametrize("shape", [(4,), (2, 3)])
def test_index(bench: Any, shape: tuple[int, ...], k: int, dtype: DType, stray: bool) -> None:
    x = draw(bench.rng, (5, 6, 7), dtype)
    indices = [bench.dense(places(bench.rng, shape, size, stray), list(reversed(range(len(shape))))) for size in x.shape[:k]]
    out = bench.like((*shape, *x.shape[k:]), dtype)
    bench.check("index", [out], [bench.dense(x, (1, 0, 2)), *indices], [])


def test_index_with_strided_rest(bench: Any) -> None:
    x = draw(bench.rng, (5, 3, 4, 6), DType.F32)
    out = bench.like((7, 3, 4, 6), DType.F32, (3, 1, 0, 2))
    bench.check("index", [out], [bench.dense(x, (2, 0, 3, 1)), bench.dense(places(bench.rng, (7,), 5))], [])


def test_embedding_rows(bench: Any) -> None:
    table, idx = draw(bench.rng, (50, 33), DType.F32), places(bench.rng, (3, 20), 50)
    [got] = bench.check("index", [bench.like((3, 20, 33), DType.F32)], [bench.dense(table), bench.dense(idx)], [])
    assert np.array_equal(got, table[idx])


@pytest.mark.parametrize("mode", list(ScatterMode))
@pytest.mark.parametrize("dtype, k", [*((dtype, 2) for dtype in SUMMED), (DType.F32, 1), (DType.F32, 3)])
def test_index_put(bench: Any, k: int, dtype: DType, mode: ScatterMode) -> None:
    if dtype.is_complex and mode > ScatterMode.ADD:
        return
    out = draw(bench.rng, (4, 5, 6), dtype)
    shape = (3, 8)
    indices = [bench.dense(places(bench.rng, shape, size, stray=True)) for size in out.shape[:k]]
    src = draw(bench.rng, (*shape, *out.shape[k:]), dtype)
    bench.check("index_put", [bench.dense(out, (0, 2, 1))], [bench.dense(src, list(reversed(range(src.ndim)))), *indices], [mode])


def test_embedding_gradient(bench: Any) -> None:
    out, src = np.zeros((20, 130), np.float32), draw(bench.rng, (3, 50, 130), DType.F32)
    idx = places(bench.rng, (3, 50), 20)
    bench.check("index_put", [bench.dense(out)], [bench.dense(src), bench.dense(idx)], [ScatterMode.ADD])


@pytest.mark.parametrize("mode", [ScatterMode.SET, ScatterMode.ADD])
def test_no_indices_of_lines_without_elements(bench: Any, mode: ScatterMode) -> None:
    idx = np.zeros(0, np.int64)
    bench.check(
        "index_put", [bench.dense(np.zeros((4, 0), np.float32))], [bench.dense(np.zeros((0, 0), np.float32)), bench.dense(idx)], [mode]
    )


@pytest.mark.parametrize("mode", [ScatterMode.SET, ScatterMode.ADD])
@pytest.mark.parametrize("shape", [(3, 3), (3, 1), (3,)])
def test_index_put_of_nothing(bench: Any, mode: ScatterMode, shape: tuple[int, ...]) -> None:
    out, src = draw(bench.rng, shape, DType.F32), np.zeros((0, *shape[1:]), np.float32)
    bench.check("index_put", [bench.dense(out)], [bench.dense(src), bench.dense(np.zeros(0, np.int64))], [mode])


@pytest.mark.parametrize("name, attrs", [("gather", [0]), ("scatter", [0, 0])])
def test_no_indices(bench: Any, name: str, attrs: list[int]) -> None:
    x, idx = draw(bench.rng, (3, 4), DType.F32), np.zeros((0, 4), np.int64)
    if name == "gather":
        bench.check(name, [bench.like((0, 4), DType.F32)], [bench.dense(x), bench.dense(idx)], attrs)
    else:
        bench.check(name, [bench.dense(x)], [bench.dense(np.zeros((0, 4), np.float32)), bench.dense(idx)], attrs)


@pytest.mark.parametrize("name, attrs", [("gather", [0]), ("scatter", [0, 0]), ("index", []), ("index_put", [0])])
@pytest.mark.parametrize("value", [-1, 5, 4, 1 << 60, -(1 << 60)])
def test_an_unsigned_index_never_counts_from_the_end(bench: Any, name: str, attrs: list[int], value: int) -> None:
    x = draw(bench.rng, (5,), DType.F32)
    idx = np.array([0, value, 3], np.int64).view(np.uint64)
    if name in ("gather", "index"):
        outs, ins = [bench.like((3,), DType.F32)], [bench.dense(x), bench.dense(idx)]
    else:
        outs, ins = [bench.dense(x)], [bench.dense(draw(bench.rng, (3,), DType.F32)), bench.dense(idx)]
    bench.check(name, outs, ins, attrs)
    assert bench.trap == (NO_TRAP if 0 <= value < 5 else index_key(0, value))


def test_the_first_dimension_is_reported(bench: Any) -> None:
    x = draw(bench.rng, (5, 6), DType.F32)
    rows, columns = (np.array(values, np.int64) for values in ([0, 9, 8], [7, -9, 0]))
    bench.check("index", [bench.like((3,), DType.F32)], [bench.dense(x), bench.dense(rows), bench.dense(columns)])
    assert bench.trap == index_key(0, 8)
    bench.check("index", [bench.like((3,), DType.F32)], [bench.dense(x), bench.dense(rows % 5), bench.dense(columns)])
    assert bench.trap == index_key(1, -9)
