"""matmul -> records: our tiles or a BLAS call, on which blocks, with which operands packed or converted first."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Final

from jit.errors import Inexpressible
from jit.host.library import blas
from jit.host.library.build import Build, View, view
from jit.host.library.kernels.gemm import BATCH_RANK
from jit.host.library.kernels.tiles import product_scratch
from jit.host.library.nest import space
from jit.host.record import Arg, Record, Symbol
from jit.plan.access import overlaps
from wis.dtypes import ACCUMULATE, DType
from wis.program import BoundInstr

BLAS_LETTER: Final = {DType.F32: "s", DType.F64: "d", DType.C64: "c", DType.C128: "z"}

_TILED: Final = (DType.F32, DType.F64)
_FLOPS_PER_NS: Final = 120.0
_BLOCK_FLOPS: Final = 8e6  # a unit: some 60 us
_MANY_UNITS: Final = 64  # at which they grow
_LONG_FLOPS: Final = 1e8  # at which they do not grow any more: a run can only stop between units
_MAX_WIDTH: Final = 512  # columns of a block, so that its slab of b stays in L2
_MIN_HEIGHT: Final = 192  # rows of a block: every block packs its own slab of b
_MIN_WIDTH: Final = 128
_FEW_ROWS: Final = 3  # so few are done one by one, as vectors


def matmul(instr: BoundInstr) -> list[Record] | None:
    """[..., m, k] x [..., k, n] -> [..., m, n] for every type but bool."""
    build = Build()
    a, b = (view(x) for x in instr.ins)
    out = view(instr.outs[0])
    if out.numel == 0:
        return []
    target = build.temp(out.dtype, out.shape) if overlaps(instr) else out
    product(build, a, b, target)
    if target is not out:
        build.copy(target, out)
    return build.records


def product(build: Build, a: View, b: View, out: View) -> None:
    """out = a b for any strides; ``out`` must not share memory with ``a`` or ``b`` and must not be empty."""
    if a.shape[-1] == 0:
        build.zero(out)
        return
    if out.dtype in BLAS_LETTER:
        _batched(build, a, b, out)
    elif out.dtype in ACCUMULATE:
        wide = ACCUMULATE[out.dtype]
        result = build.temp(wide, out.shape)
        product(build, build.packed(_shrunk(a), wide), build.packed(_shrunk(b), wide), result)
        build.copy(result, out)
    elif out.dtype.is_integer:
        _native(build, a, b, out)
    else:
        raise Inexpressible("matmul of bool")


def _shrunk(x: View) -> View:
    """The same view with repeated batch dimensions (stride 0) kept to one repeat, so that packing does not multiply them."""
    lead = len(x.shape) - 2
    shape = tuple(1 if d < lead and stride == 0 else size for d, (size, stride) in enumerate(zip(x.shape, x.strides, strict=True)))
    return replace(x, shape=shape)


def _batch_strides(x: View, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of the batch dimensions, 0 where ``x`` was kept to one repeat."""
    return tuple(0 if size == 1 else stride for size, stride, _ in zip(x.shape[:-2], x.strides[:-2], batch, strict=True))


def _leading(rows: int, columns: int, row_stride: int, column_stride: int) -> tuple[bool, int] | None:
    """(transposed?, leading dimension) of a matrix that BLAS can read as row-major, or None."""
    if (column_stride == 1 or columns == 1) and (row_stride >= columns or rows == 1):
        return False, max(row_stride if rows > 1 else 0, columns, 1)
    if (row_stride == 1 or rows == 1) and (column_stride >= rows or columns == 1):
        return True, max(column_stride if columns > 1 else 0, rows, 1)
    return None


def _readable(build: Build, x: View) -> View:
    """``x``, or a packed copy when BLAS cannot read its matrices."""
    if _leading(*x.shape[-2:], *x.strides[-2:]) is None:
        return build.packed(_shrunk(x))
    return x


