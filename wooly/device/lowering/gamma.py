"""Incomplete gamma functions, and draws of the distributions that are made of them: gamma, Dirichlet, Poisson, binomial.

Draws by rejection take a fixed number of rounds, in which a round counts where no earlier one was accepted: a call takes as many numbers
of the stream whatever they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from wis.dtypes import FLOATS, DType
from wis.ops import Dist
from wis.views import broadcast_shapes
from wooly.device.lowering.dtypes import accumulate, result_type
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.special import polynomial
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta, Unsupported, Value

__all__: list[str] = []

_LARGE: Final = 30.0
"""The order from which on the expansion for large orders is off by less than 1e-8."""
_SERIES_TERMS: Final = 48
_FRACTION_TERMS: Final = 40


def _series(t: Trace, a: Meta, x: Meta) -> Meta:
    """gamma(a + 1) e**x x**-a P(a, x) for x up to a + 1."""
    total: Meta = t.full(x.shape, 1.0, DType.F64)
    term = total
    for n in range(1, _SERIES_TERMS):
        term = t.map("mul", term, t.map("div", x, t.map("add", a, float(n))))
        total = t.map("add", total, term)
    return total


def _fraction(t: Trace, a: Meta, x: Meta) -> Meta:
    """gamma(a) e**x x**-a Q(a, x) for x from a + 1 on: Legendre's continued fraction, from its end."""
    base = t.map("sub", x, a)
    value = t.map("add", base, 2.0 * _FRACTION_TERMS + 1)
    for n in range(_FRACTION_TERMS, 0, -1):
        part = t.map("div", t.map("mul", t.map("sub", a, float(n)), float(n)), value)
        value = t.map("add", t.map("add", base, 2.0 * n - 1), part)
    return t.map("recip", value)


def _uniform(t: Trace, a: Meta, x: Meta) -> Meta:
    """Q(a, x) of large orders, by its expansion that holds for all x (DLMF 8.12.3 to 8.12.11)."""
    gap = t.map("max", t.map("div", t.map("sub", x, a), a), 1e-6 - 1.0)  # further below the answer is 1
    half = t.map("max", t.map("sub", gap, t.map("log1p", gap)), 0.0)  # eta**2 / 2
    eta = t.map("copysign", t.map("sqrt", t.map("mul", half, 2.0)), gap)
    near = t.map("lt", t.map("abs", eta), 1e-2)
    far_eta, far_gap = (t.map("recip", t.where(near, 1.0, value, dtype=DType.F64)) for value in (eta, gap))
    first = t.where(near, polynomial(t, eta, (1 / 864, -2 / 135, 1 / 12, -1 / 3)), t.map("sub", far_gap, far_eta))
    cubes = t.map("sub", t.map("mul", far_eta, t.map("mul", far_eta, far_eta)), t.map("mul", far_gap, t.map("mul", far_gap, far_gap)))
    rest = t.map("mul", far_gap, t.map("add", far_gap, 1 / 12))
    second = t.where(near, polynomial(t, eta, (1 / 378, -1 / 288, -1 / 540)), t.map("sub", cubes, rest))
    third = polynomial(t, eta, (-139 / 51840, 25 / 6048))
    inverse = t.map("recip", a)
    total = t.map("add", first, t.map("mul", inverse, t.map("add", second, t.map("mul", inverse, third))))
    density = t.map("div", t.map("exp", t.map("neg", t.map("mul", a, half))), t.map("sqrt", t.map("mul", a, 2 * math.pi)))
    tail = t.map("mul", t.map("erfc", t.map("mul", eta, t.map("sqrt", t.map("mul", a, 0.5)))), 0.5)
    return t.map("add", tail, t.map("mul", density, total))


def _shares(t: Trace, a: Meta, x: Meta) -> tuple[Meta, Meta]:
    """(P(a, x), Q(a, x)) in f64, for what is finite and above 0."""
    small = t.map("min", a, _LARGE)
    edge = t.map("add", small, 1.0)
    factor = t.map("sub", t.map("mul", small, t.map("log", x)), t.map("add", x, t.map("lgamma", small)))
    factor = t.map("exp", factor)
    lower = t.map("div", t.map("mul", factor, _series(t, small, t.map("min", x, edge))), small)
    upper = t.map("mul", factor, _fraction(t, small, t.map("max", x, edge)))
    low = t.map("le", x, edge)
    large = t.map("max", a, _LARGE)
    tail = _uniform(t, large, x)
    wide = t.map("gt", a, _LARGE)
    above = t.where(low, t.map("sub", 1.0, lower), upper)
    below = t.where(low, lower, t.map("sub", 1.0, upper))
    return t.where(wide, t.map("sub", 1.0, tail), below), t.where(wide, tail, above)


