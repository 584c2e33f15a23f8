"""Expands directed rounding to arithmetic that rounds to nearest only.

A *Sided* is a result to nearest and, as two tests, on which side of it the exact value lies; ``_stepped`` takes the neighbour that was
asked for, on the bits. For f32 the side comes from f64, which holds products exactly and sums as a pair. For f64 it comes from error
terms that an fma gives exactly, after exponents were moved to where nothing over- or underflows. The sums without error are Knuth's
TwoSum and Shewchuk's expansions (1997).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from wis.kernel.model import RegType as T
from wis.kernel.model import Rounding
from wis.kernel.strict.trace import Value, bits, fma, real, sel

_INF: Final = float("inf")
_BITS: Final = {T.F16: T.I16, T.BF16: T.I16, T.F32: T.I32, T.F64: T.I64}


@dataclass(frozen=True, slots=True)
class _Sided:
    """``nearest`` and two preds: the exact value is ``below`` or ``above`` it (neither: it is exact, infinite by itself, or NaN)."""

    nearest: Value
    below: Value
    above: Value


def _either(p: Value, q: Value) -> Value:
    return p.trace.op("or", T.PRED, p, q)


def _both(p: Value, q: Value) -> Value:
    return p.trace.op("and", T.PRED, p, q)


def _neither(p: Value) -> Value:
    return p.trace.op("not", T.PRED, p)


def _wide(x: Value) -> Value:
    return x if x.type is T.F64 else x.to("cvt", T.F64)


def _raw(x: Value) -> Value:
    return x.to("reinterpret", _BITS[x.type])


def _stepped(mode: int, x: _Sided) -> Value:
    """The nearest result or its neighbour in the direction of ``mode``. The least numbers beside 0 have the bits 1 and sign + 1."""
    raw, type_ = _raw(x.nearest), x.nearest.type
    sign = -(1 << type_.bits - 1)
    negative, zero = raw < 0, (raw << 1).equals(0)
    if mode == Rounding.ZERO:  # too far from 0 on either side: one bit less
        return _float(sel(sel(negative, x.above, x.below), raw - 1, raw), type_)
    if mode == Rounding.DOWN:
        moved = sel(zero, raw.like(sign + 1), sel(negative, raw + 1, raw - 1))
        return _float(sel(x.below, moved, raw), type_)
    moved = sel(zero, raw.like(1), sel(negative, raw - 1, raw + 1))
    return _float(sel(x.above, moved, raw), type_)


def _float(raw: Value, type_: T) -> Value:
    return raw.to("reinterpret", type_)


def _beside(nearest: Value, high: Value, low: Value | None = None) -> _Sided:
    """The exact value is ``high`` (+ ``low``, what rounding the sum to f64 cut off), in f64."""
    wide = _wide(nearest)
    below, above = high < wide, high > wide
    if low is not None:
        equal = high.equals(wide)
        below, above = _either(below, _both(equal, low < 0.0)), _either(above, _both(equal, low > 0.0))
    return _Sided(nearest, below, above)


def _two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b and its error, by magnitude, so that nothing overflows but the sum."""
    larger = abs(a) >= abs(b)
    big, small = sel(larger, a, b), sel(larger, b, a)
    total = a + b
    return total, small - (total - big)


def _sum_of_zeros(mode: int, result: Value, exact: Value, signs: Sequence[Value]) -> Value:
    """A sum that is exactly 0 is, rounded down, -0 unless all its terms are positive. ``signs``: bits whose top one is a term's sign."""
    if mode != Rounding.DOWN:
        return result
    sign = signs[0]
    for other in signs[1:]:
        sign = sign | other
    top = sign & -(1 << sign.type.bits - 1)
    return sel(exact, real(top), result)


def _add(mode: int) -> Callable[..., Value]:
    def rule(a: Value, b: Value) -> Value:
        nearest = a + b
        high, low = _two_sum(_wide(a), _wide(b))
        sided = _beside(nearest, high, low)
        if a.type is T.F64:
            sided = _overflowed(sided, (a, b))
        return _sum_of_zeros(mode, _stepped(mode, sided), nearest.equals(0.0), (bits(a), bits(b)))

    return rule


