"""Semantics of the MAP ops: one function an op, arrays in the type they compute in, result in any type that converts to the output's.

Operands arrive in ``access.compute_type``: f16 and bf16 as f32. Named functions (exp, sin, ...) are evaluated in f64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final

import numpy as np

from wis.dtypes import DType
from wis.reference import numeric
from wis.reference.access import Array

__all__ = ["MAP", "function", "wide"]

Function = Callable[..., Array]


_CHUNK: Final = 1 << 13  # elements; the f64 temporaries of a chunk stay in a core's cache


def wide(f: Callable[..., Any]) -> Function:
    """``f`` evaluated in f64 or complex128, rounded to the type of its first argument. ``f`` works element by element."""

    def g(*args: Array) -> Array:
        kind = args[0].dtype
        computed = np.complex128 if kind.kind == "c" else np.float64
        shape = np.broadcast_shapes(*(a.shape for a in args))
        flat = [a if a.ndim == 0 else np.broadcast_to(a, shape).reshape(-1) for a in args]
        result = np.empty(prod(shape), kind)
        for start in range(0, len(result), _CHUNK):
            result[start : start + _CHUNK] = f(
                *(a.astype(computed) if a.ndim == 0 else a[start : start + _CHUNK].astype(computed) for a in flat)
            )
        return result.reshape(shape)

    return g


def _sign(x: Array) -> Array:
    return np.asarray((x > 0).astype(x.dtype) - (x < 0).astype(x.dtype))  # neither for NaN: 0


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _recip(x: Array) -> Array:
    return np.asarray(np.ones((), x.dtype) / x)


def _sign_bit(x: Array) -> Array:
    return np.asarray(np.signbit(x) if x.dtype.kind == "f" else x < 0)


def _is_float(x: Array) -> bool:
    return x.dtype.kind in "fc"


def _divide_safely(f: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    """An integer division that yields 0 where ``b`` is 0."""
    zero = b == 0
    return np.where(zero, np.zeros((), a.dtype), f(a, np.where(zero, np.ones((), b.dtype), b)))


def _floor_div(a: Array, b: Array) -> Array:
    if not _is_float(a):
        return _divide_safely(np.floor_divide, a, b)
    # The quotient of what fmod leaves is nearly whole: floor(a / b) alone would be off by one when the division rounds up.
    mod = np.fmod(a, b)
    div = (a - mod) / b
    div = np.where((mod != 0) & ((b < 0) != (mod < 0)), div - 1, div)
    floor = np.floor(div)
    floor = np.where(div - floor > 0.5, floor + 1, floor)
    return np.where(b == 0, a / b, np.where(div == 0, np.copysign(np.zeros((), a.dtype), a / b), floor))


def _trunc_div(a: Array, b: Array) -> Array:
    if _is_float(a):
        return np.asarray(np.trunc(a / b))

    def divide(x: Array, y: Array) -> Array:
        q = np.floor_divide(x, y)
        return np.asarray(q + ((q * y != x) & ((x < 0) != (y < 0))).astype(q.dtype))

    return _divide_safely(divide, a, b)


def _mod(a: Array, b: Array) -> Array:
    if not _is_float(a):
        return _divide_safely(np.mod, a, b)
    mod = np.fmod(a, b)
    return np.where((mod != 0) & ((b < 0) != (mod < 0)), mod + b, mod)


def _fmod(a: Array, b: Array) -> Array:
    return np.asarray(np.fmod(a, b)) if _is_float(a) else _divide_safely(np.fmod, a, b)


def _pow(a: Array, b: Array) -> Array:
    if _is_float(a):
        return wide(np.power)(a, b)
    if a.dtype.kind == "u":
        return np.asarray(np.power(a, b))
    negative = b < 0
    result = np.power(a, np.where(negative, np.zeros((), b.dtype), b))
    one, zero = np.ones((), a.dtype), np.zeros((), a.dtype)
    unit = np.where((a == -1) & ((b & one) != 0), -one, one)
    return np.where(negative, np.where((a == 1) | (a == -1), unit, zero), result)


def _number_wins(f: Function) -> Function:
    """``f`` where both are numbers, else the number. Not np.fmin and np.fmax: those let a signalling NaN win."""

    def g(a: Array, b: Array) -> Array:
        if not _is_float(a):
            return f(a, b)
        return np.where(np.isnan(a), b, np.where(np.isnan(b), a, f(a, b)))

    return g


def _shift(left: bool) -> Function:
    def f(a: Array, b: Array) -> Array:
        width = 8 * a.dtype.itemsize
        inside = (b >= 0) & (b < width)
        safe = np.where(inside, b, np.zeros((), b.dtype))
        if left:
            return np.where(inside, np.left_shift(a, safe), np.zeros((), a.dtype))
        return np.where(inside, np.right_shift(a, safe), np.where(a < 0, np.full((), -1).astype(a.dtype), np.zeros((), a.dtype)))

    return f


def _complex(re: Array, im: Array) -> Array:
    result = np.empty(np.broadcast_shapes(re.shape, im.shape), np.complex64 if re.dtype == np.float32 else np.complex128)
    result.real, result.imag = re, im
    return result


MAP: Final[dict[str, Function]] = {
    "cast": lambda x: x,
    "where": lambda c, a, b: np.asarray(np.where(c, a, b)),
    "neg": np.negative,
    "abs": np.abs,
    "sign": _sign,
    "not": np.invert,
    "exp": wide(np.exp),
    "exp2": wide(np.exp2),
    "expm1": wide(np.expm1),
    "log": wide(np.log),
    "log2": wide(np.log2),
    "log10": wide(np.log10),
    "log1p": wide(np.log1p),
    "sqrt": lambda x: np.sqrt(x) if x.dtype.kind == "f" else wide(np.sqrt)(x),
    "rsqrt": wide(lambda x: 1.0 / np.sqrt(x)),
    "recip": _recip,
    "sin": wide(np.sin),
    "cos": wide(np.cos),
    "tan": wide(np.tan),
    "asin": wide(np.arcsin),
    "acos": wide(np.arccos),
    "atan": wide(np.arctan),
    "sinh": wide(np.sinh),
    "cosh": wide(np.cosh),
    "tanh": wide(np.tanh),
    "asinh": wide(np.arcsinh),
    "acosh": wide(np.arccosh),
    "atanh": wide(np.arctanh),
    "erf": wide(numeric.erf),
    "erfc": wide(numeric.erfc),
    "erfinv": wide(numeric.erfinv),
    "lgamma": wide(numeric.lgamma),
    "digamma": wide(numeric.digamma),
    "sigmoid": wide(_sigmoid),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "conj": np.conjugate,
    "is_nan": np.isnan,
    "is_inf": np.isinf,
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "complex": _complex,
    "sign_bit": _sign_bit,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floor_div": _floor_div,
    "trunc_div": _trunc_div,
    "mod": _mod,
    "fmod": _fmod,
    "pow": _pow,
    "atan2": wide(np.arctan2),
    "min": np.minimum,
    "max": np.maximum,
    "fmin": _number_wins(np.minimum),
    "fmax": _number_wins(np.maximum),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": _shift(True),
    "shr": _shift(False),
    "hypot": wide(np.hypot),
    "copysign": np.copysign,
    "nextafter": np.nextafter,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "fma": numeric.fma,
}


def function(name: str, dtype: DType) -> Function:
    """The function of op ``name`` for an output (and operands) of ``dtype``."""
    if name == "nextafter" and dtype in (DType.F16, DType.BF16):
        kind = dtype.numpy  # the one MAP op that must not compute in f32: the neighbour is the type's own
        return lambda a, b: np.asarray(np.nextafter(a.astype(kind), b.astype(kind)))
    return MAP[name]
