"""Special functions by series, in f64: Bessel functions of the first modified kind, the scaled complementary error function, the
quantile of the normal distribution, the zeta function and the derivatives of digamma.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from wis.dtypes import DType
from wis.views import broadcast_shapes
from wooly.device.lowering.dtypes import accumulate, float_type, result_type
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.unary import to_float
from wooly.device.lowering.values import Meta, Unsupported, Value

__all__ = ["bessel_series", "in_f64", "polynomial", "rational", "rounded"]

_FAR: Final = 20.0  # from here on the asymptotic series is as good as f64
_SERIES_TERMS: Final = 48
_ASYMPTOTIC_TERMS: Final = 16
_BERNOULLI: Final = (5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6)


def in_f64(t: Trace, x: Meta) -> Meta:
    """``x`` in f64, in which special functions are computed; raises Unsupported for complex numbers."""
    if x.dtype.is_complex:
        raise Unsupported("special functions of a complex tensor")
    return t.cast(x, DType.F64)


def rounded(t: Trace, value: Meta, x: Meta) -> Meta:
    """``value`` in the type of a special function of ``x``: its own, or the default type for integers."""
    return t.cast(value, float_type(x.dtype))


def polynomial(t: Trace, x: Meta, coefficients: Sequence[float]) -> Meta:
    """Horner's rule; the coefficient of the highest power first."""
    total: Value = coefficients[0]
    for coefficient in coefficients[1:]:
        total = t.map("add", t.map("mul", x, total, dtype=x.dtype), coefficient)
    assert isinstance(total, Meta), "polynomials have a degree"
    return total


# --- modified Bessel functions, order 0 and 1


def bessel_series(t: Trace, x: Meta, order: int, count: int) -> Meta:
    """I_order(x) by the first ``count`` terms of its power series."""
    quarter = t.map("mul", t.map("mul", x, x), 0.25)
    terms = [1.0 / (math.factorial(k) * math.factorial(k + order)) for k in reversed(range(count))]
    series = polynomial(t, quarter, terms)
    return series if order == 0 else t.map("mul", series, t.map("mul", x, 0.5))


def _scaled_bessel(t: Trace, x: Meta, order: int) -> Meta:
    """e**-|x| I_order(|x|): power series (all terms positive) near 0, asymptotic series far away."""
    size = t.map("abs", x)
    near = t.map("min", size, _FAR)
    series = t.map("mul", bessel_series(t, near, order, _SERIES_TERMS), t.map("exp", t.map("neg", near)))
    far = t.map("max", size, _FAR)
    factors, term = [1.0], 1.0
    for k in range(1, _ASYMPTOTIC_TERMS):
        term *= -(4 * order**2 - (2 * k - 1) ** 2) / (8 * k)
        factors.append(term)
    root = t.map("mul", t.map("sqrt", far), math.sqrt(2 * math.pi))
    tail = t.map("div", polynomial(t, t.map("recip", far), factors[::-1]), root)
    return t.where(t.map("lt", size, _FAR), series, tail)


def _bessel(t: Trace, x: Meta, order: int, scaled: bool) -> Meta:
    wide = in_f64(t, x)
    value = _scaled_bessel(t, wide, order)
    if not scaled:
        value = t.map("mul", value, t.map("exp", t.map("abs", wide)))
    if order == 1:
        value = t.map("copysign", value, wide)
    return rounded(t, t.where(t.map("is_nan", wide), wide, value), x)


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


@lowers("aten::kaiser_window", "aten::kaiser_window.periodic", "aten::kaiser_window.beta", concrete=("beta",))
def kaiser_window(t: Trace, window_length: int, periodic: bool = True, beta: float = 12.0, **layout: Any) -> Meta:
    """i0(beta sqrt(1 - x**2)) / i0(beta), x from -1 to 1; a periodic window leaves the last element out."""
    want = t.want()
    if window_length == 1:
        return t.full(want.shape, 1, want.dtype)
    steps = window_length if periodic else window_length - 1
    x = t.iota(window_length, DType.F64, -1.0, 2.0 / max(steps, 1))
    inside = t.map("max", t.map("sub", 1.0, t.map("mul", x, x)), 0.0)
    size = t.map("mul", t.map("sqrt", inside), abs(beta))
    ends = t.full((1,), abs(beta), DType.F64)
    ratio = t.map("div", _scaled_bessel(t, size, 0), _scaled_bessel(t, ends, 0))
    return t.cast(t.map("mul", ratio, t.map("exp", t.map("sub", size, ends))), want.dtype)


