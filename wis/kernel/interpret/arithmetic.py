"""Arithmetic of the interpreter beyond NumPy's own: integer ops on single bits and bytes (counts, fields, tables, permutations, funnel
shifts, high products), and arithmetic and conversions rounded as the op says: to nearest (ties to even), towards 0, down or up.

The operand arithmetic of the ones named so is that of the PTX instructions.

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
from wis.reference.numeric import fma

__all__ = ["BIT_FUNCTIONS", "CONVERSIONS", "ROUNDED_FUNCTIONS", "WITH_ATTRIBUTE"]

Array = npt.NDArray[Any]


def _unsigned(x: Array) -> Array:
    return x.view(f"u{x.dtype.itemsize}")


def _width(x: Array) -> int:
    return 8 * x.dtype.itemsize


def _like(result: Array, x: Array) -> Array:
    """Bits (of any integer type) as a register of ``x``'s type."""
    return np.asarray(result).astype(f"u{x.dtype.itemsize}").view(x.dtype)


def _length(x: Array) -> Array:
    """Bits up to the highest one that is set, as i32."""
    rest, length = _unsigned(x).astype(np.uint64), np.zeros(x.shape, np.int32)
    for step in (32, 16, 8, 4, 2, 1):
        large = rest >> np.uint64(step) != 0
        length += np.where(large, step, 0).astype(np.int32)
        rest = np.where(large, rest >> np.uint64(step), rest)
    return np.asarray(length + (rest != 0).astype(np.int32))


def _brev(x: Array) -> Array:
    raw, result = _unsigned(x), np.zeros_like(_unsigned(x))
    one = raw.dtype.type(1)
    for _ in range(_width(x)):
        result = result << one | raw & one
        raw = raw >> one
    return np.asarray(result.view(x.dtype))


