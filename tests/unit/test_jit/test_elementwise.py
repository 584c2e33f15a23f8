"""Every MAP operation on every element type, over values that matter: zeros of both signs, extremes, infinities, NaN, ragged lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.builder import Builder
from tests.unit.test_jit.conftest import Check
from wis.dtypes import FLOATS, INTEGERS, DType
from wis.ops import OPS, Kind, Op, Types

FLOAT_TYPES = sorted(FLOATS)
WHOLE_TYPES = [*sorted(INTEGERS), DType.BOOL]
EXACT = {
    "cast", "where", "neg", "abs", "sign", "not", "sqrt", "recip", "floor", "ceil", "round", "trunc", "conj", "is_nan", "is_inf",
    "sign_bit", "add", "sub", "mul", "div", "floor_div", "trunc_div", "mod", "fmod", "min", "max", "fmin", "fmax", "and", "or", "xor",
    "shl", "shr", "copysign", "eq", "ne", "lt", "le", "gt", "ge", "fma", "nextafter",
}  # fmt: skip
NAMED_ULPS = {"erf": 2.0, "erfc": 4.0, "tanh": 2.0, "sigmoid": 3.0, "exp": 1.5, "log": 1.5}
NAMED_ULPS_F64 = {"tan": 8.0, "sinh": 8.0, "cosh": 8.0, "asinh": 8.0, "acosh": 16.0, "atanh": 8.0, "expm1": 8.0, "log1p": 8.0}


def values(dtype: DType, seed: int, n: int = 203) -> npt.NDArray[Any]:
    """Random values over several magnitudes, with special ones in front."""
    rng = np.random.default_rng(seed)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, n).astype(np.bool_)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        special = [0, 1, 2, 3, info.max, info.min, info.max - 1, 7, info.min + 1]
        near = rng.integers(max(info.min, -20), 21, n // 2)
        far = rng.integers(info.min, info.max, n, dtype=dtype.numpy)
        return rng.permutation(np.concatenate([np.array(special, dtype.numpy), near.astype(dtype.numpy), far]))[:n]
    special_f = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 3.0, -3.0, np.inf, -np.inf, np.nan, 1e-40, 1e4, -1e4, 88.0, -88.0, 2.5, 1.5]
    scales = 10.0 ** rng.uniform(-4, 2, n)
    return rng.permutation(np.concatenate([special_f, rng.standard_normal(n) * scales]))[:n].astype(dtype.numpy)


def fits(op: Op, dtype: DType) -> bool:
    """Whether the op takes operands of this type."""
    match op.types:
        case Types.SAME:
            return dtype is not DType.BOOL
        case Types.SAME_ANY | Types.COMPARE | Types.WHERE:
            return True
        case Types.FLOAT | Types.REAL | Types.TEST:
            return dtype.is_float
        case Types.BITS:
            return dtype.is_integer or dtype is DType.BOOL
        case Types.INT:
            return dtype.is_integer
    return op.name == "sign_bit" and dtype is not DType.BOOL


@pytest.mark.parametrize("dtype", [*FLOAT_TYPES, *WHOLE_TYPES], ids=lambda d: d.text)
def test_every_map_operation(dtype: DType, check: Check) -> None:
    b = Builder()
    n = 203
    a, c, d = (b.external(dtype, (n,)) for _ in range(3))
    mask = b.external(DType.BOOL, (n,))
    inputs = {x.buffer: values(dtype, seed) for seed, x in enumerate((a, c, d))} | {mask.buffer: values(DType.BOOL, 9)}
    tolerant = []
    for op in OPS:
        if op.kind is not Kind.MAP or op.name == "cast" or not fits(op, dtype):
            continue
        if dtype is DType.BOOL and op.name not in ("where", "not", "and", "or", "xor", "min", "max", "eq", "ne", "lt", "le", "gt", "ge"):
            continue
        boolean = op.types in (Types.COMPARE, Types.TEST) or op.name == "sign_bit"
        out = b.created(DType.BOOL if boolean else dtype, (n,))
        operands = [mask, a, c] if op.name == "where" else [a, c, d][: op.n_ins[0]]
        b.emit(op.name, out, operands)
        if op.name not in EXACT and dtype.is_float:
            default = 2.0 if dtype is not DType.F64 else NAMED_ULPS_F64.get(op.name, 4.0)
            tolerant.append((out, NAMED_ULPS.get(op.name, default)))
    check(b, inputs, tolerant)


@pytest.mark.parametrize("source", [*FLOAT_TYPES, *WHOLE_TYPES], ids=lambda d: d.text)
def test_casts(source: DType, check: Check) -> None:
    b = Builder()
    x = b.external(source, (203,))
    for target in (*FLOAT_TYPES, *WHOLE_TYPES):
        b.emit("cast", b.created(target, (203,)), [x])
    check(b, {x.buffer: values(source, 3)})


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.F16, DType.BF16, DType.I32, DType.I64, DType.BOOL], ids=lambda d: d.text)
def test_immediates(dtype: DType, check: Check) -> None:
    b = Builder()
    x = b.external(dtype, (70,))
    if dtype is DType.BOOL:
        b.emit("or", b.created(dtype, (70,)), [x, b.const(True, dtype)])
    else:
        b.emit("add", b.created(dtype, (70,)), [x, b.const(3, dtype)])
        b.emit("sub", b.created(dtype, (70,)), [b.const(-2.75, dtype), x])
        b.emit("mul", b.created(dtype, (70,)), [b.const(0.1 if dtype.is_float else 5, dtype), x])
    b.emit("cast", b.created(dtype, (5, 3)), [b.const(1, dtype)])
    check(b, {x.buffer: values(dtype, 5, 70)})


def test_huge_arguments_of_periodic_functions(check: Check) -> None:
    """Beyond the range that the fast reduction covers, lanes go to the C library one by one."""
    b = Builder()
    x = b.external(DType.F32, (100,))
    x64 = b.external(DType.F64, (100,))
    outs = []
    for name in ("sin", "cos", "tan"):
        for source in (x, x64):
            out = b.created(source.dtype, (100,))
            b.emit(name, out, [source])
            outs.append((out, 4.0))
    rng = np.random.default_rng(1)
    big = rng.standard_normal(100) * 10.0 ** rng.uniform(0, 30, 100)
    check(b, {x.buffer: big.astype(np.float32), x64.buffer: big}, outs)


@pytest.mark.parametrize("dtype", FLOAT_TYPES, ids=lambda d: d.text)
def test_odd_functions_keep_the_sign_of_zero(dtype: DType, check: Check) -> None:
    b = Builder()
    x = b.external(dtype, (40,))
    outs = []
    for name in "sin tan asin atan sinh tanh asinh atanh erf expm1 log1p".split():
        out = b.created(dtype, (40,))
        b.emit(name, out, [x])
        outs.append((out, 8.0))
    check(b, {x.buffer: np.tile(np.array([0.0, -0.0, 0.25, -0.25]), 10).astype(dtype.numpy)}, outs)


@pytest.mark.parametrize("last", ["tanh", "erf", "atan2"])
def test_a_half_computed_in_f64_gives_its_sign_to_the_next_function(last: str, check: Check) -> None:
    """In scalar code LLVM takes the sign from a direct rounding of f64 to f16, a function that it expects to find."""
    b = Builder()
    x = b.external(DType.F16, (2,))
    total, tangent, out = (b.created(DType.F16, (1,)) for _ in range(3))
    b.emit("sum", total, [x])
    b.emit("tan", tangent, [total])
    b.emit(last, out, [tangent, total] if last == "atan2" else [tangent])
    check(b, {x.buffer: np.array([0.3, -0.8], np.float16)}, [(total, 0.0), (tangent, 2.0), (out, 4.0)])
