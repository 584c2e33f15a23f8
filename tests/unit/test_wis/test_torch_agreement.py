"""The definition says what torch says, wherever torch says something: elementwise, reductions, scans, order, pooling, convolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.support.wis_run import Imm, apply, dtype_of
from wis.dtypes import DType

torch.set_num_threads(1)

NAN, INF = float("nan"), float("inf")
EDGES = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.25, 1e-3, 100.0, 1e30, -1e30, INF, -INF, NAN])
INTS = np.array([0, 1, -1, 2, -2, 3, 7, -7, 100, -128, 127])


def to_torch(x: np.ndarray[Any, Any]) -> torch.Tensor:
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(np.array(x).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(x))


def from_torch(t: torch.Tensor) -> np.ndarray[Any, Any]:
    t = t.resolve_conj().resolve_neg().contiguous()
    return t.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if t.dtype is torch.bfloat16 else t.numpy()


def check(got: np.ndarray[Any, Any], want: torch.Tensor, tolerance: float = 0.0) -> None:
    expected = from_torch(want)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if got.dtype.kind in "fcV" or got.dtype == ml_dtypes.bfloat16:
        wide = np.complex128 if got.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(got.astype(wide), expected.astype(wide), rtol=tolerance, atol=tolerance, equal_nan=True)
    else:
        np.testing.assert_array_equal(got, expected)


def grid(values: np.ndarray[Any, Any], dtype: DType) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Every pair of ``values``."""
    with np.errstate(all="ignore"):
        a, b = np.meshgrid(values.astype(dtype.numpy), values.astype(dtype.numpy), indexing="ij")
    return np.ascontiguousarray(a), np.ascontiguousarray(b)


Unary = Callable[[torch.Tensor], torch.Tensor]
UNARY: dict[str, Unary] = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log,
    "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "recip": torch.reciprocal,
    "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "asin": torch.asin, "acos": torch.acos, "atan": torch.atan, "sinh": torch.sinh,
    "cosh": torch.cosh, "tanh": torch.tanh, "asinh": torch.asinh, "acosh": torch.acosh, "atanh": torch.atanh, "erf": torch.erf,
    "erfc": torch.erfc, "erfinv": torch.erfinv, "lgamma": torch.lgamma, "digamma": torch.digamma, "sigmoid": torch.sigmoid,
    "floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "trunc": torch.trunc,
    "silu": torch.nn.functional.silu,
}  # fmt: skip
# Where torch's own f32 result is off by more than its neighbours: lgamma and digamma near their zeros.
LOOSE = {"lgamma": 2e-6, "digamma": 2e-5, "tan": 1e-6}


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.BF16, DType.F16])
@pytest.mark.parametrize("name", sorted(UNARY))
def test_unary(name: str, dtype: DType) -> None:
    with np.errstate(over="ignore"):
        x = np.concatenate([EDGES[np.abs(EDGES) != 1e30] if name in ("sin", "cos", "tan") else EDGES, np.linspace(-4, 4, 101)])
        x = x.astype(dtype.numpy)
    if dtype in (DType.F16, DType.BF16):
        # torch rounds inside some half kernels; the definition rounds once, so compare with the f32 result rounded once.
        want = UNARY[name](to_torch(x.astype(np.float32))).to(torch.bfloat16 if dtype is DType.BF16 else torch.float16)
        tolerance = 2.0**-7 if dtype is DType.BF16 else 2.0**-10
    else:
        want, tolerance = UNARY[name](to_torch(x)), LOOSE.get(name, 5e-7) if dtype is DType.F32 else 2e-13
    (got,), _ = apply(name, [(dtype, x.shape)], [x], ())
    check(got, want, tolerance)


BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "floor_div": torch.floor_divide, "mod": torch.remainder,
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"), "fmod": torch.fmod, "pow": torch.pow, "atan2": torch.atan2,
    "min": torch.minimum, "max": torch.maximum, "fmin": torch.fmin, "fmax": torch.fmax, "hypot": torch.hypot, "copysign": torch.copysign,
    "nextafter": torch.nextafter, "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
}  # fmt: skip
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
@pytest.mark.parametrize("name", sorted(BINARY))
def test_binary_floats(name: str, dtype: DType) -> None:
    a, b = grid(EDGES, dtype)
    (got,), _ = apply(name, [(DType.BOOL if name in COMPARE else dtype, a.shape)], [a, b])
    check(got, BINARY[name](to_torch(a), to_torch(b)), 5e-7 if dtype is DType.F32 else 1e-13)


