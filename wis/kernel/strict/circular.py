"""sin, cos and tan in f32, for arguments of any size, with one reduction and no branch.

|x| = m * 2**(e - 150) with a whole m of 24 bits. Quarter turns are |x| * 2 / pi; only their value mod 4 matters, so of 2 / pi those bits
matter that m cannot lift past 4, and 94 bits behind the point are enough for the least distance of an f32 from a multiple of pi / 2
(Payne and Hanek, 1983). The window of 96 bits comes from constants chosen by two bits of e and shifted by five.
"""

from __future__ import annotations

from typing import Final

from wis.kernel.model import RegType
from wis.kernel.strict.parts import SIGN, horner, numbers, with_sign
from wis.kernel.strict.trace import Value, bits, fma, sel

__all__ = ["sin", "cos", "tan"]

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
