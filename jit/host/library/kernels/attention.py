"""Scaled dot product attention, a tile of queries at a time: scores into scratch, softmax by rows, weighted sum.

A unit of the forward pass is some tiles of queries of one head, for which keys and values are packed once; of the gradient one head (its
tiles add up dk and dv in order). A row of scores is kept whole, so its sum does not depend on tile sizes. A single query goes through
BLAS's vector products instead, which need no packing. Variants: ``mask`` is "none", "unit" (added, neighbours in memory along the keys)
or "strided" (any stride, 0 repeats).
"""

from __future__ import annotations

from dataclasses import dataclass

from jit.host.library.emit import BOOL, F32, F64, I8, I32, I64, Fn, Type, Value
from jit.host.library.kernels.tiles import Matrix, Tiles

_TYPES = {"f32": F32, "f64": F64}
_ROW_MAJOR, _NO_TRANS, _TRANS = 101, 111, 112


class _Products:
    """Matrix products with packed right sides, and products of single rows."""

    def __init__(self, f: Fn, type: Type) -> None:
        self.f, self.type, self.tiles = f, type, Tiles(f, type)

    def packed_bytes(self, k: Value, n: Value) -> Value:
        """Bytes of the panels of [k, n]."""
        width = self.tiles.width
        return (n + (width - 1)) // width * (width * self.type.nbytes) * k

    def pack(self, k: Value, n: Value, b: Matrix, out: Value) -> None:
        self.tiles.pack(k, n, b, out, k * self.tiles.width)

    def multiply(
        self, m: Value, n: Value, k: Value, a: Matrix, panels: Value, panel_rows: Value, c: Value, c_row: Value, *, add: bool = False
    ) -> None:
        """c [m, n] = or += a [m, k] b, with b packed in panels of ``panel_rows`` >= k rows."""
        f, width = self.f, self.tiles.width
        step = panel_rows * width
        self.tiles.multiply(m, n, k, a, b=panels, panel_step=step, b_step=f.const(I64, width), c=c, c_row=c_row, add=f.const(BOOL, add))

    def row_by(self, gemv: Value, n: Value, k: Value, a: Value, b: Value, ldb: Value, c: Value, *, b_trans: bool) -> None:
        """c [n] = a [k] b, with b [k, n], or (``b_trans``) [n, k], row-major."""
        f = self.f
        order, trans = f.const(I32, _ROW_MAJOR), f.const(I32, _NO_TRANS if b_trans else _TRANS)
        rows, columns = (n, k) if b_trans else (k, n)
        one, zero, step = f.const(self.type, 1.0), f.const(self.type, 0.0), f.const(I64, 1)
        f.call(gemv, order, trans, rows, columns, one, b, ldb, a, step, zero, c, step)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """An operand [batch, head, row, column] with neighbouring columns; strides in elements."""

    point: Value
    batch: Value
    head: Value
    row: Value
    type: Type

    def of(self, batch: Value, head: Value, row: Value | int) -> Value:
        return self.point.at(batch * self.batch + head * self.head + self.row * row, self.type)

    def rows(self, batch: Value, head: Value, row: Value | int) -> Matrix:
        """The matrix from row number ``row`` on."""
        return Matrix(self.of(batch, head, row), self.row, self.row.fn.const(I64, 1))

    def columns(self, batch: Value, head: Value) -> Matrix:
        """The transposed matrix."""
        return Matrix(self.of(batch, head, 0), self.row.fn.const(I64, 1), self.row)


def _matrix(f: Fn, name: str, type: Type) -> _Matrix:
    return _Matrix(f.ptr(name), f.i64(f"{name}_b"), f.i64(f"{name}_h"), f.i64(f"{name}_r"), type)


@dataclass(frozen=True, slots=True)
class _Scores:
    """What turns products of queries and keys into scores."""

    f: Fn
    vector: Type
    scale: Value
    causal: Value
    mask: str
    mask_matrix: _Matrix | None
    mask_step: Value | None

    def limit(self, query: Value, keys: Value) -> Value:
        """How many keys query number ``query`` sees."""
        return self.causal.ne(0).select((query + 1).min(keys), keys)

    def vector_at(self, scores: Value, mask_row: Value | None, j: Value, seen: Value) -> Value:
        """Scores j, j+1, .. of a row: scaled, mask added; ``seen``: the lanes that count."""
        f = self.f
        value = scores.at(j, self.vector).load(self.vector) * self.scale.splat(self.vector.lanes)
        if mask_row is None or self.mask_step is None:
            return value
        if self.mask == "unit":
            return value + f.masked_load(mask_row.at(j, self.vector), seen, self.vector)
        index = f.iota(I64, self.vector.lanes) * self.mask_step.splat(self.vector.lanes)
        return value + f.gather(mask_row.at(j * self.mask_step, self.vector), index, seen, self.vector)

    def mask_row(self, batch: Value, head: Value, query: Value) -> Value | None:
        return None if self.mask_matrix is None else self.mask_matrix.of(batch, head, query)


