"""Convolution as matrix products: windows are laid out as columns of a matrix in scratch, and BLAS does the rest.

Space is always three-dimensional here (missing leading dimensions have size 1). A *tile* is either several whole images or some rows of
one image; its columns matrix ``col`` is [channels * window, pixels of the tile]. One unit of forward is one tile of one group; of the
input gradient one image of one group (windows overlap, so an image is summed by one thread, in order); of the weight gradient one share
of the images of one group, summed in order into a partial result of its own.

Variants: ``depth`` is "flat" when the output has one layer in depth, else "deep"; ``walk`` is one of ``windows.WALKS``.
"""

from __future__ import annotations

from dataclasses import dataclass

from jit.host.library.emit import F32, F64, I8, I32, Fn, Type, Value
from jit.host.library.kernels.windows import Geometry, geometry, row_of, span, vector_of

__all__ = ["SLACK", "conv", "conv_dw", "conv_dx", "sum_parts"]

SLACK = 64
"""Bytes that writing the last columns may run past the end of ``col``."""

_TYPES = {"f32": F32, "f64": F64}
_ROW_MAJOR, _NO_TRANS, _TRANS = 101, 111, 112


@dataclass(frozen=True, slots=True)
class _Images:
    """The channels and images of x beside the geometry of one of its planes; strides in elements."""

    channels: Value
    x_n: Value
    x_c: Value


def _images(f: Fn) -> _Images:
    return _Images(f.i64("channels"), f.i64("x_n"), f.i64("x_c"))


