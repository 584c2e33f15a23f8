"""random: Philox 4x32-10, a counter a thread, whose words are two or four neighbours among the elements."""

from __future__ import annotations

from functools import cache
from math import pi
from typing import Any, Final

from jit.errors import Inexpressible
from jit.library.build import Args, Build, Grid, copy
from jit.library.writer import Made, Points, Val, Walk, Writer
from wis.dtypes import DType
from wis.kernel.model import Access, RegType, Special
from wis.ops import Dist
from wis.program import BoundInstr, Scalar
from wis.views import is_contiguous

_M0, _M1, _W0, _W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85
_SINGLE = frozenset({DType.I32, DType.F32, DType.F16, DType.BF16})  # one word an element, but for normal
_DROPPED = {DType.F16: 13, DType.BF16: 16}  # bits of an f32 that a narrower significand lacks
_COST_NS: Final = {Dist.UNIFORM: 0.5, Dist.NORMAL: 4.0, Dist.BITS: 0.5}
_LANES: Final = 16
_RUN: Final = 64
"""Where a thread takes runs: counters side by side, and how many times that many a block takes."""
_I32, _I64 = RegType.I32, RegType.I64


def _words(w: Writer, seed: Val, counter: Val) -> list[Val]:
    """The four words of a counter, as i32."""
    c = [counter.to("narrow", _I32), (counter >> 32).to("narrow", _I32), w.const(0, _I32), w.const(0, _I32)]
    k0, k1 = seed.to("narrow", _I32), (seed >> 32).to("narrow", _I32)
    for _ in range(10):
        p0, p1 = c[0].to("zext", _I64) * _M0, c[2].to("zext", _I64) * _M1
        high, low = ([(p >> 32).to("narrow", _I32) for p in (p0, p1)], [p.to("narrow", _I32) for p in (p0, p1)])
        c = [high[1] ^ c[1] ^ k0, low[1], high[0] ^ c[3] ^ k1, low[0]]
        k0, k1 = k0 + _W0, k1 + _W1
    return c


@cache
def _random(dist: Dist, dtype: DType, gangs: bool) -> Made:
    w = Writer(Walk.RUNS, threads=_LANES) if gangs else Writer()
    w.buffer("y", dtype, Access.WRITE)
    n, total, y_at, seed, offset = w.numbers("n", 1), *(w.number(name) for name in ("total", "y_at", "seed", "offset"))
    with Points(w, n).each() as (at,):
        counter = at * _LANES + w.special(Special.TID_X) if gangs else at
        words = _words(w, seed, offset + counter)
        if _per_counter(dist, dtype) == 4:
            values = [_one(dist, dtype, word) for word in words]
        else:
            values = [_two(w, dist, dtype, *words[:2]), _two(w, dist, dtype, *words[2:])]
        first = counter * len(values)
        whole = at * (_LANES * len(values)) + _LANES * len(values) <= total if gangs else None
        if whole is not None:
            with w.when(whole):
                w.store_all("y", y_at + first, values)
        for j, value in enumerate(values):
            inside = first + j < total
            with w.when(inside if whole is None else inside & ~whole):
                w.store("y", y_at + first + j, value)
    return w.made(f"random_{dist.name.lower()}_{dtype.text}")


def _per_counter(dist: Dist, dtype: DType) -> int:
    return 4 if dtype in _SINGLE and dist is not Dist.NORMAL else 2


def _one(dist: Dist, dtype: DType, word: Val) -> Val:
    if dist is Dist.BITS:
        return word >> 1
    uniform = (word >> 8).to("s2f", RegType.F32) * 2.0**-24
    drop = _DROPPED.get(dtype, 0)
    if drop:  # rounding down keeps the result below 1
        uniform = ((uniform.to("reinterpret", _I32) >> drop) << drop).to("reinterpret", RegType.F32)
    return uniform


def _two(w: Writer, dist: Dist, dtype: DType, low: Val, high: Val) -> Val:
    if dist is not Dist.NORMAL:
        both = low.to("zext", _I64) | (high.to("zext", _I64) << 32)
        return both >> 1 if dist is Dist.BITS else (both >> 11).to("s2f", RegType.F64) * 2.0**-53
    u1, u2 = ((x >> 8).to("s2f", RegType.F64) * 2.0**-24 for x in (low, high))
    one = w.const(1.0, RegType.F64)
    normal = ((one - u1).op("log") * -2.0).op("sqrt") * (u2 * (2.0 * pi)).op("cos")
    return w.rounded(dtype, normal.to("cvt", RegType.F32))


def random(build: Build[Any], instr: BoundInstr) -> None:
    """Draws for element after element in row-major order. Normal ones in f64 stay with the reference: their last bit hangs on its
    logarithm and cosine."""
    dist, out = Dist(instr.attrs[0]), instr.outs[0]
    if dist is Dist.NORMAL and out.dtype is DType.F64:
        raise Inexpressible
    seed, offset = instr.ins
    assert isinstance(seed, Scalar) and isinstance(offset, Scalar)
    target = out if is_contiguous(out) else build.temp(out.dtype, out.shape)
    each = _per_counter(dist, out.dtype) * (_LANES if build.gangs else 1)
    extra: Args = {"total": out.numel, "seed": Scalar(seed.slot, DType.I64), "offset": Scalar(offset.slot, DType.I64)}
    over, point_ns = Grid((-(-out.numel // each),), {}), _COST_NS[dist] * each
    build.walk(_random(dist, out.dtype, build.gangs), over, reads={}, writes={"y": target}, point_ns=point_ns, run=_RUN, extra=extra)
    if target is not out:
        copy(build, target, out)
