"""Arithmetic and conversions rounded as the op says: to nearest (ties to even), towards 0, down or up.

Everywhere the nearest result is found first, then on which side of it the exact value lies, then the neighbour that was asked for. For f32
that side follows from f64 arithmetic without error; for f64 from rational numbers, one element at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from wis.kernel.model import Rounding
from wis.kernel.ops import Sig
from wis.reference.fused_multiply import fma

__all__ = ["CONVERSIONS", "FUNCTIONS"]

Array = npt.NDArray[Any]


def _rounded(mode: int, nearest: Array, side: Array) -> Array:
    """``nearest`` is the exact value rounded to nearest; ``side``: the sign of exact minus nearest."""
    down, up = np.nextafter(nearest, nearest.dtype.type(-np.inf)), np.nextafter(nearest, nearest.dtype.type(np.inf))
    if mode == Rounding.DOWN:
        return np.where(side < 0, down, nearest)
    if mode == Rounding.UP:
        return np.where(side > 0, up, nearest)
    if mode == Rounding.ZERO:
        return np.where((side < 0) & (nearest > 0), down, np.where((side > 0) & (nearest < 0), up, nearest))
    return nearest


def _side(nearest: Array, high: Array, low: Array | float = 0.0) -> Array:
    """The sign of (high + low) - nearest; ``high`` (f64) is that sum rounded to f64, ``nearest`` is it rounded further."""
    wide = nearest.astype(np.float64)
    return np.where(high > wide, 1, np.where(high < wide, -1, np.sign(low)))


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _exactly(side_of_one: Callable[..., int], nearest: Array, operands: tuple[Array, ...]) -> Array:
    """``side_of_one(nearest, *operands)``, on numbers as rationals (the nearest may be infinite), where all operands are finite."""
    side = np.zeros(nearest.shape, np.int64)
    wide = np.broadcast_arrays(nearest, *operands)
    finite = np.logical_and.reduce([np.isfinite(x) for x in wide[1:]]) & ~np.isnan(nearest)
    for at in zip(*np.nonzero(finite), strict=True):
        first = float(wide[0][at])
        side[at] = -int(np.sign(first)) if np.isinf(first) else side_of_one(Fraction(first), *(Fraction(float(x[at])) for x in wide[1:]))
    return side


def _sign(x: Fraction) -> int:
    return (x > 0) - (x < 0)


def _zero_sum(mode: int, result: Array, a: Array, b: Array) -> Array:
    """A sum that is exactly 0: +0, or -0 downwards; operands of one sign keep it."""
    if mode != Rounding.DOWN:
        return result
    return np.where((a + b == 0) & (result == 0) & (np.signbit(a) != np.signbit(b)), -np.zeros((), result.dtype), result)


def _add(mode: int, a: Array, b: Array) -> Array:
    nearest = np.asarray(a + b)
    if a.dtype == np.float32:
        high, low = _two_sum(a.astype(np.float64), b.astype(np.float64))
        side = _finite_side(nearest, high, low, a, b)
    else:
        side = _exactly(lambda r, x, y: _sign(x + y - r), nearest, (a, b))
    return _zero_sum(mode, _rounded(mode, nearest, side), a, b)


def _finite_side(nearest: Array, high: Array, low: Array | float, *operands: Array) -> Array:
    """As ``_side``; 0 where an operand is not finite, so that the result stays as it is."""
    finite = np.logical_and.reduce(np.broadcast_arrays(*(np.isfinite(x) for x in operands)))
    return np.where(finite, _side(nearest, high, low), 0)


def _mul(mode: int, a: Array, b: Array) -> Array:
    nearest = np.asarray(a * b)
    if a.dtype == np.float32:
        side = _finite_side(nearest, a.astype(np.float64) * b.astype(np.float64), 0.0, a, b)
    else:
        side = _exactly(lambda r, x, y: _sign(x * y - r), nearest, (a, b))
    return _rounded(mode, nearest, side)


def _fma(mode: int, a: Array, b: Array, c: Array) -> Array:
    nearest = np.asarray(fma(a, b, c))
    if a.dtype == np.float32:
        product = a.astype(np.float64) * b.astype(np.float64)
        high, low = _two_sum(product, c.astype(np.float64))
        side = _finite_side(nearest, high, low, a, b, c)
    else:
        side = _exactly(lambda r, x, y, z: _sign(x * y + z - r), nearest, (a, b, c))
    result = _rounded(mode, nearest, side)
    if mode != Rounding.DOWN:
        return result
    opposite = np.signbit(a) ^ np.signbit(b) ^ np.signbit(c)
    return np.where((result == 0) & (side == 0) & opposite, -np.zeros((), result.dtype), result)


def _div(mode: int, a: Array, b: Array) -> Array:
    """By what is left: a - nearest * b has the sign of (exact - nearest) times that of b."""
    nearest = np.asarray(a / b)
    if a.dtype == np.float32:
        back = nearest.astype(np.float64) * b.astype(np.float64)
        side = np.sign(a.astype(np.float64) - back) * np.sign(b)
        side = np.where(np.isinf(nearest), -np.sign(nearest), side)
        side = np.where(np.isfinite(a) & np.isfinite(b) & (b != 0), side, 0)
    else:
        side = _exactly(lambda r, x, y: _sign(x / y - r) if y else 0, nearest, (a, np.where(b == 0, np.inf, b)))
    return _rounded(mode, nearest, side)


def _sqrt(mode: int, a: Array) -> Array:
    nearest = np.sqrt(a)
    if a.dtype == np.float32:
        side = np.sign(a.astype(np.float64) - nearest.astype(np.float64) ** 2)
        side = np.where(np.isfinite(a) & (a > 0), side, 0)
    else:
        side = _exactly(lambda r, x: _sign(x - r * r), nearest, (a,))
    return _rounded(mode, nearest, side)


_FORMATS: Final = {  # significant bits, exponent of the least normal number, largest number
    np.dtype(np.float16): (11, -14, 65504.0),
    np.dtype(ml_dtypes.bfloat16): (8, -126, float(np.ldexp(2.0 - 2.0**-7, 127))),
    np.dtype(np.float32): (24, -126, float(np.ldexp(2.0 - 2.0**-23, 127))),
    np.dtype(np.float64): (53, -1022, float(np.finfo(np.float64).max)),
}


def _cvt(name: str, x: Array, target: np.dtype[Any], mode: int) -> Array:
    """Every value is a multiple of the target's unit in the last place at its size, plus a rest that f64 holds exactly."""
    precision, least, largest = _FORMATS[target]
    wide = x.astype(np.float64)
    exponent = np.maximum(np.frexp(wide)[1] - precision, least - precision + 1)
    units = np.ldexp(wide, -exponent)
    whole = {Rounding.NEAREST: np.rint, Rounding.ZERO: np.trunc, Rounding.DOWN: np.floor, Rounding.UP: np.ceil}[Rounding(mode)](units)
    result = np.copysign(np.ldexp(whole, exponent), wide)
    over = np.isfinite(wide) & (np.abs(result) > largest)
    inwards: Any = {Rounding.NEAREST: False, Rounding.ZERO: True, Rounding.DOWN: wide > 0, Rounding.UP: wide < 0}[Rounding(mode)]
    result = np.where(over, np.copysign(np.where(inwards, largest, np.inf), wide), result)
    return np.where(np.isfinite(wide), result, wide).astype(target)


def _int_float(name: str, x: Array, target: np.dtype[Any], mode: int) -> Array:
    """The integer is the sum of two f64, which their sum and its error give exactly."""
    whole = x.view(f"u{x.dtype.itemsize}") if name == "u2f_r" else x
    high, low = whole.astype(np.float64), np.zeros(1)
    if x.dtype.itemsize == 8:
        upper, lower = whole >> whole.dtype.type(32), whole & whole.dtype.type(0xFFFFFFFF)
        high, low = _two_sum(upper.astype(np.float64) * 2.0**32, lower.astype(np.float64))
    nearest = whole.astype(target)
    return _rounded(mode, nearest, _side(nearest, high, low))


FUNCTIONS: Final[dict[str, Callable[..., Array]]] = {"add_r": _add, "mul_r": _mul, "fma_r": _fma, "div_r": _div, "sqrt_r": _sqrt}
"""By name: f(rounding, *operands)."""

CONVERSIONS: Final[dict[Sig, Callable[[str, Array, np.dtype[Any], int], Array]]] = {
    Sig.CVT_ROUNDED: _cvt,
    Sig.INT_FLOAT_ROUNDED: _int_float,
}
