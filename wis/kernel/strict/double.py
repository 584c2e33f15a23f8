"""Named functions in f64, written as those in f32.

Coefficients here are those of the polynomial through the Chebyshev nodes of the interval, found with 250 bits and rounded to f64; "2^-56"
is its largest weighted error.
"""

from __future__ import annotations

from typing import Final

from wis.kernel.model import RegType
from wis.kernel.strict.exponential import logistic
from wis.kernel.strict.trace import INF, NAN, Value, bits, fma, horner, numbers, real, sel

_ROUND: Final = 1.5 * 2**52
_SQRT_HALF: Final = 0x3FE6A09E00000000
_EXPONENT: Final = 0xFFF << 52
_LOG2_E: Final = numbers("0x1.71547652b82fep+0 0x1.777d0ffda0d24p-56")
_LN2: Final = numbers("0x1.62e42fefa4p-1 -0x1.8432a1b0e2634p-43")  # n * the first is exact for |n| < 2**12

_EXP: Final = (
    1.0,
    1.0,
    *numbers("0x1.0000000000001p-1 0x1.5555555555556p-3 0x1.5555555553d37p-5 0x1.11111111109a6p-7 0x1.6c16c1789d1d7p-10"),
    *numbers("0x1.a01a01a7cebcdp-13 0x1.a019b8ca26fcfp-16 0x1.71de0d85293b8p-19 0x1.2891d4ffbb0f9p-22 0x1.af390ba7e6f47p-26"),
)
"""e**r on [-0.347, 0.347], relative: 2^-55.8."""
_EXP2: Final = (
    1.0,
    *numbers("0x1.62e42fefa39efp-1 0x1.ebfbdff82c58fp-3 0x1.c6b08d704a0c6p-5 0x1.3b2ab6fba4e79p-7 0x1.5d87fe78a3f4bp-10"),
    *numbers("0x1.430912f86b7bap-13 0x1.ffcbfc6dc7729p-17 0x1.62c02242c55a8p-20 0x1.b524eb7daec92p-24 0x1.e4cf109c96ef0p-28"),
    *numbers("0x1.e9ecb42c532a9p-32 0x1.c4a308a6fefb4p-36"),
)
"""2**r on [-0.5, 0.5], relative: 2^-55.4."""
_EXP_NEAR: Final = (
    1.0,
    1.0,
    *numbers("0x1.0000000ba132cp-1 0x1.5555555a800cdp-3 0x1.5554e8a22b84cp-5 0x1.1110e0c5c7f50p-7 0x1.6d43af18200d3p-10"),
    *numbers("0x1.a1256cd2f13c2p-13"),
)
"""e**r on [-0.347, 0.347], relative: 2^-32.0."""
_LOG: Final = numbers(
    "0x1.5555555555555p-1 0x1.9999999999a3ap-2 0x1.2492492476689p-2 0x1.c71c72020a494p-3 0x1.745cf8baad6a5p-3 0x1.3b1c450832eeep-3 "
    "0x1.0fbcf27285090p-3 0x1.0c14b930bef7fp-3"
)
"""(log((1 + s) / (1 - s)) / s - 2) / s**2 in s**2 for |s| <= 0.1716, as a part of s: 2^-59.7."""
_LOG_NEAR: Final = numbers("0x1.5555554b9b775p-1 0x1.9999ebf1ca4e6p-2 0x1.245c01e14555ep-2 0x1.dddcc6b8b87d7p-3")
"""The same, as a part of s: 2^-34.8."""
_TANH: Final = numbers(
    "-0x1.5555555555555p-2 0x1.1111111111032p-3 -0x1.ba1ba1b9fec84p-5 0x1.664f487713373p-6 -0x1.226e32f00cf0cp-7 0x1.d6d339333f329p-9 "
    "-0x1.7d97cfd138c28p-10 0x1.34c5a8a996cd4p-11 -0x1.ec1091436eb2ap-13 0x1.64fd88e9900a4p-14 -0x1.59a834187ce22p-16"
)
"""(tanh(x) / x - 1) / x**2 in x**2 on [0, 0.55], as a part of x: 2^-57.6."""


def _scaled(p: Value, biased: Value) -> Value:
    """p * 2**n, rounded once; ``biased`` is _ROUND + 2046 + n with n from -1077 to 1025."""
    whole = bits(biased)
    half = whole.shr(1)
    return p * real(half << 52) * real((whole - half) << 52)