@pytest.mark.parametrize("name", ["floor_div", "mod", "fmod", "trunc_div"])
def test_division_keeps_the_sign_of_zero(name: str) -> None:
    a, b = grid(EDGES, DType.F32)
    (got,), _ = apply(name, [(DType.F32, a.shape)], [a, b])
    want = from_torch(BINARY[name](to_torch(a), to_torch(b)))
    zero = got == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("dtype", [DType.I8, DType.I32, DType.I64, DType.U8])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "floor_div", "trunc_div", "mod", "fmod", "pow", "min", "max", *COMPARE])
def test_binary_integers(name: str, dtype: DType) -> None:
    a, b = grid(INTS, dtype)
    if name in ("floor_div", "trunc_div", "mod", "fmod"):
        a, b = a[:, b[0] != 0], b[:, b[0] != 0]  # torch raises
        keep = ~((a == np.iinfo(dtype.numpy).min) & (b == -1) if dtype is not DType.U8 else np.zeros(a.shape, bool))
        a, b = a[keep], b[keep]
    (got,), _ = apply(name, [(DType.BOOL if name in COMPARE else dtype, a.shape)], [a, b])
    check(got, BINARY[name](to_torch(a), to_torch(b)))


@pytest.mark.parametrize("name", ["floor_div", "trunc_div", "mod", "fmod"])
@pytest.mark.parametrize("dtype", [DType.I8, DType.I16, DType.I32, DType.I64, DType.U8, DType.U64])
def test_integer_division_by_zero_gives_zero(name: str, dtype: DType) -> None:
    a = np.array([0, 1, 5, 100]).astype(dtype.numpy)
    (got,), _ = apply(name, [(dtype, a.shape)], [a, np.zeros_like(a)])
    assert got.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("dtype", [DType.I8, DType.I16, DType.I32, DType.I64])
def test_shifts(dtype: DType) -> None:
    width = 8 * dtype.itemsize
    a, b = grid(np.array([0, 1, -1, 5, -8, width - 1, width, width + 1, 100]), dtype)
    for name, f in (("shl", torch.bitwise_left_shift), ("shr", torch.bitwise_right_shift)):
        (got,), _ = apply(name, [(dtype, a.shape)], [a, b])
        check(got, f(to_torch(a), to_torch(b)))


CASTS = [
    (s, t)
    for s in (DType.BOOL, DType.U8, DType.I32, DType.I64, DType.F16, DType.BF16, DType.F32, DType.F64, DType.C64)
    for t in (DType.BOOL, DType.U8, DType.I8, DType.I32, DType.I64, DType.F16, DType.BF16, DType.F32, DType.F64, DType.C128)
]
TORCH = {
    DType.BOOL: torch.bool, DType.U8: torch.uint8, DType.I8: torch.int8, DType.I32: torch.int32, DType.I64: torch.int64,
    DType.F16: torch.float16, DType.BF16: torch.bfloat16, DType.F32: torch.float32, DType.F64: torch.float64, DType.C64: torch.complex64,
    DType.C128: torch.complex128,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize(("source", "target"), CASTS, ids=lambda d: d.text)
def test_cast(source: DType, target: DType) -> None:
    values = [0.0, 1.0, 2.0, 100.0, 3.99, 0.25]
    if source.is_float or source.is_complex:
        values += [1.0009765625, 1.0000001, 65519.0] if not target.is_integer else []
        values += [-1.5, -3.99] if target not in (DType.U8,) else []
        values += [NAN, INF, -INF, 3e38, 1e-42, 70000.0] if not target.is_integer else []
    elif source in (DType.I32, DType.I64):
        values += [-1.0, -128.0, 300.0, 16777217.0, 2147483647.0, -2147483648.0]
    with np.errstate(all="ignore"):
        x = np.array(values).astype(source.numpy)
    (got,), _ = apply("cast", [(target, x.shape)], [x])
    check(got, to_torch(x).to(TORCH[target]))


def test_cast_saturates_where_torch_is_undefined() -> None:
    x = np.array([300.0, -1.0, NAN, 1e20, -1e20, INF, -INF], np.float32)
    for dtype, want in (
        (DType.U8, [255, 0, 0, 255, 0, 255, 0]),
        (DType.I32, [300, -1, 0, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31)]),
        (DType.I64, [300, -1, 0, 2**63 - 1, -(2**63), 2**63 - 1, -(2**63)]),
        (DType.U64, [300, 0, 0, 2**64 - 1, 0, 2**64 - 1, 0]),
    ):
        (got,), _ = apply("cast", [(dtype, x.shape)], [x])
        assert got.tolist() == want, dtype


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "sin", "cos", "tan", "tanh", "sigmoid", "recip", "conj", "atan", "acosh", "asin"])
def test_complex_unary(name: str) -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(50) + 1j * rng.standard_normal(50)).astype(np.complex64)
    f = {"recip": torch.reciprocal, "conj": torch.conj}.get(name) or getattr(torch, name)
    (got,), _ = apply(name, [(DType.C64, x.shape)], [x])
    check(got, f(to_torch(x)), 2e-6)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow"])