def _incomplete(t: Trace, a: Meta, x: Meta, which: int, at_start: float) -> Meta:
    """``at_start``: the value at x = 0; the other is that at infinity."""
    dtype = result_type((a, x))
    if dtype not in FLOATS:
        raise Unsupported(f"the incomplete gamma function of {dtype.text}")
    shape = broadcast_shapes(a.shape, x.shape)
    a, x = (t.cast(value, DType.F64).expand(shape) for value in (a, x))
    value = _shares(t, a, x)[which]
    value = t.where(t.map("or", t.map("is_nan", a), t.map("is_nan", x)), math.nan, value, dtype=DType.F64)
    at_end = 1.0 - at_start
    value = t.where(t.map("is_inf", x), at_end, value, dtype=DType.F64)
    value = t.where(t.map("is_inf", a), t.where(t.map("is_inf", x), math.nan, at_start, dtype=DType.F64), value)
    value = t.where(t.map("eq", x, 0.0), at_start, value, dtype=DType.F64)
    value = t.where(t.map("eq", a, 0.0), t.where(t.map("gt", x, 0.0), at_end, math.nan, dtype=DType.F64), value)
    outside = t.map("or", t.map("lt", a, 0.0), t.map("lt", x, 0.0))
    return t.cast(t.where(outside, math.nan, value, dtype=DType.F64), dtype)


@lowers("aten::igamma")
def igamma(t: Trace, a: Meta, x: Meta) -> Meta:
    return _incomplete(t, a, x, 0, 0.0)


@lowers("aten::igammac")
def igammac(t: Trace, a: Meta, x: Meta) -> Meta:
    return _incomplete(t, a, x, 1, 1.0)


# --- draws


def _first(t: Trace, rounds: int, candidate: Callable[[], tuple[Meta, Meta]]) -> Meta:
    """The first of ``rounds`` candidates (value, is it accepted?) that is accepted; the last one where none is."""
    value, accepted = candidate()
    for _ in range(rounds - 1):
        other, good = candidate()
        value = t.where(accepted, value, other)
        accepted = t.map("or", accepted, good)
    return value


_GAMMA_ROUNDS: Final = 13
"""A round fails with a chance below 0.05, all of them below 1e-16."""


def _gamma_draw(t: Trace, alpha: Meta) -> Meta:
    """Marsaglia and Tsang 2000, doi:10.1145/358407.358414; of an order below 1 by that of the next times u**(1 / order)."""
    wide = alpha.dtype
    boosted = t.map("lt", alpha, 1.0)
    d = t.map("sub", t.where(boosted, t.map("add", alpha, 1.0), alpha), 1 / 3)
    c = t.map("recip", t.map("sqrt", t.map("mul", d, 9.0)))

    def candidate() -> tuple[Meta, Meta]:
        x, u = t.random(alpha.shape, wide, Dist.NORMAL), t.random(alpha.shape, wide, Dist.UNIFORM)
        root = t.map("add", t.map("mul", x, c), 1.0)
        v = t.map("mul", root, t.map("mul", root, root))
        log_v = t.map("log", t.map("max", v, 1e-30))
        bound = t.map("add", t.map("mul", t.map("mul", x, x), 0.5), t.map("mul", d, t.map("add", t.map("sub", 1.0, v), log_v)))
        accepted = t.map("and", t.map("gt", v, 0.0), t.map("lt", t.map("log", u), bound))
        return t.map("mul", d, v), accepted

    drawn = _first(t, _GAMMA_ROUNDS, candidate)
    share = t.map("pow", t.random(alpha.shape, wide, Dist.UNIFORM), t.map("recip", alpha))
    return t.where(boosted, t.map("mul", drawn, share), drawn)


