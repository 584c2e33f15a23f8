"""Sorting, selection by rank, and running results along a dimension."""

from __future__ import annotations

import math
from typing import Final

import torch

from wis.dtypes import COMPLEX, FLOATS, DType
from wis.ops import ScatterMode
from wooly.device.lowering.dtypes import accumulate, result_type, wis_dtype
from wooly.device.lowering.index import add_rows, positions
from wooly.device.lowering.reduce import arg_extreme
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta, Unsupported, Value

__all__: list[str] = []


def _ordered(t: Trace, x: Meta) -> Meta:
    """Bools sort as small integers."""
    return t.cast(x, DType.U8) if x.dtype == DType.BOOL else x


def _alone(t: Trace, x: Meta) -> list[Meta]:
    """A single element in any order, with index 0."""
    return [t.copy(x), t.full((), 0, DType.I64)]


def _sorted(t: Trace, x: Meta, dim: int, descending: bool = False) -> list[Meta]:
    if x.ndim == 0:
        return _alone(t, x)
    x = _ordered(t, x)
    outs = [t.temp(x.dtype, x.shape), t.temp(DType.I64, x.shape)]
    t.emit("sort", outs, [x], (dim % x.ndim, descending))
    return outs


@lowers("aten::sort")
def sort(t: Trace, x: Meta, dim: int = -1, descending: bool = False) -> list[Meta]:
    return _sorted(t, x, dim, descending)


@lowers("aten::sort.stable")
def sort_stable(t: Trace, x: Meta, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> list[Meta]:
    return _sorted(t, x, dim, descending)


@lowers("aten::topk")
def topk(t: Trace, x: Meta, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Meta]:
    if x.ndim == 0:
        return _alone(t, x)  # also where k is 0
    dim %= x.ndim
    x = _ordered(t, x)
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :])
    outs = [t.temp(x.dtype, shape), t.temp(DType.I64, shape)]
    t.emit("topk", outs, [x], (dim, largest))
    return outs


def _ranked(t: Trace, x: Meta, dim: int, rank: int, keepdim: bool) -> list[Meta]:
    """The element of ``rank`` (from 0) in ascending order along ``dim``, with its index."""
    if x.ndim == 0:
        return _alone(t, x)
    found = [part.narrow(dim % x.ndim, rank, 1) for part in _sorted(t, x, dim)]
    return found if keepdim else [part.squeeze(dim % x.ndim) for part in found]


@lowers("aten::kthvalue")
def kthvalue(t: Trace, x: Meta, k: int, dim: int = -1, keepdim: bool = False) -> list[Meta]:
    return _ranked(t, x, dim, k - 1, keepdim)


