"""Integers wider than a word, against Python's own."""

from __future__ import annotations

import math

import numpy as np

from tests.golden.cuda.case import Array, Given, case
from tests.golden.cuda.cases.bits import signed
from tests.golden.cuda.cases.draw import Rng, integers

_M64 = 2**64 - 1


def words(value: int, count: int, dtype: type = np.uint32) -> list[int]:
    bits = np.dtype(dtype).itemsize * 8
    return [value >> bits * i & 2**bits - 1 for i in range(count)]


def number(row: Array) -> int:
    """The whole number of little-endian words."""
    return int.from_bytes(row.tobytes(), "little")


@case("wide/products_64", grid=2, block=64)
def products_64(rng: Rng) -> Given:
    a, b = integers(rng, np.int64, 100), integers(rng, np.int64, 100) >> integers(rng, np.int64, 100, low=0, high=60)
    b[b == 0] = 9
    rows = []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        u, v = x & _M64, y & _M64
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        mixed = (signed(x) * signed(y) >> 32) << 32 | ((x & 2**32 - 1) * (y & 2**32 - 1) >> 32)
        rows.append([x * y >> 64, u * v >> 64, x * y, mixed, quotient, x - quotient * y, u // v, u % v])
    answer = np.array([[w & _M64 for w in r] for r in rows], np.uint64).view(np.int64)
    return Given((a, b, np.zeros_like(answer), np.int32(100)), {2: answer})


@case("wide/bignum_add", grid=2, block=64)
def bignum_add(rng: Rng) -> Given:
    n = 100
    a, b = integers(rng, np.uint32, n, 8), integers(rng, np.uint32, n, 8)
    a[0], b[0, 0], a[1, :], b[2], a[3] = 2**32 - 1, 1, 0, a[2], b[3]
    sums, differences, carries = [], [], []
    for x, y in zip(a, b, strict=True):
        total, less = number(x) + number(y), number(x) - number(y)
        sums.append(words(total, 8))
        differences.append(words(less, 8))
        carries.append([total >> 256, 2**32 - 1 if less < 0 else 0])
    expect = {2: np.array(sums, np.uint32), 3: np.array(differences, np.uint32), 4: np.array(carries, np.uint32)}
    return Given((a, b, *(np.zeros_like(e) for e in expect.values()), np.int32(n)), dict(expect))


@case("wide/bignum_multiply", grid=2, block=64)
def bignum_multiply(rng: Rng) -> Given:
    a, b = integers(rng, np.uint32, 100, 4), integers(rng, np.uint32, 100, 4)
    a[0], b[0] = 2**32 - 1, 2**32 - 1
    answer = np.array([words(number(x) * number(y), 8) for x, y in zip(a, b, strict=True)], np.uint32)
    return Given((a, b, np.zeros_like(answer), np.int32(100)), {2: answer})


@case("wide/int128", grid=2, block=64, options=("--fmad=false", "--device-int128"))
def int128(rng: Rng) -> Given:
    a, b = integers(rng, np.uint64, 100, 2), integers(rng, np.uint64, 100, 2)
    rows = []
    for i in range(100):
        x, y = signed(number(a[i]), 128), signed(number(b[i]), 128)
        results = [x + y, x * y, x >> (int(b[i, 0]) & 127), x - y if x < y else y - x]
        rows.append([words(r, 2, np.uint64) for r in results])
    answer = np.array(rows, np.uint64)
    return Given((a, b, np.zeros_like(answer), np.int32(100)), {2: answer})


@case("wide/modular_power", grid=1, block=64)
def modular_power(rng: Rng) -> Given:
    base, exponent = integers(rng, np.uint64, 60), integers(rng, np.uint64, 60, low=0, high=1 << 10)
    modulus = integers(rng, np.uint64, 60, low=3, high=1 << 63) | np.uint64(1)
    answer = [pow(b, e, m) for b, e, m in zip(base.tolist(), exponent.tolist(), modulus.tolist(), strict=True)]
    return Given((base, exponent, modulus, np.zeros(60, np.uint64), np.int32(60)), {3: np.array(answer, np.uint64)})


@case("wide/fixed_point", grid=2, block=64)
def fixed_point(rng: Rng) -> Given:
    a, b = integers(rng, np.int64, 100), integers(rng, np.int64, 100) >> 20
    a[0] = 0
    products = [signed(x * y >> 32, 64) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    roots = [math.isqrt(abs(x)) for x in a.tolist()]
    args = (a, b, np.zeros(100, np.int64), np.zeros(100, np.uint32), np.int32(100))
    return Given(args, {2: np.array(products, np.int64), 3: np.array(roots, np.uint32)})
