"""random: Philox 4x32-10 by counter, a thread an element."""

from __future__ import annotations

from functools import cache
from math import pi
from typing import Any

from jit.errors import Inexpressible
from jit.library.build import Build, merged
from jit.library.writer import Made, Val, Writer
from wis.dtypes import DType
from wis.kernel.model import Access, RegType
from wis.ops import Dist
from wis.program import BoundInstr, Scalar

__all__ = ["random"]

_M0, _M1, _W0, _W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85
_SINGLE = frozenset({DType.I32, DType.F32, DType.F16, DType.BF16})  # one word an element, but for normal
_DROPPED = {DType.F16: 13, DType.BF16: 16}  # bits of an f32 that a narrower significand lacks


def _words(w: Writer, seed: Val, counter: Val) -> list[Val]:
    """The four words of a counter, as i64 of 32 bits."""
    mask = 0xFFFFFFFF
    zero = w.const(0)
    c = [counter & mask, counter >> 32, zero, zero]
    k0, k1 = seed & mask, seed >> 32
    for _ in range(10):
        p0, p1 = c[0] * _M0, c[2] * _M1
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & mask, (p0 >> 32) ^ c[3] ^ k1, p0 & mask]
        k0, k1 = (k0 + _W0) & mask, (k1 + _W1) & mask
    return c


@cache
def _random(dist: Dist, dtype: DType, rank: int) -> Made:
    w = Writer()
    w.buffer("y", dtype, Access.WRITE)
    n, y_s, y_at = w.numbers("n", rank), w.numbers("y_s", rank), w.number("y_at")
    seed, offset = w.number("seed"), w.number("offset")
    i = w.index()
    w.leave_unless(i < w.product(n))
    single = dtype in _SINGLE and dist is not Dist.NORMAL
    words = _words(w, seed, offset + (i >> (2 if single else 1)))
    which = i & (3 if single else 1)
    if single:
        value = _one(w, dist, dtype, _chosen(which, words))
    else:
        value = _two(w, dist, dtype, which.eq(0).pick(words[0], words[2]), which.eq(0).pick(words[1], words[3]))
    w.store("y", w.place(y_at, w.coordinates(i, n), y_s), value)
    return w.made(f"random_{dist.name.lower()}_{dtype.text}_{rank}")


def _chosen(which: Val, words: list[Val]) -> Val:
    found = words[3]
    for at in (2, 1, 0):
        found = which.eq(at).pick(words[at], found)
    return found


def _one(w: Writer, dist: Dist, dtype: DType, word: Val) -> Val:
    if dist is Dist.BITS:
        return (word >> 1).to("narrow", RegType.I32)
    uniform = (word >> 8).to("s2f", RegType.F32) * 2.0**-24
    drop = _DROPPED.get(dtype, 0)
    if drop:  # rounding down keeps the result below 1
        uniform = ((uniform.to("reinterpret", RegType.I32) >> drop) << drop).to("reinterpret", RegType.F32)
    return uniform


def _two(w: Writer, dist: Dist, dtype: DType, low: Val, high: Val) -> Val:
    if dist is Dist.BITS:
        return (low | (high << 32)) >> 1
    if dist is Dist.UNIFORM:
        return ((low | (high << 32)) >> 11).to("s2f", RegType.F64) * 2.0**-53
    if dtype is DType.F64:
        u1, u2 = (x.to("s2f", RegType.F64) * 2.0**-32 for x in (low, high))
    else:
        u1, u2 = ((x >> 8).to("s2f", RegType.F64) * 2.0**-24 for x in (low, high))
    one = w.const(1.0, RegType.F64)
    normal = ((one - u1).op("log") * -2.0).op("sqrt") * (u2 * (2.0 * pi)).op("cos")
    return normal if dtype is DType.F64 else w.rounded(dtype, normal.to("cvt", RegType.F32))


def random(build: Build[Any], instr: BoundInstr) -> None:
    """Draws for element after element in row-major order. Normal ones in f64 stay with the reference: their last bit hangs on its
    logarithm and cosine."""
    dist, out = Dist(instr.attrs[0]), instr.outs[0]
    if dist is Dist.NORMAL and out.dtype is DType.F64:
        raise Inexpressible
    if out.numel == 0:
        return
    seed, offset = instr.ins
    assert isinstance(seed, Scalar) and isinstance(offset, Scalar)
    over = merged(out.shape, {"y": out.strides})
    made = _random(dist, out.dtype, over.rank)
    extra = {"seed": Scalar(seed.slot, DType.I64), "offset": Scalar(offset.slot, DType.I64)}
    build.walk(made, over, reads={}, writes={"y": out}, extra=extra)
