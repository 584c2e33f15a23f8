"""exp, exp2, exp10, expm1, sigmoid and the hyperbolic functions in f32.

All write x = n ln 2 + r with a whole n and |r| <= ln 2 / 2, take e**r from a polynomial and scale by 2**n. Rounding to n is an addition
of 1.5 * 2**23, after which n stands in the low bits of the float; the same constant carries a bias, so that the exponent's bits need no
further addition.
"""

from __future__ import annotations

from typing import Final

from wis.kernel.strict.trace import Value, bits, fma, horner, numbers, real, sel

__all__ = ["exp", "power_of_two", "power_of_two_normal", "exp2", "exp10", "expm1", "sigmoid", "sinh", "cosh", "tanh"]

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
    a = -abs(x)
    e = _exp(sel(a < -104.5, -104.5, a))
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
