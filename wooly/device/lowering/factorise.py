"""Factorisations of small matrices and what is computed from them: Cholesky, LU with partial pivoting, Householder's QR, triangular solves.

The loop over columns is unrolled: a column is a few instructions over all matrices of a batch (right-looking variants: Golub and Van Loan,
Matrix Computations, 3.4, 4.2 and 5.2). Pivots, signs and the numbers of errors are LAPACK's, and so is the precision: a pivot of
singular matrices should cancel to 0 here where it does there. Inside, a batch [..., m, n] is [m, n, ...]: loops run along the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from wis.dtypes import COMPLEX, DType
from wis.ops import ScatterMode
from wis.views import broadcast_shapes
from wooly.device.lowering.registry import composite, lowers
from wooly.device.lowering.shape import triangle_mask
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.unary import abs_, complex_parts, join, sgn
from wooly.device.lowering.values import Meta, Unsupported

__all__ = ["STEPS_MAX"]

STEPS_MAX: Final = 32
"""The most columns that are eliminated one after the other.

Measured in chains of eight calls (inv_ex, cholesky_ex, solve_ex, slogdet; host back end, 2 cores): computed on the client's CPU, a call
takes 1.3 to 1.9 ms with one matrix and 1.8 to 4.5 ms with 64 of 3 x 3 to 32 x 32; here 0.2 and 0.2 to 0.9 ms. The first call of a program
takes 0.1 to 0.3 s with 32 columns, and 0.6 to 2.7 s with 64; 64 of 64 x 64 take up to 24 ms.
"""
_TYPES: Final = frozenset({DType.F32, DType.F64, DType.C64, DType.C128})
_SQUARE_MAX: Final = {DType.F32: 1e15, DType.C64: 1e15, DType.F64: 1e150, DType.C128: 1e150}
"""By type: sums of squares of such numbers are finite, and those of their reciprocals keep their digits."""


# --- layout


def _check(x: Meta, steps: int) -> None:
    """Raises Unsupported for what LAPACK does faster, and for types it does not have."""
    if x.dtype not in _TYPES:
        raise Unsupported(f"a factorisation in {x.dtype.text}")
    if steps > STEPS_MAX:
        raise Unsupported(f"a factorisation in {steps} steps")


def _inner(x: Meta) -> Meta:
    """[..., m, n] as [m, n, ...]."""
    return x.permute((x.ndim - 2, x.ndim - 1, *range(x.ndim - 2)))


def _outer(x: Meta) -> Meta:
    """[m, n, ...] as [..., m, n]."""
    return x.permute((*range(2, x.ndim), 0, 1))


def _part(x: Meta, row: int, column: int) -> Meta:
    """[m, n, ...] from a row and a column on."""
    return x.narrow(0, row, x.shape[0] - row).narrow(1, column, x.shape[1] - column)


def _element(x: Meta, row: int, column: int) -> Meta:
    """[1, 1, ...]"""
    return x.narrow(0, row, 1).narrow(1, column, 1)


def _diagonal(x: Meta) -> Meta:
    """[m, n, ...] -> [min(m, n), ...], a view."""
    return replace(x, shape=(min(x.shape[:2]), *x.shape[2:]), strides=(x.strides[0] + x.strides[1], *x.strides[2:]))


def _spread(x: Meta, ndim: int) -> Meta:
    """``x``, with dimensions of size 1 behind its own."""
    return replace(x, shape=(*x.shape, *(1,) * (ndim - x.ndim)), strides=(*x.strides, *(0,) * (ndim - x.ndim)))


def _triangle(t: Trace, x: Meta, upper: bool) -> Meta:
    """[m, n, ...] with zeros above the diagonal or, ``upper``, below."""
    mask = _spread(triangle_mask(t, x.shape[0], x.shape[1], -1 if upper else 0), x.ndim)
    return t.where(mask, 0, x, dtype=x.dtype) if upper else t.where(mask, x, 0, dtype=x.dtype)


def _unit(t: Trace, shape: Sequence[int], dtype: DType) -> Meta:
    """A new unit matrix for each of a batch, [m, n, ...]."""
    out = t.full(shape, 0, dtype)
    t.store(_diagonal(out), 1)
    return out


def _conj(t: Trace, x: Meta) -> Meta:
    return t.map("conj", x) if x.dtype in COMPLEX else x


def _real(t: Trace, x: Meta) -> Meta:
    return complex_parts(t, x)[0] if x.dtype in COMPLEX else x


def _subtract_product(t: Trace, target: Meta, a: Meta, b: Meta) -> None:
    """target -= a * b, broadcast."""
    t.emit("sub", [target], [target, t.map("mul", a, b)])


def _first(t: Trace, found: Meta) -> Meta:
    """bool [n, ...] -> i32 [...]: the first true place from 1, as LAPACK numbers where it failed; 0 for none."""
    n = found.shape[0]
    if n == 0:
        return t.full(found.shape[1:], 0, DType.I32)
    place = t.where(found, _spread(t.iota(n, start=1), found.ndim), n + 1, dtype=DType.I64)
    least = t.reduce("reduce_min", place, [0])
    return t.cast(t.where(t.map("le", least, n), least, 0, dtype=DType.I64), DType.I32)


# --- triangular solves


def _substitute(t: Trace, a: Meta, x: Meta, *, upper: bool, unit: bool) -> None:
    """x = a^-1 x, for a triangle [n, n, ...] of ``a`` and x [n, k, ...]. An upper one is a lower one, read backwards."""
    if upper:
        a, x = a.flip(0).flip(1), x.flip(0)
    for k in range(x.shape[0]):
        row = x.narrow(0, k, 1)
        if not unit:
            t.emit("div", [row], [row, _element(a, k, k).expand(row.shape)])
        if k + 1 < x.shape[0]:
            _subtract_product(t, _part(x, k + 1, 0), _part(a, k + 1, k).narrow(1, 0, 1), row)


def _solved(t: Trace, a: Meta, b: Meta, *, upper: bool, left: bool = True, unit: bool = False) -> Meta:
    """X with a X = b, or X a = b: the latter is a^T X^T = b^T. Matrices [..., n, n] and [..., n, k] or [..., k, n]."""
    _check(a, a.shape[-1])
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = a.expand((*batch, *a.shape[-2:])), b.expand((*batch, *b.shape[-2:]))
    if not left:
        return _solved(t, a.transpose(-2, -1), b.transpose(-2, -1), upper=not upper, unit=unit).transpose(-2, -1)
    x = t.copy(_inner(b))
    _substitute(t, _inner(a), x, upper=upper, unit=unit)
    return _outer(x)


@lowers("aten::linalg_solve_triangular")
def linalg_solve_triangular(t: Trace, a: Meta, b: Meta, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Meta:
    return _solved(t, a, b, upper=upper, left=left, unit=unitriangular)


@lowers("aten::triangular_solve")
def triangular_solve(
    t: Trace, b: Meta, a: Meta, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Meta, Meta]:
    used = a.transpose(-2, -1) if transpose else a
    return _solved(t, used, b, upper=upper != transpose, unit=unitriangular), t.copy(a.expand(t.want(1).shape))


# --- Cholesky


@lowers("aten::linalg_cholesky_ex")
def linalg_cholesky_ex(t: Trace, a: Meta, *, upper: bool = False, check_errors: bool = False) -> tuple[Meta, Meta]:
    """Of U^H = L it is the same algorithm, that reads and writes the other triangle."""
    n = a.shape[-1]
    _check(a, n)
    _refuse_waiting(check_errors)
    w = t.copy(_inner(_conj(t, a.transpose(-2, -1)) if upper else a))
    for k in range(n - 1):
        column = _part(w, k + 1, k).narrow(1, 0, 1)
        t.emit("div", [column], [column, t.cast(t.map("sqrt", _real(t, _element(w, k, k)).expand(column.shape)), w.dtype)])
        _subtract_product(t, _part(w, k + 1, k + 1), column, _conj(t, column.transpose(0, 1)))
    minors = _real(t, _diagonal(w))
    info = _first(t, t.map("not", t.map("gt", minors, 0)))
    t.store(_diagonal(w), t.map("sqrt", minors))
    factor = _outer(_triangle(t, w, upper=False))
    return (_conj(t, factor.transpose(-2, -1)) if upper else factor), info


@lowers("aten::_cholesky_solve_helper")
def cholesky_solve(t: Trace, b: Meta, a: Meta, upper: bool) -> Meta:
    """a a^H X = b for a lower triangle, a^H a X = b for an upper one."""
    adjoint = _conj(t, a.transpose(-2, -1))
    lower, upper_ = (adjoint, a) if upper else (a, adjoint)
    return _solved(t, upper_, _solved(t, lower, b, upper=False), upper=True)


# --- LU


def _eliminate(t: Trace, w: Meta) -> Meta:
    """LU of w [m, n, ...] in its place; returns the rows that were exchanged with rows 0, 1, ..., i64 [min(m, n), ...]."""
    m, n, *batch = w.shape
    pivots = t.temp(DType.I64, (min(m, n), *batch))
    for k in range(min(m, n)):
        rest, place = w.narrow(0, k, m - k), pivots.narrow(0, k, 1)
        t.emit("argmax", [place], [_size(t, rest.select(1, k))], (0,))
        if k + 1 == m:
            break
        index = place.unsqueeze(1).expand((1, n, *batch))
        first, chosen = t.copy(rest.narrow(0, 0, 1)), t.temp(w.dtype, index.shape)
        t.emit("gather", [chosen], [rest, index], (0,))
        t.emit("scatter", [rest], [first, index], (0, ScatterMode.SET))
        t.store(rest.narrow(0, 0, 1), chosen)
        column = _part(w, k + 1, k).narrow(1, 0, 1)
        pivot = chosen.narrow(1, k, 1).expand(column.shape)
        safe = t.where(t.map("eq", pivot, 0), 1, pivot, dtype=w.dtype)  # a pivot of 0 has zeros below it
        t.emit("div", [column], [column, safe])
        if k + 1 < n:
            _subtract_product(t, _part(w, k + 1, k + 1), column, chosen.narrow(1, k + 1, n - k - 1))
    return t.map("add", pivots, _spread(t.iota(min(m, n)), pivots.ndim))


def _size(t: Trace, x: Meta) -> Meta:
    """By which pivots are chosen: of complex numbers |re| + |im|, as BLAS does."""
    if x.dtype not in COMPLEX:
        return t.map("abs", x)
    real, imag = complex_parts(t, x)
    return t.map("add", t.map("abs", real), t.map("abs", imag))


def _factored(t: Trace, a: Meta) -> tuple[Meta, Meta, Meta]:
    """(LU, pivots from 1 as torch stores them, info), of [..., m, n]."""
    _check(a, min(a.shape[-2:]))
    w = t.copy(_inner(a))
    pivots = t.cast(t.map("add", _eliminate(t, w), 1), DType.I32)
    return _outer(w), pivots.move(0, -1), _first(t, t.map("eq", _diagonal(w), 0))


def _permuted(t: Trace, pivots: Meta, rows: int, *, inverse: bool = False) -> Meta:
    """Where each of ``rows`` rows comes from when exchanges are made in order (``inverse``: undone): i64 [rows, ...].

    ``pivots``: i32 [..., k], from 1. Followed row by row, the last exchange first.
    """
    other = t.map("sub", t.cast(pivots.move(-1, 0), DType.I64), 1)
    steps = range(other.shape[0])
    row = t.copy(_spread(t.iota(rows), other.ndim).expand((rows, *other.shape[1:])))
    for k in steps if inverse else reversed(steps):
        pair = other.narrow(0, k, 1)
        moved = t.where(t.map("eq", row, pair), k, row, dtype=DType.I64)
        row = t.where(t.map("eq", row, k), pair, moved, dtype=DType.I64)
    return row


def _check_pivots(t: Trace, lu: Meta, pivots: Meta) -> None:
    inside = t.map("and", t.map("ge", pivots, 1), t.map("le", pivots, lu.shape[-2]))
    t.check(inside, "pivots must be between 1 and LU.size(-2)")


def _rows(t: Trace, x: Meta, index: Meta) -> Meta:
    """x[index] for every matrix: [n, k, ...] by [n, ...], new."""
    out = t.temp(x.dtype, x.shape)
    t.emit("gather", [out], [x, index.unsqueeze(1).expand(x.shape)], (0,))
    return out


def _lu_solved(t: Trace, lu: Meta, pivots: Meta, b: Meta, *, left: bool, adjoint: bool) -> Meta:
    """A X = b, A^H X = b, X A = b or X A^H = b, from the factors of A = P L U."""
    _check(lu, lu.shape[-1])
    if adjoint:
        lu = _conj(t, lu)
    if not left:
        b = b.transpose(-2, -1)
    batch = broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    lu, b = _inner(lu.expand((*batch, *lu.shape[-2:]))), _inner(b.expand((*batch, *b.shape[-2:])))
    transposed = left == adjoint
    row = _permuted(t, pivots.expand((*batch, pivots.shape[-1])), lu.shape[0], inverse=transposed)
    if transposed:  # U^T, then L^T, then P
        x, lu = t.copy(b), lu.transpose(0, 1)
        _substitute(t, lu, x, upper=False, unit=False)
        _substitute(t, lu, x, upper=True, unit=True)
        x = _rows(t, x, row)
    else:
        x = _rows(t, b, row)
        _substitute(t, lu, x, upper=False, unit=True)
        _substitute(t, lu, x, upper=True, unit=False)
    x = _outer(x)
    return x if left else x.transpose(-2, -1)


@lowers("aten::linalg_lu_factor_ex")
def linalg_lu_factor_ex(t: Trace, a: Meta, *, pivot: bool = True, check_errors: bool = False) -> tuple[Meta, Meta, Meta]:
    _refuse_waiting(check_errors)
    if not pivot:
        raise Unsupported("LU without pivoting")  # as on the CPU
    return _factored(t, a)


@lowers("aten::linalg_lu")
def linalg_lu(t: Trace, a: Meta, *, pivot: bool = True) -> tuple[Meta, ...]:
    lu, pivots, _ = linalg_lu_factor_ex(t, a, pivot=pivot)
    return _swaps(t, lu, pivots), *_triangles(t, lu)


@lowers("aten::lu_unpack")
def lu_unpack(t: Trace, lu: Meta, pivots: Meta, unpack_data: bool = True, unpack_pivots: bool = True) -> tuple[Meta, ...]:
    _check(lu, min(lu.shape[-2:]))
    if unpack_pivots:
        _check_pivots(t, lu, pivots)
    none = t.temp(lu.dtype, (0,))
    return _swaps(t, lu, pivots) if unpack_pivots else none, *(_triangles(t, lu) if unpack_data else (none, none))


def _swaps(t: Trace, lu: Meta, pivots: Meta) -> Meta:
    """P as a matrix."""
    row = _permuted(t, pivots, lu.shape[-2], inverse=True)
    return _outer(t.cast(t.map("eq", row.unsqueeze(1), _spread(t.iota(lu.shape[-2]), row.ndim)), lu.dtype))


def _triangles(t: Trace, lu: Meta) -> tuple[Meta, Meta]:
    """L and U."""
    inner, k = _inner(lu), min(lu.shape[-2:])
    lower = _triangle(t, inner.narrow(1, 0, k), upper=False)
    t.store(_diagonal(lower), 1)
    return _outer(lower), _outer(_triangle(t, inner.narrow(0, 0, k), upper=True))


@lowers("aten::linalg_lu_solve")
def linalg_lu_solve(t: Trace, lu: Meta, pivots: Meta, b: Meta, *, left: bool = True, adjoint: bool = False) -> Meta:
    _check_pivots(t, lu, pivots)
    return _lu_solved(t, lu, pivots, b, left=left, adjoint=adjoint)


@lowers("aten::_linalg_solve_ex")
def linalg_solve_ex(t: Trace, a: Meta, b: Meta, *, left: bool = True, check_errors: bool = False) -> tuple[Meta, ...]:
    _refuse_waiting(check_errors)
    lu, pivots, info = _factored(t, a)
    vectors = b.ndim == 1 or b.shape == a.shape[:-1]
    x = _lu_solved(t, lu, pivots, b.unsqueeze(-1) if vectors else b, left=left, adjoint=False)
    return x.squeeze(-1) if vectors else x, lu, pivots, info


@lowers("aten::linalg_inv_ex")
def linalg_inv_ex(t: Trace, a: Meta, *, check_errors: bool = False) -> tuple[Meta, Meta]:
    _refuse_waiting(check_errors)
    lu, pivots, info = _factored(t, a)
    unit = _unit(t, a.shape[-2:], a.dtype).expand(a.shape)
    return _lu_solved(t, lu, pivots, unit, left=True, adjoint=False), info


def _is_transposed(t: Trace, a: Meta) -> bool:
    """Does torch factorise A^T here? Its derivatives count on it: they are given the factors, and look at A."""
    if a.dtype in COMPLEX:
        return False
    if a.slot >= t.n_ins:
        raise Unsupported("a real matrix with torch's lazy negative bit")  # resolved, it has lost its layout
    return a.is_contiguous


def _parity(t: Trace, pivots: Meta, dtype: DType) -> Meta:
    """The determinant of P, [...]: -1 for an odd number of exchanges."""
    n = pivots.shape[-1]
    moved = t.map("ne", pivots, t.iota(n, DType.I32, start=1))
    odd = t.map("mod", t.reduce("sum", moved, [moved.ndim - 1], dtype=DType.I64), 2)
    return t.cast(t.map("sub", 1, t.map("mul", odd, 2)), dtype)


@lowers("aten::_linalg_det")
def linalg_det(t: Trace, a: Meta) -> tuple[Meta, Meta, Meta]:
    lu, pivots, _ = _factored(t, a.transpose(-2, -1) if _is_transposed(t, a) else a)
    product = t.reduce("prod", _diagonal(_inner(lu)), [0])
    return t.map("mul", product, _parity(t, pivots, a.dtype)), lu, pivots


@lowers("aten::_linalg_slogdet")
def linalg_slogdet(t: Trace, a: Meta) -> tuple[Meta, ...]:
    lu, pivots, _ = _factored(t, a.transpose(-2, -1) if _is_transposed(t, a) else a)
    diagonal = _diagonal(_inner(lu))
    sign = t.map("mul", t.reduce("prod", sgn(t, diagonal), [0]), _parity(t, pivots, a.dtype))
    return sign, t.reduce("sum", t.map("log", abs_(t, diagonal)), [0]), lu, pivots


# --- QR


def _reflectors(t: Trace, w: Meta) -> Meta:
    """QR of w [m, n, ...] in its place: R on and above the diagonal, below it Householder's vectors, which begin with a 1; returns their
    factors tau [min(m, n), ...]. Signs are those of LAPACK's larfg.

    Columns of extreme numbers are scaled before, and their part of R after: the vectors stay the same.
    """
    m, n, *batch = w.shape
    scale = _scale(t, w)
    t.emit("div", [w], [w, scale.expand(w.shape)])
    taus, corners = (t.temp(w.dtype, (min(m, n), *batch)) for _ in range(2))
    for k in range(min(m, n)):
        column, corner = _part(w, k, k).narrow(1, 0, 1), _element(w, k, k)
        tau, beta, divisor = _reflector(t, corner, column.narrow(0, 1, m - k - 1))
        t.store(taus.narrow(0, k, 1), tau.squeeze(0))
        t.store(corners.narrow(0, k, 1), beta.squeeze(0))
        t.emit("div", [column], [column, divisor.expand(column.shape)])
        t.store(corner, 1)
        if k + 1 < n:
            _reflect(t, column, _conj(t, tau), _part(w, k, k + 1))
    t.store(_diagonal(w), corners)
    upper = _spread(t.map("not", triangle_mask(t, m, n, -1)), w.ndim)
    t.emit("mul", [w], [w, t.where(upper, scale, 1, dtype=w.dtype)])
    return taus


def _scale(t: Trace, w: Meta) -> Meta:
    """[1, n, ...]: 1, or the size of the greatest number of a column whose squares leave the range of the type."""
    if w.numel == 0:
        return t.full((1, *w.shape[1:]), 1, w.dtype)
    top, bound = t.reduce("reduce_max", _size(t, w), [0], True), _SQUARE_MAX[w.dtype]
    large = t.map("and", t.map("gt", top, bound), t.map("lt", top, math.inf))
    small = t.map("and", t.map("lt", top, 1 / bound), t.map("gt", top, 0))
    return t.cast(t.where(t.map("or", large, small), top, 1, dtype=top.dtype), w.dtype)


def _reflector(t: Trace, alpha: Meta, tail: Meta) -> tuple[Meta, Meta, Meta]:
    """(tau, beta, by what the tail is divided) of the reflector that makes (beta, 0) of (alpha, tail); all [1, 1, ...]."""
    rest, square = _squares(t, tail), _squares(t, alpha)
    real = _real(t, alpha)
    beta = t.map("neg", t.map("copysign", t.map("sqrt", t.map("add", square, rest)), real))
    tau, done = t.map("div", t.map("sub", beta, real), beta), t.map("eq", rest, 0)
    if alpha.dtype in COMPLEX:
        imag = complex_parts(t, alpha)[1]
        done = t.map("and", done, t.map("eq", imag, 0))
        tau, beta = join(t, tau, t.map("neg", t.map("div", imag, beta))), t.cast(beta, alpha.dtype)
    dtype, divisor = alpha.dtype, t.map("sub", alpha, beta)
    return t.where(done, 0, tau, dtype), t.where(done, alpha, beta, dtype), t.where(done, 1, divisor, dtype)


def _squares(t: Trace, x: Meta) -> Meta:
    """The sum of |x|^2 over rows, [1, ...]."""
    parts = x.as_parts() if x.dtype in COMPLEX else x.unsqueeze(-1)
    return t.reduce("sum", t.map("mul", parts, parts), [0, -1], True).squeeze(-1)


def _reflect(t: Trace, v: Meta, tau: Meta, x: Meta) -> None:
    """x = (1 - tau v v^H) x, for v [r, 1, ...] and x [r, k, ...]."""
    along = t.reduce("sum", t.map("mul", _conj(t, v), x), [0], True)
    _subtract_product(t, x, v, t.map("mul", tau, along))


def _apply(t: Trace, w: Meta, taus: Meta, x: Meta, *, adjoint: bool = False, unit: bool = False) -> None:
    """x = Q x or Q^H x, [m, k, ...], for the product Q of the reflectors below the diagonal of ``w``, which is written. ``unit``: x is a
    unit matrix, of which the first columns need not be looked at."""
    t.store(_diagonal(w), 1)
    taus = (_conj(t, taus) if adjoint else taus).unsqueeze(1)
    steps = range(taus.shape[0])
    for k in steps if adjoint else reversed(steps):
        _reflect(t, _part(w, k, k).narrow(1, 0, 1), taus.narrow(0, k, 1), _part(x, k, k if unit else 0))


def _product(t: Trace, w: Meta, taus: Meta, columns: int) -> Meta:
    """The first columns of Q."""
    q = _unit(t, (w.shape[0], columns, *w.shape[2:]), w.dtype)
    _apply(t, w, taus, q, unit=True)
    return q


@lowers("aten::linalg_qr")
def linalg_qr(t: Trace, a: Meta, mode: str = "reduced") -> tuple[Meta, Meta]:
    m, n = a.shape[-2:]
    _check(a, min(m, n))
    w = t.copy(_inner(a))
    taus = _reflectors(t, w)
    columns = m if mode == "complete" else min(m, n)
    r = _outer(_triangle(t, w.narrow(0, 0, columns), upper=True))
    return t.temp(a.dtype, (0,)) if mode == "r" else _outer(_product(t, w, taus, columns)), r


@lowers("aten::geqrf")
def geqrf(t: Trace, a: Meta) -> tuple[Meta, Meta]:
    _check(a, min(a.shape[-2:]))
    w = t.copy(_inner(a))
    taus = _reflectors(t, w)
    return _outer(w), taus.move(0, -1)


@lowers("aten::linalg_householder_product")
def linalg_householder_product(t: Trace, a: Meta, tau: Meta) -> Meta:
    _check(a, tau.shape[-1])
    return _outer(_product(t, t.copy(_inner(a)), tau.move(-1, 0), a.shape[-1]))


@lowers("aten::ormqr")
def ormqr(t: Trace, a: Meta, tau: Meta, x: Meta, left: bool = True, transpose: bool = False) -> Meta:
    """Q x, Q^H x, x Q or x Q^H: the latter are adjoints of products from the left."""
    _check(a, tau.shape[-1])
    if not left:
        x = _conj(t, x.transpose(-2, -1))
    out = t.copy(_inner(x))
    _apply(t, t.copy(_inner(a)), tau.move(-1, 0), out, adjoint=transpose == left)
    return _outer(out) if left else _conj(t, _outer(out).transpose(-2, -1))


# --- errors, which wait for the device


def _refuse_waiting(check_errors: bool) -> None:
    if check_errors:
        raise Unsupported("a check that waits")


def _checked(name: str, api: str) -> Callable[..., Any]:
    """The operation, and torch's error where its last result says that it failed."""
    op = getattr(torch.ops.aten, name).default

    def call(a: Tensor, *args: Any, check_errors: bool = False, **options: Any) -> Any:
        result = op(a, *args, **options)
        if check_errors:
            torch._linalg_check_errors(result[-1], api, is_matrix=a.dim() == 2)
        return result

    return call