def _high_product(a: Array, b: Array) -> Array:
    """High half of the unsigned product, by halves of the operands."""
    half = a.dtype.type(_width(a) // 2)
    low = a.dtype.type((1 << _width(a) // 2) - 1)
    a1, a0, b1, b0 = a >> half, a & low, b >> half, b & low
    middle = a1 * b0 + (a0 * b0 >> half)
    return np.asarray(a1 * b1 + (middle >> half) + ((middle & low) + a0 * b1 >> half))


def _mul_hi_u(a: Array, b: Array) -> Array:
    return np.asarray(_high_product(_unsigned(a), _unsigned(b)).view(a.dtype))


def _mul_hi_s(a: Array, b: Array) -> Array:
    """A negative operand is, unsigned, larger by 2**width: the product's high half by the other operand."""
    zero = np.zeros((), a.dtype)
    return np.asarray(_mul_hi_u(a, b) - np.where(a < 0, b, zero) - np.where(b < 0, a, zero))


def _shifted_right(raw: Array, by: Array) -> Array:
    """Unsigned ``raw >> by``; 0 from the width on."""
    width = raw.dtype.type(_width(raw))
    return np.asarray(np.where(by < width, raw >> np.minimum(by, width - raw.dtype.type(1)), raw.dtype.type(0)))


def _shifted_left(raw: Array, by: Array) -> Array:
    width = raw.dtype.type(_width(raw))
    return np.asarray(np.where(by < width, raw << np.minimum(by, width - raw.dtype.type(1)), raw.dtype.type(0)))


def _field(position: Array, length: Array, kind: np.dtype[Any]) -> tuple[Array, Array, Array]:
    """Position and length (mod 256), and a mask of so many low bits."""
    by, count = ((x & 255).astype(kind) for x in (position, length))
    return by, count, ~_shifted_left(np.full((), -1).astype(kind).reshape(1), count)


def _bfe_u(x: Array, position: Array, length: Array) -> Array:
    raw = _unsigned(x)
    by, _, mask = _field(position, length, raw.dtype)
    return np.asarray((_shifted_right(raw, by) & mask).view(x.dtype))


def _bfe_s(x: Array, position: Array, length: Array) -> Array:
    """Bits beyond the field are its highest bit, or the value's when the field reaches beyond it."""
    raw = _unsigned(x)
    by, count, mask = _field(position, length, raw.dtype)
    last = np.minimum(by.astype(np.int64) + count.astype(np.int64) - 1, _width(x) - 1)
    sign = (count != 0) & (_shifted_right(raw, np.maximum(last, 0).astype(raw.dtype)) & raw.dtype.type(1) != 0)
    # Of the field, bits beyond the value are not there and count as the sign too.
    inside = ~_shifted_left(np.full((), -1).astype(raw.dtype).reshape(1), np.maximum(_width(x) - by.astype(np.int64), 0).astype(raw.dtype))
    kept = mask & inside
    return np.where(sign, _shifted_right(raw, by) & kept | ~kept, _shifted_right(raw, by) & kept).view(x.dtype)


def _bfi(field: Array, into: Array, position: Array, length: Array) -> Array:
    raw = _unsigned(field)
    by, _, mask = _field(position, length, raw.dtype)
    place = _shifted_left(mask, by)
    return np.asarray((_shifted_left(raw, by) & place | _unsigned(into) & ~place).view(field.dtype))


def _bfind_s(x: Array) -> Array:
    return _length(np.where(x < 0, ~x, x)) - np.int32(1)


def _lop3(table: int, a: Array, b: Array, c: Array) -> Array:
    """Bit (4a + 2b + c) of ``table``."""
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.int32)
    for row in range(8):
        if table >> row & 1:
            result = result | (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return result


_BYTES: Final = {  # of modes 1 to 6, for c = 0 to 3: which byte of (b:a) is byte 0, 1, 2, 3 of the result
    1: ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    2: ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    3: ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    4: ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    5: ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    6: ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


def _prmt(mode: int, a: Array, b: Array, c: Array) -> Array:
    both = _unsigned(b).astype(np.uint64) << np.uint64(32) | _unsigned(a)
    result = np.zeros(1, np.uint64)
    for k in range(4):
        if mode:
            chosen = np.array([_BYTES[mode][row][k] for row in range(4)], np.uint64)[c & 3]
            byte = both >> (chosen * np.uint64(8)) & np.uint64(255)
        else:
            nibble = _unsigned(c).astype(np.uint64) >> np.uint64(4 * k) & np.uint64(15)
            byte = both >> ((nibble & np.uint64(7)) * np.uint64(8)) & np.uint64(255)
            sign = np.where(byte & np.uint64(128) != 0, np.uint64(255), np.uint64(0))
            byte = np.where(nibble & np.uint64(8) != 0, sign, byte)
        result = result | byte << np.uint64(8 * k)
    return _like(result, a)


def _amount(wrap: int, c: Array) -> Array:
    raw = _unsigned(c).astype(np.uint64)
    return np.asarray(raw & np.uint64(31) if wrap else np.minimum(raw, np.uint64(32)))


def _shf_l(wrap: int, a: Array, b: Array, c: Array) -> Array:
    both = _unsigned(b).astype(np.uint64) << np.uint64(32) | _unsigned(a)
    return _like(both << _amount(wrap, c) >> np.uint64(32) & np.uint64(0xFFFFFFFF), a)


def _shf_r(wrap: int, a: Array, b: Array, c: Array) -> Array:
    both = _unsigned(b).astype(np.uint64) << np.uint64(32) | _unsigned(a)
    return _like(both >> _amount(wrap, c) & np.uint64(0xFFFFFFFF), a)


BIT_FUNCTIONS: Final[dict[str, Callable[..., Array]]] = {
    "popc": lambda x: np.bitwise_count(_unsigned(x)).astype(np.int32),
    "clz": lambda x: np.int32(_width(x)) - _length(x),
    "brev": _brev,
    "mul_hi_s": _mul_hi_s,
    "mul_hi_u": _mul_hi_u,
    "bfe_s": _bfe_s,
    "bfe_u": _bfe_u,
    "bfi": _bfi,
    "bfind_s": _bfind_s,
    "bfind_u": lambda x: _length(x) - np.int32(1),
}

WITH_ATTRIBUTE: Final[dict[str, Callable[..., Array]]] = {"lop3": _lop3, "prmt": _prmt, "shf_l": _shf_l, "shf_r": _shf_r}
"""Functions whose first argument is the op's attribute."""


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


ROUNDED_FUNCTIONS: Final[dict[str, Callable[..., Array]]] = {"add_r": _add, "mul_r": _mul, "fma_r": _fma, "div_r": _div, "sqrt_r": _sqrt}
"""By name: f(rounding, *operands)."""

CONVERSIONS: Final[dict[Sig, Callable[[str, Array, np.dtype[Any], int], Array]]] = {
    Sig.CVT_ROUNDED: _cvt,
    Sig.INT_FLOAT_ROUNDED: _int_float,
}