# --- error function and the normal distribution

_ERFCX_FAR: Final = (10395 / 64, -945 / 32, 105 / 16, -15 / 8, 3 / 4, -1 / 2, 1.0)
"""The asymptotic series of erfcx in 1 / x**2: (-1)**k (2k - 1)!! / 2**k. The first term left out is below 1e-17 from 25 on."""


@lowers("aten::special_erfcx")
def erfcx(t: Trace, x: Meta) -> Meta:
    """e**(x*x) erfc(x): the product while both fit f64, then 1 / (x sqrt(pi)) times its asymptotic series."""
    wide = in_f64(t, x)
    near = t.map("min", wide, 25.0)
    product = t.map("mul", t.map("exp", t.map("mul", near, near)), t.map("erfc", near))
    inverse = t.map("recip", t.map("max", wide, 25.0))
    series = polynomial(t, t.map("mul", inverse, inverse), _ERFCX_FAR)
    far = t.map("mul", t.map("mul", series, inverse), 1 / math.sqrt(math.pi))
    return rounded(t, t.where(t.map("gt", wide, 25.0), far, product), x)


@lowers("aten::special_ndtri")
def ndtri(t: Trace, x: Meta) -> Meta:
    """The quantile of the normal distribution by AS 241 (Wichura 1988, doi:10.2307/2347330): three rational functions, each with a relative
    error of about 1e-16; NaN outside of [0, 1]."""
    wide = in_f64(t, x)
    middle = t.map("sub", wide, 0.5)
    near = t.map("sub", 0.180625, t.map("mul", middle, middle))
    below = t.map("lt", middle, 0.0)
    tail = t.where(below, wide, t.map("sub", 1.0, wide))
    root = t.map("sqrt", t.map("neg", t.map("log", tail)))
    centre = t.map("mul", rational(t, near, _NDTRI_CENTRE), middle)
    near_tail = rational(t, t.map("sub", root, 1.6), _NDTRI_TAIL)
    far_tail = rational(t, t.map("sub", root, 5.0), _NDTRI_FAR_TAIL)
    size = t.where(t.map("le", root, 5.0), near_tail, far_tail)
    size = t.where(t.map("is_inf", root), math.inf, size, dtype=DType.F64)
    outer = t.where(below, t.map("neg", size), size)
    value = t.where(t.map("le", t.map("abs", middle), 0.425), centre, outer)
    return rounded(t, value, x)


def rational(t: Trace, x: Meta, coefficients: tuple[Sequence[float], Sequence[float]]) -> Meta:
    """A quotient of two polynomials, the coefficient of the highest power first."""
    top, bottom = coefficients
    return t.map("div", polynomial(t, x, top), polynomial(t, x, bottom))


_NDTRI_CENTRE: Final = (
    (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4, 1.3731693765509461125e4,
     1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080),
    (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4, 5.3941960214247511077e3,
     6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
)  # fmt: skip
_NDTRI_TAIL: Final = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258, 3.64784832476320460504,
     5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1, 6.89767334985100004550e-1,
     1.67638483018380384940, 2.05319162663775882187, 1.0),
)  # fmt: skip
_NDTRI_FAR_TAIL: Final = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2, 2.96560571828504891230e-1,
     1.78482653991729133580, 5.46378491116411436990, 6.65790464350110377720),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4, 1.48753612908506148525e-2,
     1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0),
)  # fmt: skip


# --- Hurwitz zeta and the derivatives of digamma

_ZETA_TERMS: Final = 10
_ZETA_TAIL: Final = (
    12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9, 7.47242496e10, -2.950130727918164224e12,
    1.1646782814350067249e14, -4.5979787224074726105e15, 1.8152105401943546773e17, -7.1661652561756670113e18,
)  # fmt: skip
"""(2k)! / B_2k, as in the Cephes Math Library (S. L. Moshier, zeta.c)."""