def _columns(
    f: Fn, g: Geometry, m: _Images, type: Type, variant: tuple[str, str], x: Value, images: Value, q0: Value, q1: Value, col: Value
) -> None:
    """Fill ``col`` from x for output rows [q0, q1) of ``images`` images. Writes run ahead of themselves: strictly ascending."""
    depth, walk = variant
    vector = type.vec(64 // type.nbytes)
    out = f.var(col)
    with f.loop(0, m.channels) as c, f.loop(0, g.k[0]) as kd, f.loop(0, g.k[1]) as kh, f.loop(0, g.k[2]) as kw:
        over = span(g, kw)
        plane = x.at(c * m.x_c + over.shift * g.x[2], type)
        step = g.stride[2] * g.x[2]
        with f.loop(0, images) as image, f.loop(q0, q1) as q:
            _, offset, inside = row_of(g, depth, q, kd, kh)
            high = inside.select(over.high, 0)
            row, target = plane.at(image * m.x_n + offset, type), out.get()
            with f.loop(0, g.t_w, vector.lanes) as t:
                values, _ = vector_of(f, vector, walk, row, t, step, over.low, high)
                target.at(t, type).store(values)
            out.set(target.at(g.t_w, type))


def _add_columns(f: Fn, g: Geometry, m: _Images, type: Type, variant: tuple[str, str], x: Value, q0: Value, q1: Value, col: Value) -> None:
    """Add ``col`` (output rows [q0, q1) of one image) back into x: the transpose of ``_columns``."""
    depth, walk = variant
    vector = type.vec(64 // type.nbytes)
    source = f.var(col)
    with f.loop(0, m.channels) as c, f.loop(0, g.k[0]) as kd, f.loop(0, g.k[1]) as kh, f.loop(0, g.k[2]) as kw:
        over = span(g, kw)
        plane = x.at(c * m.x_c + over.shift * g.x[2], type)
        step = g.stride[2] * g.x[2]
        with f.loop(q0, q1) as q:
            _, offset, inside = row_of(g, depth, q, kd, kh)
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


class _Gemm:
    """c = a b (+ c), all row-major; ``a_trans``, ``b_trans``: the stored matrix is the transpose."""

    def __init__(self, f: Fn, type: Type) -> None:
        self.f, self.type, self.blas = f, type, f.ptr("blas")

    def __call__(
        self, m: Value, n: Value, k: Value, a: Value, lda: Value, b: Value, ldb: Value, c: Value, ldc: Value,
        *, a_trans: bool = False, b_trans: bool = False, beta: Value | None = None,
    ) -> None:  # fmt: skip
        f = self.f
        flags = (f.const(I32, flag) for flag in (_ROW_MAJOR, _TRANS if a_trans else _NO_TRANS, _TRANS if b_trans else _NO_TRANS))
        one, rest = f.const(self.type, 1.0), f.const(self.type, 0.0) if beta is None else beta
        f.call(self.blas, *flags, m, n, k, one, a, lda, b, ldb, rest, c, ldc)


def _copy_rows(f: Fn, type: Type, source: Value, source_step: Value, target: Value, target_step: Value, rows: Value, length: Value) -> None:
    """target rows = source rows; steps in elements."""
    with f.loop(0, rows) as r:
        f.copy(target.at(r * target_step, type), source.at(r * source_step, type), length * type.nbytes)


def conv(f: Fn, dtype: str, depth: str, walk: str) -> None:
    """y = conv(x, w): a unit is one tile of one group."""
    type = _TYPES[dtype]
    gemm, g, m, variant = _Gemm(f, type), geometry(f), _images(f), (depth, walk)
    x, w, y = f.ptr("x"), f.ptr("w"), f.ptr("y")
    x_g, w_g, w_o, y_n, y_g, y_o = (f.i64(name) for name in ("x_g", "w_g", "w_o", "y_n", "y_g", "y_o"))
    groups, filters, window, n = f.i64("groups"), f.i64("filters"), f.i64("window"), f.i64("n")
    images, rows, all_rows, row_tiles, result_at = (f.i64(name) for name in ("images", "rows", "all_rows", "row_tiles", "result_at"))
    col, result = f.scratch, f.scratch.at(result_at, I8)
    with f.loop(f.r0, f.r1) as unit:
        group, tile = unit % groups, unit // groups
        first, q0 = (tile // row_tiles) * images, (tile % row_tiles) * rows
        count, q1 = images.min(n - first), (q0 + rows).min(all_rows)
        pixels = (q1 - q0) * g.t_w
        columns = pixels * count
        _columns(f, g, m, type, variant, x.at(first * m.x_n + group * x_g, type), count, q0, q1, col)
        weights = w.at(group * w_g, type)
        target = y.at(first * y_n + group * y_g + q0 * g.t_w, type)
        with f.when(count.eq(1)):
            gemm(filters, pixels, window, weights, w_o, col, pixels, target, y_o)
        with f.otherwise():
            gemm(filters, columns, window, weights, w_o, col, columns, result, columns)
            with f.loop(0, count) as image:
                _copy_rows(f, type, result.at(image * pixels, type), columns, target.at(image * y_n, type), y_o, filters, pixels)


def conv_dx(f: Fn, dtype: str, depth: str, walk: str) -> None:
    """x = gradient of conv by x, from y (the gradient that arrives): a unit is one image of one group, ``rows`` output rows at a time."""
    type = _TYPES[dtype]
    gemm, g, m, variant = _Gemm(f, type), geometry(f), _images(f), (depth, walk)
    x, w, y = f.ptr("x"), f.ptr("w"), f.ptr("y")
    x_g, w_g, w_o, y_n, y_g, y_o = (f.i64(name) for name in ("x_g", "w_g", "w_o", "y_n", "y_g", "y_o"))
    groups, filters, window, rows, all_rows = (f.i64(name) for name in ("groups", "filters", "window", "rows", "all_rows"))
    zero = f.const(type, 0.0)
    with f.loop(f.r0, f.r1) as unit:
        image, group = unit // groups, unit % groups
        target = x.at(image * m.x_n + group * x_g, type)
        with f.loop(0, m.channels) as c, f.loop(0, g.size[0]) as d, f.loop(0, g.size[1]) as h, f.loop(0, g.size[2]) as i:
            target.at(c * m.x_c + d * g.x[0] + h * g.x[1] + i * g.x[2], type).store(zero)
        with f.loop(0, all_rows, rows) as q0:
            q1 = (q0 + rows).min(all_rows)
            pixels = (q1 - q0) * g.t_w
            arrived = y.at(image * y_n + group * y_g + q0 * g.t_w, type)
            gemm(window, pixels, filters, w.at(group * w_g, type), w_o, arrived, y_o, f.scratch, pixels, a_trans=True)
            _add_columns(f, g, m, type, variant, target, q0, q1, f.scratch)


def conv_dw(f: Fn, dtype: str, depth: str, walk: str) -> None:
    """w[part] = gradient of conv by w over the images of the part, from y (the gradient that arrives) and x."""
    type = _TYPES[dtype]
    gemm, g, m, variant = _Gemm(f, type), geometry(f), _images(f), (depth, walk)
    x, w, y = f.ptr("x"), f.ptr("w"), f.ptr("y")
    x_g, w_part, w_g, w_o, y_n, y_g, y_o = (f.i64(name) for name in ("x_g", "w_part", "w_g", "w_o", "y_n", "y_g", "y_o"))
    groups, filters, window, n, parts = (f.i64(name) for name in ("groups", "filters", "window", "n", "parts"))
    images, rows, all_rows, arrived_at = (f.i64(name) for name in ("images", "rows", "all_rows", "arrived_at"))
    col, packed = f.scratch, f.scratch.at(arrived_at, I8)
    with f.loop(f.r0, f.r1) as unit:
        group, part = unit % groups, unit // groups
        target = w.at(part * w_part + group * w_g, type)
        beta = f.var(f.const(type, 0.0))
        last = n * (part + 1) // parts
        with f.loop(n * part // parts, last, images) as first, f.loop(0, all_rows, rows) as q0:
            count, q1 = images.min(last - first), (q0 + rows).min(all_rows)
            pixels = (q1 - q0) * g.t_w
            columns = pixels * count
            _columns(f, g, m, type, variant, x.at(first * m.x_n + group * x_g, type), count, q0, q1, col)
            arrived = y.at(first * y_n + group * y_g + q0 * g.t_w, type)
            with f.when(count.eq(1)):
                gemm(filters, window, pixels, arrived, y_o, col, pixels, target, w_o, b_trans=True, beta=beta.get())
            with f.otherwise():
                with f.loop(0, count) as image:
                    _copy_rows(f, type, arrived.at(image * y_n, type), y_o, packed.at(image * pixels, type), columns, filters, pixels)
                gemm(filters, window, columns, packed, columns, col, columns, target, w_o, b_trans=True, beta=beta.get())
            beta.set(1.0)


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
