"""Elementwise operations of one tensor: a table for those that are one instruction, functions for the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from wis.dtypes import COMPLEX, FLOATS, DType
from wooly.device.lowering.dtypes import accumulate, complex_of, float_type, result_type
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta, Number, Unsupported, Value

__all__ = ["complex_abs", "complex_parts", "join", "to_float"]

_TO_FLOAT: Final = {
    "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log10": "log10", "log1p": "log1p", "sqrt": "sqrt",
    "rsqrt": "rsqrt", "reciprocal": "recip", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan",
    "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "erf": "erf", "erfc": "erfc",
    "erfinv": "erfinv", "lgamma": "lgamma", "digamma": "digamma", "sigmoid": "sigmoid",
}  # fmt: skip
"""aten name -> WIS name, for functions whose integer input becomes float."""

_ROUNDING: Final = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "round"}
"""aten name -> WIS name, for functions that leave integers alone."""


def _log_base(base: float) -> Callable[[Trace, Meta], Meta]:
    return lambda t, x: t.map("div", t.map("log", x), math.log(base), dtype=x.dtype)


_COMPLEX: Final[dict[str, Callable[[Trace, Meta], Meta]]] = {
    "exp2": lambda t, x: t.map("exp", t.map("mul", x, math.log(2), dtype=x.dtype)),
    "expm1": lambda t, x: _complex_expm1(t, x),
    "log2": _log_base(2),
    "log10": _log_base(10),
    "log1p": lambda t, x: _complex_log1p(t, x),
    "rsqrt": lambda t, x: t.map("recip", t.map("sqrt", x)),
}
"""Complex forms of the functions that WIS has for real types only."""


def _complex_expm1(t: Trace, x: Meta) -> Meta:
    """expm1(a) cos b - 2 sin(b/2)^2 + i e^a sin b: accurate near 0."""
    a, b = complex_parts(t, x)
    half_sine = t.map("sin", t.map("mul", b, 0.5))
    real = t.map("sub", t.map("mul", t.map("expm1", a), t.map("cos", b)), t.map("mul", t.map("mul", half_sine, half_sine), 2.0))
    return join(t, real, t.map("mul", t.map("exp", a), t.map("sin", b)))


def _complex_log1p(t: Trace, x: Meta) -> Meta:
    """log(1 + z) with real part log1p(|z|^2 + 2 re z) / 2: accurate near 0."""
    a, b = complex_parts(t, x)
    one_more = t.map("add", a, 1.0)
    near = t.map("add", t.map("mul", a, t.map("add", a, 2.0)), t.map("mul", b, b))
    real = t.map("mul", t.map("log1p", near), 0.5)
    far = t.map("log", t.map("hypot", one_more, b))
    real = t.where(t.map("lt", t.map("abs", near), 0.5), real, far)
    return join(t, real, t.map("atan2", b, one_more))


def join(t: Trace, real: Meta, imag: Meta) -> Meta:
    """The complex numbers with these parts."""
    out = t.temp(complex_of(real.dtype), real.shape)
    t.emit("complex", [out], [real, imag])
    return out


def to_float(name: str) -> Callable[[Trace, Meta], Meta]:
    """The lowering of a function whose integer input becomes float."""
    op = _TO_FLOAT[name]

    def lowering(t: Trace, x: Meta) -> Meta:
        if x.dtype in COMPLEX and name in _COMPLEX:
            return _COMPLEX[name](t, x)
        if x.dtype in COMPLEX and name in ("erf", "erfc", "erfinv", "lgamma", "digamma"):
            raise Unsupported(f"{name} of a complex tensor")
        return t.map(op, x, dtype=float_type(x.dtype))

    return lowering


def _rounding(op: str) -> Callable[[Trace, Meta], Meta]:
    return lambda t, x: t.map(op, x) if x.dtype in FLOATS else x


for _name in _TO_FLOAT:
    lowers(f"aten::{_name}")(to_float(_name))
for _name, _op in _ROUNDING.items():
    lowers(f"aten::{_name}")(_rounding(_op))


def complex_parts(t: Trace, x: Meta) -> tuple[Meta, Meta]:
    """Real and imaginary part, as views of ``x``."""
    parts = x.as_parts()
    return parts.select(x.ndim, 0), parts.select(x.ndim, 1)


def complex_abs(t: Trace, x: Meta) -> Meta:
    """|z| in the type of the parts."""
    return t.map("hypot", *complex_parts(t, x))


@lowers("aten::abs")
def abs_(t: Trace, x: Meta) -> Meta:
    if x.dtype in COMPLEX:
        return complex_abs(t, x)
    return x if x.dtype == DType.BOOL else t.map("abs", x)


@lowers("aten::neg")
def neg(t: Trace, x: Meta) -> Meta:
    return t.map("neg", x)


@lowers("aten::bitwise_not")
def bitwise_not(t: Trace, x: Meta) -> Meta:
    return t.map("not", x)


@lowers("aten::logical_not")
def logical_not(t: Trace, x: Meta) -> Meta:
    return t.map("eq", x, 0, dtype=x.dtype)


def _sign(t: Trace, x: Meta) -> Meta:
    if x.dtype == DType.BOOL:
        return x
    if x.dtype in FLOATS:  # torch gives 0 for NaN, WIS gives NaN
        return t.where(t.map("is_nan", x), 0, t.map("sign", x), dtype=x.dtype)
    return t.map("sign", x)


lowers("aten::sign")(_sign)


@lowers("aten::sgn")
def sgn(t: Trace, x: Meta) -> Meta:
    if x.dtype not in COMPLEX:
        return _sign(t, x)
    size = complex_abs(t, x)
    return t.where(t.map("eq", size, 0.0), 0, t.map("div", x, t.cast(size, x.dtype)), dtype=x.dtype)


@lowers("aten::signbit")
def signbit(t: Trace, x: Meta) -> Meta:
    return t.full(x.shape, False, DType.BOOL) if x.dtype == DType.BOOL else t.map("sign_bit", x)


@lowers("aten::isnan")
def isnan(t: Trace, x: Meta) -> Meta:
    return t.map("is_nan", x) if x.dtype in FLOATS or x.dtype in COMPLEX else t.full(x.shape, False, DType.BOOL)


@lowers("aten::isinf")
def isinf(t: Trace, x: Meta) -> Meta:
    return t.map("is_inf", x) if x.dtype in FLOATS or x.dtype in COMPLEX else t.full(x.shape, False, DType.BOOL)


@lowers("aten::isposinf")
def isposinf(t: Trace, x: Meta) -> Meta:
    return t.map("eq", x, math.inf) if x.dtype in FLOATS else t.full(x.shape, False, DType.BOOL)


@lowers("aten::isneginf")
def isneginf(t: Trace, x: Meta) -> Meta:
    return t.map("eq", x, -math.inf) if x.dtype in FLOATS else t.full(x.shape, False, DType.BOOL)


@lowers("aten::frac")
def frac(t: Trace, x: Meta) -> Meta:
    return t.map("sub", x, t.map("trunc", x))


@lowers("aten::round.decimals")
def round_decimals(t: Trace, x: Meta, *, decimals: int = 0) -> Meta:
    if decimals == 0 or x.dtype not in FLOATS:
        return t.map("round", x) if x.dtype in FLOATS else x
    scale, up, down = 10.0 ** abs(decimals), "mul", "div"
    if decimals < 0:
        up, down = down, up
    wide = t.acc(x)
    return t.map(down, t.map("round", t.map(up, wide, scale)), scale)


@lowers("aten::nan_to_num", concrete=("nan", "posinf", "neginf"))
def nan_to_num(t: Trace, x: Meta, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Meta:
    if x.dtype in COMPLEX:
        raise Unsupported("nan_to_num of a complex tensor")
    if x.dtype not in FLOATS:
        return x
    largest = _LARGEST[x.dtype]
    out = t.where(t.map("is_nan", x), 0.0 if nan is None else nan, x, dtype=x.dtype)
    out = t.where(t.map("eq", x, math.inf), largest if posinf is None else posinf, out, dtype=x.dtype)
    return t.where(t.map("eq", x, -math.inf), -largest if neginf is None else neginf, out, dtype=x.dtype)


_LARGEST: Final[dict[DType, Number]] = {
    DType.F16: 65504.0,
    DType.BF16: 3.3895313892515355e38,
    DType.F32: 3.4028234663852886e38,
    DType.F64: 1.7976931348623157e308,
}


@lowers("aten::logit", concrete=("eps",))
def logit(t: Trace, x: Meta, eps: float | None = None) -> Meta:
    x = t.acc(x)
    if eps is not None:
        x = t.map("min", t.map("max", x, eps), 1 - eps)
    return t.map("log", t.map("div", x, t.map("sub", 1.0, x)))


@lowers("aten::sinc")
def sinc(t: Trace, x: Meta) -> Meta:
    x = t.acc(x)
    angle = t.map("mul", x, math.pi, dtype=x.dtype)
    return t.where(t.map("eq", x, 0, dtype=x.dtype), 1, t.map("div", t.map("sin", angle), angle), dtype=x.dtype)


@lowers("aten::angle")
def angle(t: Trace, x: Meta) -> Meta:
    if x.dtype in COMPLEX:
        real, imag = complex_parts(t, x)
        return t.map("atan2", imag, real)
    x = t.cast(x, float_type(x.dtype))
    return t.where(t.map("is_nan", x), x, t.where(t.map("lt", x, 0.0), math.pi, 0.0, dtype=x.dtype))


def _scaled(factor: float) -> Callable[[Trace, Meta], Meta]:
    return lambda t, x: t.map("mul", x, factor)


lowers("aten::deg2rad")(_scaled(math.pi / 180))
lowers("aten::rad2deg")(_scaled(180 / math.pi))


@lowers("aten::xlogy.Tensor", "aten::xlogy.Scalar_Other", "aten::xlogy.Scalar_Self")
def xlogy(t: Trace, x: Value, y: Value) -> Meta:
    return _x_times_log(t, "log", x, y)


@lowers("aten::special_xlog1py", "aten::special_xlog1py.other_scalar", "aten::special_xlog1py.self_scalar")
def xlog1py(t: Trace, x: Value, y: Value) -> Meta:
    return _x_times_log(t, "log1p", x, y)


def _x_times_log(t: Trace, log: str, x: Value, y: Value) -> Meta:
    """x * log(y), 0 where x is 0 unless y is NaN."""
    dtype = accumulate(float_type(result_type((x, y))))
    product = t.map("mul", x, t.map(log, y, dtype=dtype), dtype=dtype)
    zero = t.where(t.map("eq", x, 0, dtype=dtype), 0.0, product, dtype=dtype)
    return t.where(t.map("is_nan", y, dtype=dtype), math.nan, zero, dtype=dtype)


@lowers("aten::special_entr")
def entr(t: Trace, x: Meta) -> Meta:
    x = t.acc(x)
    inside = t.where(t.map("eq", x, 0.0), 0.0, t.map("neg", t.map("mul", x, t.map("log", x))), dtype=x.dtype)
    out = t.where(t.map("lt", x, 0.0), -math.inf, inside, dtype=x.dtype)
    return t.where(t.map("is_nan", x), x, out, dtype=x.dtype)


@lowers("aten::mvlgamma")
def mvlgamma(t: Trace, x: Meta, p: int) -> Meta:
    x = t.acc(x)
    total = t.full(x.shape, p * (p - 1) / 4 * math.log(math.pi), x.dtype)
    for j in range(p):
        total = t.map("add", total, t.map("lgamma", t.map("sub", x, j / 2)))
    return total


# --- assertions


@lowers("aten::_assert_async", "aten::_assert_async.msg")
def assert_async(t: Trace, x: Meta, message: str = "Expected Tensor with single nonzero value, but got zero") -> None:
    if x.numel != 1:
        raise Unsupported("an assertion of other than one value")
    t.check(t.map("ne", x, 0, dtype=x.dtype), message)


@lowers("aten::_functional_assert_async.msg")
def functional_assert_async(t: Trace, x: Meta, message: str, token: Meta) -> Meta:
    assert_async(t, x, message)
    return t.copy(token)
