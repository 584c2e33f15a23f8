"""Scaled dot product attention, a tile of queries at a time: scores by BLAS into scratch, softmax by rows, weighted sum by BLAS.

A unit of the forward pass is one tile of queries of one head; of the gradient one head (its tiles add up dk and dv in order). A row of
scores is kept whole, so its sum does not depend on tile sizes. Variants: ``mask`` is "none", "unit" (added, neighbours in memory along
the keys) or "strided" (any stride, 0 repeats).
"""

from __future__ import annotations

from dataclasses import dataclass

from jit.host.library.emit import F32, F64, I32, I64, Fn, Type, Value

__all__ = ["sdpa", "sdpa_dx"]

_TYPES = {"f32": F32, "f64": F64}
_ROW_MAJOR, _NO_TRANS, _TRANS = 101, 111, 112


class _Blas:
    """gemm and, for single rows, gemv; all row-major."""

    def __init__(self, f: Fn, type: Type) -> None:
        self.f, self.type, self.gemm_at, self.gemv_at = f, type, f.ptr("gemm"), f.ptr("gemv")

    def gemm(
        self, m: Value, n: Value, k: Value, a: Value, lda: Value, b: Value, ldb: Value, c: Value, ldc: Value,
        *, a_trans: bool = False, b_trans: bool = False, add: bool = False,
    ) -> None:  # fmt: skip
        """c = a b, or c += a b."""
        f = self.f
        flags = (f.const(I32, flag) for flag in (_ROW_MAJOR, _TRANS if a_trans else _NO_TRANS, _TRANS if b_trans else _NO_TRANS))
        one, rest = f.const(self.type, 1.0), f.const(self.type, 1.0 if add else 0.0)
        f.call(self.gemm_at, *flags, m, n, k, one, a, lda, b, ldb, rest, c, ldc)

    def rows_by(
        self, m: Value, n: Value, k: Value, a: Value, lda: Value, b: Value, ldb: Value, c: Value, ldc: Value, *, b_trans: bool
    ) -> None:
        """c [m, n] = a [m, k] b; one row goes to gemv."""
        f = self.f
        with f.when(m.eq(1)):
            trans = f.const(I32, _NO_TRANS if b_trans else _TRANS)
            rows, columns = (n, k) if b_trans else (k, n)
            one, step = f.const(self.type, 1.0), f.const(I64, 1)
            order = f.const(I32, _ROW_MAJOR)
            f.call(self.gemv_at, order, trans, rows, columns, one, b, ldb, a, step, f.const(self.type, 0.0), c, step)
        with f.otherwise():
            self.gemm(m, n, k, a, lda, b, ldb, c, ldc, b_trans=b_trans)


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
    """o = softmax(q k' scale + mask) v and the log of each row's sum. Scratch: scores [rows, width], width a whole number of vectors."""
    type = _TYPES[dtype]
    blas, s = _Blas(f, type), _scores(f, type, mask)
    q, k, v, o, lse = (_matrix(f, name, type) for name in ("q", "k", "v", "o", "lse"))
    heads, m, n, d, e = (f.i64(name) for name in ("heads", "m", "n", "d", "e"))
    rows, tiles, width = f.i64("rows"), f.i64("tiles"), f.i64("width")
    lanes = s.vector.lanes
    with f.loop(f.r0, f.r1) as unit:
        first, index = (unit % tiles) * rows, unit // tiles
        batch, head = index // heads, index % heads
        count = rows.min(m - first)
        keys = s.limit(first + count - 1, n)
        out = o.of(batch, head, first)
        blas.rows_by(count, keys, d, q.of(batch, head, first), q.row, k.of(batch, head, 0), k.row, f.scratch, width, b_trans=True)
        sums = f.scratch.at(rows * width, type)
        with f.loop(0, count) as r:
            query, row = first + r, f.scratch.at(r * width, type)
            greatest, total = _softmax_row(f, s, row, s.mask_row(batch, head, query), s.limit(query, n), keys)
            sums.at(r, type).store(total)
            # a row that sees nothing has sum 0, and log 0 is the wanted -inf
            shift = greatest.eq(float("-inf")).select(f.const(type, 0.0), greatest)
            lse.of(batch, head, query).store(f.maths("log", total) + shift)
        blas.rows_by(count, e, keys, f.scratch, width, v.of(batch, head, 0), v.row, out, o.row, b_trans=False)
        with f.loop(0, count) as r:
            total, row = sums.at(r, type).load(type), out.at(r * o.row, type)
            inverse = total.eq(0.0).select(f.const(type, 0.0), f.const(type, 1.0) / total)
            with f.loop(0, e, lanes) as j:
                seen = _lane_mask(f, j, e, lanes)
                place = row.at(j, type)
                f.masked_store(place, seen, f.masked_load(place, seen, s.vector) * inverse.splat(lanes))


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
    """dq, dk, dv. Scratch: weights and their gradients, each [rows, width]."""
    type = _TYPES[dtype]
    blas, s = _Blas(f, type), _scores(f, type, mask)
    do, q, k, v, o, lse, dq, dk, dv = (_matrix(f, name, type) for name in ("do", "q", "k", "v", "o", "lse", "dq", "dk", "dv"))
    heads, m, n, d, e = (f.i64(name) for name in ("heads", "m", "n", "d", "e"))
    rows, width = f.i64("rows"), f.i64("width")
    with f.loop(f.r0, f.r1) as unit:
        batch, head = unit // heads, unit % heads
        keys_at, values_at = k.of(batch, head, 0), v.of(batch, head, 0)
        dk_at, dv_at = dk.of(batch, head, 0), dv.of(batch, head, 0)
        _zero_matrix(f, dk_at, dk.row, n, d, type)
        _zero_matrix(f, dv_at, dv.row, n, e, type)
        p, dp = f.scratch, f.scratch.at(rows * width, type)
        with f.loop(0, m, rows) as first:
            count = rows.min(m - first)
            keys = s.limit(first + count - 1, n)
            q_at, do_at = q.of(batch, head, first), do.of(batch, head, first)
            blas.gemm(count, keys, d, q_at, q.row, keys_at, k.row, p, width, b_trans=True)
            blas.gemm(count, keys, e, do_at, do.row, values_at, v.row, dp, width, b_trans=True)
            with f.loop(0, count) as r:
                query = first + r
                dot = _dot(f, s.vector, do.of(batch, head, query), o.of(batch, head, query), e)
                limits = (s.limit(query, n), keys)
                mask_row, total = s.mask_row(batch, head, query), lse.of(batch, head, query).load(type)
                _gradient_rows(f, s, p.at(r * width, type), dp.at(r * width, type), mask_row, limits, total, dot)
            blas.gemm(keys, e, count, p, width, do_at, do.row, dv_at, dv.row, a_trans=True, add=True)
            blas.gemm(count, d, keys, dp, width, keys_at, k.row, dq.of(batch, head, first), dq.row)
            blas.gemm(keys, d, count, dp, width, q_at, q.row, dk_at, dk.row, a_trans=True, add=True)


def _dot(f: Fn, vector: Type, a: Value, b: Value, n: Value) -> Value:
    """Sum of the products of two rows."""
    total = f.var(f.const(vector, 0.0))
    with f.loop(0, n, vector.lanes) as j:
        seen = _lane_mask(f, j, n, vector.lanes)
        product = f.masked_load(a.at(j, vector), seen, vector) * f.masked_load(b.at(j, vector), seen, vector)
        total.set(total.get() + product)
    return total.get().tree(lambda x, y: x + y)
