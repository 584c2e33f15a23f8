"""What the definition fixes by itself: order of sums, random numbers, indexing and traps, rounding, in-place behaviour."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.support.builder import Builder, flip
from tests.support.wis_run import Imm, apply
from wis import views
from wis.dtypes import DType
from wis.ops import Dist, ScatterMode
from wis.reference import run
from wis.verify import verify

Array = np.ndarray[Any, Any]


def lanes_sum(values: Array) -> np.float32:
    """The order of a sum, as the specification words it."""
    lanes = np.zeros(32, np.float32)
    for i, value in enumerate(values):
        lanes[i % 32] += value
    for half in (16, 8, 4, 2, 1):
        lanes[:half] += lanes[half : 2 * half]
    return lanes[0]


@pytest.mark.parametrize("n", [0, 1, 5, 31, 32, 33, 64, 100, 1000, 4096])
def test_sum_order_over_the_last_dimension(n: int) -> None:
    x = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32) * 1e3
    (got,), _ = apply("sum", [(DType.F32, (3, 1))], [x])
    assert got[:, 0].tolist() == [lanes_sum(row) for row in x]


@pytest.mark.parametrize("columns", [1, 2, 7, 33])
def test_sum_order_over_the_first_dimension(columns: int) -> None:
    x = np.random.default_rng(columns).standard_normal((777, columns)).astype(np.float32) * 1e3
    (got,), _ = apply("sum", [(DType.F32, (1, columns))], [x])
    assert got[0].tolist() == [lanes_sum(column) for column in x.T]


@pytest.mark.parametrize("dims", [(0, 2), (1,), (0, 1), (0, 1, 2)])
def test_sum_order_follows_the_reduced_index_space(dims: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).standard_normal((6, 11, 13)).astype(np.float32) * 1e3
    shape = tuple(1 if d in dims else n for d, n in enumerate(x.shape))
    (got,), _ = apply("sum", [(DType.F32, shape)], [x])
    kept = tuple(d for d in range(3) if d not in dims)
    lines = x.transpose(kept + dims).reshape(-1, int(np.prod([x.shape[d] for d in dims])))
    assert got.reshape(-1).tolist() == [lanes_sum(line) for line in lines]


def test_sum_order_does_not_depend_on_strides() -> None:
    """A transposed or reversed view is summed in the order of its indices, not of its memory."""
    raw = np.random.default_rng(2).standard_normal((70, 90)).astype(np.float32) * 1e3
    for change in (lambda o: views.transpose(o, 0, 1), lambda o: flip(o, 0), lambda o: views.narrow(o, 1, 3, 29, 3)):
        b = Builder()
        x = change(b.external(DType.F32, raw.shape))
        out = b.created(DType.F32, (x.shape[0], 1))
        b.emit("sum", out, [x])
        program, dims, scalars = b.finish()
        buffers = [raw.view(np.uint8).reshape(-1), np.zeros(out.numel * 4, np.uint8)]
        run(verify(program, dims), scalars, buffers)
        strided = np.lib.stride_tricks.as_strided(raw.reshape(-1)[x.offset :], x.shape, [4 * s for s in x.strides])
        assert buffers[1].view(np.float32).tolist() == [lanes_sum(row) for row in strided]


def test_sum_of_negative_zeros_is_zero_and_bf16_accumulates_wide() -> None:
    for shape, out in (((40,), (1,)), ((40, 1), (1, 1)), ((3, 40), (1, 40)), ((2,), (1,)), ((3,), (3,))):
        (got,), _ = apply("sum", [(DType.F32, out)], [np.full(shape, -0.0, np.float32)])
        assert not np.signbit(got).any(), shape
    (wide,), _ = apply("sum", [(DType.BF16, (1,))], [np.ones(1000, ml_dtypes.bfloat16)])
    assert float(wide[0]) == 1000.0  # bf16 alone would stop at 256


def test_integer_sums_wrap_and_empty_folds_have_units() -> None:
    (got,), _ = apply("sum", [(DType.I8, (1,))], [np.full(3, 100, np.int8)])
    assert got.tolist() == [44]
    for shape, out in (((2, 0), (2, 1)), ((0, 2), (1, 2)), ((0, 1), (1, 1)), ((0,), (1,)), ((0, 0), (1, 1))):
        (one,), _ = apply("prod", [(DType.I32, out)], [np.zeros(shape, np.int32)])
        assert (one == 1).all(), shape


# Known answers of Philox 4x32 with 10 rounds (Random123's kat_vectors; counter words 2 and 3 are always 0 here).
@pytest.mark.parametrize(("seed", "offset", "words"), [(0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8))])
def test_philox_known_answer(seed: int, offset: int, words: tuple[int, ...]) -> None:
    (got,), _ = apply("random", [(DType.I32, (4,))], [Imm(seed, DType.I64), Imm(offset, DType.I64)], (Dist.BITS,))
    assert got.tolist() == [w >> 1 for w in words]
    (wide,), _ = apply("random", [(DType.I64, (2,))], [Imm(seed, DType.I64), Imm(offset, DType.I64)], (Dist.BITS,))
    assert wide.tolist() == [(words[0] | words[1] << 32) >> 1, (words[2] | words[3] << 32) >> 1]
    (f32,), _ = apply("random", [(DType.F32, (4,))], [Imm(seed, DType.I64), Imm(offset, DType.I64)], (Dist.UNIFORM,))
    assert f32.tolist() == [(w >> 8) * 2.0**-24 for w in words]


def scalar_philox(counter: int, seed: int) -> list[int]:
    """Philox written once more, one counter at a time in Python integers."""
    c = [counter & 0xFFFFFFFF, counter >> 32, 0, 0]
    k = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k[0], q & 0xFFFFFFFF, p >> 32 ^ c[3] ^ k[1], p & 0xFFFFFFFF]
        k = [k[0] + 0x9E3779B9 & 0xFFFFFFFF, k[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return c


def test_random_uses_both_halves_of_seed_and_offset() -> None:
    seed, offset = -0x123456789ABCDEF, (1 << 33) - 1
    (got,), _ = apply("random", [(DType.I32, (3, 3))], [Imm(seed, DType.I64), Imm(offset, DType.I64)], (Dist.BITS,))
    words = [w for i in range(3) for w in scalar_philox(offset + i, seed & (1 << 64) - 1)]
    assert got.reshape(-1).tolist() == [w >> 1 for w in words[:9]]


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.F16, DType.BF16])
def test_uniform_stays_below_one_and_normal_looks_normal(dtype: DType) -> None:
    ins = [Imm(7, DType.I64), Imm(0, DType.I64)]
    (u,), _ = apply("random", [(dtype, (40000,))], ins, (Dist.UNIFORM,))
    wide = u.astype(np.float64)
    assert wide.min() >= 0 and wide.max() < 1
    assert abs(wide.mean() - 0.5) < 0.01
    (z,), _ = apply("random", [(dtype, (40000,))], ins, (Dist.NORMAL,))
    normal = z.astype(np.float64)
    assert np.isfinite(normal).all() and abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02
    assert abs((np.abs(normal) < 1).mean() - 0.6827) < 0.01


@pytest.mark.parametrize("start", [8191, 8192, 16384, 20001])
def test_long_draws_go_on_where_their_blocks_end(start: int) -> None:
    ins = [Imm(5, DType.I64), Imm(9, DType.I64)]
    (single,), _ = apply("random", [(DType.I32, (20002,))], ins, (Dist.BITS,))
    assert single[start] == scalar_philox(9 + start // 4, 5)[start % 4] >> 1
    (pair,), _ = apply("random", [(DType.I64, (20002,))], ins, (Dist.BITS,))
    low, high = scalar_philox(9 + start // 2, 5)[2 * (start % 2) :][:2]
    assert pair[start] == (low | high << 32) >> 1
    (normal,), _ = apply("random", [(DType.F32, (20002,))], ins, (Dist.NORMAL,))
    u1, u2 = (low >> 8) * 2.0**-24, (high >> 8) * 2.0**-24
    assert normal[start] == np.float32(np.sqrt(-2 * np.log(1 - u1)) * np.cos(2 * np.pi * u2))


def test_a_draw_does_not_depend_on_the_shape() -> None:
    ins = [Imm(7, DType.I64), Imm(3, DType.I64)]
    (a,), _ = apply("random", [(DType.F32, (6, 4))], ins, (Dist.UNIFORM,))
    (b,), _ = apply("random", [(DType.F32, (24,))], ins, (Dist.UNIFORM,))
    assert a.reshape(-1).tolist() == b.tolist()


def test_iota() -> None:
    (got,), _ = apply("iota", [(DType.I32, (2, 3))], [Imm(5, DType.I64), Imm(-2, DType.I64)], (1,))
    assert got.tolist() == [[5, 3, 1], [5, 3, 1]]
    (f,), _ = apply("iota", [(DType.F32, (4,))], [Imm(0.1, DType.F64), Imm(0.1, DType.F64)], (0,))
    assert f.tolist() == [np.float32(0.1 + 0.1 * i) for i in range(4)]


def test_gather_counts_negative_indices_from_the_end_and_traps_outside() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    index = np.array([[0, -1], [3, 4], [-4, -5]], np.int64)
    (got,), trapped = apply("gather", [(DType.F32, (3, 2))], [x, index], (1,))
    assert got.tolist() == [[0, 3], [7, 0], [8, 0]] and trapped
    _, fine = apply("gather", [(DType.F32, (3, 2))], [x, index % 4], (1,))
    assert not fine


@pytest.mark.parametrize(
    ("mode", "want"),
    [
        (ScatterMode.SET, [12, 1, 13, 3]),
        (ScatterMode.ADD, [22, 1, 25, 3]),
        (ScatterMode.MUL, [0, 1, 22 * 13, 3]),
        (ScatterMode.MAX, [12, 1, 13, 3]),
        (ScatterMode.MIN, [0, 1, 2, 3]),
    ],
)
def test_scatter_modes_in_row_major_order(mode: ScatterMode, want: list[int]) -> None:
    src, index = np.array([10, 11, 12, 13, 99], np.int32), np.array([0, 2, 0, -2, 4], np.int64)
    start = np.arange(4, dtype=np.int32)
    (got,), trapped = apply("scatter", [start], [src, index], (0, mode))
    if mode is ScatterMode.ADD:
        want = [0 + 10 + 12, 1, 2 + 11 + 13, 3]
    assert got.tolist() == want and trapped


def test_scatter_of_an_immediate_and_bool_modes() -> None:
    (got,), _ = apply(
        "scatter", [np.zeros((2, 3), np.float32)], [Imm(7.5, DType.F32), np.array([[2], [0]], np.int64)], (1, ScatterMode.SET)
    )
    assert got.tolist() == [[0, 0, 7.5], [7.5, 0, 0]]
    flags, index = np.array([True, False, True]), np.array([0, 1, 1], np.int64)
    (both,), _ = apply("scatter", [np.array([False, True])], [flags, index], (0, ScatterMode.MUL))
    assert both.tolist() == [False, False]


def test_bf16_scatter_add_rounds_once() -> None:
    ones = np.ones(1000, ml_dtypes.bfloat16)
    (got,), _ = apply("scatter", [np.zeros(1, ml_dtypes.bfloat16)], [ones, np.zeros(1000, np.int64)], (0, ScatterMode.ADD))
    assert float(got[0]) == 1000.0


def test_index_and_index_put_are_inverse_and_trap() -> None:
    x = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    i, j = np.array([[0, -1], [1, 0]], np.int64), np.array([[2, 0], [1, 3]], np.int64)
    (got,), trapped = apply("index", [(DType.I16, (2, 2, 4))], [x, i, j])
    assert trapped and got[:, :, 0].tolist() == [[8, 12], [16, 0]]
    (back,), trapped = apply("index_put", [np.zeros_like(x)], [got, i, j], (ScatterMode.SET,))
    assert trapped and back[1, 0].tolist() == x[1, 0].tolist() and back[0, 0].tolist() == [0] * 4
    (total,), _ = apply("index_put", [x], [np.ones((3, 4), np.int16), np.array([1, 1, 0]), np.array([2, 2, 0])], (ScatterMode.ADD,))
    assert total[1, 2].tolist() == [22, 23, 24, 25] and total[0, 0].tolist() == [1, 2, 3, 4]


def test_nonzero_fills_with_zero_rows() -> None:
    (rows, n), _ = apply("nonzero", [(DType.I64, (6, 2)), (DType.I64, (1,))], [np.array([[0, 2.5, 0], [np.nan, 0, -1]])])
    assert n.tolist() == [3] and rows.tolist() == [[0, 1], [1, 0], [1, 2], [0, 0], [0, 0], [0, 0]]


def test_fma_rounds_once() -> None:
    rng = np.random.default_rng(9)
    for dtype in (DType.F32, DType.F64):
        a, b, c = (np.ldexp(rng.standard_normal(300), rng.integers(-40, 40, 300)).astype(dtype.numpy) for _ in range(3))
        c[::3] = -(a * b)[::3]  # cancellation: the low half of the product is all that remains
        a[:6], b[:6], c[:6] = 1e-30, 1e-30, [0, 1e-38, -1e-38, 1, -1, 3e38]
        if dtype is DType.F64:
            a[6:9], b[6:9], c[6:9] = [1e-200, 1e200, 5e-324], [1e-200, 1e200, 0.5], [0.0, -1e300, 5e-324]
        (got,), _ = apply("fma", [(dtype, a.shape)], [a, b, c])
        for x, y, z, r in zip(a, b, c, got, strict=True):
            exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
            assert r == _nearest(exact, dtype), (x, y, z)


def _nearest(exact: Fraction, dtype: DType) -> float:
    if dtype is DType.F64:
        try:
            return float(exact)
        except OverflowError:
            return float("inf") if exact > 0 else float("-inf")
    guess = np.float32(float(exact))
    near = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    even = {float(v): int(np.array(v).view(np.int32)) & 1 for v in near}
    return min((float(v) for v in near if np.isfinite(v)), key=lambda v: (abs(Fraction(v) - exact), even[v]))


def test_nextafter_is_the_neighbour_in_the_type_itself() -> None:
    for dtype, step in ((DType.BF16, 2.0**-7), (DType.F16, 2.0**-10), (DType.F32, 2.0**-23)):
        (got,), _ = apply("nextafter", [(dtype, (2,))], [np.ones(2, dtype.numpy), np.array([2.0, 1.0]).astype(dtype.numpy)])
        assert got.astype(np.float64).tolist() == [1 + step, 1.0]


def test_bool_bytes_other_than_one_mean_true() -> None:
    b = Builder()
    flags, out, count = b.external(DType.BOOL, (4,)), b.created(DType.I32, (4,)), b.created(DType.BOOL, (4,))
    b.emit("cast", out, [flags])
    b.emit("cast", count, [flags])
    program, dims, scalars = b.finish()
    buffers = [np.array([0, 1, 2, 255], np.uint8), np.zeros(16, np.uint8), np.zeros(4, np.uint8)]
    run(verify(program, dims), scalars, buffers)
    assert buffers[1].view(np.int32).tolist() == [0, 1, 1, 1] and buffers[2].tolist() == [0, 1, 1, 1]


def test_an_instruction_reads_all_inputs_before_it_writes() -> None:
    """x[1:] = x[:-1] + 1, both in one buffer: the old values count."""
    b = Builder()
    x = b.external(DType.I32, (5,))
    b.emit("add", views.narrow(x, 0, 1, 4), [views.narrow(x, 0, 0, 4), b.const(1, DType.I32)])
    b.emit("cast", x, [flip(x, 0)])
    program, dims, scalars = b.finish()
    raw = np.array([10, 20, 30, 40, 50], np.int32)
    run(verify(program, dims), scalars, [raw.view(np.uint8)])
    assert raw.tolist() == [41, 31, 21, 11, 10]


@pytest.mark.parametrize(
    ("value", "dtype", "want"),
    [
        (300, DType.U8, 44), (-1, DType.U16, 65535), (2**63, DType.I64, -(2**63)), (1.9, DType.I32, 1), (float("nan"), DType.I8, 0),
        (1e9, DType.I8, 127), (2**2000, DType.F64, float("inf")), (1 + 2j, DType.F32, 1.0), (3, DType.C64, 3 + 0j),
        ((1.0, 2.0), DType.C128, 1 + 2j), (0j, DType.BOOL, False), (1j, DType.BOOL, True), (0.1, DType.BF16, 0.10009765625),
    ],
)  # fmt: skip
def test_every_number_converts_to_every_type(value: Any, dtype: DType, want: Any) -> None:
    (got,), _ = apply("cast", [(dtype, (2,))], [Imm(value, dtype)])
    assert [complex(v) if dtype.is_complex else v for v in got.tolist()] == [want, want] or float(got[0]) == want


def test_run_refuses_what_does_not_fit() -> None:
    b = Builder()
    x = b.external(DType.F32, (4,))
    b.emit("add", x, [x, b.const(1.0, DType.F32)])
    program, dims, _ = b.finish()
    verified = verify(program, dims)
    good = np.zeros(16, np.uint8)
    for scalars, buffers in (
        ([], [good]),
        ([1.0], []),
        ([1.0], [np.zeros(15, np.uint8)]),
        ([1.0], [None]),
        ([1.0], [np.zeros(16, np.int8)]),
    ):
        with pytest.raises(ValueError):
            run(verified, scalars, buffers)
    run(verified, [1.0], [good])
    assert good.view(np.float32).tolist() == [1.0] * 4
