"""Functions, roundings, conversions and special values. Named functions of floats keep to 2 ulp of the answer in double."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import special

from tests.golden.cuda.case import Array, Given, case
from tests.golden.cuda.cases.draw import Rng, f32, f64

_ULPS = {"rtol": 2.5e-7}


def stacked(*columns: Array) -> Array:
    return np.stack(columns, 1).astype(np.float32)


@case("maths/exponentials", grid=2, block=64, **_ULPS)
def exponentials(rng: Rng) -> Given:
    x = (rng.uniform(-12, 12, 128)).astype(np.float32)
    x[:4] = [0.0, 1e-6, -1e-5, 1.0]
    v = x.astype(np.float64)
    a = (np.abs(x) + np.float32(1e-3)).astype(np.float64)
    answer = stacked(np.exp(v), np.exp2(v), 10.0**v, np.expm1(v), np.log(a), np.log2(a), np.log10(a), np.log1p(a))
    return Given((x, np.zeros_like(answer), np.int32(128)), {1: answer})


@case("maths/trigonometry", grid=2, block=64, **_ULPS)
def trigonometry(rng: Rng) -> Given:
    x = (rng.standard_normal(128) * 10.0 ** rng.integers(-3, 6, 128)).astype(np.float32)
    v, u = x.astype(np.float64), (x / (np.float32(1) + np.abs(x))).astype(np.float64)
    zero = np.zeros_like(v)
    answer = stacked(np.sin(v), np.cos(v), np.tan(u), np.arcsin(u), np.arccos(u), np.arctan(v), np.arctan2(u, v), zero, zero)
    return Given((x, np.zeros_like(answer), np.int32(128)), {1: answer})


@case("maths/hyperbolic_pow", grid=2, block=64, **_ULPS)
def hyperbolic_pow(rng: Rng) -> Given:
    x, y = f32(rng, 128) * 3, f32(rng, 128) * 4
    v, w = x.astype(np.float64), y.astype(np.float64)
    base, root = (np.abs(x) + np.float32(0.1)).astype(np.float64), (np.abs(x) + np.float32(0.01)).astype(np.float64)
    columns = [np.sinh(v), np.cosh(v), np.tanh(v), base**w, special.erf(v), 1 / np.sqrt(root), np.hypot(v, w), 1 / (1 + np.exp(-v))]
    answer = stacked(*columns)
    return Given((x, y, np.zeros_like(answer), np.int32(128)), {2: answer})


@case("maths/special_values", grid=2, block=64)
def special_values(rng: Rng) -> Given:
    some = np.array([0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 1e-40, -3e38, 3e38, 1.2e-38], np.float32)
    a, b = np.repeat(some, len(some)), np.tile(some, len(some))
    with np.errstate(all="ignore"):
        least, greatest = np.fmin(a, b), np.fmax(a, b)
        zeros = (a == 0) & (b == 0)
        least[zeros], greatest[zeros] = np.where(np.signbit(a), a, b)[zeros], np.where(np.signbit(a), b, a)[zeros]
        answer = stacked(a + b, a * b, a / b, least, greatest, np.sqrt(a))
        flags = [a < b, a <= b, a == b, a != b, np.isnan(a), np.isinf(a), np.signbit(a)]
    kept = ~np.isnan(a)  # the sign of a NaN is not defined
    a, b, answer = a[kept], b[kept], answer[kept]
    bits = sum(f[kept].astype(np.int32) << k for k, f in enumerate(flags))
    n = len(a)
    return Given((a, b, np.zeros_like(answer), np.zeros(n, np.int32), np.int32(n)), {2: answer, 3: np.asarray(bits, np.int32)})


def directed(exact: Fraction, kind: Any, mode: str) -> Any:
    """The neighbour of a rational in a float type: 'u' up, 'd' down, 'z' towards zero, 'n' nearest."""
    guess = kind(float(exact))
    mode = {"z": "d" if exact > 0 else "u"}.get(mode, mode)
    if mode == "n":
        near = [np.nextafter(guess, kind(-np.inf)), guess, np.nextafter(guess, kind(np.inf))]
        bits = np.uint32 if kind is np.float32 else np.uint64
        return min(near, key=lambda g: (abs(Fraction(float(g)) - exact), int(g.view(bits)) & 1))
    while mode == "u" and Fraction(float(guess)) < exact:
        guess = np.nextafter(guess, kind(np.inf))
    while mode == "d" and Fraction(float(guess)) > exact:
        guess = np.nextafter(guess, kind(-np.inf))
    return guess


def root(value: Any, kind: Any, mode: str) -> Any:
    """Square root rounded up or down."""
    exact, guess = Fraction(float(value)), kind(math.sqrt(float(value)))
    while Fraction(float(guess)) ** 2 < exact:
        guess = np.nextafter(guess, kind(np.inf))
    while Fraction(float(guess)) ** 2 > exact:
        guess = np.nextafter(guess, kind(0))
    return np.nextafter(guess, kind(np.inf)) if mode == "u" and Fraction(float(guess)) ** 2 < exact else guess


@case("maths/rounded_arithmetic", grid=2, block=32)
def rounded_arithmetic(rng: Rng) -> Given:
    n, s, d = 60, np.float32, np.float64
    x, y, u, v = f32(rng, n), f32(rng, n) * 100, f64(rng, n), f64(rng, n) / 3
    singles, doubles = [], []
    for a, b, c, e in zip(x, y, u, v, strict=True):
        p, q, g, h = (Fraction(float(t)) for t in (a, b, c, e))
        row = [directed(p + q, s, m) for m in "udz"] + [directed(p * q, s, m) for m in "udz"] + [directed(p / q, s, m) for m in "ud"]
        singles.append([*row, directed(p * q + 1, s, "z"), root(abs(a), s, "u"), root(abs(a), s, "d"), directed(p * q - 1, s, "u")])
        row = [directed(g + h, d, "u"), directed(g + h, d, "d"), directed(g * h, d, "z"), directed(g * h, d, "u")]
        doubles.append([*row, directed(g / h, d, "d"), root(abs(c), d, "u")])
    out, dout = np.array(singles, s), np.array(doubles, d)
    return Given((x, y, np.zeros_like(out), u, v, np.zeros_like(dout), np.int32(n)), {2: out, 5: dout})


def clamped(value: float, bits: int, signed: bool, way: Callable[[float], float]) -> int:
    lo, hi = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return max(lo, min(hi, int(way(value))))


@case("maths/conversions", grid=2, block=64)
def conversions(rng: Rng) -> Given:
    n, s = 100, np.float32
    x, y = (f32(rng, n) * 10.0 ** rng.integers(0, 12, n)).astype(s), rng.standard_normal(n) * 10.0 ** rng.integers(0, 22, n)
    x[:6], y[:4] = [0.5, 1.5, -0.5, -2.5, 3e9, -3e9], [0.5, 2.5, 2147483647.5, -2147483649.0]
    near: Callable[[float], float] = round
    ints, longs, words, floats = [], [], [], []
    for v, w in zip(x.tolist(), y.tolist(), strict=True):
        whole, long = clamped(w, 32, True, math.trunc), clamped(w, 64, True, math.trunc)
        ints.append([*(clamped(v, 32, True, way) for way in (near, math.trunc, math.ceil, math.floor)), clamped(w, 32, True, near), whole])
        longs.append([clamped(v, 64, True, math.floor), clamped(w, 64, True, math.ceil), long])
        words.append([clamped(v, 32, False, near), clamped(w, 32, False, math.trunc)])
        away = math.copysign(math.floor(abs(v) + 0.5), v)
        sums = s(s(math.trunc(v)) + s(math.floor(v))) + s(math.ceil(v))
        rounded = [directed(Fraction(whole), s, m) for m in "ud"] + [directed(Fraction(w), s, m) for m in "uz"]
        floats.append([*rounded, directed(Fraction(long), s, "n"), sums, s(round(v)), s(away)])
    expect = {2: np.array(ints, np.int32), 3: np.array(longs, np.int64), 4: np.array(words, np.uint32), 5: np.array(floats, s)}
    expect[5][:, 6] = np.rint(x)
    expect[5][:, 7] = np.copysign(expect[5][:, 7], x)
    return Given((x, y, *(np.zeros_like(e) for e in expect.values()), np.int32(n)), dict(expect))


@case("maths/remainders", grid=2, block=64)
def remainders(rng: Rng) -> Given:
    n, s = 100, np.float32
    x, y, u = (f32(rng, n) * 10.0 ** rng.integers(-2, 5, n)).astype(s), f32(rng, n) + s(3) * np.sign(f32(rng, n)), f64(rng, n) * 1000
    fraction, whole = np.modf(x)
    nearest = np.array([math.remainder(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)], s)
    scaled = np.ldexp(y, np.arange(n) % 9 - 4)
    mantissa, exponents = np.frexp(u)
    out = stacked(np.fmod(x, y), nearest, fraction, whole, scaled, np.copysign(x, y))
    dout = np.stack([np.fmod(u, 0.7), mantissa], 1)
    return Given((x, y, u, np.zeros_like(out), np.zeros_like(dout), np.zeros(n, np.int32), np.int32(n)), {3: out, 4: dout, 5: exponents})


@case("maths/double_functions", grid=2, block=64)
def double_functions(rng: Rng) -> Given:
    x = f64(rng, 110) * 5
    fused = np.array([float(Fraction(v) * Fraction(v) - Fraction(v)) for v in x])
    sums = np.floor(x) + np.ceil(x) + np.trunc(x) + np.rint(x)
    answer = np.stack([np.sqrt(np.abs(x)), 1.0 / x, fused, sums, np.minimum(x, 0.5) - np.maximum(x, -0.5)], 1)
    return Given((x, np.zeros_like(answer), np.int32(110)), {1: answer})


@case("maths/double_library", grid=2, block=64, rtol=1e-14, atol=1e-16)
def double_library(rng: Rng) -> Given:
    x = f64(rng, 110) * 5
    a = np.abs(x) + 0.1
    answer = np.stack([np.exp(x), np.log(a), np.sin(x), np.cos(x), np.tanh(x), a**1.7], 1)
    return Given((x, np.zeros_like(answer), np.int32(110)), {1: answer})


@case("maths/gelu_newton", grid=2, block=64, rtol=2e-5, atol=2e-5)
def gelu_newton(rng: Rng) -> Given:
    x = rng.uniform(0.1, 3.0, 100).astype(np.float32)
    v = x.astype(np.float64)
    y = 0.5 * v * (1 + np.tanh(0.7978845608 * (v + 0.044715 * v**3)))
    return Given((x, np.zeros_like(x), np.zeros_like(x), np.int32(100)), {1: y.astype(np.float32), 2: x})
