"""Powers and roots in f32."""

from __future__ import annotations

from typing import Final

from wis.kernel.model import RegType
from wis.kernel.strict.exponential import power_of_two
from wis.kernel.strict.trace import INF, NAN, SIGN, Value, bits, fma, horner, numbers, real, sel, with_sign

__all__ = ["pow", "rsqrt", "hypot"]

_SEVEN_EIGHTHS: Final = 0x3F600000
_EXPONENT: Final = 0xFF800000
_CENTRES: Final = (  # to which m, what to multiply by, minus its logarithm to base 2: 12 bits and the rest
    (1.125, 1.0, 0.0, 0.0),
    (1.38, 13 / 16, *numbers("0x1.32cp-2 -0x1.1c8f12p-22")),
    (INF, 10 / 16, *numbers("0x1.5b2p-1 0x1.87b432p-14")),
)
_LOG2_E: Final = numbers("0x1.715476p+0 0x1.4ae0c0p-26")
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
    y = sum_ * _LOG2_E[0]
    y_rest = fma(rest, _LOG2_E[0], fma(sum_, _LOG2_E[1], fma(sum_, _LOG2_E[0], -y)))
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
