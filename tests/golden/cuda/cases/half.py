"""Narrow and wide floats: f16, bf16, f64."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np

from tests.golden.cuda.case import Array, Given, case
from tests.golden.cuda.cases.draw import Rng, f32, f64
from tests.golden.cuda.cases.reductions import halved


def _nearest_half(exact: Fraction) -> np.float16:
    """Nearest f16 to a rational, ties to even (no infinities here)."""
    guess = np.float16(float(exact))
    near = [np.nextafter(guess, np.float16(-np.inf)), guess, np.nextafter(guess, np.float16(np.inf))]
    return min(near, key=lambda h: (abs(Fraction(float(h)) - exact), int(h.view(np.uint16)) & 1))


@case("half/axpy_half2", grid=3, block=64)
def axpy_half2(rng: Rng) -> Given:
    x, y, a = f32(rng, 300).astype(np.float16), f32(rng, 300).astype(np.float16), np.float16(0.7)
    y[:20] = -(np.float32(a) * x[:20].astype(np.float32)).astype(np.float16)  # what is left is the product's own rounding
    answer = [_nearest_half(Fraction(float(a)) * Fraction(float(u)) + Fraction(float(v))) for u, v in zip(x, y, strict=True)]
    return Given((y, x, a.tobytes(), np.int32(150)), {0: np.array(answer, np.float16)})


@case("half/arithmetic", grid=2, block=64)
def arithmetic(rng: Rng) -> Given:
    a, b = (f32(rng, 120) * 10).astype(np.float16), (f32(rng, 120) * 10).astype(np.float16)
    quotient = (a.astype(np.float32) / b.astype(np.float32)).astype(np.float16)
    answer = np.stack([a + b, a - b, a * b, quotient, np.minimum(a, b), -np.abs(a)], 1)
    return Given((a, b, np.zeros((120, 6), np.float16), np.int32(120)), {2: answer})


@case("half/dot_f32", grid=2, block=32)
def dot_f32(rng: Rng) -> Given:
    a, b = f32(rng, 50, 40).astype(np.float16), f32(rng, 50, 40).astype(np.float16)
    sums = np.zeros(50, np.float32)
    for i in range(40):
        sums = sums + a[:, i].astype(np.float32) * b[:, i].astype(np.float32)
    return Given((a, b, np.zeros(50, np.float32), np.int32(50), np.int32(20)), {2: sums})


@case("half/bfloat_norm", grid=5, block=64)
def bfloat_norm(rng: Rng) -> Given:
    x = f32(rng, 5, 128).astype(ml_dtypes.bfloat16)
    wide = x.astype(np.float32)
    squares = wide * wide
    length = np.sqrt(halved(squares[:, :64] + squares[:, 64:]))
    return Given((x, np.zeros_like(x), np.int32(128)), {1: (wide / length[:, None]).astype(ml_dtypes.bfloat16)})


def _toward(value: Array, sign: int) -> Array:
    """f16 next to a float32 in the direction of ``sign``: the nearest one, or its neighbour when that lies on the wrong side."""
    near = value.astype(np.float16)
    wrong = (near.astype(np.float32) - value) * sign < 0
    return np.where(wrong, np.nextafter(near, np.float16(sign * np.inf)), near)


@case("half/convert", grid=3, block=64)
def convert(rng: Rng) -> Given:
    x = f32(rng, 150) * np.exp2(rng.integers(-24, 13, 150)).astype(np.float32)
    x[:8] = [0.0, -0.0, 1.0, 6e-8, 2049.0, 2051.0, 0.5, -2.5]
    up, down = _toward(x, 1), _toward(x, -1)
    zero = np.where(x < 0, up, down)
    near = x.astype(np.float16)
    bf = x.astype(ml_dtypes.bfloat16)
    zero[1], up[1] = near[1], near[1]
    bits = np.stack([near, zero, up], 1).view(np.uint16)
    back = np.stack([np.where(x == 0, near, down).astype(np.float32), bf.astype(np.float32)], 1)
    args = (x, np.zeros((150, 4), np.uint16), np.zeros((150, 2), np.float32), np.zeros(150, np.int32), np.int32(150))
    expect = {1: np.concatenate([bits, bf.view(np.uint16)[:, None]], 1), 2: back, 3: np.rint(near.astype(np.float32)).astype(np.int32)}
    return Given(args, dict(expect))


@case("half/horner_f64", grid=2, block=32)
def horner_f64(rng: Rng) -> Given:
    x = f64(rng, 60)
    coefficients = [1.0, -0.5, 0.25, -1.0 / 3.0, 0.2, -0.1, 0.01, 7.0]
    answer = []
    for v in x:
        p, d = coefficients[7], 0.0
        for c in reversed(coefficients[:7]):
            d, p = float(Fraction(d) * Fraction(v) + Fraction(p)), float(Fraction(p) * Fraction(v) + Fraction(c))
        answer.append((p, d))
    return Given((x, np.zeros((60, 2)), np.int32(60)), {1: np.array(answer)})
