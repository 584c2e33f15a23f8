"""Counter-based random numbers: Philox 4x32-10, sixteen counters at a time. A unit is ``BLOCK`` elements, from its own counters.

Variants: the distribution and the element type. The last vector of a unit is cut to size by a mask, so nothing is drawn twice.
"""

from __future__ import annotations

import math
from typing import Final

from jit.host.library.elements import ELEMENTS
from jit.host.library.emit import F32, F64, I32, I64, U32, U64, Fn, Value

__all__ = ["BLOCK", "random"]

BLOCK: Final = 4096
"""Elements of a unit: a whole number of vectors for every type."""

_LANES: Final = 16
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85


def _rounds(f: Fn, seed: Value, counter: Value) -> list[Value]:
    """The four words of sixteen neighbouring counters, one vector (u32) a word."""
    lane = f.iota(U64, _LANES)
    wide = counter.to(U64).splat(_LANES) + lane
    c = [wide.to(U32), (wide >> 32).to(U32), f.const(U32.vec(_LANES), 0), f.const(U32.vec(_LANES), 0)]
    low, high = seed.to(U64).to(U32), (seed.to(U64) >> 32).to(U32)
    for number in range(10):
        k0, k1 = (low + (number * _W0 & 0xFFFFFFFF)).splat(_LANES), (high + (number * _W1 & 0xFFFFFFFF)).splat(_LANES)
        p0, p1 = c[0].to(U64) * _M0, c[2].to(U64) * _M1
        c = [(p1 >> 32).to(U32) ^ c[1] ^ k0, p1.to(U32), (p0 >> 32).to(U32) ^ c[3] ^ k1, p0.to(U32)]
    return c


def _zip(a: Value, b: Value) -> Value:
    """a0 b0 a1 b1 .."""
    n = a.type.lanes
    return a.shuffle([lane // 2 + n * (lane % 2) for lane in range(2 * n)], b)


def _words(c: list[Value]) -> Value:
    """All 64 words in order: four a counter."""
    return _zip(_zip(c[0], c[2]), _zip(c[1], c[3]))


def _pairs(c: list[Value]) -> tuple[Value, Value]:
    """(first, second) words of the 32 elements that use two each."""
    return _zip(c[0], c[2]), _zip(c[1], c[3])


def _uniform(f: Fn, dtype: str, c: list[Value]) -> Value:
    if dtype == "f64":
        first, second = _pairs(c)
        return ((first.to(U64) | (second.to(U64) << 32)) >> 11).to(F64) * 2.0**-53
    value = (_words(c) >> 8).to(F32) * 2.0**-24
    drop = {"f16": 13, "bf16": 16}.get(dtype, 0)
    return ((value.bits(U32) >> drop) << drop).bits(F32) if drop else value  # rounding down keeps the result below 1


def _normal(f: Fn, c: list[Value]) -> Value:
    """Box-Muller in f64 on draws of 24 bits, rounded to f32."""
    first, second = ((word >> 8).to(F64) * 2.0**-24 for word in _pairs(c))
    one = f.const(first.type, 1.0)
    radius = f.intrinsic("sqrt", f.maths("log", one - first) * -2.0)
    return (radius * f.maths("cos", second * (2.0 * math.pi))).to(F32)


def _bits(dtype: str, c: list[Value]) -> Value:
    if dtype == "i64":
        first, second = _pairs(c)
        return ((first.to(U64) | (second.to(U64) << 32)) >> 1).to(I64)
    return (_words(c) >> 1).to(I32)


def random(f: Fn, dist: str, dtype: str) -> None:
    """y = n draws; element i of the whole uses the words that the instruction set assigns to it."""
    element = ELEMENTS[dtype]
    y, n, seed, offset = f.ptr("y"), f.i64("n"), f.i64("seed"), f.i64("offset")
    with f.loop(f.r0, f.r1) as unit:
        stop = (unit * BLOCK + BLOCK).min(n)
        per_counter = 2 if dist == "normal" or dtype in ("f64", "i64") else 4
        with f.loop(unit * BLOCK, stop, _LANES * per_counter) as i:
            c = _rounds(f, seed, offset + i // per_counter)
            value = _uniform(f, dtype, c) if dist == "uniform" else _normal(f, c) if dist == "normal" else _bits(dtype, c)
            lanes = value.type.lanes
            kept = f.iota(I32, lanes) < (stop - i).min(lanes).to(I32).splat(lanes)
            f.masked_store(y.at(i, element.storage), kept, element.encode(value))
