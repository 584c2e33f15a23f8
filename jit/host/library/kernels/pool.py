"""Pooling: windows reduced in place, one vector of outputs at a time. A unit is one plane (one channel of one image)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from jit.host.library.elements import ELEMENTS, Element
from jit.host.library.emit import F32, F64, I32, I64, Fn, Type, Value
from jit.host.library.kernels.windows import Geometry, geometry, row_of, span, vector_at, vector_of

__all__ = ["Planes", "Tap", "avg_pool", "avg_pool_dx", "max_pool", "planes", "taps"]


def _lowest(element: Element) -> float | int:
    """What every value is at least."""
    type = element.compute
    if type.kind == "f":
        return float("-inf")
    return -(1 << (type.bits - 1)) if type.kind == "i" else 0


def _lanes(element: Element) -> int:
    return 8 if element.compute.bits == 64 else 16


@dataclass(frozen=True, slots=True)
class Planes:
    """Images and channels of x and of an output-sided operand t; strides in elements."""

    channels: Value
    rows: Value
    x_n: Value
    x_c: Value
    t_n: Value
    t_c: Value
    t_row: Value

    def offsets(self, unit: Value) -> tuple[Value, Value]:
        image, channel = unit // self.channels, unit % self.channels
        return image * self.x_n + channel * self.x_c, image * self.t_n + channel * self.t_c


def planes(f: Fn) -> Planes:
    return Planes(*(f.i64(name) for name in ("channels", "rows", "x_n", "x_c", "t_n", "t_c", "t_row")))


@dataclass(frozen=True, slots=True)
class Tap:
    """One window point of one output row: its number, the number and offset of the input row it sees, the input of output 0 in that row."""

    point: Value
    row: Value
    offset: Value
    shift: Value


@contextmanager
def taps(f: Fn, g: Geometry, depth: str, q: Value) -> Iterator[Tap]:
    """Loops over the window points of output row ``q`` that see an input row, in row-major order."""
    with f.loop(0, g.k[0]) as kd, f.loop(0, g.k[1]) as kh:
        row, offset, inside = row_of(g, depth, q, kd, kh)
        with f.when(inside), f.loop(0, g.k[2]) as kw:
            yield Tap((kd * g.k[1] + kh) * g.k[2] + kw, row, offset, kw * g.dilation[2] - g.pad[2])


def max_pool(f: Fn, dtype: str, depth: str, walk: str) -> None:
    """y = greatest of each window, index = its position in the plane: the last NaN, else the first greatest."""
    element = ELEMENTS[dtype]
    lanes = _lanes(element)
    vector = element.storage.vec(lanes)
    g, p = geometry(f), planes(f)
    x, y, index = f.ptr("x"), f.ptr("y"), f.ptr("index")
    with f.loop(f.r0, f.r1) as unit:
        x_at, t_at = p.offsets(unit)
        plane, best_plane, index_plane = x.at(x_at, element.storage), y.at(t_at, element.storage), index.at(t_at, I64)
        with f.loop(0, p.rows) as q, f.loop(0, g.t_w, lanes) as t:
            best = f.var(f.const(element.compute.vec(lanes), _lowest(element)))
            found = f.var(f.const(I32.vec(lanes), -1))
            with taps(f, g, depth, q) as tap:
                raw, mask = vector_at(f, g, vector, walk, plane.at(tap.offset, element.storage), t, tap.shift)
                value = element.decode(raw)
                better = (value > best.get()) | (found.get() < 0)
                if element.is_float:
                    better = better | value.is_nan()
                better = better & mask
                first = (tap.row * g.size[2] + tap.shift + t * g.stride[2]).to(I32).splat(lanes)
                best.set(better.select(value, best.get()))
                found.set(better.select(first + f.iota(I32, lanes) * g.stride[2].to(I32).splat(lanes), found.get()))
            kept = f.iota(I32, lanes) < (g.t_w - t).to(I32).splat(lanes)
            at = q * p.t_row + t
            f.masked_store(best_plane.at(at, element.storage), kept, element.encode(best.get()))
            f.masked_store(index_plane.at(at, I64), kept, found.get().max(0).to(I64))


@dataclass(frozen=True, slots=True)
class _Divisor:
    """How many elements each window's sum is divided by."""

    fixed: Value
    count_pad: Value

    def along(self, g: Geometry, d: int, at: Value) -> Value:
        """Elements that the window at ``at`` covers along dimension ``d`` (a scalar or a vector of i64)."""

        def wide(x: Value) -> Value:
            return x if at.type.lanes == 1 else x.splat(at.type.lanes)

        start = at * wide(g.stride[d]) - wide(g.pad[d])
        stop = (start + wide(g.k[d])).min(wide(g.size[d] + g.pad[d]))
        clipped = stop.min(wide(g.size[d])) - start.max(0)
        return wide(self.count_pad.ne(0)).select(stop - start, clipped).max(0)

    def of(self, f: Fn, g: Geometry, depth: str, q: Value, t: Value, type: Type) -> Value:
        """The divisors of outputs t, t + 1, .. of row ``q`` as a vector of ``type``."""
        h = q if depth == "flat" else q % g.t_h
        d = f.const(I64, 0) if depth == "flat" else q // g.t_h
        outer = self.along(g, 0, d) * self.along(g, 1, h)
        lanes = type.lanes
        counted = (self.along(g, 2, f.iota(I64, lanes) + t.splat(lanes)) * outer.splat(lanes)).max(1)
        return self.fixed.ne(0).splat(lanes).select(self.fixed.splat(lanes), counted).to(type)


