"""matmul against NumPy in f64: every layout BLAS reads directly, those it does not, batches, types and empty sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wis.dtypes import ACCUMULATE, DType

TOLERANCE = {DType.F32: 2e-5, DType.F64: 1e-12, DType.F16: 2e-3, DType.BF16: 1e-2, DType.C64: 2e-5, DType.C128: 1e-12}
ORDERS: list[Any] = [(0, 1), (1, 0)]


def draw(rng: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    if dtype.is_integer:
        return rng.integers(-100, 100, shape).astype(dtype.numpy)
    value = rng.standard_normal(shape)
    if dtype.is_complex:
        value = value + 1j * rng.standard_normal(shape)
    return value.astype(dtype.numpy)


def check(got: Any, a: Any, b: Any, dtype: DType) -> None:
    if dtype.is_integer:
        with np.errstate(over="ignore"):
            assert np.array_equal(got, a @ b)
        return
    wide = np.complex128 if dtype.is_complex else np.float64
    want = a.astype(wide) @ b.astype(wide)
    scale = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64) + 1e-30
    assert np.all(np.abs(got.astype(wide) - want) <= TOLERANCE[dtype] * scale)


@pytest.mark.parametrize("dtype", [*TOLERANCE, DType.I64, DType.I32, DType.U8, DType.I16])
def test_plain(bench: Any, dtype: DType) -> None:
    a, b = draw(bench.rng, (17, 23), dtype), draw(bench.rng, (23, 9), dtype)
    [got] = bench.run("matmul", [bench.like((17, 9), dtype)], [bench.dense(a), bench.dense(b)])
    check(got, a, b, dtype)


@pytest.mark.parametrize("out_order", ORDERS)
@pytest.mark.parametrize("b_order", ORDERS)
@pytest.mark.parametrize("a_order", ORDERS)
@pytest.mark.parametrize(
    "m, n, k",
    [
        (5, 7, 3),
        (1, 7, 3),
        (5, 1, 3),
        (5, 7, 1),
        (1, 1, 9),
        (300, 1, 200),
        (1, 300, 200),
        (1, 1, 1),
        (2, 70, 33),
        (3, 40, 5),
        (700, 520, 90),
        (500, 70, 600),
    ],
)
def test_layouts(bench: Any, m: int, n: int, k: int, a_order: Any, b_order: Any, out_order: Any) -> None:
    a, b = draw(bench.rng, (m, k), DType.F32), draw(bench.rng, (k, n), DType.F32)
    [got] = bench.run("matmul", [bench.like((m, n), DType.F32, out_order)], [bench.dense(a, a_order), bench.dense(b, b_order, offset=5)])
    check(got, a, b, DType.F32)


@pytest.mark.parametrize("dtype", [DType.F32, DType.I32, DType.F16])
def test_strides_that_must_be_packed(bench: Any, dtype: DType) -> None:
    a, b = draw(bench.rng, (4, 6), dtype), draw(bench.rng, (6, 5), dtype)
    out = bench.operand(np.zeros((4, 5), dtype.numpy), [-17, 3])
    [got] = bench.run("matmul", [out], [bench.operand(a, [20, -3]), bench.operand(b, [2, 13])])
    check(got, a, b, dtype)


def test_repeated_rows(bench: Any) -> None:
    row, b = draw(bench.rng, (1, 6), DType.F32), draw(bench.rng, (6, 5), DType.F32)
    a = np.repeat(row, 4, axis=0)
    [got] = bench.run("matmul", [bench.like((4, 5), DType.F32)], [bench.operand(a, [0, 1]), bench.dense(b)])
    check(got, a, b, DType.F32)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I64, DType.C64])
@pytest.mark.parametrize("m, n, k", [(4, 5, 6), (1, 5, 6), (4, 1, 6), (4, 5, 0)])
def test_batches(bench: Any, m: int, n: int, k: int, dtype: DType) -> None:
    a, b = draw(bench.rng, (2, 3, m, k), dtype), draw(bench.rng, (2, 3, k, n), dtype)
    ins = [bench.dense(a, (0, 2, 1, 3)), bench.dense(b, (1, 0, 3, 2))]
    [got] = bench.run("matmul", [bench.like((2, 3, m, n), dtype, (0, 2, 1, 3))], ins)
    check(got, a, b, dtype)


def test_batch_repeated_by_stride_zero(bench: Any) -> None:
    one, b = draw(bench.rng, (4, 6), DType.F16), draw(bench.rng, (3, 6, 5), DType.F16)
    a = np.broadcast_to(one, (3, 4, 6))
    [got] = bench.run("matmul", [bench.like((3, 4, 5), DType.F16)], [bench.operand(a, [0, 6, 1]), bench.dense(b)])
    check(got, a, b, DType.F16)


def test_many_batch_dimensions(bench: Any) -> None:
    a, b = draw(bench.rng, (2, 3, 2, 2, 3, 4), DType.F32), draw(bench.rng, (2, 3, 2, 2, 4, 2), DType.F32)
    ins = [bench.dense(a, (3, 2, 1, 0, 4, 5)), bench.dense(b)]
    [got] = bench.run("matmul", [bench.like((2, 3, 2, 2, 3, 2), DType.F32)], ins)
    check(got, a, b, DType.F32)


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_empty_sizes(bench: Any, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = np.zeros((m, k), np.float32), np.zeros((k, n), np.float32)
    [got] = bench.run("matmul", [bench.like((m, n), DType.F32)], [bench.dense(a), bench.dense(b)])
    assert np.array_equal(got, a @ b)


def test_output_over_its_input(bench: Any) -> None:
    a, b = draw(bench.rng, (6, 6), DType.F32), draw(bench.rng, (6, 6), DType.F32)
    place = bench.dense(a)
    [got] = bench.run("matmul", [place], [place, bench.dense(b)])
    check(got, a, b, DType.F32)


def test_half_results_are_rounded_once(bench: Any) -> None:
    assert ACCUMULATE[DType.BF16] is DType.F32
    a = np.ones((1, 300), DType.BF16.numpy)
    [got] = bench.run("matmul", [bench.like((1, 1), DType.BF16)], [bench.dense(a), bench.dense(a.reshape(300, 1))])
    assert float(got[0, 0]) == float(np.float32(300).astype(DType.BF16.numpy))


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_bits_do_not_depend_on_blocks(bench: Any, dtype: DType) -> None:
    """Each element is one chain of fused multiply-adds: a part of the product has the bits it has in the whole."""
    a, b = draw(bench.rng, (500, 300), dtype), draw(bench.rng, (300, 600), dtype)
    [whole] = bench.run("matmul", [bench.like((500, 600), dtype)], [bench.dense(a), bench.dense(b)])
    [part] = bench.run("matmul", [bench.like((7, 13), dtype)], [bench.dense(a[100:107]), bench.dense(b[:, 200:213], (1, 0))])
    assert np.array_equal(part, whole[100:107, 200:213])
