"""asin, acos, atan, atan2, asinh, acosh, atanh in f32."""

from __future__ import annotations

from typing import Final

from wis.kernel.strict.logarithm import log1p_finite, log_finite
from wis.kernel.strict.parts import INF, NAN, horner, numbers
from wis.kernel.strict.trace import Value, bits, fma, sel

__all__ = ["asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh"]

_PI_2, _PI_2_REST = numbers("0x1.921fb6p+0 -0x1.777a5cp-25")
_ASIN: Final = numbers("0x1.5555c8p-3 0x1.330204p-4 0x1.747bbep-5 0x1.8c3dcep-6 0x1.595d0ap-5")
"""(asin(x) / x - 1) / x**2 in x**2 on [0, 0.5], relative to asin(x): 2^-27.6."""
_ATAN: Final = numbers(
    "-0x1.55553ep-2 0x1.9991e4p-3 -0x1.242086p-3 0x1.c08c4cp-4 -0x1.580906p-4 0x1.da2964p-5 -0x1.fd7bbap-6 0x1.6420e0p-7 -0x1.d34feep-10"
)
"""(atan(x) / x - 1) / x**2 in x**2 on [0, 1], relative to atan(x): 2^-28.5."""
_ASINH: Final = numbers("-0x1.555536p-3 0x1.3324f2p-4 -0x1.6b95ccp-5 0x1.cd6380p-6 -0x1.b149fcp-7")
"""(asinh(x) / x - 1) / x**2 in x**2 on [0, 0.5], relative to asinh(x): 2^-29.6."""
_ATANH: Final = numbers("0x1.555540p-2 0x1.99a678p-3 0x1.234d64p-3 0x1.e403bap-4 0x1.a69f56p-5 0x1.6943fcp-3")
"""(atanh(x) / x - 1) / x**2 in x**2 on [0, 0.5], relative to atanh(x): 2^-29.4."""


def _arc(x: Value) -> tuple[Value, Value, Value]:
    """(whether |x| > 1/2, u, rest): asin(x) = u + rest, or of sqrt((1 - |x|) / 2) when |x| > 1/2. NaN beyond 1."""
    a = abs(x)
    large = a > 0.5
    half = fma(a, -0.5, 0.5)
    s = sel(large, half, a * a)
    u = sel(large, half.sqrt(), x)
    return large, u, s * horner(s, _ASIN) * u


def asin(x: Value) -> Value:
    """Inverse sine: above 1/2 as pi / 2 - 2 asin(sqrt((1 - |x|) / 2))."""
    large, u, rest = _arc(x)
    return sel(large, fma(u + (rest - _PI_2_REST / 2), -2.0, _PI_2), u + rest).copysign(x)


def acos(x: Value) -> Value:
    """Inverse cosine: pi / 2 - asin(x), or for large |x| 2 asin(sqrt((1 - x) / 2)), from pi for negative x."""
    large, u, rest = _arc(x)
    negative = x < 0.0
    times = sel(large, sel(negative, x.like(-2.0), 2.0), -1.0)
    base = sel(large, sel(negative, x.like(2 * _PI_2), 0.0), _PI_2)
    return fma(times, u + rest, base)


def _atan(t: Value) -> Value:
    """atan(t) of t in [0, 1]."""
    s = t * t
    return fma(s * horner(s, _ATAN), t, t)


def atan(x: Value) -> Value:
    """Inverse tangent: above 1 as pi / 2 - atan(1 / |x|)."""
    a = abs(x)
    large = a > 1.0
    p = _atan(sel(large, 1.0 / a, a))
    return sel(large, _PI_2 - (p - _PI_2_REST), p).copysign(x)


def atan2(y: Value, x: Value) -> Value:
    """The angle of the point (x, y), with the exceptional values of IEEE 754-2019: the signs of zeros and infinities count."""
    a, b = abs(y), abs(x)
    steep = b < a
    least, most = sel(steep, b, a), sel(steep, a, b)
    p = _atan(sel(least.equals(most), sel(most.equals(0.0), most.like(0.0), 1.0), least / most))
    left = bits(x) < 0
    zero = p.like(0.0)
    p = sel(steep ^ left, -p, p)
    base = sel(steep, p.like(_PI_2), sel(left, p.like(2 * _PI_2), zero))
    rest = sel(steep, p.like(_PI_2_REST), sel(left, p.like(2 * _PI_2_REST), zero))
    return (base + (p + rest)).copysign(y)


def asinh(x: Value) -> Value:
    """log(a + sqrt(a**2 + 1)) of a = |x|, with the lower parts of the sum, halved against overflow; below 1/2 an odd polynomial."""
    a = abs(x)
    square = fma(a, a, 1.0)
    root = square.sqrt()
    huge = a > 4096.0
    root = sel(huge, a, root)
    total = fma(a, 0.5, root * 0.5)
    lost = fma(a, 0.5, root * 0.5 - total) + sel(huge, 0.0, (fma(-root, root, square) + fma(a, a, 1.0 - square)) * 0.25 / root)
    y = log_finite(total, 1.0, lost / total)
    s = a * a
    y = sel(a < 0.5, fma(s * horner(s, _ASINH), a, a), y)
    return sel(a < INF, y, a).copysign(x)


def acosh(x: Value) -> Value:
    """log1p(t + sqrt(t (t + 2))) of t = x - 1, with what root and sum lose to rounding; for large x log(2 x)."""
    t = x - 1.0
    twice = t + t
    square = fma(t, t, twice)
    root = square.sqrt()
    total = root + t
    lost = t - (total - root) + (fma(-root, root, square) + fma(t, t, twice - square)) * 0.5 / root
    y = sel(x > 4096.0, log_finite(x, 1.0), log1p_finite(total, sel(t > 0.0, lost, 0.0)))
    return sel(x < INF, sel(x < 1.0, NAN, y), x)


def atanh(x: Value) -> Value:
    """log1p(2 a / (1 - a)) / 2 of a = |x|; below 1/2 an odd polynomial."""
    a = abs(x)
    v = (a + a) / (1.0 - a)
    s = a * a
    y = sel(a < 0.5, fma(s * horner(s, _ATANH), a, a), log1p_finite(v) * 0.5)
    return sel(a < 1.0, y, sel(a.equals(1.0), a.like(INF), NAN)).copysign(x)