_LEAST: Final = {DType.F16: 2.0**-14, DType.BF16: 2.0**-126, DType.F32: 2.0**-126, DType.F64: 2.0**-1022}


def _floats(x: Meta) -> DType:
    if x.dtype not in FLOATS:
        raise Unsupported(f"random numbers in {x.dtype.text}")
    return accumulate(x.dtype)


@lowers("aten::_standard_gamma")
def standard_gamma(t: Trace, alpha: Meta, generator: Any = None) -> Meta:
    return t.map("max", _gamma_draw(t, t.cast(alpha, _floats(alpha))), _LEAST[alpha.dtype])


_NEAR: Final = (
    ((0.040121004, 0.53487893, 0.16009398), (-0.0065914022, 0.1298071, -0.094634809), (-0.0026286047, 0.065735949, 0.025146376),
     (-0.0013441777, -0.0015649758, -0.0030648343)),
    ((0.017050642, 0.16639465, 1.0), (-0.0021309326, 0.020070113, 0.32668115), (0.00085092367, -0.0035938915, 0.10406089),
     (-1.5247877e-07, -0.00058392623, 0.0014179084)),
)  # fmt: skip
"""Of the logarithm of the gradient, a quotient of polynomials in log(alpha) whose coefficients are polynomials in log(x / alpha), the
highest power first: Jankowiak and Obermeyer 2018, arXiv:1806.01851, as in torch."""


@lowers("aten::_standard_gamma_grad")
def standard_gamma_grad(t: Trace, alpha: Meta, drawn: Meta) -> Meta:
    """The derivative of a draw by its order, by torch's approximations: a series near 0, a saddle point of large orders, else ``_NEAR``."""
    dtype = accumulate(alpha.dtype)
    a, x = t.cast(alpha, DType.F64), t.cast(drawn, DType.F64)
    ratio = t.map("log", t.map("div", x, a))
    log_a = t.map("log", a)
    top, bottom = (_of_polynomials(t, log_a, ratio, rows) for rows in _NEAR)
    middle = t.map("exp", t.map("div", top, bottom))
    near = t.map("lt", x, 0.8)
    value = t.where(near, _near_zero(t, a, t.map("min", x, 0.8)), t.where(t.map("gt", a, 8.0), _saddle(t, a, x, ratio), middle))
    return t.cast(value, dtype)


def _of_polynomials(t: Trace, outer: Meta, inner: Meta, rows: tuple[tuple[float, ...], ...]) -> Meta:
    """The polynomial in ``outer`` whose coefficients, the lowest power first, are polynomials in ``inner``."""
    total = polynomial(t, inner, rows[-1])
    for row in rows[-2::-1]:
        total = t.map("add", t.map("mul", total, outer), polynomial(t, inner, row))
    return total


def _near_zero(t: Trace, a: Meta, x: Meta) -> Meta:
    """By six terms of the series of P(a, x), differentiated."""
    factor: Meta = t.full(x.shape, 1.0, DType.F64)
    order = a
    first = t.map("recip", a)
    second = t.map("mul", first, first)
    for i in range(1, 6):
        factor = t.map("mul", factor, t.map("div", x, -float(i)))
        order = t.map("add", order, 1.0)
        part = t.map("div", factor, order)
        first, second = t.map("add", first, part), t.map("add", second, t.map("div", part, order))
    rise = t.map("sub", t.map("mul", t.map("sub", t.map("log", x), t.map("digamma", a)), first), second)
    value = t.map("neg", t.map("mul", rise, t.map("mul", x, t.map("exp", x))))
    return t.where(t.map("is_nan", value), 0.0, value, dtype=DType.F64)


