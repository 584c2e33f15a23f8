"""Convolution as matrix products: windows are laid out as columns of a matrix in scratch, and ``tiles`` does the rest.

Space is always three-dimensional here (missing leading dimensions have size 1). A *tile* is either several whole images or some rows of
one image; its columns matrix ``col`` is [channels * window, pixels of the tile], rows ``ld`` elements apart. One unit of forward is one
tile of one group; of the input gradient one image of one group (windows overlap, so an image is summed by one thread, in order); of the
weight gradient one share of the images of one group, summed in order into a partial result of its own.

Variants: ``depth`` is "flat" when the output has one layer in depth, else "deep"; ``walk`` is one of ``windows.WALKS``, or "plane": a flat
output as wide as the input, at stride 1 over neighbours. Then a window point moves the whole plane by a fixed distance, and vectors run on
from row to row; that matters where rows are shorter than a vector.

One channel by one filter a group (``depthwise``) is too thin for matrix products: windows are summed in place. A unit of forward is one
plane (one channel of one image); of the weight gradient one channel of one share of the images, summed in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from jit.host.library.emit import BOOL, F32, F64, I8, I32, I64, U32, Fn, Type, Value
from jit.host.library.kernels.tiles import OVERRUN_BYTES, Matrix, Tiles
from jit.host.library.kernels.windows import Geometry, geometry, planes, row_of, span, taps, vector_at, vector_of

SLACK = OVERRUN_BYTES + 64
"""Bytes behind ``col``: writing its last row runs past the end by less than a vector, reading panels by less than a panel."""

_TYPES = {"f32": F32, "f64": F64}


@dataclass(frozen=True, slots=True)
class _Images:
    """The channels and images of x beside the geometry of one of its planes; strides in elements."""

    channels: Value
    x_n: Value
    x_c: Value


def _images(f: Fn) -> _Images:
    return _Images(f.i64("channels"), f.i64("x_n"), f.i64("x_c"))


@dataclass(frozen=True, slots=True)
class _Planes:
    """For the walk "plane": the row and the column of every output pixel, two tables of i32 in scratch."""

    rows: Value
    columns: Value

    def inside(self, f: Fn, g: Geometry, p: Value, kh: Value, kw: Value, lanes: int) -> Value:
        """Which of the outputs p, p + 1, .. read inside of the input at one window point."""

        def near(table: Value, d: int, k: Value) -> Value:
            shift = (k * g.dilation[d] - g.pad[d]).to(U32).splat(lanes)
            # one unsigned comparison: what lies before 0 is huge
            return table.at(p, I32).load(U32.vec(lanes)) + shift < g.size[d].to(U32).splat(lanes)

        return near(self.rows, 1, kh) & near(self.columns, 2, kw)


def _planes(f: Fn, g: Geometry, walk: str, all_rows: Value) -> _Planes | None:
    """Declare where the tables lie and fill them, if the walk needs them."""
    if walk != "plane":
        return None
    rows = f.scratch.at(f.i64("tables_at"), I8)
    tables = _Planes(rows, rows.at(all_rows * g.t_w + SLACK // 4, I32))
    with f.loop(0, all_rows) as q, f.loop(0, g.t_w) as t:
        tables.rows.at(q * g.t_w + t, I32).store(q.to(I32))
        tables.columns.at(q * g.t_w + t, I32).store(t.to(I32))
    return tables


@dataclass(frozen=True, slots=True)
class _Source:
    """The side that is laid out as columns: x, how it is walked, and the tables of that walk."""

    f: Fn
    type: Type
    g: Geometry
    m: _Images
    depth: str
    walk: str
    tables: _Planes | None

    def columns(self, x: Value, images: Value, q0: Value, q1: Value, ld: Value) -> None:
        """Fill scratch from x for output rows [q0, q1) of ``images`` images. Writes run ahead of themselves: strictly ascending."""
        f, g = self.f, self.g
        line = f.var(f.scratch)
        with f.loop(0, self.m.channels) as c, f.loop(0, g.k[0]) as kd, f.loop(0, g.k[1]) as kh, f.loop(0, g.k[2]) as kw:
            at = x.at(c * self.m.x_c, self.type)
            if self.tables is None:
                self._by_rows(at, images, (q0, q1), (kd, kh, kw), line.get())
            else:
                self._by_planes(at, images, (q0, q1), (kh, kw), line.get(), self.tables)
            line.set(line.get().at(ld, self.type))

    def _by_rows(self, x: Value, images: Value, q: tuple[Value, Value], point: tuple[Value, Value, Value], line: Value) -> None:
        f, g, type = self.f, self.g, self.type
        vector = type.vec(64 // type.nbytes)
        over = span(g, point[2])
        plane, step = x.at(over.shift * g.x[2], type), g.stride[2] * g.x[2]
        out = f.var(line)
        with f.loop(0, images) as image, f.loop(*q) as row:
            offset, inside = row_of(g, self.depth, row, point[0], point[1])
            high = inside.select(over.high, 0)
            source, target = plane.at(image * self.m.x_n + offset, type), out.get()
            with f.loop(0, g.t_w, vector.lanes) as t:
                values, _ = vector_of(f, vector, self.walk, source, t, step, over.low, high)
                target.at(t, type).store(values)
            out.set(target.at(g.t_w, type))

    def _by_planes(self, x: Value, images: Value, q: tuple[Value, Value], point: tuple[Value, Value], line: Value, tables: _Planes) -> None:
        f, g, type = self.f, self.g, self.type
        vector = type.vec(64 // type.nbytes)
        (kh, kw), first, pixels = point, q[0] * g.t_w, (q[1] - q[0]) * g.t_w
        moved = x.at((kh * g.dilation[1] - g.pad[1]) * g.t_w + kw * g.dilation[2] - g.pad[2] + first, type)
        out = f.var(line)
        with f.loop(0, images) as image:
            source, target = moved.at(image * self.m.x_n, type), out.get()
            with f.loop(0, pixels, vector.lanes) as p:
                inside = tables.inside(f, g, first + p, kh, kw, vector.lanes)
                target.at(p, type).store(f.masked_load(source.at(p, type), inside, vector))
            out.set(target.at(pixels, type))


def _source(f: Fn, type: Type, g: Geometry, m: _Images, depth: str, walk: str, all_rows: Value) -> _Source:
    return _Source(f, type, g, m, depth, walk, _planes(f, g, walk, all_rows))


def _add_columns(
    f: Fn, g: Geometry, m: _Images, type: Type, variant: tuple[str, str], *, x: Value, q0: Value, q1: Value, ld: Value
) -> None:
    """Add scratch (output rows [q0, q1) of one image) back into x: the transpose of ``_columns``."""
    depth, walk = variant
    vector = type.vec(64 // type.nbytes)
    line = f.var(f.scratch)
    with f.loop(0, m.channels) as c, f.loop(0, g.k[0]) as kd, f.loop(0, g.k[1]) as kh, f.loop(0, g.k[2]) as kw:
        over = span(g, kw)
        plane = x.at(c * m.x_c + over.shift * g.x[2], type)
        step = g.stride[2] * g.x[2]
        source = f.var(line.get())
        with f.loop(q0, q1) as q:
            offset, inside = row_of(g, depth, q, kd, kh)
            row, values = plane.at(offset, type), source.get()
            with f.when(inside):
                if walk == "unit":
                    with f.loop(0, g.t_w, vector.lanes) as t:
                        old, mask = vector_of(f, vector, walk, row, t, step, over.low, over.high)
                        f.masked_store(row.at(t, type), mask, old + f.masked_load(values.at(t, type), mask, vector))
                else:
                    with f.loop(over.low, over.high) as t:
                        place = row.at(t * step, type)
                        place.store(place.load(type) + values.at(t, type).load(type))
            source.set(values.at(g.t_w, type))
        line.set(line.get().at(ld, type))


def conv(f: Fn, dtype: str, depth: str, walk: str) -> None:
    """y = conv(x, w): a unit is one tile of one group. ``joint``: small images share one product and are separated afterwards."""
    type = _TYPES[dtype]
    tiles, g, m = Tiles(f, type), geometry(f), _images(f)
    x, w, y = f.ptr("x"), f.ptr("w"), f.ptr("y")
    x_g, w_g, w_o, y_n, y_g, y_o = (f.i64(name) for name in ("x_g", "w_g", "w_o", "y_n", "y_g", "y_o"))
    groups, filters, window, n, ld, joint = (f.i64(name) for name in ("groups", "filters", "window", "n", "ld", "joint"))
    images, rows, all_rows, row_tiles, result_at = (f.i64(name) for name in ("images", "rows", "all_rows", "row_tiles", "result_at"))
    result, width = f.scratch.at(result_at, I8), f.const(I64, tiles.width)
    one, fresh = f.const(I64, 1), f.const(BOOL, False)
    source = _source(f, type, g, m, depth, walk, all_rows)
    with f.loop(f.r0, f.r1) as unit:
        group, tile = unit % groups, unit // groups
        first, q0 = (tile // row_tiles) * images, (tile % row_tiles) * rows
        count, q1 = images.min(n - first), (q0 + rows).min(all_rows)
        pixels = (q1 - q0) * g.t_w
        source.columns(x.at(first * m.x_n + group * x_g, type), count, q0, q1, ld)
        weights = Matrix(w.at(group * w_g, type), w_o, one)
        target = y.at(first * y_n + group * y_g + q0 * g.t_w, type)
        with f.when(joint.eq(0)), f.loop(0, count) as image:
            col = f.scratch.at(image * pixels, type)
            c = target.at(image * y_n, type)
            tiles.multiply(filters, pixels, window, weights, b=col, panel_step=width, b_step=ld, c=c, c_row=y_o, add=fresh)
        with f.when(joint.ne(0)):
            n = pixels * count
            tiles.multiply(filters, n, window, weights, b=f.scratch, panel_step=width, b_step=ld, c=result, c_row=ld, add=fresh)
            with f.loop(0, count) as image, f.loop(0, filters) as row:
                part = result.at(row * ld + image * pixels, type)
                f.copy(target.at(image * y_n + row * y_o, type), part, pixels * type.nbytes)


def conv_dx(f: Fn, dtype: str, depth: str, walk: str) -> None:
    """x = gradient of conv by x, from y (the gradient that arrives): a unit is one image of one group, ``rows`` output rows at a time."""
    type = _TYPES[dtype]
    tiles, g, m, variant = Tiles(f, type), geometry(f), _images(f), (depth, walk)
    x, w, y = f.ptr("x"), f.ptr("w"), f.ptr("y")
    x_g, w_g, w_o, y_n, y_g, y_o = (f.i64(name) for name in ("x_g", "w_g", "w_o", "y_n", "y_g", "y_o"))
    groups, filters, window, rows, all_rows = (f.i64(name) for name in ("groups", "filters", "window", "rows", "all_rows"))
    ld, arrived_at = f.i64("ld"), f.i64("arrived_at")
    zero, one, width, panels = f.const(type, 0.0), f.const(I64, 1), f.const(I64, tiles.width), f.scratch.at(arrived_at, I8)
    with f.loop(f.r0, f.r1) as unit:
        image, group = unit // groups, unit % groups
        target = x.at(image * m.x_n + group * x_g, type)
        with f.loop(0, m.channels) as c, f.loop(0, g.size[0]) as d, f.loop(0, g.size[1]) as h, f.loop(0, g.size[2]) as i:
            target.at(c * m.x_c + d * g.x[0] + h * g.x[1] + i * g.x[2], type).store(zero)
        with f.loop(0, all_rows, rows) as q0:
            q1 = (q0 + rows).min(all_rows)
            pixels, step = (q1 - q0) * g.t_w, filters * tiles.width
            arrived = Matrix(y.at(image * y_n + group * y_g + q0 * g.t_w, type), y_o, one)
            tiles.pack(filters, pixels, arrived, panels, step)
            turned = Matrix(w.at(group * w_g, type), one, w_o)
            add = f.const(BOOL, False)
            tiles.multiply(window, pixels, filters, turned, b=panels, panel_step=step, b_step=width, c=f.scratch, c_row=ld, add=add)
            _add_columns(f, g, m, type, variant, x=target, q0=q0, q1=q1, ld=ld)


def conv_dw(f: Fn, dtype: str, depth: str, walk: str) -> None:
    """w[part] = gradient of conv by w over the images of the part, from y (the gradient that arrives) and x.

    What is written is its transpose, [part, group, window, filters]: so the columns matrix is used as it lies.
    """
    type = _TYPES[dtype]
    tiles, g, m = Tiles(f, type), geometry(f), _images(f)
    x, w, y = f.ptr("x"), f.ptr("w"), f.ptr("y")
    x_g, y_n, y_g, y_o = (f.i64(name) for name in ("x_g", "y_n", "y_g", "y_o"))
    groups, filters, window, n, parts, ld = (f.i64(name) for name in ("groups", "filters", "window", "n", "parts", "ld"))
    images, rows, all_rows, arrived_at = (f.i64(name) for name in ("images", "rows", "all_rows", "arrived_at"))
    panels, one, width = f.scratch.at(arrived_at, I8), f.const(I64, 1), f.const(I64, tiles.width)
    source = _source(f, type, g, m, depth, walk, all_rows)
    with f.loop(f.r0, f.r1) as unit:
        group, part = unit % groups, unit // groups
        target = w.at((part * groups + group) * (window * filters), type)
        begin, last = n * part // parts, n * (part + 1) // parts
        with f.loop(begin, last, images) as first, f.loop(0, all_rows, rows) as q0:
            count, q1 = images.min(last - first), (q0 + rows).min(all_rows)
            pixels = (q1 - q0) * g.t_w
            columns = pixels * count
            source.columns(x.at(first * m.x_n + group * x_g, type), count, q0, q1, ld)
            arrived = y.at(first * y_n + group * y_g + q0 * g.t_w, type)
            step = columns * tiles.width
            with f.loop(0, count) as image:
                rows_at = panels.at(image * pixels * tiles.width, type)
                tiles.pack(pixels, filters, Matrix(arrived.at(image * y_n, type), one, y_o), rows_at, step)
            add = (first > begin) | (q0 > 0)
            a = Matrix(f.scratch, ld, one)
            tiles.multiply(window, filters, columns, a, b=panels, panel_step=step, b_step=width, c=target, c_row=filters, add=add)


def sum_parts(f: Fn, dtype: str) -> None:
    """y[i] = x[0][i] + x[1][i] + .. in that order; a unit is ``block`` elements."""
    type = _TYPES[dtype]
    x, y, n, parts, block = f.ptr("x"), f.ptr("y"), f.i64("n"), f.i64("parts"), f.i64("block")
    with f.loop(f.r0, f.r1) as unit:
        start, stop = unit * block, (unit * block + block).min(n)
        f.copy(y.at(start, type), x.at(start, type), (stop - start) * type.nbytes)
        with f.loop(1, parts) as part, f.loop(start, stop) as i:
            place = y.at(i, type)
            place.store(place.load(type) + x.at(part * n + i, type).load(type))


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
