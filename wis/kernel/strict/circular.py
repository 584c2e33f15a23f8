"""Circular functions and inverses in f32: sin, cos and tan for arguments of any size, with one reduction and no branch; asin, acos, atan,
atan2, asinh, acosh, atanh.

|x| = m * 2**(e - 150) with a whole m of 24 bits. Quarter turns are |x| * 2 / pi; only their value mod 4 matters, so of 2 / pi those bits
matter that m cannot lift past 4, and 94 bits behind the point are enough for the least distance of an f32 from a multiple of pi / 2
(Payne and Hanek, 1983). The window of 96 bits comes from constants chosen by two bits of e and shifted by five.
"""

from __future__ import annotations

from typing import Final

from wis.kernel.model import RegType
from wis.kernel.strict.logarithm import log1p_finite, log_finite
from wis.kernel.strict.trace import INF, NAN, SIGN, Value, bits, fma, horner, numbers, sel, with_sign

_PI_4: Final = float.fromhex("0x1.921fb6p-1")
_TWO_OVER_PI: Final = (0x28, 0xBE60DB93, 0x91054A7F, 0x09D5F47D, 0x4D377036, 0xD8A5664F, 0x10E4107F)  # 26 zero bits, then the fraction
_QUARTER: Final = numbers("0x1.921fb6p-25 -0x1.777a5cp-50 0x1.921fb6p-57")  # pi / 2 * 2**-25 and what it lacks, pi / 2 * 2**-57
_ONE: Final = 1 << 30  # a quarter turn

_SIN: Final = numbers("-0x1.555546p-3 0x1.110778p-7 -0x1.9954p-13")
"""(sin(r) / r - 1) / r**2 in r**2 for |r| <= pi / 4, relative to sin(r): 2^-27.9."""
_COS: Final = (1.0, -0.5, *numbers("0x1.55554ap-5 -0x1.6c0c28p-10 0x1.99e80cp-16"))
"""cos(r) in r**2 for |r| <= pi / 4, relative: 2^-33.0."""
_TAN: Final = numbers("0x1.555560p-2 0x1.110d9ep-3 0x1.bad9bep-5 0x1.5cc134p-6 0x1.62c81ap-7 0x1.9eb54ap-14 0x1.1e8b3cp-8")
"""(tan(r) / r - 1) / r**2 in r**2 for |r| <= pi / 4, relative to tan(r): 2^-29.5."""


def _turns(x: Value) -> Value:
    """|x| in quarter turns mod 4, as an i64 with 62 bits behind the point. Right for 1/2 <= |x| < inf."""
    a = bits(abs(x))
    m = ((a & 0x7FFFFF) | 0x800000).to("zext", RegType.I64)
    shift = a.shr(23) - 126  # where the window starts, 0 to 128
    far = shift >= 64
    shift = sel(far, shift - 64, shift)
    odd = shift >= 32
    shift = (sel(odd, shift - 32, shift) & 63).to("zext", RegType.I64)
    words = [x.trace.constant(RegType.I64, _TWO_OVER_PI[i] << 32 | _TWO_OVER_PI[i + 1]) for i in range(6)]
    halves = [sel(far, words[i + 2], words[i]) for i in range(4)]
    high, low = sel(odd, halves[1], halves[0]), sel(odd, halves[3], halves[2])
    window = (high << shift) | low.shr(1).shr(shift ^ 63)
    return m * window + (m * (low << shift).shr(32)).shr(32)


def _reduced(x: Value) -> tuple[Value, Value, Value]:
    """(q, r, rest): |x| = (q + 4 k) pi / 2 + r + rest with a whole k and |r| <= pi / 4; q are the upper two bits of an i32.

    r is NaN for infinite x and NaN.
    """
    turns = _turns(x)
    q = turns.shr(32).to("narrow", RegType.I32) + (1 << 29)
    fraction = (
        turns << 2
    )  # of a quarter turn, signed; it becomes 25 bits and the next 32, both signed, which loses none when the first are 0
    high = (((fraction >> 38).to("narrow", RegType.I32) + 1) >> 1).to("s2f", RegType.F32)  # rounded up where the others are negative
    low = fraction.shr(7).to("narrow", RegType.I32).to("s2f", RegType.F32)
    tail = fma(high, _QUARTER[1], fma(low, _QUARTER[2], x - x))
    r = fma(high, _QUARTER[0], tail)
    a = abs(x)
    small = a < _PI_4
    rest = sel(small, 0.0, tail - fma(high, -_QUARTER[0], r))
    return sel(small, x.trace.constant(RegType.I32, 0), q), sel(small, a, r), rest


def _wave(q: Value, r: Value, sign: Value) -> Value:
    """sin(q pi / 2 + r), negated where ``sign`` has its top bit."""
    s = r * r
    even = (q & _ONE).equals(0)
    y = sel(even, fma(s * horner(s, _SIN), r, r), horner(s, _COS))
    return with_sign(y, sign & SIGN)


def sin(x: Value) -> Value:
    """Sine; sin(-0) = -0."""
    q, r, _ = _reduced(x)
    return _wave(q, r, q ^ bits(x))


def cos(x: Value) -> Value:
    """Cosine, as the sine a quarter turn on."""
    q, r, _ = _reduced(x)
    q = q + _ONE
    return _wave(q, r, q)


def tan(x: Value) -> Value:
    """Tangent: of r + rest, or -1 over it after an odd number of quarter turns."""
    q, r, rest = _reduced(x)
    s = r * r
    t = fma(s * horner(s, _TAN), r, fma(rest, s, rest)) + r
    return with_sign(sel((q & _ONE).equals(0), t, -1.0 / t), bits(x) & SIGN)


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
