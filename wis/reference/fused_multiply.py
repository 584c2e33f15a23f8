"""Fused multiply-add: a * b + c rounded once, in f32 and f64.

f32: the product is exact in f64; the sum is rounded to odd, so that the last rounding sees which side of a tie it is on.
f64: error-free transformations with the same rounding to odd; where those could overflow or lose low bits, exact rationals.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from wis.reference.access import Array

__all__ = ["fma"]

F64 = npt.NDArray[np.float64]


def fma(a: Array, b: Array, c: Array) -> Array:
    """Operands of one type, f32 or f64."""
    if a.dtype == np.float32:
        return _round_to_odd(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)).astype(np.float32)
    x, y, z = (np.array(v) for v in np.broadcast_arrays(a, b, c))
    return _fma_f64(x, y, z)


def _two_sum(a: F64, b: F64) -> tuple[F64, F64]:
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _round_to_odd(a: F64, b: F64) -> F64:
    """a + b with an inexact result's last bit forced to 1."""
    s, error = _two_sum(a, b)
    bits = np.atleast_1d(s).view(np.int64).reshape(s.shape)
    fix = (error != 0) & np.isfinite(s) & ((bits & 1) == 0)
    away = (error > 0) == (s > 0)
    return np.asarray(np.where(fix, np.where(away, bits + 1, bits - 1), bits)).view(np.float64)


def _split(x: F64) -> tuple[F64, F64]:
    t = x * 134217729.0  # 2**27 + 1
    high = t - (t - x)
    return high, x - high


def _fma_f64(a: F64, b: F64, c: F64) -> F64:
    product = a * b
    ah, al = _split(a)
    bh, bl = _split(b)
    low = ((ah * bh - product) + ah * bl + al * bh) + al * bl
    uh, ul = _two_sum(c, low)
    th, tl = _two_sum(product, uh)
    result = np.asarray(th + _round_to_odd(tl, ul))
    # Outside of these magnitudes a step above may overflow or underflow.
    risky = np.zeros(result.shape, np.bool_)
    for value, low_bound, high_bound in ((a, 1e-140, 1e140), (b, 1e-140, 1e140), (c, 1e-250, 1e280)):
        size = np.abs(value)
        risky |= ((size < low_bound) & (size != 0)) | (size > high_bound)
    special = ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c)) | (a == 0) | (b == 0)
    # The product of finite numbers is finite, however large: against an infinity it does not count.
    plain = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, a * b + c)
    result = np.where(special, plain, result)
    for at in np.argwhere(risky & ~special):
        index = tuple(at)
        result[index] = _exact(float(a[index]), float(b[index]), float(c[index]))
    return result


def _exact(a: float, b: float, c: float) -> float:
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        return a * b + c  # the sign of zero follows from the exact signs
    try:
        return float(total)  # rounds to nearest, ties to even
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")
