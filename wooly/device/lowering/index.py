"""Reading and writing at positions that come from tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from wis.dtypes import FLOATS, DType
from wis.ops import ScatterMode
from wis.views import broadcast_shapes
from wooly.device.lowering.binary import scaled, scaled_bool
from wooly.device.lowering.dtypes import accumulate
from wooly.device.lowering.reduce import norm_over
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta, Unsupported, Value

__all__ = ["add_rows", "positions", "take_rows"]

_MASKS: Final = (DType.BOOL, DType.U8)
_OF_FLAGS: Final = {ScatterMode.ADD: ScatterMode.MAX, ScatterMode.MUL: ScatterMode.MIN}


def _i64(t: Trace, index: Meta) -> Meta:
    """An index of which a negative one counts from the end."""
    return t.cast(index, DType.I64)


def positions(t: Trace, index: Meta) -> Meta:
    """An index of which a negative one is out of bounds: the same bits without a sign."""
    return replace(_i64(t, index), dtype=DType.U64)


def take_rows(t: Trace, x: Meta, index: Meta) -> Meta:
    """x[index] along the first dimension: [*index.shape, *x.shape[1:]]. Negative ones are out of bounds."""
    out = t.temp(x.dtype, (*index.shape, *x.shape[1:]))
    t.emit("index", [out], [x, positions(t, index)])
    return out


def add_rows(t: Trace, out: Meta, index: Meta, rows: Meta, mode: ScatterMode = ScatterMode.ADD) -> None:
    """out[index] += rows along the first dimension, in row-major order of ``index``. Negative ones are out of bounds."""
    t.emit("index_put", [out], [rows, positions(t, index)], (mode,))


def _mode(dtype: DType, mode: ScatterMode) -> ScatterMode:
    """``mode`` as elements of ``dtype`` take it: a sum of bools is true where any is, a product where all are."""
    return _OF_FLAGS.get(mode, mode) if dtype == DType.BOOL else mode


# --- advanced indexing


class _AdvancedIndex:
    """x[.., index, .., index, ..] as WIS wants it: the indexed dimensions of x first, one common index shape."""

    def __init__(self, t: Trace, x: Meta, indices: Sequence[Meta | None]) -> None:
        given = [(d, i) for d, i in enumerate(indices) if i is not None]
        if not given:
            raise Unsupported("index with no index")
        if any(i.dtype in _MASKS for _, i in given):
            raise Unsupported("index by a mask: its size depends on data")
        self.shape = broadcast_shapes(*(i.shape for _, i in given))
        self.dims = [d for d, _ in given]
        self.indices = [_i64(t, i).expand(self.shape) for _, i in given]
        dims = self.dims
        rest = [d for d in range(x.ndim) if d not in dims]
        self.x = x.permute(dims + rest)
        adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
        # Where the index dimensions stand in the result: in place of adjacent indexed ones, else in front.
        self.lead = dims[0] if adjacent else 0
        self.rest = tuple(x.shape[d] for d in rest)

    def result_shape(self) -> tuple[int, ...]:
        return (*self.rest[: self.lead], *self.shape, *self.rest[self.lead :])

    def indexed_first(self, result: Meta) -> Meta:
        """A tensor of the result's shape, viewed as [*index shape, *rest]."""
        n, lead = len(self.shape), self.lead
        return result.permute((*range(lead, lead + n), *range(lead), *range(lead + n, result.ndim)))


@lowers("aten::index.Tensor", "aten::_unsafe_index.Tensor")
def index(t: Trace, x: Meta, indices: Sequence[Meta | None]) -> Meta:
    plan = _AdvancedIndex(t, x, indices)
    out = t.temp(x.dtype, plan.result_shape())
    if 0 in plan.x.shape and out.numel:
        raise Unsupported("index into an empty tensor")
    t.emit("index", [plan.indexed_first(out)], [plan.x, *plan.indices], along=plan.dims)
    return out


@lowers("aten::index_put", "aten::_unsafe_index_put")
def index_put(t: Trace, x: Meta, indices: Sequence[Meta | None], values: Value, accumulate: bool = False) -> Meta:
    if not isinstance(values, Meta):
        values = t.full((), values, x.dtype)
    values = t.cast(values, x.dtype)
    mask = _leading_mask(indices)
    if mask is not None:
        return _put_masked(t, x, mask, values, accumulate)
    out = t.copy(x)
    plan = _AdvancedIndex(t, out, indices)
    source = plan.indexed_first(values.expand(plan.result_shape()))
    mode = _mode(x.dtype, ScatterMode.ADD if accumulate else ScatterMode.SET)
    t.emit("index_put", [plan.x], [source, *plan.indices], (mode,), along=plan.dims)
    return out