def _overflowed(x: _Sided, operands: Sequence[Value]) -> _Sided:
    """An infinite result of finite operands is too large in magnitude, whatever the error terms say."""
    finite = abs(operands[0]) < _INF
    for other in operands[1:]:
        finite = _both(finite, abs(other) < _INF)
    up, down = _both(x.nearest.equals(_INF), finite), _both(x.nearest.equals(-_INF), finite)
    return _Sided(x.nearest, _either(x.below, up), _either(x.above, down))


def _mul(mode: int) -> Callable[..., Value]:
    def rule(a: Value, b: Value) -> Value:
        if a.type is T.F32:
            return _stepped(mode, _beside(a * b, _wide(a) * _wide(b)))
        nearest = a * b
        # The error of a small product may not be a number: then the operands that are small are made larger, which is exact.
        small = abs(nearest) < 2.0**-500
        grow_a, grow_b = (sel(_both(small, abs(x) < 2.0**-400), x.like(2.0**600), 1.0) for x in (a, b))
        error = fma(a * grow_a, b * grow_b, -((nearest * grow_a) * grow_b))
        return _stepped(mode, _Sided(nearest, error < 0.0, error > 0.0))

    return rule


def _fma_f32(mode: int, a: Value, b: Value, c: Value) -> Value:
    product = _wide(a) * _wide(b)
    high, low = _two_sum(product, _wide(c))
    result = _stepped(mode, _beside(fma(a, b, c), high, low))
    return _sum_of_zeros(mode, result, high.equals(0.0), (bits(a) ^ bits(b), bits(c)))


_MANTISSA: Final = (1 << 52) - 1
_BIAS: Final = 1023


def _split(x: Value) -> tuple[Value, Value]:
    """A finite f64 other than 0 as m * 2**e with 1 <= |m| < 2 (f64, i64)."""
    least = abs(x) < 2.0**-1022
    raw = bits(sel(least, x * 2.0**54, x))
    exponent = (raw.shr(52) & 0x7FF) - sel(least, raw.like(_BIAS + 54), raw.like(_BIAS))
    return real((raw & (_MANTISSA | -(1 << 63))) | (_BIAS << 52)), exponent


def _power(e: Value) -> Value:
    """2**e for an i64 of -1022 .. 1023."""
    return real((e + _BIAS) << 52)


def _scaled(x: Value, e: Value) -> Value:
    """x * 2**e for |e| <= 4000, exact when the result is a normal number: in four equal steps and what is left."""
    quarter = e >> 2
    step = _power(quarter)
    return (((x * step) * step) * step) * _power(e - (quarter * 3))


def _expansion_sum(terms: Sequence[Value]) -> list[Value]:
    """Terms that do not overlap, least first, with the exact sum of ``terms``: each is added by a row of TwoSums."""
    expansion = [terms[0]]
    for term in terms[1:]:
        grown, carry = [], term
        for part in expansion:
            carry, error = _two_sum(carry, part)
            grown.append(error)
        expansion = [*grown, carry]
    return expansion


def _fma_f64(mode: int, a: Value, b: Value, c: Value) -> Value:
    """By the sign of a * b + c - nearest, exponents relative to the product's. What is far below the rest only counts by its sign."""
    nearest = fma(a, b, c)
    (am, ae), (bm, be), (cm, ce) = _split(a), _split(b), _split(c)
    base = ae + be
    away = ce - base
    near = c.trace.op("min_s", T.I64, c.trace.op("max_s", T.I64, away, away.like(-250)), away.like(250))
    c_scaled = sel(c.equals(0.0), c.like(0.0), cm * _power(near))
    # Where c alone makes the result, the result is c; elsewhere it stays below 2**252 in this scale.
    scaled = sel(away > 250, c_scaled, _scaled(nearest, -base))
    product = am * bm
    parts = _expansion_sum((fma(am, bm, -product), product, c_scaled, -scaled))
    sign = parts[0]
    for part in parts[1:]:
        sign = sel(part.equals(0.0), sign, part)
    usable = _both(_both(abs(nearest) < _INF, abs(c) < _INF), _neither(_either(a.equals(0.0), b.equals(0.0))))
    sided = _Sided(nearest, _both(usable, sign < 0.0), _both(usable, sign > 0.0))
    result = _stepped(mode, _overflowed(sided, (a, b, c)))
    exact = _both(nearest.equals(0.0), _neither(_either(sided.below, sided.above)))
    return _sum_of_zeros(mode, result, exact, (bits(a) ^ bits(b), bits(c)))