def test_complex_binary(name: str) -> None:
    rng = np.random.default_rng(2)
    a, b = ((rng.standard_normal(50) + 1j * rng.standard_normal(50)).astype(np.complex64) for _ in range(2))
    (got,), _ = apply(name, [(DType.C64, a.shape)], [a, b])
    check(got, BINARY[name](to_torch(a), to_torch(b)), 1e-5)


def test_bf16_scalar_stays_wide() -> None:
    """torch multiplies a bf16 tensor by a Python number in f32: the number is not rounded to bf16 first."""
    x = np.arange(1, 9).astype(ml_dtypes.bfloat16)
    (got,), _ = apply("mul", [(DType.BF16, x.shape)], [x, Imm(0.1, DType.F32)])
    check(got, to_torch(x) * 0.1)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.BF16, DType.I64, DType.C64])
@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 2), (0, 1, 2), (1, 2)])
def test_sum_and_extremes(dtype: DType, dims: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((5, 33, 70)) * 10).astype(dtype.numpy)
    shape = tuple(1 if d in dims else n for d, n in enumerate(x.shape))
    tolerance = {DType.F32: 1e-4, DType.BF16: 1.0, DType.C64: 1e-4}.get(dtype, 1e-11)
    (got,), _ = apply("sum", [(dtype, shape)], [x])
    check(got, torch.sum(to_torch(x), dims, keepdim=True, dtype=TORCH[dtype]), tolerance)
    if not dtype.is_complex:
        for name, f in (("reduce_max", torch.amax), ("reduce_min", torch.amin)):
            (got,), _ = apply(name, [(dtype, shape)], [x])
            check(got, f(to_torch(x), dims, keepdim=True))


def test_nan_wins_in_extremes() -> None:
    x = np.array([[1.0, NAN, 3.0], [2.0, 5.0, 5.0], [NAN, 7.0, NAN]], np.float32)
    for name, f in (("reduce_max", torch.amax), ("reduce_min", torch.amin)):
        (got,), _ = apply(name, [(DType.F32, (3, 1))], [x])
        check(got, f(to_torch(x), 1, keepdim=True))
    for name, g in (("argmax", torch.argmax), ("argmin", torch.argmin)):
        (index,), _ = apply(name, [(DType.I64, (3, 1))], [x], (1,))
        check(index, g(to_torch(x), 1, keepdim=True))


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_running_extremes_give_the_last_index(name: str) -> None:
    x = np.array([[1.0, 1.0, 0.0, NAN, 2.0, NAN], [3.0, 2.0, 3.0, 3.0, 9.0, -1.0]], np.float32)
    (values, index), _ = apply(name, [(DType.F32, x.shape), (DType.I64, x.shape)], [x], (1,))
    want = getattr(torch, name)(to_torch(x), 1)
    check(values, want.values)
    check(index, want.indices)


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("dtype", [DType.F64, DType.I32])
def test_scans(name: str, dtype: DType) -> None:
    x = (np.arange(24).reshape(2, 4, 3) - 7).astype(dtype.numpy)
    for dim in range(3):
        (got,), _ = apply(name, [(dtype, x.shape)], [x], (dim,))
        check(got, getattr(torch, name)(to_torch(x), dim, dtype=TORCH[dtype]), 1e-12)


@pytest.mark.parametrize("descending", [0, 1])
@pytest.mark.parametrize("dtype", [DType.F32, DType.I32, DType.U8, DType.BOOL, DType.BF16])
def test_sort(descending: int, dtype: DType) -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(0, 5, (3, 40)).astype(dtype.numpy)
    if dtype.is_float:
        x[1, ::7] = NAN
    (values, index), _ = apply("sort", [(dtype, x.shape), (DType.I64, x.shape)], [x], (1, descending))
    want = torch.sort(to_torch(x), dim=1, descending=bool(descending), stable=True)
    check(values, want.values)
    check(index, want.indices)


@pytest.mark.parametrize("largest", [0, 1])
def test_topk_values(largest: int) -> None:
    x = np.array([[3.0, NAN, 1.0, 2.0, 3.0], [5.0, 4.0, 3.0, 2.0, 1.0]], np.float32)
    (values, index), _ = apply("topk", [(DType.F32, (2, 3)), (DType.I64, (2, 3))], [x], (1, largest))
    check(values, torch.topk(to_torch(x), 3, 1, largest=bool(largest)).values)
    np.testing.assert_array_equal(np.take_along_axis(x, index, 1), values)
    if largest:
        assert index[0].tolist() == [1, 0, 4]  # ties by lower index


