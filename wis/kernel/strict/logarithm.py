"""log, log2, log10, log1p in f32: x = 2**i (1 + f) with f in [-1/3, 1/3), and a polynomial in f."""

from __future__ import annotations

from typing import Final

from wis.kernel.model import RegType
from wis.kernel.strict.trace import INF, NAN, Value, bits, fma, horner, numbers, real, sel

__all__ = ["log_finite", "log1p_finite", "log", "log2", "log10", "log1p"]

_TWO_THIRDS: Final = 0x3F2AAAAB
_EXPONENT: Final = 0xFF800000
_LN2: Final = float.fromhex("0x1.62e430p-1")
_LOG10_2: Final = (float.fromhex("0x1.344136p-2"), float.fromhex("-0x1.ec10c0p-27"))

_LOG: Final = numbers(
    "-0x1.0p-1 0x1.555506p-2 -0x1.fffefap-3 0x1.99d050p-3 -0x1.559c66p-3 0x1.1ed562p-3 -0x1.f332b6p-4 0x1.1e6ccap-3 -0x1.07c494p-3"
)
"""(log(1 + f) - f) / f**2 on [-1/3, 1/3], relative to log(1 + f): 2^-27.7."""
_LOG2: Final = numbers(
    "0x1.c551dap-2 -0x1.715476p-1 0x1.ec6f88p-2 -0x1.715454p-2 0x1.27bb06p-2 -0x1.eca9c2p-3 0x1.9a76dcp-3 -0x1.6a4876p-3 0x1.acdf74p-3 "
    "-0x1.740076p-3"
)
"""log2(1 + f) / f - 1 on [-1/3, 1/3], relative to log2(1 + f): 2^-27.0."""
_LOG10: Final = numbers(
    "-0x1.0d213ap-4 -0x1.bcb7b2p-3 0x1.2879eep-3 -0x1.bcb626p-4 0x1.640aa2p-4 -0x1.28d006p-4 0x1.f006eep-5 -0x1.af19fep-5 0x1.fb876ap-5 "
    "-0x1.d5260ep-5"
)
"""log10(1 + f) / f - 1/2 on [-1/3, 1/3], relative to log10(1 + f): 2^-27.3."""


def parts(x: Value) -> tuple[Value, Value]:
    """i (a whole number) and f of a positive finite x."""
    tiny = x < 2.0**-126
    whole = bits(sel(tiny, x * 2.0**25, x))
    e = (whole - _TWO_THIRDS) & _EXPONENT
    i = fma(e.to("s2f", RegType.F32), 2.0**-23, sel(tiny, x.like(-25.0), 0.0))
    return i, real(whole - e) - 1.0


def edges(x: Value, y: Value) -> Value:
    """``y``, but -inf for 0, NaN below it, inf for inf."""
    y = sel(x < INF, y, x)
    y = sel(x < 0.0, NAN, y)
    return sel(x.equals(0.0), -INF, y)


def log_finite(x: Value, more: float = 0.0, rest: Value | None = None) -> Value:
    """log(x * 2**more) + rest for positive finite x."""
    i, f = parts(x)
    y = fma(f * f, horner(f, _LOG), f)
    return fma(i + more if more else i, _LN2, y if rest is None else y + rest)


def log(x: Value) -> Value:
    """Natural logarithm; log(1) = +0."""
    return edges(x, log_finite(x))


def log2(x: Value) -> Value:
    """Logarithm to base 2; exact for powers of 2."""
    i, f = parts(x)
    return edges(x, i + fma(f, horner(f, _LOG2), f))


def log10(x: Value) -> Value:
    """Logarithm to base 10."""
    i, f = parts(x)
    return edges(x, fma(i, _LOG10_2[0], fma(i, _LOG10_2[1], fma(f, horner(f, _LOG10), f * 0.5))))


def log1p_finite(x: Value, more: Value | None = None) -> Value:
    """log(1 + x + more) for finite x > -1 and a ``more`` of the size of x's rounding error.

    The exponent is that of 1 + x rounded; f + rest = 2**-e x + (2**-e - 1).
    """
    e = (bits(x + 1.0) - _TWO_THIRDS) & _EXPONENT
    less = fma(real(-e + 0x40800000), 0.25, -1.0)  # by 4 * 2**-e, which is not subnormal
    scaled = real(bits(x) - e)
    f = less + scaled
    rest = scaled - (f - less)
    if more is not None:
        rest = fma(more, real(-e + 0x3F800000), rest)
    i = e.to("s2f", RegType.F32) * 2.0**-23
    return fma(i, _LN2, fma(f * f, horner(f, _LOG), rest) + f)


def log1p(x: Value) -> Value:
    """log(1 + x); log1p(-0) = -0."""
    y = log1p_finite(x).copysign(x)
    y = sel(x < INF, y, x)
    y = sel(x < -1.0, NAN, y)
    return sel(x.equals(-1.0), -INF, y)
