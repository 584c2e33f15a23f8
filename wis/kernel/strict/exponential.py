"""exp, exp2, exp10, expm1, sigmoid and the hyperbolic functions in f32; powers and roots.

Exponentials write x = n ln 2 + r with a whole n and |r| <= ln 2 / 2, take e**r from a polynomial and scale by 2**n. Rounding to n is an
addition of 1.5 * 2**23, after which the low bits of the float are n; the same constant carries a bias, so that the exponent's bits
need no further addition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wis.kernel.model import RegType
from wis.kernel.strict.trace import INF, NAN, SIGN, Value, bits, fma, horner, numbers, real, sel, with_sign

__all__ = [
    "exp", "power_of_two", "power_of_two_normal", "exp2", "exp10", "expm1", "sigmoid", "sinh", "cosh", "tanh", "pow", "rsqrt", "hypot",
]  # fmt: skip

_ROUND: Final = 1.5 * 2**23
_LOG2_E: Final = float.fromhex("0x1.715476p+0")
_LN2: Final = (float.fromhex("0x1.62e4p-1"), float.fromhex("0x1.7f7d1cp-20"))  # n * the first is exact for |n| < 2**9
_LOG2_10: Final = float.fromhex("0x1.a934f0p+1")
_LOG10_2: Final = (float.fromhex("0x1.3440p-2"), float.fromhex("0x1.3509f8p-18"))

_EXP: Final = (1.0, 1.0, *numbers("0x1.fffffcp-2 0x1.555492p-3 0x1.5558b4p-5 0x1.12399ep-7 0x1.6a492ep-10"))
"""e**r on [-0.347, 0.347], relative: 2^-28.2."""
_EXPM1: Final = numbers("0x1.0p-1 0x1.555554p-3 0x1.5554f8p-5 0x1.1112d6p-7 0x1.6d3a5ep-10 0x1.9e77dap-13")
"""(e**r - 1 - r) / r**2 on [-0.347, 0.347], relative to e**r - 1: 2^-31.1."""
_EXP2: Final = (1.0, *numbers("0x1.62e430p-1 0x1.ebfbdcp-3 0x1.c6af7ap-5 0x1.3b2ddap-7 0x1.5f0976p-10 0x1.4172a6p-13"))
"""2**r on [-0.5, 0.5], relative: 2^-28.3."""
_EXP10: Final = (1.0, *numbers("0x1.26bb1cp+1 0x1.53524ap+1 0x1.046f9cp+1 0x1.2bda02p+0 0x1.156a4ep-1 0x1.a637e2p-3"))
"""10**r on [-0.151, 0.151], relative: 2^-28.5."""

_SINH: Final = numbers("0x1.555556p-3 0x1.1110e0p-7 0x1.a022bcp-13 0x1.756c1ep-19")
"""(sinh(x) / x - 1) / x**2 in x**2 on [0, 1], relative to sinh(x): 2^-31.6."""
_TANH: Final = numbers("-0x1.555524p-2 0x1.1103f0p-3 -0x1.b7cfb6p-5 0x1.4f5d72p-6 -0x1.696a9ap-8")
"""(tanh(x) / x - 1) / x**2 in x**2 on [0, 0.65], relative to tanh(x): 2^-27.1."""


def _between(x: Value, least: float, most: float) -> Value:
    """``x`` kept in a range; NaN stays NaN."""
    x = sel(x < least, least, x)
    return sel(x > most, most, x)


def _scaled(p: Value, biased: Value) -> Value:
    """p * 2**n, rounded once; ``biased`` is _ROUND + 254 + n with n from -151 to 129. Two factors, for the result may be subnormal."""
    whole = bits(biased)
    half = whole.shr(1)
    return p * real(half << 23) * real((whole - half) << 23)


def _exp(x: Value) -> Value:
    """e**x for x that is not far beyond the limits."""
    biased = fma(x, _LOG2_E, _ROUND + 254)
    n = biased - (_ROUND + 254)
    r = fma(n, -_LN2[1], fma(n, -_LN2[0], x))
    return _scaled(horner(r, _EXP), biased)


def exp(x: Value) -> Value:
    """e**x; exp(+-0) = 1. Beyond the limits the result is 0 or infinite anyway."""
    return _exp(_between(x, -104.5, 89.0))


def power_of_two(x: Value, rest: Value | float = 0.0) -> Value:
    """2**(x + rest); |rest| is small, and 0 for x beyond the limits."""
    x = _between(x, -151.0, 129.0)
    biased = x + (_ROUND + 254)
    r = x - (biased - (_ROUND + 254))
    return _scaled(horner(r + rest if isinstance(rest, Value) else r, _EXP2), biased)


def power_of_two_normal(x: Value) -> Value:
    """2**x for x from -125 to 126."""
    biased = x + (_ROUND + 127)
    return horner(x - (biased - (_ROUND + 127)), _EXP2) * real(bits(biased) << 23)


def exp2(x: Value) -> Value:
    """2**x; exact for whole x."""
    return power_of_two(x)


def exp10(x: Value) -> Value:
    """10**x."""
    x = _between(x, -45.5, 39.0)
    biased = fma(x, _LOG2_10, _ROUND + 254)
    n = biased - (_ROUND + 254)
    r = fma(n, -_LOG10_2[1], fma(n, -_LOG10_2[0], x))
    return _scaled(horner(r, _EXP10), biased)


def expm1(x: Value) -> Value:
    """e**x - 1, as 2 (2**(n-1) (e**r - 1) + (2**(n-1) - 1/2)); for n = 0 e**r - 1 itself, which must not lose the bits of a subnormal."""
    t = _between(x, -30.0, 89.0)
    biased = fma(t, _LOG2_E, _ROUND + 126)
    n = biased - (_ROUND + 126)
    r = fma(n, -_LN2[1], fma(n, -_LN2[0], t))
    p = fma(horner(r, _EXPM1) * r, r, r)
    half = real(bits(biased) << 23)
    y = fma(p, half, half - 0.5)
    return sel(n.equals(0.0), p, y + y).copysign(x)


def sigmoid(x: Value) -> Value:
    """1 / (1 + e**-x), for negative x as e**x / (1 + e**x), which keeps its relative accuracy down to subnormals.

    The sum's and the quotient's rounding errors are made good by one step: residue times 1 / (1 + e**x), which is 1 - y for negative x (for
    others it is less, so the step is only shorter).
    """
    return logistic(x, _exp, -104.5)


def logistic(x: Value, exp: Callable[[Value], Value], least: float) -> Value:
    """``sigmoid`` by an ``exp`` of arguments from ``least`` on."""
    a = -abs(x)
    e = exp(sel(a < least, least, a))
    total = e + 1.0
    lost = e - (total - 1.0)
    above = sel(x < 0.0, e, 1.0)
    y = above / total
    return fma(fma(-y, lost, fma(-y, total, above)), 1.0 - y, y)


def _half_exp(x: Value) -> tuple[Value, Value]:
    """|x| and a quarter of e**|x|, for |x| up to the last one whose hyperbolic functions are finite."""
    a = abs(x)
    t = sel(a > 89.5, a.like(89.5), a)
    biased = fma(t, _LOG2_E, _ROUND + 125)
    n = biased - (_ROUND + 125)
    r = fma(n, -_LN2[1], fma(n, -_LN2[0], t))
    return a, horner(r, _EXP) * real(bits(biased) << 23)


def sinh(x: Value) -> Value:
    """(e**x - e**-x) / 2; below 1 an odd polynomial."""
    a, quarter = _half_exp(x)
    s = a * a
    y = sel(a < 1.0, fma(s * horner(s, _SINH), a, a), fma(quarter, 2.0, -0.125 / quarter))
    return y.copysign(x)


def cosh(x: Value) -> Value:
    """(e**x + e**-x) / 2."""
    _, quarter = _half_exp(x)
    return fma(quarter, 2.0, 0.125 / quarter)


def tanh(x: Value) -> Value:
    """1 - 2 / (e**(2 |x|) + 1) with the sign of x; below 0.6 an odd polynomial."""
    a = abs(x)
    t = sel(a > 9.5, a.like(9.5), a)
    biased = fma(t, 2 * _LOG2_E, _ROUND + 127)
    n = biased - (_ROUND + 127)
    r = fma(n, -_LN2[1], fma(n, -_LN2[0], t + t))
    e = horner(r, _EXP) * real(bits(biased) << 23)
    s = a * a
    return sel(a < 0.6, fma(s * horner(s, _TANH), a, a), 1.0 - 2.0 / (e + 1.0)).copysign(x)


_SEVEN_EIGHTHS: Final = 0x3F600000
_EXPONENT: Final = 0xFF800000
_CENTRES: Final = (  # to which m, what to multiply by, minus its logarithm to base 2: 12 bits and the rest
    (1.125, 1.0, 0.0, 0.0),
    (1.38, 13 / 16, *numbers("0x1.32cp-2 -0x1.1c8f12p-22")),
    (INF, 10 / 16, *numbers("0x1.5b2p-1 0x1.87b432p-14")),
)
_LOG2_E_PAIR: Final = numbers("0x1.715476p+0 0x1.4ae0c0p-26")
_LOG: Final = numbers("0x1.55555cp-2 -0x1.000032p-2 0x1.9986cap-3 -0x1.5500e4p-3 0x1.2c0d06p-3 -0x1.128458p-3")
"""(log(1 + f) - f + f**2 / 2) / f**3 on [-0.139, 0.126], as a part of f: 2^-32.9."""


def rsqrt(x: Value) -> Value:
    """1 / sqrt(x), two roundings; rsqrt(+-0) = +-inf."""
    return 1.0 / x.sqrt()


def _log2(x: Value) -> tuple[Value, Value]:
    """log2(x) as a sum of two f32, within 2^-30.1 of it, for positive finite x.

    x = 2**i m with m in [7/8, 7/4); m times one of three numbers of four bits is 1 + f exactly, |f| <= 0.138. Of log(1 + f) = f - f**2 / 2
    + f**3 (...) the first two terms are kept in two parts each.
    """
    tiny = x < 2.0**-126
    whole = bits(sel(tiny, x * 2.0**25, x))
    e = (whole - _SEVEN_EIGHTHS) & _EXPONENT
    i = fma(e.to("s2f", RegType.F32), 2.0**-23, sel(tiny, x.like(-25.0), 0.0))
    m = real(whole - e)
    first, second = m < _CENTRES[0][0], m < _CENTRES[1][0]
    times, high, low = (sel(first, x.like(a), sel(second, x.like(b), c)) for a, b, c in list(zip(*_CENTRES, strict=True))[1:])
    f = fma(m, times, -1.0)
    square = f * f
    main = fma(square, -0.5, f)
    rest = fma(square, -0.5, f - main)
    rest = fma(fma(f, f, -square), -0.5, rest)
    rest = fma(f * square, horner(f, _LOG), rest)
    sum_ = main + rest
    rest = rest - (sum_ - main)
    y = sum_ * _LOG2_E_PAIR[0]
    y_rest = fma(rest, _LOG2_E_PAIR[0], fma(sum_, _LOG2_E_PAIR[1], fma(sum_, _LOG2_E_PAIR[0], -y)))
    base = i + high
    total = base + y
    return total, (y - (total - base)) + (y_rest + low)


def pow(x: Value, y: Value) -> Value:
    """x**y with the exceptional values of IEEE 754-2019: pow(x, +-0) = pow(1, y) = 1 even for NaN, pow(-1, +-inf) = 1."""
    a = abs(x)
    high, low = _log2(a)
    high = sel(a.equals(0.0), -INF, sel(a < INF, high, a))
    power = y * high
    rest = sel(abs(power) < 256.0, fma(y, low, fma(y, high, -power)), 0.0)
    z = power_of_two(power, rest)
    half = y * 0.5
    whole = y.rint().equals(y)
    odd = whole & half.rint().differs(half)
    z = sel(y.equals(0.0) | a.equals(1.0), 1.0, z)
    z = with_sign(z, sel(odd, bits(x) & SIGN, 0))
    z = sel(((x < 0.0) & (a < INF)) & ~whole, NAN, z)
    return sel(x.equals(1.0), 1.0, z)


def hypot(x: Value, y: Value) -> Value:
    """sqrt(x**2 + y**2); infinite when either is, even beside a NaN. Numbers far from 1 are scaled by a power of 2 first."""
    a, b = abs(x), abs(y)
    swap = a < b
    most, least = sel(swap, b, a), sel(swap, a, b)
    large, small = most > 2.0**60, most < 2.0**-60
    down = sel(large, most.like(2.0**-70), sel(small, most.like(2.0**90), 1.0))
    up = sel(large, most.like(2.0**70), sel(small, most.like(2.0**-90), 1.0))
    most, least = most * down, least * down
    z = fma(most, most, least * least).sqrt() * up
    return sel(a.equals(INF) | b.equals(INF), INF, z)