def _batched(build: Build, a: View, b: View, out: View) -> None:
    """Types that BLAS knows: make the operands fit for the way they go, then walk the batch."""
    if not blas.available() and out.dtype not in _TILED:
        raise Inexpressible("no BLAS")
    by_vectors = out.dtype in _TILED and blas.available() and (a.shape[-2] == 1 or b.shape[-1] == 1)
    if by_vectors or out.dtype not in _TILED:
        a, b = _readable(build, a), _readable(build, b)
    target = out if _leading(*out.shape[-2:], *out.strides[-2:]) is not None else build.temp(out.dtype, out.shape)
    batch = target.shape[:-2]
    strides = {"a": _batch_strides(a, batch), "b": _batch_strides(b, batch), "c": target.strides[:-2]}
    _over_batches(build, a, b, target, batch, strides)
    if target is not out:
        build.copy(target, out)


def _over_batches(build: Build, a: View, b: View, c: View, batch: tuple[int, ...], strides: dict[str, tuple[int, ...]]) -> None:
    """Emit one record, or several when more batch dimensions remain after merging than a record can walk."""
    over = space(batch, strides, block=1)
    extra = over.sizes[:-BATCH_RANK]
    count = prod(extra)
    if count > 64:
        raise Inexpressible("too many separate batches")
    views = {"a": a, "b": b, "c": c}
    for number in range(count):
        shift, rest = dict.fromkeys("abc", 0), number
        for d in reversed(range(len(extra))):
            rest, index = divmod(rest, extra[d])
            for name in shift:
                shift[name] += index * over.strides[name][d]
        x, y, z = (replace(views[name], offset=views[name].offset + shift[name]) for name in "abc")
        kept = {name: over.strides[name][len(extra) :] for name in "abc"}
        _one(build, x, y, z, over.sizes[len(extra) :], kept)


def _batch_args(sizes: tuple[int, ...], strides: dict[str, tuple[int, ...]], itemsize: int) -> dict[str, Arg]:
    pad = BATCH_RANK - len(sizes)
    args: dict[str, Arg] = {f"batch{d}": size for d, size in enumerate(((1,) * pad + sizes)[1:])}
    for name, steps in strides.items():
        args |= {f"{name}_batch{d}": step * itemsize for d, step in enumerate((0,) * pad + steps)}
    return args


def _turned(x: View) -> View:
    last = len(x.shape) - 1
    return x.permute(*range(last - 1), last, last - 1)


def _one(build: Build, a: View, b: View, c: View, sizes: tuple[int, ...], strides: dict[str, tuple[int, ...]]) -> None:
    """One record for a batch of at most BATCH_RANK dimensions."""
    (m, n), c_col = c.shape[-2:], c.strides[-1]
    if c.dtype not in _TILED:
        _blas(build, a, b, c, sizes, strides)
    elif m > 1 and n == 1 and _vector_fits(a, b, c):
        _vector(build, a, b, c, sizes, strides)
    elif 1 < m <= _FEW_ROWS and n > 1 and b.strides[-2] == 1 and len(sizes) < BATCH_RANK and _vector_fits(*_swapped(a, b, c)):
        _row_by_row(build, a, b, c, sizes, strides)
    elif m > 1 and (c_col == 1 or n == 1):
        _tiled(build, a, b, c, sizes, strides)
    else:
        x, y, z = _swapped(a, b, c)
        swapped = {"a": strides["b"], "b": strides["a"], "c": strides["c"]}
        if m == 1 and n > 1 and _vector_fits(x, y, z):
            _vector(build, x, y, z, sizes, swapped)
        elif c_col == 1 or n == 1:
            _tiled(build, a, b, c, sizes, strides)
        else:
            _tiled(build, x, y, z, sizes, swapped)


def _swapped(a: View, b: View, c: View) -> tuple[View, View, View]:
    """The same product transposed: c' = b' a'."""
    return _turned(b), _turned(a), _turned(c)