def _fma(mode: int) -> Callable[..., Value]:
    return lambda a, b, c: _fma_f32(mode, a, b, c) if a.type is T.F32 else _fma_f64(mode, a, b, c)


def _div(mode: int) -> Callable[..., Value]:
    """By what is left: a - nearest * b has the sign of exact - nearest when b is positive."""

    def rule(a: Value, b: Value) -> Value:
        nearest = a / b
        if a.type is T.F32:
            back, whole = _wide(nearest) * _wide(b), _wide(a)
            less, more = whole < back, whole > back
        else:
            (am, ae), (bm, be) = _split(a), _split(b)
            usable = _both(abs(nearest) < _INF, _both(_both(abs(b) < _INF, b.differs(0.0)), a.differs(0.0)))
            left = fma(-_scaled(nearest, be - ae), bm, am)
            less, more = _both(usable, left < 0.0), _both(usable, left > 0.0)
        positive = b > 0.0
        sided = _Sided(nearest, sel(positive, less, more), sel(positive, more, less))
        if a.type is T.F64:
            sided = _overflowed(sided, (a, sel(b.equals(0.0), b.like(_INF), b)))
        return _stepped(mode, sided)

    return rule


def _sqrt(mode: int) -> Callable[..., Value]:
    def rule(a: Value) -> Value:
        nearest = a.sqrt()
        if a.type is T.F32:
            back = _wide(nearest) * _wide(nearest)
            return _stepped(mode, _Sided(nearest, back > _wide(a), back < _wide(a)))
        small = a < 2.0**-500
        root, square = nearest * sel(small, a.like(2.0**300), 1.0), a * sel(small, a.like(2.0**600), 1.0)
        left = fma(-root, root, square)
        return _stepped(mode, _Sided(nearest, left < 0.0, left > 0.0))

    return rule


def _cvt(mode: int, target: T) -> Callable[..., Value]:
    def rule(x: Value) -> Value:
        # Rounded to nearest twice (f64 to f16 goes through f32) is still one of the two neighbours, so one step is enough.
        nearest = x.to("cvt", target)
        if (target is T.F64) or (target is T.F32 and x.type is not T.F64):
            return nearest
        if mode == Rounding.NEAREST:
            return nearest if x.type is not T.F64 or target is T.F32 else _odd(x).to("cvt", target)
        return _stepped(mode, _beside(nearest, _wide(x)))

    return rule


def _odd(x: Value) -> Value:
    """f64 as f32, towards 0 with the last bit set when anything was cut off: rounding that once more is right."""
    sided = _beside(x.to("cvt", T.F32), x)
    cut = _stepped(Rounding.ZERO, sided)
    return real(sel(_either(sided.below, sided.above), bits(cut) | 1, bits(cut)))


def _int_float(mode: int, target: T, name: str) -> Callable[..., Value]:
    def rule(x: Value) -> Value:
        nearest = x.to(name, target)
        if x.type is not T.I64:
            return _stepped(mode, _beside(nearest, x.to(name, T.F64))) if x.type is T.I32 and target is T.F32 else nearest
        upper = (x >> 32 if name == "s2f" else x.shr(32)).to(name, T.F64) * 2.0**32
        high, low = _two_sum(upper, (x & 0xFFFFFFFF).to("u2f", T.F64))
        return _stepped(mode, _beside(nearest, high, low))

    return rule


RULES: Final[dict[str, Callable[..., Callable[..., Value]]]] = {
    "add_r": lambda mode, target: _add(mode),
    "mul_r": lambda mode, target: _mul(mode),
    "fma_r": lambda mode, target: _fma(mode),
    "div_r": lambda mode, target: _div(mode),
    "sqrt_r": lambda mode, target: _sqrt(mode),
    "cvt_r": _cvt,
    "s2f_r": lambda mode, target: _int_float(mode, target, "s2f"),
    "u2f_r": lambda mode, target: _int_float(mode, target, "u2f"),
}
"""By name: the rule for this rounding and type of result. To nearest is the plain op, except in a conversion that it rounds twice."""