@lowers("aten::median.dim")
def median_dim(t: Trace, x: Meta, dim: int, keepdim: bool = False) -> list[Meta]:
    """The lower middle; a NaN anywhere wins, by its first position."""
    if x.ndim == 0:
        return _alone(t, x)
    dim %= x.ndim
    value, place = _ranked(t, x, dim, (x.shape[dim] - 1) // 2, keepdim)
    if x.dtype not in FLOATS:
        return [value, place]
    top = t.reduce("reduce_max", x, [dim], keepdim)
    first_nan = arg_extreme(t, "argmax", x, dim, keepdim)
    is_nan = t.map("is_nan", top)
    return [t.where(is_nan, top, value, dtype=x.dtype), t.where(is_nan, first_nan, place, dtype=DType.I64)]


@lowers("aten::median")
def median(t: Trace, x: Meta) -> Meta:
    if x.numel == 0:
        return t.full((), math.nan, x.dtype)
    return median_dim(t, t.reshape(x, (x.numel,)), 0)[0]


@lowers("aten::nanmedian.dim")
def nanmedian_dim(t: Trace, x: Meta, dim: int, keepdim: bool = False) -> list[Meta]:
    """The lower middle of what is not NaN: NaNs sort last, so its rank is (count - 1) // 2."""
    if x.ndim == 0:
        return _alone(t, x)
    if x.dtype not in FLOATS:
        return median_dim(t, x, dim, keepdim)
    dim %= x.ndim
    values, places = _sorted(t, x, dim)
    present = t.reduce("sum", t.map("not", t.map("is_nan", x)), [dim], True, DType.I64)
    rank = t.map("max", t.map("floor_div", t.map("sub", present, 1), 2), 0)
    found = [_gathered(t, part, rank, dim) for part in (values, places)]
    return found if keepdim else [part.squeeze(dim) for part in found]


@lowers("aten::nanmedian")
def nanmedian(t: Trace, x: Meta) -> Meta:
    if x.numel == 0:
        return t.full((), math.nan, x.dtype)
    return nanmedian_dim(t, t.reshape(x, (x.numel,)), 0)[0]


@lowers("aten::mode")
def mode(t: Trace, x: Meta, dim: int = -1, keepdim: bool = False) -> list[Meta]:
    """The least of the most frequent: in sorted order, the first element whose run is longest."""
    if x.ndim == 0:
        return _alone(t, x)
    dim %= x.ndim
    values, places = _sorted(t, x, dim)
    n = x.shape[dim]
    change = t.full(x.shape, 0, DType.I64)
    t.store(change.narrow(dim, 1, n - 1), t.map("ne", values.narrow(dim, 1, n - 1), values.narrow(dim, 0, n - 1)))
    group = _running(t, "cumsum", change, dim, DType.I64)
    lengths = t.full(x.shape, 0, DType.I64)
    t.emit("scatter", [lengths], [t.full((), 1, DType.I64).expand(x.shape), group], (dim, ScatterMode.ADD))
    best = arg_extreme(t, "argmax", _gathered(t, lengths, group, dim), dim, True)
    found = [_gathered(t, part, best, dim) for part in (values, places)]
    return found if keepdim else [part.squeeze(dim) for part in found]


def _gathered(t: Trace, x: Meta, index: Meta, dim: int) -> Meta:
    out = t.temp(x.dtype, index.shape)
    t.emit("gather", [out], [x, index], (dim,))
    return out


@lowers("aten::nonzero_static")
def nonzero_static(t: Trace, x: Meta, *, size: int, fill_value: int = -1) -> Meta:
    """The first ``size`` index rows of true elements, [size, rank]; rows beyond their count hold ``fill_value``."""
    if size == 0 or x.ndim == 0 or x.numel == 0:
        return t.full((size, x.ndim), fill_value, DType.I64)
    rows, count = t.temp(DType.I64, (x.numel, x.ndim)), t.temp(DType.I64, (1,))
    t.emit("nonzero", [rows, count], [x])
    used = min(size, x.numel)
    out = t.full((size, x.ndim), fill_value, DType.I64)
    valid = t.map("lt", t.iota(used), count).unsqueeze(-1)
    t.store(out.narrow(0, 0, used), t.where(valid, rows.narrow(0, 0, used), fill_value, dtype=DType.I64))
    return out


# --- running results


def _running_dtype(x: Meta, dtype: torch.dtype | None) -> DType:
    if dtype is not None:
        return wis_dtype(dtype)
    return x.dtype if x.dtype in FLOATS or x.dtype in COMPLEX else DType.I64


def _running(t: Trace, name: str, x: Meta, dim: int, dtype: DType) -> Meta:
    x = t.cast(x, dtype)
    if x.ndim == 0:
        return x
    out = t.temp(dtype, x.shape)
    t.emit(name, [out], [x], (dim % x.ndim,))
    return out


_RUNNING_MAX: Final = 1024


@lowers("aten::cumsum")
def cumsum(t: Trace, x: Meta, dim: int, *, dtype: torch.dtype | None = None) -> Meta:
    """Sums start from +0, so that none is -0. Long ones run in f64, as on torch's CPU: in f32 each addition may lose half a place."""
    dtype_ = _running_dtype(x, dtype)
    long = dtype_ in FLOATS and x.ndim > 0 and x.shape[dim] > _RUNNING_MAX
    running = t.cast(_running(t, "cumsum", t.cast(x, dtype_), dim, DType.F64 if long else dtype_), dtype_)
    return t.map("add", running, 0.0) if running.dtype in FLOATS and x.ndim else running


@lowers("aten::cumprod")
def cumprod(t: Trace, x: Meta, dim: int, *, dtype: torch.dtype | None = None) -> Meta:
    return _running(t, "cumprod", x, dim, _running_dtype(x, dtype))


@lowers("aten::cummax")
def cummax(t: Trace, x: Meta, dim: int) -> list[Meta]:
    return _running_extreme(t, "cummax", x, dim)


@lowers("aten::cummin")
def cummin(t: Trace, x: Meta, dim: int) -> list[Meta]:
    return _running_extreme(t, "cummin", x, dim)


def _running_extreme(t: Trace, name: str, x: Meta, dim: int) -> list[Meta]:
    if x.ndim == 0:
        return _alone(t, x)
    x = _ordered(t, x)
    outs = [t.temp(x.dtype, x.shape), t.temp(DType.I64, x.shape)]
    t.emit(name, outs, [x], (dim % x.ndim,))
    return outs


@lowers("aten::_cummax_helper", mutates=(1, 2))
def cummax_helper(t: Trace, x: Meta, values: Meta, indices: Meta, dim: int) -> None:
    for target, part in zip((values, indices), cummax(t, x, dim), strict=True):
        t.write(target, part)


@lowers("aten::_cummin_helper", mutates=(1, 2))
def cummin_helper(t: Trace, x: Meta, values: Meta, indices: Meta, dim: int) -> None:
    for target, part in zip((values, indices), cummin(t, x, dim), strict=True):
        t.write(target, part)


@lowers("aten::logcumsumexp", "aten::_logcumsumexp")
def logcumsumexp(t: Trace, x: Meta, dim: int) -> Meta:
    """log(cumsum(exp(x - m))) + m with m the running maximum would mix maxima, so every prefix sums its own exponentials: [.., n, n]."""
    if x.dtype in COMPLEX:
        raise Unsupported("logcumsumexp of a complex tensor")
    if x.ndim == 0 or x.numel == 0:
        return x
    dim %= x.ndim
    n = x.shape[dim]
    if x.numel * n > 1 << 24:
        raise Unsupported("logcumsumexp along a long dimension")
    wide = t.acc(x).move(dim, -1)
    top = _running_extreme(t, "cummax", wide, wide.ndim - 1)[0]
    top = t.where(t.map("is_inf", top), 0.0, top, dtype=top.dtype)
    row, column = t.iota(n), t.iota(n)
    inside = t.map("le", column.unsqueeze(0), row.unsqueeze(-1), dtype=DType.I64)
    terms = t.map("exp", t.map("sub", wide.unsqueeze(-2), top.unsqueeze(-1)))
    total = t.reduce("sum", t.where(inside.expand(terms.shape), terms, 0.0, dtype=terms.dtype), [terms.ndim - 1])
    return t.map("add", t.map("log", total), top).move(-1, dim)


# --- search


@lowers("aten::searchsorted.Tensor", "aten::searchsorted.Scalar")
def searchsorted(
    t: Trace,
    boundaries: Meta,
    values: Value,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Meta | None = None,
) -> Meta:
    if sorter is not None:
        out = t.temp(boundaries.dtype, boundaries.shape)
        t.emit("gather", [out], [boundaries, positions(t, sorter)], (boundaries.ndim - 1,))
        boundaries = out
    return _search(t, boundaries, values, right or side == "right")


@lowers("aten::bucketize.Tensor")
def bucketize(t: Trace, x: Meta, boundaries: Meta, *, out_int32: bool = False, right: bool = False) -> Meta:
    return _search(t, boundaries, x, right)


@lowers("aten::bucketize.Scalar")
def bucketize_scalar(t: Trace, x: Value, boundaries: Meta, *, out_int32: bool = False, right: bool = False) -> Meta:
    return _search(t, boundaries, x, right)


def _search(t: Trace, boundaries: Meta, values: Value, right: bool) -> Meta:
    """Positions of ``values`` in sorted ``boundaries``: row by row, or all in one row when there is only one."""
    if not isinstance(values, Meta):
        values = t.full((), values, result_type((boundaries, values)))
    dtype = result_type((boundaries, values))
    boundaries, rows = t.cast(boundaries, dtype), t.cast(values, dtype)
    if boundaries.ndim == 1 and rows.ndim != 1:
        rows = t.reshape(rows, (rows.numel,))
    out = t.temp(DType.I64, rows.shape)
    t.emit("search_sorted", [out], [boundaries, rows], (right,))
    return t.reshape(out, values.shape)


@lowers("aten::isin.Tensor_Tensor", concrete=("invert",))
def isin(t: Trace, x: Value, tests: Value, *, assume_unique: bool = False, invert: bool = False) -> Meta:
    return _is_in(t, x, tests, invert)


@lowers("aten::isin.Tensor_Scalar", "aten::isin.Scalar_Tensor")
def isin_scalar(t: Trace, x: Value, tests: Value, *, assume_unique: bool = False, invert: bool = False) -> Meta:
    return _is_in(t, x, tests, invert)


def _is_in(t: Trace, x: Value, tests: Value, invert: bool) -> Meta:
    if isinstance(x, Meta) and x.numel == 0:  # whose type torch does not look at
        return t.temp(DType.BOOL, x.shape)
    dtype = result_type((x, tests))
    if isinstance(tests, Meta):
        if tests.numel == 0:
            return t.full(x.shape if isinstance(x, Meta) else (), invert, DType.BOOL)
        flat = t.reshape(tests, (tests.numel,))
        left = x.unsqueeze(-1) if isinstance(x, Meta) else x
        same = t.map("eq", left, flat, dtype=dtype)
        found = t.reduce("reduce_max", same, [same.ndim - 1])
    else:
        found = t.map("eq", x, tests, dtype=dtype)
    return t.map("not", found) if invert else found


@lowers("aten::histc", concrete=("min", "max"))
def histc(t: Trace, x: Meta, bins: int = 100, min: float = 0, max: float = 0) -> Meta:
    """Counts per bin; the last bin holds its upper end, what lies outside counts nowhere."""
    if not (min < max and math.isfinite(max - min)):
        raise Unsupported("histc of other bounds than a finite range")
    wide = accumulate(x.dtype)
    flat = t.reshape(t.cast(x, wide), (x.numel,))
    low, high = min, max
    place = t.map("div", t.map("mul", t.map("sub", flat, low, dtype=wide), float(bins)), t.map("sub", high, low, dtype=wide))
    place = t.map("min", t.cast(t.map("floor", place), DType.I64), bins - 1)
    inside = t.map("and", t.map("ge", flat, low, dtype=wide), t.map("le", flat, high, dtype=wide))
    place = t.where(inside, t.map("max", place, 0), bins, dtype=DType.I64)
    out = t.full((bins + 1,), 0, wide)
    add_rows(t, out, place, t.full((), 1, wide).expand(place.shape), ScatterMode.ADD)
    return out.narrow(0, 0, bins)