def _vector_fits(a: View, b: View, c: View) -> bool:
    """Whether gemv can do c [m, 1] = a b (or each column of c on its own)."""
    return blas.available() and _leading(*a.shape[-2:], *a.strides[-2:]) is not None and b.strides[-2] > 0 and c.strides[-2] > 0


def _row_by_row(build: Build, a: View, b: View, c: View, sizes: tuple[int, ...], strides: dict[str, tuple[int, ...]]) -> None:
    """A few rows times a transposed matrix, each on its own: packing would cost more than reading the matrix once for every row."""
    m = a.shape[-2]
    rows = {"a": a.strides[-2], "b": 0, "c": c.strides[-2]}
    x, z = (replace(v, shape=(*v.shape[:-2], 1, v.shape[-1])) for v in (a, c))
    with_rows = {name: (*steps, rows[name]) for name, steps in strides.items()}
    swapped = {"a": with_rows["b"], "b": with_rows["a"], "c": with_rows["c"]}
    _vector(build, *_swapped(x, b, z), (*sizes, m), swapped)


def _blocks_of(m: int, n: int, k: int, matrices: int) -> tuple[int, int]:
    """Size of a block in rows and columns."""
    along_m, along_n = 1, -(-n // _MAX_WIDTH)
    flops = 2.0 * m * n * k * matrices
    parts = min(max(_MANY_UNITS, flops / _LONG_FLOPS), int(flops / _BLOCK_FLOPS)) / matrices
    while along_m * along_n < parts:
        if n // (2 * along_n) >= _MIN_WIDTH:
            along_n *= 2
        elif m // (2 * along_m) >= _MIN_HEIGHT:
            along_m *= 2
        else:
            break
    return _even(m, along_m, 24), _even(n, along_n, 64)


def _even(size: int, parts: int, multiple: int) -> int:
    """The size of one of ``parts`` near-equal pieces, a multiple of ``multiple`` when there are several."""
    return size if parts == 1 else -(-size // (multiple * parts)) * multiple


def _pack_rows(a: View, n_block: int) -> bool:
    """Whether a is better copied before use: it pays when many columns read it, and its own layout would thrash caches."""
    row_bytes = a.strides[-2] * a.dtype.itemsize
    if a.strides[-1] != 1:
        return n_block >= 96
    return n_block >= 192 and a.shape[-2] > 12 and row_bytes % 2048 == 0


def _tiled(build: Build, a: View, b: View, c: View, sizes: tuple[int, ...], strides: dict[str, tuple[int, ...]]) -> None:
    """Our own product: any layouts of a and b; rows of c are neighbours."""
    (m, k), n, count, itemsize = a.shape[-2:], b.shape[-1], prod(sizes), c.dtype.itemsize
    m_block, n_block = _blocks_of(m, n, k, count)
    n_blocks, blocks = -(-n // n_block), -(-m // m_block) * -(-n // n_block)
    args: dict[str, Arg] = {
        "m": m, "n": n, "k": k, "a": a.ptr(), "b": b.ptr(), "c": c.ptr(),
        "a_row": a.strides[-2], "a_col": a.strides[-1], "b_row": b.strides[-2], "b_col": b.strides[-1], "c_row": c.strides[-2],
        "m_block": m_block, "n_block": n_block, "n_blocks": n_blocks, "blocks": blocks, "pack_a": int(_pack_rows(a, n_block)),
        **_batch_args(sizes, strides, itemsize),
    }  # fmt: skip
    grain = 2.0 * m_block * n_block * k / _FLOPS_PER_NS + n_block * k * 0.15 + 100
    scratch = product_scratch(m_block, n_block, k, itemsize)
    build.call(f"product.{c.dtype.text}", units=count * blocks, grain=grain, reads=(a, b), writes=(c,), args=args, scratch_bytes=scratch)


def _blas(build: Build, a: View, b: View, c: View, sizes: tuple[int, ...], strides: dict[str, tuple[int, ...]]) -> None:
    """Complex types, one matrix a unit."""
    (m, k), n, itemsize = a.shape[-2:], b.shape[-1], c.dtype.itemsize
    layouts = [_leading(*x.shape[-2:], *x.strides[-2:]) for x in (a, b, c)]
    (a_trans, lda), (b_trans, ldb), (c_trans, ldc) = (x for x in layouts if x is not None)
    args: dict[str, Arg] = {
        "blas": Symbol(BLAS_LETTER[c.dtype] + "gemm"),
        "order": blas.COL_MAJOR if c_trans else blas.ROW_MAJOR,
        # a column-major call reads row-major operands as transposed ones
        "a_trans": blas.TRANS if a_trans != c_trans else blas.NO_TRANS,
        "b_trans": blas.TRANS if b_trans != c_trans else blas.NO_TRANS,
        "m": m, "n": n, "k": k, "a": a.ptr(), "b": b.ptr(), "c": c.ptr(), "lda": lda, "ldb": ldb, "ldc": ldc,
        **_batch_args(sizes, strides, itemsize),
    }  # fmt: skip
    grain = 8.0 * m * n * k / _FLOPS_PER_NS + 150
    build.call(f"gemm.{c.dtype.text}", units=prod(sizes), grain=grain, reads=(a, b), writes=(c,), args=args)


def _vector(build: Build, a: View, b: View, c: View, sizes: tuple[int, ...], strides: dict[str, tuple[int, ...]]) -> None:
    """c [m, 1] = a [m, k] b [k, 1] through gemv."""
    m, k = a.shape[-2:]
    layout = _leading(m, k, *a.strides[-2:])
    assert layout is not None
    trans, lda = layout
    count, itemsize = prod(sizes), c.dtype.itemsize
    parts = max(1, min(8, int(m * k / 32768), m // 64)) if count < 8 else 1
    m_block = _even(m, parts, 16)
    blocks = -(-m // m_block)
    args: dict[str, Arg] = {
        "blas": Symbol(BLAS_LETTER[c.dtype] + "gemv"), "order": blas.ROW_MAJOR,
        "trans": blas.TRANS if trans else blas.NO_TRANS, "plain": int(not trans),
        "m": m, "k": k, "a": a.ptr(), "b": b.ptr(), "c": c.ptr(),
        "lda": lda, "incx": b.strides[-2] if k > 1 else 1, "incy": c.strides[-2],
        "m_block": m_block, "blocks": blocks, "a_row": a.strides[-2] * itemsize, "c_row": c.strides[-2] * itemsize,
        **_batch_args(sizes, strides, itemsize),
    }  # fmt: skip
    grain = m_block * k / 8 + 100
    build.call(f"gemv.{c.dtype.text}", units=count * blocks, grain=grain, reads=(a, b), writes=(c,), args=args)


def _native(build: Build, a: View, b: View, c: View) -> None:
    """Integers: one native loop nest, any strides."""
    (m, k), n, itemsize = a.shape[-2:], b.shape[-1], c.dtype.itemsize
    batch = c.shape[:-2]
    over = space(batch, {"a": a.strides[:-2], "b": b.strides[:-2], "c": c.strides[:-2]}, block=1)
    if over.rank > BATCH_RANK:
        raise Inexpressible("too many batch dimensions")
    args: dict[str, Arg] = {"a": a.ptr(), "b": b.ptr(), "c": c.ptr(), "m": m, "n": n, "k": k}
    for name, x in (("a", a), ("b", b), ("c", c)):
        args |= {f"{name}_row": x.strides[-2] * itemsize, f"{name}_col": x.strides[-1] * itemsize}
    args |= _batch_args(over.sizes, {name: over.strides[name] for name in "abc"}, itemsize)
    build.call(f"igemm.{c.dtype.text}", units=prod(batch) * m, grain=n * k * 1.0, reads=(a, b), writes=(c,), args=args)