def _saddle(t: Trace, a: Meta, x: Meta, ratio: Meta) -> Meta:
    square = t.map("mul", a, a)
    scale = t.map("add", t.map("mul", t.map("mul", a, 24.0), t.map("add", t.map("mul", a, 12.0), 1.0)), 1.0)
    parts = t.map("mul", square, 1440.0)
    parts = t.map("add", parts, t.map("mul", t.map("mul", x, 6.0), t.map("sub", 53.0, t.map("mul", x, 120.0))))
    parts = t.map("sub", parts, t.map("div", t.map("mul", t.map("mul", x, x), 65.0), a))
    parts = t.map("add", parts, t.map("mul", a, t.map("add", t.map("mul", x, 3600.0), 107.0)))
    centre = t.map("div", t.map("mul", scale, parts), t.map("mul", t.map("mul", square, square), 1244160.0))
    gap = t.map("sub", a, x)
    root = t.map("sqrt", t.map("mul", a, 8.0))
    power = t.map("pow", t.map("sub", t.map("neg", gap), t.map("mul", a, ratio)), -1.5)
    below = t.map("lt", x, a)
    both = t.map("add", t.map("div", root, gap), t.where(below, t.map("neg", power), power))
    spread = t.map("mul", t.map("sqrt", t.map("div", 2.0, a)), t.map("div", t.map("add", a, x), t.map("mul", gap, gap)))
    outer = t.map("mul", x, t.map("sub", t.map("mul", ratio, both), spread))
    twelfth = t.map("recip", t.map("mul", a, 12.0))
    stirling = t.map("add", t.map("mul", twelfth, t.map("add", t.map("mul", twelfth, 0.5), 1.0)), 1.0)
    outer = t.map("neg", t.map("div", t.map("mul", stirling, outer), root))
    within = t.map("and", t.map("ge", x, t.map("mul", a, 0.9)), t.map("le", x, t.map("mul", a, 1.1)))
    return t.where(within, centre, outer)


@lowers("aten::_sample_dirichlet")
def sample_dirichlet(t: Trace, alpha: Meta, generator: Any = None) -> Meta:
    """In f64, as torch's kernel for the CPU: sums of draws of small orders are small."""
    _floats(alpha)
    drawn = t.map("max", _gamma_draw(t, t.cast(alpha, DType.F64)), _LEAST[DType.F64])
    share = t.map("div", drawn, t.reduce("sum", drawn, [alpha.ndim - 1], True))
    return t.map("max", share, _LEAST[alpha.dtype])


_SMALL_MEAN: Final = 10.0
_COUNTED: Final = 56
"""Chances of more are below 1e-20 at a mean of ``_SMALL_MEAN``."""
_ROUNDS: Final = 30
"""A round fails with a chance below 0.3, all of them below 1e-15."""


def _counted(t: Trace, shape: tuple[int, ...], none: Meta, ratio: Callable[[int], Meta]) -> Meta:
    """A count by inversion of its distribution. ``none``: the chance of 0; ``ratio(k)``: what that of k - 1 times gives that of k."""
    u = t.random(shape, DType.F64, Dist.UNIFORM)
    chance = total = none
    count: Value = 0.0
    for k in range(1, _COUNTED):
        count = t.map("add", t.cast(t.map("ge", u, total), DType.F64), count)
        chance = t.map("mul", chance, ratio(k))
        total = t.map("add", total, chance)
    assert isinstance(count, Meta), "there is a first one"
    return count


def _transformed(
    t: Trace, shape: tuple[int, ...], bend: Meta, width: Meta, centre: Meta, factor: Meta, log_chance: Callable[[Meta], Meta]
) -> Meta:
    """A count by transformed rejection. ``log_chance(k)``: the logarithm of the chance of k times ``factor`` over its greatest; minus
    infinity or NaN for what no count is."""

    def candidate() -> tuple[Meta, Meta]:
        u = t.map("sub", t.random(shape, DType.F64, Dist.UNIFORM), 0.5)
        v = t.random(shape, DType.F64, Dist.UNIFORM)
        rest = t.map("sub", 0.5, t.map("abs", u))
        slope = t.map("add", t.map("div", t.map("mul", bend, 2.0), rest), width)
        k = t.map("floor", t.map("add", t.map("mul", slope, u), centre))
        density = t.map("add", t.map("div", bend, t.map("mul", rest, rest)), width)
        return k, t.map("le", t.map("log", t.map("div", t.map("mul", v, factor), density)), log_chance(k))

    return _first(t, _ROUNDS, candidate)


def _log_factorial(t: Trace, k: Meta) -> Meta:
    return t.map("lgamma", t.map("add", k, 1.0))