@lowers("aten::_index_put_impl")
def index_put_impl(
    t: Trace, x: Meta, indices: Sequence[Meta | None], values: Value, accumulate: bool = False, unsafe: bool = False
) -> Meta:
    return index_put(t, x, indices, values, accumulate)


def _leading_mask(indices: Sequence[Meta | None]) -> Meta | None:
    """The mask of x[mask] (which then covers the first dimensions), or None for any other form."""
    first = indices[0] if indices else None
    if first is None or first.dtype not in _MASKS or any(i is not None for i in indices[1:]):
        return None
    return first


def _put_masked(t: Trace, x: Meta, mask: Meta, values: Meta, accumulate: bool) -> Meta:
    """x[mask] = values without knowing how many there are: the k-th true element takes row k of ``values``, or the one row there is."""
    rest = x.shape[mask.ndim :]
    if mask.shape != x.shape[: mask.ndim]:
        raise Unsupported("a mask of another shape")
    mask = t.cast(mask, DType.BOOL)
    wide_mask = mask.view((*mask.shape, *(1 for _ in rest)))
    wide_mask = t.copy(mask).view((*mask.shape, *(1 for _ in rest))) if wide_mask is None else wide_mask
    assert wide_mask is not None, "a trailing size of 1 always fits"
    if values.ndim > len(rest) and values.shape[0] != 1:
        if math.prod(mask.shape) == 0 or values.numel == 0:
            return x
        wrong = f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to the elements that the mask selects"
        _check_count(t, mask, "eq", values.shape[0], wrong)
        row = _rank_of_true(t, mask, values.shape[0])
        values = take_rows(t, values, row)
    elif values.ndim > len(rest):
        values = values.squeeze(0)
    wide_mask = wide_mask.expand(x.shape)
    if accumulate:
        values = t.map("or" if x.dtype == DType.BOOL else "add", x, values, dtype=x.dtype)
    return t.where(wide_mask, values, x, dtype=x.dtype)


def _check_count(t: Trace, mask: Meta, comparison: str, number: int, message: str) -> None:
    """The run traps unless the number of true elements compares so with ``number``."""
    count = t.reduce("sum", t.cast(mask, DType.I64), range(mask.ndim))
    t.check(t.map(comparison, count, number, dtype=DType.I64), message)


def _rank_of_true(t: Trace, mask: Meta, limit: int) -> Meta:
    """For every element of ``mask`` how many true ones come before it, kept inside [0, limit)."""
    flat = t.reshape(t.cast(mask, DType.I64), (mask.numel,))
    running = t.temp(DType.I64, flat.shape)
    t.emit("cumsum", [running], [flat], (0,))
    before = t.map("min", t.map("max", t.map("sub", running, 1), 0), limit - 1)
    return t.reshape(before, mask.shape)


@lowers("aten::masked_scatter")
def masked_scatter(t: Trace, x: Meta, mask: Meta, source: Meta) -> Meta:
    shape = broadcast_shapes(x.shape, mask.shape)
    x, mask = x.expand(shape), t.cast(mask, DType.BOOL).expand(shape)
    if x.numel == 0 or source.numel == 0:
        return x
    _check_count(t, mask, "le", source.numel, "Number of elements of source < number of ones in mask")
    row = _rank_of_true(t, mask, source.numel)
    values = take_rows(t, t.reshape(source, (source.numel,)), row)
    return t.where(mask, values, x, dtype=x.dtype)


# --- one dimension


def _front(x: Meta, dim: int) -> Meta:
    """``x`` with ``dim`` first; a 0-dim tensor as one element."""
    return x.unsqueeze(0) if x.ndim == 0 else x.move(dim % x.ndim, 0)


def _one(index: Meta) -> Meta:
    return index.unsqueeze(0) if index.ndim == 0 else index


@lowers("aten::index_select")
def index_select(t: Trace, x: Meta, dim: int, index: Meta) -> Meta:
    if x.ndim == 0:
        return t.copy(x)
    dim %= x.ndim
    out = t.temp(x.dtype, (*x.shape[:dim], _one(index).shape[0], *x.shape[dim + 1 :]))
    t.emit("index", [_front(out, dim)], [_front(x, dim), positions(t, _one(index))], along=[dim])
    return out