@pytest.mark.parametrize("right", [0, 1])
def test_search_sorted(right: int) -> None:
    line = np.array([[1.0, 2.0, 2.0, 3.0, NAN], [-1.0, 0.0, 0.0, 0.0, 9.0]], np.float32)
    values = np.array([[0.0, 2.0, 3.0, NAN], [0.0, -5.0, 100.0, NAN]], np.float32)
    (got,), _ = apply("search_sorted", [(DType.I64, values.shape)], [line, values], (right,))
    check(got, torch.searchsorted(to_torch(line), to_torch(values), right=bool(right)))


CONVS = [
    # n, c, o, groups, size, kernel, stride, pad, dilation
    (2, 3, 4, 1, (9,), (3,), (2,), (1,), (1,)),
    (2, 4, 6, 2, (8, 7), (3, 2), (1, 2), (1, 0), (1, 2)),
    (1, 4, 4, 4, (6, 6), (3, 3), (1, 1), (2, 2), (2, 2)),
    (1, 2, 3, 1, (4, 5, 6), (2, 3, 2), (1, 2, 1), (1, 1, 0), (1, 1, 1)),
    (2, 1, 1, 1, (5,), (1,), (3,), (4,), (1,)),
]


@pytest.mark.parametrize("case", CONVS, ids=str)
def test_convolution_and_gradients(case: tuple[Any, ...]) -> None:
    n, c, o, groups, size, kernel, stride, pad, dilation = case
    rng = np.random.default_rng(5)
    x = rng.standard_normal((n, c, *size))
    w = rng.standard_normal((o, c // groups, *kernel))
    tx, tw = to_torch(x).requires_grad_(), to_torch(w).requires_grad_()
    f = (torch.conv1d, torch.conv2d, torch.conv3d)[len(size) - 1]
    ty = f(tx, tw, None, stride, pad, dilation, groups)
    dy = rng.standard_normal(tuple(ty.shape))
    ty.backward(to_torch(dy))
    attrs = (groups, *stride, *pad, *dilation)
    assert tx.grad is not None and tw.grad is not None
    (y,), _ = apply("conv", [(DType.F64, ty.shape)], [x, w], attrs)
    check(y, ty.detach(), 1e-12)
    (dx,), _ = apply("conv_dx", [(DType.F64, x.shape)], [dy, w], attrs)
    check(dx, tx.grad, 1e-12)
    (dw,), _ = apply("conv_dw", [(DType.F64, w.shape)], [dy, x], attrs)
    check(dw, tw.grad, 1e-12)


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "pad", "dilation"), [((3, 2), (2, 3), (1, 1), (1, 1)), ((2, 2), (2, 2), (0, 0), (2, 1))])
def test_max_pool(kernel: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...], dilation: tuple[int, ...], ceil: bool) -> None:
    x = np.random.default_rng(6).integers(0, 9, (2, 3, 8, 9)).astype(np.float32)
    x[0, 0, 2:5, 3:6] = NAN
    want, where = torch.nn.functional.max_pool2d(to_torch(x), kernel, stride, pad, dilation, ceil, return_indices=True)
    attrs = (*kernel, *stride, *pad, *dilation)
    (got, index), _ = apply("max_pool", [(DType.F32, want.shape), (DType.I64, want.shape)], [x], attrs)
    check(got, want)
    check(index, where)


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("count_pad", [False, True])
@pytest.mark.parametrize("divisor", [None, 5])
def test_avg_pool(ceil: bool, count_pad: bool, divisor: int | None) -> None:
    x = np.random.default_rng(7).standard_normal((2, 3, 8, 9))
    tx = to_torch(x).requires_grad_()
    kernel, stride, pad = (3, 4), (2, 3), (1, 2)
    want = torch.nn.functional.avg_pool2d(tx, kernel, stride, pad, ceil, count_pad, divisor)
    attrs = (int(count_pad), divisor or 0, *kernel, *stride, *pad)
    (got,), _ = apply("avg_pool", [(DType.F64, want.shape)], [x], attrs)
    check(got, want.detach(), 1e-12)
    dy = np.random.default_rng(8).standard_normal(tuple(want.shape))
    want.backward(to_torch(dy))
    (dx,), _ = apply("avg_pool_dx", [(DType.F64, x.shape)], [dy], attrs)
    assert tx.grad is not None
    check(dx, tx.grad, 1e-12)


def test_dtype_of_covers_every_type() -> None:
    assert {dtype_of(np.zeros(1, d.numpy)) for d in DType} == set(DType)