def _scores(f: Fn, type: Type, mask: str) -> _Scores:
    vector = type.vec(64 // type.nbytes)
    scale = f.real("scale", F64).to(type)
    matrix = None if mask == "none" else _matrix(f, "mask", type)
    return _Scores(f, vector, scale, f.i64("causal"), mask, matrix, None if matrix is None else f.i64("mask_step"))


def _lane_mask(f: Fn, j: Value, limit: Value, lanes: int) -> Value:
    return f.iota(I32, lanes) < (limit - j).to(I32).splat(lanes)


def _softmax_row(f: Fn, s: _Scores, row: Value, mask_row: Value | None, limit: Value, width: Value) -> tuple[Value, Value]:
    """Replace a row of products by exp(score - greatest), 0 from ``limit`` to ``width``. Returns (greatest, sum)."""
    type, lanes = s.vector.element, s.vector.lanes
    lowest = f.const(s.vector, float("-inf"))
    top = f.var(lowest)
    with f.loop(0, limit, lanes) as j:
        seen = _lane_mask(f, j, limit, lanes)
        value = s.vector_at(row, mask_row, j, seen)
        row.at(j, type).store(value)
        kept = seen.select(value, lowest)
        top.set(((kept > top.get()) | kept.is_nan()).select(kept, top.get()))
    greatest = top.get().tree(lambda a, b: (a > b).select(a, b))
    shift = greatest.eq(float("-inf")).select(f.const(type, 0.0), greatest).splat(lanes)
    total = f.var(f.const(s.vector, 0.0))
    with f.loop(0, width, lanes) as j:
        weight = f.maths("exp", row.at(j, type).load(s.vector) - shift)
        weight = _lane_mask(f, j, limit, lanes).select(weight, 0.0)
        row.at(j, type).store(weight)
        total.set(total.get() + weight)
    return greatest, total.get().tree(lambda a, b: a + b)


def sdpa(f: Fn, dtype: str, mask: str) -> None:
    """o = softmax(q k' scale + mask) v and every row's log-sum-exp. Scratch: scores [rows, width], sums, panels of keys and of values."""
    type = _TYPES[dtype]
    products, s = _Products(f, type), _scores(f, type, mask)
    q, k, v, o, lse = (_matrix(f, name, type) for name in ("q", "k", "v", "o", "lse"))
    heads, m, n, d, e = (f.i64(name) for name in ("heads", "m", "n", "d", "e"))
    rows, share, shares, width, gemv = f.i64("rows"), f.i64("share"), f.i64("shares"), f.i64("width"), f.ptr("gemv")
    single, one = gemv.ne(f.null()), f.const(I64, 1)
    sums = f.scratch.at(rows * width, type)
    keys_at = f.scratch.at((rows * width + rows) * type.nbytes, I8)
    values_at = keys_at.at(products.packed_bytes(d, n), I8)
    with f.loop(f.r0, f.r1) as unit:
        begin, index = (unit % shares) * share, unit // shares
        batch, head = index // heads, index % heads
        end = (begin + share).min(m)
        seen = s.limit(end - 1, n)
        with f.when(~single):
            products.pack(d, seen, k.columns(batch, head), keys_at)
            products.pack(seen, e, v.rows(batch, head, 0), values_at)
        with f.loop(begin, end, rows) as first:
            count = rows.min(end - first)
            keys, out = s.limit(first + count - 1, n), o.of(batch, head, first)
            with f.when(single):
                products.row_by(gemv, keys, d, q.of(batch, head, first), k.of(batch, head, 0), k.row, f.scratch, b_trans=True)
            with f.otherwise():
                products.multiply(count, keys, d, q.rows(batch, head, first), keys_at, d, f.scratch, width)
            with f.loop(0, count) as r:
                query, row = first + r, f.scratch.at(r * width, type)
                greatest, total = _softmax_row(f, s, row, s.mask_row(batch, head, query), s.limit(query, n), keys)
                sums.at(r, type).store(total)
                # a row that sees nothing has sum 0, and log 0 is the wanted -inf
                shift = greatest.eq(float("-inf")).select(f.const(type, 0.0), greatest)
                lse.of(batch, head, query).store(f.maths("log", total) + shift)
            with f.when(single):
                products.row_by(gemv, e, keys, f.scratch, v.of(batch, head, 0), v.row, out, b_trans=False)
            with f.otherwise():
                products.multiply(count, e, keys, Matrix(f.scratch, width, one), values_at, seen, out, o.row)
            _divide_rows(f, s.vector, out, o.row, sums, count, e)


def _divide_rows(f: Fn, vector: Type, out: Value, step: Value, sums: Value, rows: Value, columns: Value) -> None:
    """Divide each row by its sum; a sum of 0 gives 0."""
    type, lanes = vector.element, vector.lanes
    with f.loop(0, rows) as r:
        total, row = sums.at(r, type).load(type), out.at(r * step, type)
        inverse = total.eq(0.0).select(f.const(type, 0.0), f.const(type, 1.0) / total)
        with f.loop(0, columns, lanes) as j:
            seen = _lane_mask(f, j, columns, lanes)
            place = row.at(j, type)
            f.masked_store(place, seen, f.masked_load(place, seen, vector) * inverse.splat(lanes))


def _zero_matrix(f: Fn, at: Value, step: Value, rows: Value, columns: Value, type: Type) -> None:
    with f.loop(0, rows) as r:
        f.zero(at.at(r * step, type), columns * type.nbytes)


def _gradient_rows(
    f: Fn, s: _Scores, p: Value, dp: Value, mask_row: Value | None, limits: tuple[Value, Value], lse: Value, dot: Value
) -> None:
    """From products (p) and do v' (dp) of one row: the weights into p, the gradient of the products into dp; 0 from the limit on."""
    type, lanes = s.vector.element, s.vector.lanes
    limit, width = limits
    empty = lse.eq(float("-inf"))
    with f.loop(0, width, lanes) as j:
        seen = _lane_mask(f, j, limit, lanes)
        weight = f.maths("exp", s.vector_at(p, mask_row, j, seen) - lse.splat(lanes))
        weight = (seen & (~empty).splat(lanes)).select(weight, 0.0)
        p.at(j, type).store(weight)
        slope = weight * (dp.at(j, type).load(s.vector) - dot.splat(lanes)) * s.scale.splat(lanes)
        dp.at(j, type).store(seen.select(slope, 0.0))


def sdpa_dx(f: Fn, dtype: str, mask: str) -> None:
    """dq, dk, dv. Scratch: weights and their gradients, each [rows, width]; panels of k', v', k and of a tile of q and of do."""
    type = _TYPES[dtype]
    products, s = _Products(f, type), _scores(f, type, mask)
    do, q, k, v, o, lse, dq, dk, dv = (_matrix(f, name, type) for name in ("do", "q", "k", "v", "o", "lse", "dq", "dk", "dv"))
    heads, m, n, d, e = (f.i64(name) for name in ("heads", "m", "n", "d", "e"))
    rows, width, one = f.i64("rows"), f.i64("width"), f.const(I64, 1)
    p, dp = f.scratch, f.scratch.at(rows * width, type)
    keys_turned = f.scratch.at(2 * rows * width, type)
    values_turned = keys_turned.at(products.packed_bytes(d, n), I8)
    keys_packed = values_turned.at(products.packed_bytes(e, n), I8)
    q_packed = keys_packed.at(products.packed_bytes(n, d), I8)
    do_packed = q_packed.at(products.packed_bytes(rows, d), I8)
    with f.loop(f.r0, f.r1) as unit:
        batch, head = unit // heads, unit % heads
        dk_at, dv_at = dk.of(batch, head, 0), dv.of(batch, head, 0)
        _zero_matrix(f, dk_at, dk.row, n, d, type)
        _zero_matrix(f, dv_at, dv.row, n, e, type)
        products.pack(d, n, k.columns(batch, head), keys_turned)
        products.pack(e, n, v.columns(batch, head), values_turned)
        products.pack(n, d, k.rows(batch, head, 0), keys_packed)
        with f.loop(0, m, rows) as first:
            count = rows.min(m - first)
            keys = s.limit(first + count - 1, n)
            q_rows, do_rows = q.rows(batch, head, first), do.rows(batch, head, first)
            products.multiply(count, keys, d, q_rows, keys_turned, d, p, width)
            products.multiply(count, keys, e, do_rows, values_turned, e, dp, width)
            with f.loop(0, count) as r:
                query = first + r
                dot = _dot(f, s.vector, do.of(batch, head, query), o.of(batch, head, query), e)
                limits = (s.limit(query, n), keys)
                mask_row, total = s.mask_row(batch, head, query), lse.of(batch, head, query).load(type)
                _gradient_rows(f, s, p.at(r * width, type), dp.at(r * width, type), mask_row, limits, total, dot)
            products.pack(count, e, do_rows, do_packed)
            products.pack(count, d, q_rows, q_packed)
            products.multiply(keys, e, count, Matrix(p, one, width), do_packed, count, dv_at, dv.row, add=True)
            products.multiply(count, d, keys, Matrix(dp, width, one), keys_packed, n, dq.of(batch, head, first), dq.row)
            products.multiply(keys, d, count, Matrix(dp, one, width), q_packed, count, dk_at, dk.row, add=True)


def _dot(f: Fn, vector: Type, a: Value, b: Value, n: Value) -> Value:
    """Sum of the products of two rows."""
    total = f.var(f.const(vector, 0.0))
    with f.loop(0, n, vector.lanes) as j:
        seen = _lane_mask(f, j, n, vector.lanes)
        product = f.masked_load(a.at(j, vector), seen, vector) * f.masked_load(b.at(j, vector), seen, vector)
        total.set(total.get() + product)
    return total.get().tree(lambda x, y: x + y)