def _sum_of_powers(t: Trace, s: Meta, q: Meta) -> Meta:
    """The sum of (q + n)**-s over n >= 0 for q > 0: terms, then Euler-Maclaurin, left out where terms have become too small to count."""
    exponent = t.map("neg", s)
    total = power = t.map("pow", q, exponent)
    for n in range(1, _ZETA_TERMS):
        power = t.map("pow", t.map("add", q, float(n)), exponent)
        total = t.map("add", total, power)
    done = t.map("lt", power, t.map("mul", total, 2.0**-53))
    last = t.map("add", q, float(_ZETA_TERMS - 1))
    tail = t.map("sub", t.map("div", t.map("mul", power, last), t.map("sub", s, 1.0)), t.map("mul", power, 0.5))
    rising: Meta = s
    for k, divisor in enumerate(_ZETA_TAIL):
        if k:
            rising = t.map("mul", rising, t.map("mul", t.map("add", s, 2.0 * k - 1), t.map("add", s, 2.0 * k)))
        power = t.map("div", power, last if k == 0 else t.map("mul", last, last))
        tail = t.map("add", tail, t.map("div", t.map("mul", rising, power), divisor))
    return t.where(done, total, t.map("add", total, tail))


def _zeta(t: Trace, s: Meta, q: Meta) -> Meta:
    """Below 0 the terms up to there are those of two sums above 0: with f = q - floor(q), g = ceil(q) - q and even s,
    zeta(s, q) = zeta(s, f) + zeta(s, g) - zeta(s, 1 - q); for odd s the last two change their sign."""
    q = q.expand(broadcast_shapes(s.shape, q.shape))
    below = t.map("le", q, 0.0)
    floor = t.map("floor", q)
    odd = t.map("eq", t.map("mod", s, 2.0), 1.0)
    starts = [t.where(below, t.map("sub", q, floor), q), t.map("sub", t.map("ceil", q), q), t.map("sub", 1.0, q)]
    stacked = t.temp(q.dtype, (3, *q.shape))
    for i, start in enumerate(starts):
        t.store(stacked.select(0, i), start)
    sums = _sum_of_powers(t, s, stacked)
    value, left, rest = (sums.select(0, i) for i in range(3))
    rest = t.where(t.map("is_nan", rest), 0.0, rest, dtype=s.dtype)  # its powers underflow
    both = t.where(odd, t.map("add", t.map("sub", value, left), rest), t.map("sub", t.map("add", value, left), rest))
    value = t.where(below, both, value)
    value = t.where(t.map("and", below, t.map("ne", s, t.map("floor", s))), math.nan, value, dtype=s.dtype)
    value = t.where(t.map("and", below, t.map("eq", q, floor)), math.inf, value, dtype=s.dtype)
    return t.where(t.map("lt", s, 1.0), math.nan, t.where(t.map("eq", s, 1.0), math.inf, value, dtype=s.dtype), dtype=s.dtype)


@lowers("aten::special_zeta", "aten::special_zeta.self_scalar", "aten::special_zeta.other_scalar")
def zeta(t: Trace, x: Value, q: Value) -> Meta:
    dtype = float_type(result_type((x, q)))
    if dtype.is_complex:
        raise Unsupported("zeta of a complex tensor")
    s, shift = (t.cast(v, DType.F64) if isinstance(v, Meta) else t.full((), v, DType.F64) for v in (x, q))
    return t.cast(_zeta(t, s, shift), dtype)


@lowers("aten::polygamma")
def polygamma(t: Trace, n: int, x: Meta) -> Meta:
    """Digamma, trigamma by recurrence and asymptotic series, reflected below 1/2, and higher orders by the zeta function."""
    if n == 0:
        return to_float("digamma")(t, x)
    wide = in_f64(t, x)
    if n > 1:
        factor = math.copysign(math.gamma(n + 1) if n <= 170 else math.inf, n % 2 - 0.5)
        value = t.cast(_zeta(t, t.full((), n + 1, DType.F64), wide), accumulate(float_type(x.dtype)))
        return t.map("mul", value, factor)  # in this type, so that they overflow and underflow where torch's do
    low = t.map("lt", wide, 0.5)
    z = t.where(low, t.map("sub", 1.0, wide), wide)
    total: Value = 0.0
    for _ in range(8):
        total = t.map("add", t.map("recip", t.map("mul", z, z)), total)
        z = t.map("add", z, 1.0)
    inverse = t.map("recip", z)
    square = t.map("mul", inverse, inverse)
    series = polynomial(t, square, [*_BERNOULLI, 1.0])
    value = t.map("add", t.map("add", t.map("mul", inverse, series), t.map("mul", square, 0.5)), total)
    sine = t.map("sin", t.map("mul", wide, math.pi))
    mirrored = t.map("sub", t.map("div", math.pi**2, t.map("mul", sine, sine)), value)
    return rounded(t, t.where(low, mirrored, value), x)