def _reduced(x: Value, bias: float) -> tuple[Value, Value]:
    """_ROUND + bias + n and r = x - n ln 2, |r| <= ln 2 / 2."""
    biased = fma(x, _LOG2_E[0], _ROUND + bias)
    n = biased - (_ROUND + bias)
    return biased, fma(n, -_LN2[1], fma(n, -_LN2[0], x))


def _exp(x: Value) -> Value:
    biased, r = _reduced(x, 2046)
    return _scaled(horner(r, _EXP), biased)


def exp(x: Value) -> Value:
    """e**x."""
    x = sel(x < -746.0, -746.0, x)
    return _exp(sel(x > 710.0, 710.0, x))


def exp_near(x: Value) -> Value:
    """e**x to 32 bits, for |x| < 700."""
    biased, r = _reduced(x, 1023)
    return horner(r, _EXP_NEAR) * real(bits(biased) << 52)


def exp2(x: Value) -> Value:
    """2**x; exact for whole x."""
    x = sel(x < -1077.0, -1077.0, x)
    x = sel(x > 1025.0, 1025.0, x)
    biased = x + (_ROUND + 2046)
    return _scaled(horner(x - (biased - (_ROUND + 2046)), _EXP2), biased)


def sigmoid(x: Value) -> Value:
    """As in f32."""
    return logistic(x, _exp, -746.0)


def tanh(x: Value) -> Value:
    """1 - 2 / (e**(2 |x|) + 1) with the sign of x; below 0.55 an odd polynomial."""
    a = abs(x)
    t = sel(a > 20.0, a.like(20.0), a)
    biased, r = _reduced(t + t, 1023)
    e = horner(r, _EXP) * real(bits(biased) << 52)
    s = a * a
    return sel(a < 0.55, fma(s * horner(s, _TANH), a, a), 1.0 - 2.0 / (e + 1.0)).copysign(x)


def _parts(x: Value) -> tuple[Value, Value, Value, Value]:
    """(i, f, half, rest): x = 2**i (1 + f) with 1 + f from sqrt(1/2) to sqrt(2); log(1 + f) = f - half + rest, half = f**2 / 2."""
    tiny = x < 2.0**-1022
    whole = bits(sel(tiny, x * 2.0**54, x))
    e = (whole - _SQRT_HALF) & _EXPONENT
    i = fma((e >> 32).to("narrow", RegType.I32).to("s2f", RegType.F64), 2.0**-20, sel(tiny, x.like(-54.0), 0.0))
    f = real(whole - e) - 1.0
    s = f / (f + 2.0)
    z = s * s
    half = f * f * 0.5
    return i, f, half, s * (half + z * horner(z, _LOG))


def log_near(x: Value) -> Value:
    """log(x) within 2^-34 of the larger of 1 and it, and of it near 1, for x that is neither subnormal nor infinite."""
    whole = bits(x)
    e = (whole - _SQRT_HALF) & _EXPONENT
    i = (e >> 52).to("narrow", RegType.I32).to("s2f", RegType.F64)
    f = real(whole - e) - 1.0
    s = f / (f + 2.0)
    z = s * s
    return fma(i, _LN2[0], fma(s * z, horner(z, _LOG_NEAR), s + s))


def _edges(x: Value, y: Value) -> Value:
    y = sel(x < INF, y, x)
    y = sel(x < 0.0, NAN, y)
    return sel(x.equals(0.0), -INF, y)


def log_finite(x: Value) -> Value:
    """log(x) for positive finite x. The order of the sum is that of falling size."""
    i, f, half, rest = _parts(x)
    return fma(i, _LN2[0], f - (half - fma(i, _LN2[1], rest)))


def log(x: Value) -> Value:
    """Natural logarithm; log(1) = +0."""
    return _edges(x, log_finite(x))


def log2(x: Value) -> Value:
    """Logarithm to base 2; exact for powers of 2. log(1 + f) is kept in two parts, as is its factor."""
    i, f, half, rest = _parts(x)
    high = f - half
    low = (f - high) - half + rest
    main = high * _LOG2_E[0]
    more = fma(high, _LOG2_E[0], -main) + fma(high, _LOG2_E[1], low * _LOG2_E[0])
    total = i + main
    return _edges(x, total + ((i - total) + main + more))
