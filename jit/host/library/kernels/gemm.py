"""Matrix products: our own tiles for f32 and f64, BLAS for complex numbers and for vectors, native loops for integers.

A unit is one block of one matrix of a batch (for BLAS: one call), so the bits of a result do not depend on how units are shared out.
"""

from __future__ import annotations

from typing import Final

from jit.host.library.elements import ELEMENTS
from jit.host.library.emit import F32, F64, I8, I32, I64, Fn, Type, Value
from jit.host.library.kernels.tiles import Matrix, Tiles

BATCH_RANK: Final = 3
"""Batch dimensions a record can walk."""

_STORAGE: Final[dict[str, tuple[Type, int]]] = {"f32": (F32, 4), "f64": (F64, 8), "c64": (F32, 8), "c128": (F64, 16)}


def _batch(f: Fn, names: str) -> tuple[list[Value], list[list[Value]]]:
    """Declare the batch arguments: sizes of all but the first dimension, byte strides of every operand."""
    return f.i64s("batch", BATCH_RANK - 1), [f.i64s(f"{name}_batch", BATCH_RANK) for name in names]


def _matrix(point: Value, index: Value, sizes: list[Value], strides: list[Value]) -> Value:
    """The address of matrix number ``index`` of a batch."""
    at = point
    for size, stride in zip(reversed(sizes), reversed(strides[1:]), strict=True):
        at = at.at((index % size) * stride, I8)
        index = index // size
    return at.at(index * strides[0], I8)


def product(f: Fn, dtype: str) -> None:
    """c = a b for each matrix of a batch, in blocks of ``m_block`` by ``n_block``; strides inside a matrix count elements, c_col is 1."""
    type, _ = _STORAGE[dtype]
    tiles = Tiles(f, type)
    m, n, k = f.i64("m"), f.i64("n"), f.i64("k")
    a, b, c = f.ptr("a"), f.ptr("b"), f.ptr("c")
    a_row, a_col, b_row, b_col, c_row = (f.i64(name) for name in ("a_row", "a_col", "b_row", "b_col", "c_row"))
    m_block, n_block, n_blocks, blocks = f.i64("m_block"), f.i64("n_block"), f.i64("n_blocks"), f.i64("blocks")
    pack_a = f.i64("pack_a").ne(0)
    sizes, (a_batch, b_batch, c_batch) = _batch(f, "abc")
    one = f.const(I64, 1)
    with f.loop(f.r0, f.r1) as unit:
        matrix, block = unit // blocks, unit % blocks
        m0, n0 = (block // n_blocks) * m_block, (block % n_blocks) * n_block
        x = Matrix(_matrix(a, matrix, sizes, a_batch), a_row, a_col).down(m0, type)
        y = Matrix(_matrix(b, matrix, sizes, b_batch), b_row, b_col).right(n0, type)
        z = Matrix(_matrix(c, matrix, sizes, c_batch).at(n0, type), c_row, one).down(m0, type)
        tiles.product(m_block.min(m - m0), n_block.min(n - n0), k, x, y, z, pack_a, f.scratch)


def gemm(f: Fn, dtype: str) -> None:
    """c = a b for each matrix of a batch, complex, by BLAS."""
    type, _ = _STORAGE[dtype]
    blas, order, a_trans, b_trans = f.ptr("blas"), f.i64("order").to(I32), f.i64("a_trans").to(I32), f.i64("b_trans").to(I32)
    m, n, k = f.i64("m"), f.i64("n"), f.i64("k")
    a, b, c = f.ptr("a"), f.ptr("b"), f.ptr("c")
    lda, ldb, ldc = f.i64("lda"), f.i64("ldb"), f.i64("ldc")
    sizes, (a_batch, b_batch, c_batch) = _batch(f, "abc")
    alpha, beta = f.constants(type, [1.0, 0.0]), f.constants(type, [0.0, 0.0])
    with f.loop(f.r0, f.r1) as matrix:
        at_a, at_b, at_c = (_matrix(x, matrix, sizes, by) for x, by in ((a, a_batch), (b, b_batch), (c, c_batch)))
        f.call(blas, order, a_trans, b_trans, m, n, k, alpha, at_a, lda, at_b, ldb, beta, at_c, ldc)


def gemv(f: Fn, dtype: str) -> None:
    """y = a x for each matrix of a batch, in blocks of y. ``a`` is row-major, or (``trans``) its transpose is."""
    type, _ = _STORAGE[dtype]
    blas, order, trans, plain = f.ptr("blas"), f.i64("order").to(I32), f.i64("trans").to(I32), f.i64("plain")
    m, k = f.i64("m"), f.i64("k")
    a, b, c = f.ptr("a"), f.ptr("b"), f.ptr("c")
    lda, incx, incy = f.i64("lda"), f.i64("incx"), f.i64("incy")
    m_block, blocks, a_row, c_row = f.i64("m_block"), f.i64("blocks"), f.i64("a_row"), f.i64("c_row")
    sizes, (a_batch, b_batch, c_batch) = _batch(f, "abc")
    one, zero = f.const(type, 1.0), f.const(type, 0.0)
    with f.loop(f.r0, f.r1) as unit:
        matrix, m0 = unit // blocks, (unit % blocks) * m_block
        at_a = _matrix(a, matrix, sizes, a_batch).at(m0 * a_row, I8)
        at_x = _matrix(b, matrix, sizes, b_batch)
        at_y = _matrix(c, matrix, sizes, c_batch).at(m0 * c_row, I8)
        part = m_block.min(m - m0)
        rows, columns = plain.ne(0).select(part, k), plain.ne(0).select(k, part)
        f.call(blas, order, trans, rows, columns, one, at_a, lda, at_x, incx, zero, at_y, incy)


def igemm(f: Fn, dtype: str) -> None:
    """c = a b in wrapping integers, any strides (bytes). A unit is one row of one c; inside, rows of b are added up."""
    element = ELEMENTS[dtype]
    a, b, c = f.ptr("a"), f.ptr("b"), f.ptr("c")
    m, n, k = f.i64("m"), f.i64("n"), f.i64("k")
    a_row, a_col, b_row, b_col, c_row, c_col = (f.i64(name) for name in ("a_row", "a_col", "b_row", "b_col", "c_row", "c_col"))
    sizes, (a_batch, b_batch, c_batch) = _batch(f, "abc")
    with f.loop(f.r0, f.r1) as unit:
        matrix, row = unit // m, unit % m
        at_a = _matrix(a, matrix, sizes, a_batch).at(row * a_row, I8)
        at_b = _matrix(b, matrix, sizes, b_batch)
        at_c = _matrix(c, matrix, sizes, c_batch).at(row * c_row, I8)
        with f.loop(0, n) as j:
            total = f.var(f.const(element.compute, 0))
            with f.loop(0, k) as i:
                product = element.load(at_a.at(i * a_col, I8)) * element.load(at_b.at(i * b_row + j * b_col, I8))
                total.set(total.get() + product)
            element.store(at_c.at(j * c_col, I8), total.get())