@lowers("aten::poisson")
def poisson(t: Trace, rate: Meta, generator: Any = None) -> Meta:
    """By inversion, from a mean of 10 on by PTRS (Hörmann 1993, doi:10.1016/0167-6687(93)90997-4)."""
    _floats(rate)
    mean = t.cast(rate, DType.F64)
    t.check(t.map("ge", mean, 0.0), "invalid Poisson rate, expected rate to be non-negative")
    small = t.map("min", mean, _SMALL_MEAN)
    few = _counted(t, rate.shape, t.map("exp", t.map("neg", small)), lambda k: t.map("div", small, float(k)))
    large = t.map("max", mean, _SMALL_MEAN)
    log_mean = t.map("log", large)
    width = t.map("add", t.map("mul", t.map("sqrt", large), 2.53), 0.931)
    bend = t.map("sub", t.map("mul", width, 0.02483), 0.059)
    factor = t.map("add", t.map("div", 1.1328, t.map("sub", width, 3.4)), 1.1239)

    def log_chance(k: Meta) -> Meta:
        count = t.map("max", k, 0.0)
        chance = t.map("sub", t.map("mul", count, log_mean), t.map("add", large, _log_factorial(t, count)))
        return t.where(t.map("lt", k, 0.0), -math.inf, chance, dtype=DType.F64)

    many = _transformed(t, rate.shape, bend, width, t.map("add", large, 0.43), factor, log_chance)
    return t.where(t.map("lt", mean, _SMALL_MEAN), few, many)


@lowers("aten::binomial")
def binomial(t: Trace, count: Meta, prob: Meta, generator: Any = None) -> Meta:
    """Of the rarer outcome: by inversion, from a mean of 10 on by BTRS (Hörmann 1993, doi:10.1080/00949659308811496)."""
    _floats(count)
    shape = broadcast_shapes(count.shape, prob.shape)
    if shape != count.shape:
        raise Unsupported("more chances than counts")
    n = t.map("max", t.cast(count, DType.F64), 0.0).expand(shape)
    given = t.cast(prob, DType.F64).expand(shape)
    chance = t.map("min", t.map("max", given, 0.0), 1.0)
    frequent = t.map("gt", chance, 0.5)
    p = t.where(frequent, t.map("sub", 1.0, chance), chance)
    odds = t.map("div", p, t.map("sub", 1.0, p))
    mean = t.map("mul", n, p)
    is_large = t.map("ge", mean, _SMALL_MEAN)
    few_n = t.where(is_large, 0.0, n, dtype=DType.F64)
    none = t.map("exp", t.map("mul", few_n, t.map("log1p", t.map("neg", p))))
    few = _counted(t, shape, none, lambda k: t.map("mul", odds, t.map("div", t.map("max", t.map("sub", few_n, k - 1.0), 0.0), float(k))))

    n_large = t.where(is_large, n, 40.0, dtype=DType.F64)
    p_large = t.where(is_large, p, 0.5, dtype=DType.F64)
    log_odds = t.map("log", t.map("div", p_large, t.map("sub", 1.0, p_large)))
    centre = t.map("mul", n_large, p_large)
    deviation = t.map("sqrt", t.map("mul", centre, t.map("sub", 1.0, p_large)))
    width = t.map("add", t.map("mul", deviation, 2.53), 1.15)
    bend = t.map("add", t.map("sub", t.map("mul", width, 0.0248), 0.0873), t.map("mul", p_large, 0.01))
    factor = t.map("mul", t.map("add", t.map("div", 5.1, width), 2.83), deviation)
    mode = t.map("floor", t.map("mul", t.map("add", n_large, 1.0), p_large))
    most = t.map("add", _log_factorial(t, mode), _log_factorial(t, t.map("sub", n_large, mode)))

    def log_chance(k: Meta) -> Meta:
        within = t.map("min", t.map("max", k, 0.0), n_large)
        ways = t.map("sub", most, t.map("add", _log_factorial(t, within), _log_factorial(t, t.map("sub", n_large, within))))
        chance = t.map("add", ways, t.map("mul", t.map("sub", within, mode), log_odds))
        return t.where(t.map("eq", within, k), chance, -math.inf, dtype=DType.F64)

    many = _transformed(t, shape, bend, width, t.map("add", centre, 0.5), factor, log_chance)
    drawn = t.where(is_large, many, t.map("min", few, n))
    drawn = t.where(frequent, t.map("sub", n, drawn), drawn)
    return t.where(t.map("is_nan", given), math.nan, drawn, dtype=DType.F64)
