"""Special functions by series, in f64: Bessel functions of the first modified kind, the scaled complementary error function, trigamma.

May live here: functions that need more than a few instructions an element. May not: what WIS has as one instruction (unary).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from wis.dtypes import DType
from wooly.device.lowering.dtypes import float_type
from wooly.device.lowering.errors import Unsupported
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.unary import to_float
from wooly.device.lowering.values import Meta, Value

__all__: list[str] = []

_FAR: Final = 20.0  # from here on the asymptotic series is as good as f64
_SERIES_TERMS: Final = 48
_ASYMPTOTIC_TERMS: Final = 16
_BERNOULLI: Final = (5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6)


def _wide(t: Trace, x: Meta) -> Meta:
    if x.dtype.is_complex:
        raise Unsupported("special functions of a complex tensor")
    return t.cast(x, DType.F64)


def _narrow(t: Trace, value: Meta, x: Meta) -> Meta:
    return t.cast(value, float_type(x.dtype))


def _polynomial(t: Trace, x: Meta, coefficients: Sequence[float]) -> Meta:
    """Horner's rule; the coefficient of the highest power first."""
    total: Value = coefficients[0]
    for coefficient in coefficients[1:]:
        total = t.map("add", t.map("mul", x, total, dtype=x.dtype), coefficient)
    assert isinstance(total, Meta), "polynomials have a degree"
    return total


# --- modified Bessel functions, order 0 and 1


def _scaled_bessel(t: Trace, x: Meta, order: int) -> Meta:
    """e**-|x| I_order(|x|): power series (all terms positive) near 0, asymptotic series far away."""
    size = t.map("abs", x)
    near = t.map("min", size, _FAR)
    quarter = t.map("mul", t.map("mul", near, near), 0.25)
    terms = [1.0 / (math.factorial(k) * math.factorial(k + order)) for k in reversed(range(_SERIES_TERMS))]
    series = t.map("mul", _polynomial(t, quarter, terms), t.map("exp", t.map("neg", near)))
    if order == 1:
        series = t.map("mul", series, t.map("mul", near, 0.5))
    far = t.map("max", size, _FAR)
    factors, term = [1.0], 1.0
    for k in range(1, _ASYMPTOTIC_TERMS):
        term *= -(4 * order**2 - (2 * k - 1) ** 2) / (8 * k)
        factors.append(term)
    tail = t.map("div", _polynomial(t, t.map("recip", far), factors[::-1]), t.map("sqrt", t.map("mul", far, 2 * math.pi)))
    return t.where(t.map("lt", size, _FAR), series, tail)


def _bessel(t: Trace, x: Meta, order: int, scaled: bool) -> Meta:
    wide = _wide(t, x)
    value = _scaled_bessel(t, wide, order)
    if not scaled:
        value = t.map("mul", value, t.map("exp", t.map("abs", wide)))
    if order == 1:
        value = t.map("copysign", value, wide)
    return _narrow(t, t.where(t.map("is_nan", wide), wide, value), x)


@lowers("aten::i0", "aten::special_modified_bessel_i0")
def i0(t: Trace, x: Meta) -> Meta:
    return _bessel(t, x, 0, False)


@lowers("aten::special_i0e")
def i0e(t: Trace, x: Meta) -> Meta:
    return _bessel(t, x, 0, True)


@lowers("aten::special_i1", "aten::special_modified_bessel_i1")
def i1(t: Trace, x: Meta) -> Meta:
    return _bessel(t, x, 1, False)


@lowers("aten::special_i1e")
def i1e(t: Trace, x: Meta) -> Meta:
    return _bessel(t, x, 1, True)


# --- error function


@lowers("aten::special_erfcx")
def erfcx(t: Trace, x: Meta) -> Meta:
    """e**(x*x) erfc(x): the product while both fit f64, then 1 / (x sqrt(pi)) times its asymptotic series."""
    wide = _wide(t, x)
    near = t.map("min", wide, 25.0)
    product = t.map("mul", t.map("exp", t.map("mul", near, near)), t.map("erfc", near))
    inverse = t.map("recip", t.map("max", wide, 25.0))
    series = _polynomial(t, t.map("mul", inverse, inverse), [-15 / 8, 3 / 4, -1 / 2, 1.0])
    far = t.map("mul", t.map("mul", series, inverse), 1 / math.sqrt(math.pi))
    return _narrow(t, t.where(t.map("gt", wide, 25.0), far, product), x)


# --- derivatives of digamma


@lowers("aten::polygamma")
def polygamma(t: Trace, n: int, x: Meta) -> Meta:
    """Digamma and trigamma; trigamma by recurrence and asymptotic series, reflected below 1/2."""
    if n == 0:
        return to_float("digamma")(t, x)
    if n > 1:
        raise Unsupported(f"polygamma of order {n}")
    wide = _wide(t, x)
    low = t.map("lt", wide, 0.5)
    z = t.where(low, t.map("sub", 1.0, wide), wide)
    total: Value = 0.0
    for _ in range(8):
        total = t.map("add", t.map("recip", t.map("mul", z, z)), total)
        z = t.map("add", z, 1.0)
    inverse = t.map("recip", z)
    square = t.map("mul", inverse, inverse)
    series = _polynomial(t, square, [*_BERNOULLI, 1.0])
    value = t.map("add", t.map("add", t.map("mul", inverse, series), t.map("mul", square, 0.5)), total)
    sine = t.map("sin", t.map("mul", wide, math.pi))
    mirrored = t.map("sub", t.map("div", math.pi**2, t.map("mul", sine, sine)), value)
    return _narrow(t, t.where(low, mirrored, value), x)