def avg_pool(f: Fn, dtype: str, depth: str, walk: str) -> None:
    """y = sum of each window, point by point in row-major order, over its divisor."""
    element = ELEMENTS[dtype]
    lanes = _lanes(element)
    vector, compute = element.storage.vec(lanes), element.compute.vec(lanes)
    g, p, divisor = geometry(f), planes(f), _Divisor(f.i64("divisor"), f.i64("count_pad"))
    x, y = f.ptr("x"), f.ptr("y")
    with f.loop(f.r0, f.r1) as unit:
        x_at, t_at = p.offsets(unit)
        plane, target = x.at(x_at, element.storage), y.at(t_at, element.storage)
        with f.loop(0, p.rows) as q, f.loop(0, g.t_w, lanes) as t:
            total = f.var(f.const(compute, 0.0))
            with taps(f, g, depth, q) as tap:
                raw, _ = vector_at(f, g, vector, walk, plane.at(tap.offset, element.storage), t, tap.shift)
                total.set(total.get() + element.decode(raw))
            kept = f.iota(I32, lanes) < (g.t_w - t).to(I32).splat(lanes)
            mean = total.get() / divisor.of(f, g, depth, q, t, compute)
            f.masked_store(target.at(q * p.t_row + t, element.storage), kept, element.encode(mean))


def avg_pool_dx(f: Fn, dtype: str, depth: str, walk: str) -> None:
    """x = gradient of avg_pool, from y (the gradient that arrives): every window hands out its share, window point by window point.

    Scratch holds the shares of one plane (rows of ``t_w``).
    """
    type = {"f32": F32, "f64": F64}[dtype]
    vector = type.vec(64 // type.nbytes)
    g, p, divisor = geometry(f), planes(f), _Divisor(f.i64("divisor"), f.i64("count_pad"))
    x, y = f.ptr("x"), f.ptr("y")
    step = g.stride[2] * g.x[2]
    with f.loop(f.r0, f.r1) as unit:
        x_at, t_at = p.offsets(unit)
        plane, arrived = x.at(x_at, type), y.at(t_at, type)
        with f.loop(0, g.size[0]) as d, f.loop(0, g.size[1]) as h, f.loop(0, g.size[2]) as w:
            plane.at(d * g.x[0] + h * g.x[1] + w * g.x[2], type).store(f.const(type, 0.0))
        with f.loop(0, p.rows) as q, f.loop(0, g.t_w, vector.lanes) as t:
            kept = f.iota(I32, vector.lanes) < (g.t_w - t).to(I32).splat(vector.lanes)
            dy = f.masked_load(arrived.at(q * p.t_row + t, type), kept, vector)
            # rows are written in ascending order, so what runs past the end of one is written again
            f.scratch.at(q * g.t_w + t, type).store(dy / divisor.of(f, g, depth, q, t, vector))
        with f.loop(0, g.k[0]) as kd, f.loop(0, g.k[1]) as kh, f.loop(0, g.k[2]) as kw:
            over = span(g, kw)
            with f.loop(0, p.rows) as q:
                _, offset, inside = row_of(g, depth, q, kd, kh)
                row, shares = plane.at(offset + over.shift * g.x[2], type), f.scratch.at(q * g.t_w, type)
                with f.when(inside):
                    if walk == "unit":
                        with f.loop(0, g.t_w, vector.lanes) as t:
                            old, mask = vector_of(f, vector, walk, row, t, step, over.low, over.high)
                            f.masked_store(row.at(t, type), mask, old + f.masked_load(shares.at(t, type), mask, vector))
                    else:
                        with f.loop(over.low, over.high) as t:
                            place = row.at(t * step, type)
                            place.store(place.load(type) + shares.at(t, type).load(type))