def _put_along(t: Trace, x: Meta, dim: int, index: Meta, source: Meta, mode: ScatterMode) -> Meta:
    wide = accumulate(x.dtype) if mode in (ScatterMode.ADD, ScatterMode.MUL) else x.dtype
    out = t.copy(x, wide)
    rows = t.cast(source, wide)
    rows = _front(rows, dim) if rows.ndim == max(x.ndim, 1) or x.ndim == 0 else rows.unsqueeze(0)
    target = _front(out, dim)
    index = _one(index)
    rows = rows.expand((index.shape[0], *target.shape[1:]))
    t.emit("index_put", [target], [rows, positions(t, index)], (_mode(wide, mode),), along=[dim % max(x.ndim, 1)])
    return out


@lowers("aten::index_add", special={"alpha": (1,)})
def index_add(t: Trace, x: Meta, dim: int, index: Meta, source: Meta, *, alpha: Value = 1) -> Meta:
    rows = scaled_bool(t, source, alpha) if x.dtype == DType.BOOL else scaled(t, source, alpha, accumulate(x.dtype))
    assert isinstance(rows, Meta)
    return _put_along(t, x, dim, index, rows, ScatterMode.ADD)


@lowers("aten::index_copy")
def index_copy(t: Trace, x: Meta, dim: int, index: Meta, source: Meta) -> Meta:
    return _put_along(t, x, dim, index, source, ScatterMode.SET)


@lowers("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor")
def index_fill(t: Trace, x: Meta, dim: int, index: Meta, value: Value) -> Meta:
    out = t.copy(x)
    target, index = _front(out, dim), _one(index)
    number = t.cast(value, x.dtype) if isinstance(value, Meta) else t.full((), value, x.dtype)
    number = number.expand((index.shape[0], *target.shape[1:]))
    t.emit("index_put", [target], [number, _i64(t, index)], (ScatterMode.SET,), along=[dim % max(x.ndim, 1)])
    return out


_REDUCTIONS: Final = {
    "sum": ScatterMode.ADD, "add": ScatterMode.ADD, "prod": ScatterMode.MUL, "multiply": ScatterMode.MUL, "amax": ScatterMode.MAX,
    "amin": ScatterMode.MIN, "mean": ScatterMode.ADD,
}  # fmt: skip


def _identity(dtype: DType, mode: ScatterMode) -> int | float | bool:
    """The number that changes nothing under ``mode``."""
    if mode == ScatterMode.ADD:
        return 0
    if mode == ScatterMode.MUL:
        return 1
    if dtype in FLOATS:
        return -math.inf if mode == ScatterMode.MAX else math.inf
    if dtype == DType.BOOL:
        return mode == ScatterMode.MIN
    bits, signed = 8 * dtype.itemsize, dtype.name.startswith("I")
    least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return least if mode == ScatterMode.MAX else most


@lowers("aten::index_reduce")
def index_reduce(t: Trace, x: Meta, dim: int, index: Meta, source: Meta, reduce: str, *, include_self: bool = True) -> Meta:
    mode = _REDUCTIONS[reduce]
    if not include_self:
        cleared = index_fill(t, x, dim, index, _identity(x.dtype, mode))
        out = _put_along(t, cleared, dim, index, source, mode)
    else:
        out = _put_along(t, x, dim, index, source, mode)
    if reduce != "mean":
        return out
    counts = t.full(x.shape, 1 if include_self else 0, out.dtype)
    counts = _put_along(t, counts, dim, index, t.full((), 1, out.dtype).expand(source.shape), ScatterMode.ADD)
    return _divide_mean(t, out, counts)


def _divide_mean(t: Trace, total: Meta, counts: Meta) -> Meta:
    counts = t.map("max", counts, 1, dtype=counts.dtype)
    return t.map("div" if total.dtype in FLOATS or total.dtype.is_complex else "floor_div", total, counts)


# --- gather and scatter


@lowers("aten::gather")
def gather(t: Trace, x: Meta, dim: int, index: Meta, *, sparse_grad: bool = False) -> Meta:
    if x.ndim == 0 or index.ndim == 0:
        return t.reshape(gather(t, _one(x), 0, _one(index)), index.shape)
    out = t.temp(x.dtype, index.shape)
    t.emit("gather", [out], [x, positions(t, index)], (dim % x.ndim,))
    return out


def _scatter(t: Trace, x: Meta, dim: int, index: Meta, source: Value, mode: ScatterMode) -> Meta:
    if index.numel == 0:
        return x
    wide = accumulate(x.dtype) if mode in (ScatterMode.ADD, ScatterMode.MUL) else x.dtype
    out = t.copy(x, wide)
    target, index = _one(out), _one(index)
    if isinstance(source, Meta):
        source = t.cast(_one(source), wide)
        for d, size in enumerate(index.shape):
            source = source.narrow(d, 0, size)
    else:
        source = t.full((), source, wide).expand(index.shape)
    t.emit("scatter", [target], [source, positions(t, index)], (dim % target.ndim, _mode(wide, mode)))
    return out