for _name, _api in (
    ("linalg_cholesky_ex", "linalg.cholesky_ex"),
    ("linalg_lu_factor_ex", "torch.linalg.lu_factor_ex"),
    ("_linalg_solve_ex", "torch.linalg.solve_ex"),
    ("linalg_inv_ex", "linalg.inv_ex"),
):
    composite(f"aten::{_name}")(_checked(_name, _api))


def _stand_in(a: Tensor) -> Tensor:
    """A unit matrix on the CPU, whose kernel refuses types and ranks in its own words."""
    return torch.ones((1,) * a.dim(), dtype=a.dtype)


@composite("aten::cholesky")
def cholesky(a: Tensor, upper: bool = False) -> Tensor:
    torch.ops.aten.cholesky(_stand_in(a))  # which also says once that it is deprecated
    factor: Tensor
    factor, info = torch.ops.aten.linalg_cholesky_ex(a, upper=upper)
    torch._linalg_check_errors(info, "cholesky", is_matrix=a.dim() == 2)
    return factor


@composite("aten::cholesky_inverse")
def cholesky_inverse(a: Tensor, upper: bool = False) -> Tensor:
    """Raises LinAlgError for a factor with a 0 in its diagonal."""
    torch.ops.aten.cholesky_inverse(_stand_in(a))
    if a.numel():
        zeros = a.diagonal(dim1=-2, dim2=-1).eq(0)
        info = torch.where(zeros.any(-1), zeros.to(torch.uint8).argmax(-1) + 1, 0)
        torch._linalg_check_errors(info.int(), "cholesky_inverse", is_matrix=a.dim() == 2)
    unit = torch.eye(a.size(-1), dtype=a.dtype, device=a.device).expand(a.size())
    inverse: Tensor = torch.ops.aten._cholesky_solve_helper(unit, a, upper)
    return inverse
