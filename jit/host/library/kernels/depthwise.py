"""Convolution of one channel by one filter a group: too thin for matrix products, so windows are summed in place.

A unit of forward is one plane (one channel of one image); of the weight gradient one channel of one share of the images, summed in order.
"""

from __future__ import annotations

from jit.host.library.emit import F32, F64, I32, Fn, Value
from jit.host.library.kernels.windows import geometry, planes, row_of, span, taps, vector_at, vector_of

__all__ = ["depthwise", "depthwise_dw"]

_TYPES = {"f32": F32, "f64": F64}


def depthwise(f: Fn, dtype: str, depth: str, walk: str) -> None:
    """y = conv(x, w); w [channels, window] with rows ``w_o`` apart."""
    type = _TYPES[dtype]
    vector = type.vec(64 // type.nbytes)
    lanes = vector.lanes
    g, p = geometry(f), planes(f)
    x, w, y, w_o = f.ptr("x"), f.ptr("w"), f.ptr("y"), f.i64("w_o")
    with f.loop(f.r0, f.r1) as unit:
        x_at, t_at = p.offsets(unit)
        plane, target, weights = x.at(x_at, type), y.at(t_at, type), w.at((unit % p.channels) * w_o, type)
        with f.loop(0, p.rows) as q, f.loop(0, g.t_w, lanes) as t:
            total = f.var(f.const(vector, 0.0))
            with taps(f, g, depth, q) as tap:
                values = vector_at(f, g, vector, walk, plane.at(tap.offset, type), t, tap.shift)
                weight = weights.at(tap.point, type).load(type).splat(lanes)
                total.set(f.fma(weight, values, total.get()))
            kept = f.iota(I32, lanes) < (g.t_w - t).to(I32).splat(lanes)
            f.masked_store(target.at(q * p.t_row + t, type), kept, total.get())


def depthwise_dw(f: Fn, dtype: str, depth: str, walk: str) -> None:
    """w [part, channel, window] = gradient of conv by w over the images of the part, from y (the gradient that arrives) and x."""
    type = _TYPES[dtype]
    vector = type.vec(64 // type.nbytes)
    g, p = geometry(f), planes(f)
    x, w, y, n, parts = f.ptr("x"), f.ptr("w"), f.ptr("y"), f.i64("n"), f.i64("parts")
    step = g.stride[2] * g.x[2]
    with f.loop(f.r0, f.r1) as unit:
        channel, part = unit % p.channels, unit // p.channels
        out = f.var(w.at(unit * (g.k[0] * g.k[1] * g.k[2]), type))
        with f.loop(0, g.k[0]) as kd, f.loop(0, g.k[1]) as kh, f.loop(0, g.k[2]) as kw:
            over = span(g, kw)
            total = f.var(f.const(vector, 0.0))
            with f.loop(n * part // parts, n * (part + 1) // parts) as image, f.loop(0, p.rows) as q:
                offset, inside = row_of(g, depth, q, kd, kh)
                row = x.at(image * p.x_n + channel * p.x_c + offset + over.shift * g.x[2], type)
                arrived = y.at(image * p.t_n + channel * p.t_c + q * p.t_row, type)
                with f.when(inside), f.loop(0, g.t_w, vector.lanes) as t:
                    values, mask = vector_of(f, vector, walk, row, t, step, over.low, over.high)
                    total.set(f.fma(values, f.masked_load(arrived.at(t, type), mask, vector), total.get()))
            out.get().store(total.get().tree(_add))
            out.set(out.get().at(1, type))


def _add(a: Value, b: Value) -> Value:
    return a + b