@lowers("aten::scatter.src", "aten::scatter.value")
def scatter(t: Trace, x: Meta, dim: int, index: Meta, src: Value) -> Meta:
    return _scatter(t, x, dim, index, src, ScatterMode.SET)


@lowers("aten::scatter.reduce", "aten::scatter.value_reduce")
def scatter_with(t: Trace, x: Meta, dim: int, index: Meta, src: Value, *, reduce: str) -> Meta:
    return _scatter(t, x, dim, index, src, _REDUCTIONS[reduce])


@lowers("aten::scatter_add")
def scatter_add(t: Trace, x: Meta, dim: int, index: Meta, src: Meta) -> Meta:
    return _scatter(t, x, dim, index, src, ScatterMode.ADD)


@lowers("aten::scatter_reduce.two")
def scatter_reduce(t: Trace, x: Meta, dim: int, index: Meta, src: Meta, reduce: str, *, include_self: bool = True) -> Meta:
    mode = _REDUCTIONS[reduce]
    if index.numel == 0:
        return x
    if x.dtype == DType.BOOL and reduce == "mean":
        raise Unsupported("the mean of bools")
    start = x if include_self else _scatter(t, x, dim, index, _identity(x.dtype, mode), ScatterMode.SET)
    out = _scatter(t, start, dim, index, src, mode)
    if reduce != "mean":
        return out
    counts = t.full(x.shape, 1 if include_self else 0, out.dtype)
    return _divide_mean(t, out, _scatter(t, counts, dim, index, 1, ScatterMode.ADD))


# --- flat positions


@lowers("aten::take")
def take(t: Trace, x: Meta, index: Meta) -> Meta:
    out = t.temp(x.dtype, index.shape)
    t.emit("index", [out], [t.reshape(x, (x.numel,)), _i64(t, index)])
    return out


@lowers("aten::put")
def put(t: Trace, x: Meta, index: Meta, source: Meta, accumulate: bool = False) -> Meta:
    if index.numel == 0:
        return x
    out = t.copy(x)
    flat = t.reshape(out, (out.numel,))
    n = index.numel
    mode = ScatterMode.ADD if accumulate else ScatterMode.SET
    t.emit("index_put", [flat], [t.cast(t.reshape(source, (n,)), x.dtype), _i64(t, t.reshape(index, (n,)))], (mode,))
    return out


# --- embeddings


@lowers("aten::embedding")
def embedding(t: Trace, weight: Meta, indices: Meta, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False) -> Meta:
    return take_rows(t, weight, indices)


@lowers("aten::embedding_dense_backward")
def embedding_dense_backward(t: Trace, dy: Meta, indices: Meta, num_weights: int, padding_idx: int, scale_grad_by_freq: bool) -> Meta:
    wide = accumulate(dy.dtype)
    rows = t.cast(dy, wide)
    column = indices.unsqueeze(-1)
    if scale_grad_by_freq:
        counts = t.full((num_weights,), 0, wide)
        add_rows(t, counts, indices, t.full((), 1, wide).expand(indices.shape))
        rows = t.map("div", rows, take_rows(t, counts, indices).unsqueeze(-1))
    if padding_idx >= 0:
        rows = t.where(t.map("eq", column, padding_idx, dtype=indices.dtype), 0, rows, dtype=wide)
    out = t.full((num_weights, dy.shape[-1]), 0, wide)
    add_rows(t, out, indices, rows)
    return out


@lowers("aten::embedding_renorm_", mutates=(0,), concrete=("norm_type",))
def embedding_renorm(t: Trace, weight: Meta, indices: Meta, max_norm: Value, norm_type: float) -> None:
    """Rows named by ``indices`` whose norm passes ``max_norm`` are scaled down to it (a row named twice gets the same value twice)."""
    index = t.reshape(indices, (indices.numel,))
    rows = t.acc(take_rows(t, weight, index))
    norm = norm_over(t, rows, norm_type, [1], True)
    factor = t.map("div", t.full((), max_norm, rows.dtype), t.map("add", norm, 1e-7))
    scaled_rows = t.where(t.map("gt", norm, max_norm), t.map("mul", rows, factor), rows, dtype=rows.dtype)
    out = t.copy(weight)
    add_rows(t, out, index, t.cast(scaled_rows, weight.dtype), ScatterMode.SET)
    t.write(weight, out)
