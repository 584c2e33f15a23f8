"""Reductions: sums, means, extremes, norms, counts, and their like over chosen dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from wis.dtypes import COMPLEX, FLOATS, DType
from wis.views import broadcast_shapes
from wooly.device.lowering.dtypes import accumulate, float_type, result_type, wis_dtype
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.unary import complex_abs
from wooly.device.lowering.values import Meta, Number, Unsupported

__all__ = ["all_dims", "count_of", "mean_over", "sum_over", "variance"]

Dims = Sequence[int] | int | None


def all_dims(x: Meta, dim: Dims) -> list[int]:
    """Normalised dimensions; None and an empty list mean all of them."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return list(range(x.ndim))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return sorted(d % max(x.ndim, 1) for d in dims) if x.ndim else []


def count_of(x: Meta, dims: Sequence[int]) -> int:
    return math.prod(x.shape[d] for d in dims)


def _sum_dtype(x: Meta, dtype: torch.dtype | None) -> DType:
    if dtype is not None:
        return wis_dtype(dtype)
    return x.dtype if x.dtype in FLOATS or x.dtype in COMPLEX else DType.I64


def sum_over(t: Trace, x: Meta, dim: Dims, keepdim: bool = False) -> Meta:
    return t.reduce("sum", x, all_dims(x, dim), keepdim)


@lowers("aten::sum")
def sum_(t: Trace, x: Meta, *, dtype: torch.dtype | None = None) -> Meta:
    return sum_dims(t, x, None, dtype=dtype)


@lowers("aten::sum.dim_IntList")
def sum_dims(t: Trace, x: Meta, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Meta:
    return t.reduce("sum", x, all_dims(x, dim), keepdim, _sum_dtype(x, dtype))


@lowers("aten::nansum")
def nansum(t: Trace, x: Meta, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Meta:
    x = t.where(t.map("is_nan", x), 0, x, dtype=x.dtype) if x.dtype in FLOATS else x
    return sum_dims(t, x, dim, keepdim, dtype=dtype)


@lowers("aten::prod")
def prod(t: Trace, x: Meta, *, dtype: torch.dtype | None = None) -> Meta:
    return t.reduce("prod", x, all_dims(x, None), False, _sum_dtype(x, dtype))


@lowers("aten::prod.dim_int")
def prod_dim(t: Trace, x: Meta, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Meta:
    return t.reduce("prod", x, all_dims(x, dim), keepdim, _sum_dtype(x, dtype))


def mean_over(t: Trace, x: Meta, dim: Dims, keepdim: bool = False) -> Meta:
    """Sum / count, computed and left in the accumulate type."""
    dims = all_dims(x, dim)
    return t.map("div", t.reduce("sum", x, dims, keepdim, accumulate(x.dtype)), float(count_of(x, dims)))


@lowers("aten::mean")
def mean(t: Trace, x: Meta, *, dtype: torch.dtype | None = None) -> Meta:
    return mean_over(t, x if dtype is None else t.cast(x, wis_dtype(dtype)), None)


@lowers("aten::mean.dim")
def mean_dim(t: Trace, x: Meta, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Meta:
    return mean_over(t, x if dtype is None else t.cast(x, wis_dtype(dtype)), dim, keepdim)


# --- extremes


def _extreme(t: Trace, name: str, x: Meta, dim: Dims, keepdim: bool = False) -> Meta:
    return t.reduce(name, x, all_dims(x, dim), keepdim)


@lowers("aten::amax")
def amax(t: Trace, x: Meta, dim: Dims = (), keepdim: bool = False) -> Meta:
    return _extreme(t, "reduce_max", x, dim, keepdim)


@lowers("aten::amin")
def amin(t: Trace, x: Meta, dim: Dims = (), keepdim: bool = False) -> Meta:
    return _extreme(t, "reduce_min", x, dim, keepdim)


@lowers("aten::max")
def max_(t: Trace, x: Meta) -> Meta:
    return _extreme(t, "reduce_max", x, None)


@lowers("aten::min")
def min_(t: Trace, x: Meta) -> Meta:
    return _extreme(t, "reduce_min", x, None)


@lowers("aten::aminmax")
def aminmax(t: Trace, x: Meta, *, dim: int | None = None, keepdim: bool = False) -> list[Meta]:
    return [_extreme(t, "reduce_min", x, dim, keepdim), _extreme(t, "reduce_max", x, dim, keepdim)]


def arg_extreme(t: Trace, name: str, x: Meta, dim: int | None, keepdim: bool = False) -> Meta:
    """Index of the extreme along ``dim``, or in row-major order when it is None."""
    if x.ndim == 0:
        return t.full((), 0, DType.I64)
    if dim is None:
        flat = t.reshape(x, (x.numel,))
        out = t.temp(DType.I64, (1,))
        t.emit(name, [out], [_ordered(t, flat)], (0,))
        index = out.squeeze(0)
        return t.reshape(index, (1,) * x.ndim) if keepdim else index
    dim %= x.ndim
    out = t.temp(DType.I64, tuple(1 if d == dim else n for d, n in enumerate(x.shape)))
    t.emit(name, [out], [_ordered(t, x)], (dim,))
    return out if keepdim else out.squeeze(dim)


def _ordered(t: Trace, x: Meta) -> Meta:
    return t.cast(x, DType.U8) if x.dtype == DType.BOOL else x


@lowers("aten::argmax")
def argmax(t: Trace, x: Meta, dim: int | None = None, keepdim: bool = False) -> Meta:
    return arg_extreme(t, "argmax", _not_bool(x), dim, keepdim)


@lowers("aten::argmin")
def argmin(t: Trace, x: Meta, dim: int | None = None, keepdim: bool = False) -> Meta:
    return arg_extreme(t, "argmin", _not_bool(x), dim, keepdim)


def _not_bool(x: Meta) -> Meta:
    """torch has no argmax of bool, though it has max(dim)."""
    if x.dtype == DType.BOOL:
        raise Unsupported("argmax and argmin of bool")
    return x


@lowers("aten::max.dim")
def max_dim(t: Trace, x: Meta, dim: int, keepdim: bool = False) -> list[Meta]:
    return [_extreme(t, "reduce_max", x, dim, keepdim), arg_extreme(t, "argmax", x, dim, keepdim)]


@lowers("aten::min.dim")
def min_dim(t: Trace, x: Meta, dim: int, keepdim: bool = False) -> list[Meta]:
    return [_extreme(t, "reduce_min", x, dim, keepdim), arg_extreme(t, "argmin", x, dim, keepdim)]


# --- truth


def _truth(t: Trace, name: str, x: Meta, dim: Dims, keepdim: bool, empty: bool) -> Meta:
    dims = all_dims(x, dim)
    if count_of(x, dims) == 0:
        kept = tuple(1 if d in dims else n for d, n in enumerate(x.shape))
        out = t.full(kept, empty, DType.BOOL)
        return out if keepdim else t.drop(out, dims)
    return t.reduce(name, x, dims, keepdim, DType.BOOL)


@lowers("aten::any", "aten::any.dim", "aten::any.dims")
def any_(t: Trace, x: Meta, dim: Dims = None, keepdim: bool = False) -> Meta:
    return _truth(t, "reduce_max", x, dim, keepdim, False)


@lowers("aten::all", "aten::all.dim", "aten::all.dims")
def all_(t: Trace, x: Meta, dim: Dims = None, keepdim: bool = False) -> Meta:
    return _truth(t, "reduce_min", x, dim, keepdim, True)


@lowers("aten::count_nonzero", "aten::count_nonzero.dim_IntList")
def count_nonzero(t: Trace, x: Meta, dim: Dims = None) -> Meta:
    return t.reduce("sum", t.cast(x, DType.BOOL), all_dims(x, dim), False, DType.I64)


# --- spread


def variance(t: Trace, x: Meta, dim: Dims, correction: Number | None, keepdim: bool = False) -> tuple[Meta, Meta]:
    """Variance and mean in two passes, in the accumulate type. ``correction`` None is 1. A divisor below 0 counts as 0.

    The squares are corrected by the sum of the gaps, which is what the mean lost by rounding (Chan, Golub and LeVeque 1983, eq. 1.7).
    """
    dims = all_dims(x, dim)
    count = count_of(x, dims)
    x = t.acc(x)
    average = t.map("div", t.reduce("sum", x, dims, True), float(count))
    gap = t.map("sub", x, average)
    if gap.dtype in COMPLEX:
        size = complex_abs(t, gap)
        squares = t.map("mul", size, size)
    else:
        squares = t.map("mul", gap, gap)
    divisor = max(float(count - (1 if correction is None else correction.real)), 0.0)
    total = t.reduce("sum", squares, dims, True)
    if gap.dtype not in COMPLEX and count:
        lost = t.reduce("sum", gap, dims, True)
        rest = t.map("sub", total, t.map("mul", t.map("div", lost, float(count)), lost))
        total = t.where(t.map("is_inf", total), total, t.map("max", rest, 0.0))
    out = t.map("div", total, divisor)
    return (out, average) if keepdim else (t.drop(out, dims), t.drop(average, dims))


@lowers("aten::var.correction", concrete=("correction",))
def var(t: Trace, x: Meta, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False) -> Meta:
    return variance(t, x, dim, correction, keepdim)[0]


@lowers("aten::std.correction", concrete=("correction",))
def std(t: Trace, x: Meta, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False) -> Meta:
    return t.map("sqrt", variance(t, x, dim, correction, keepdim)[0])


@lowers("aten::var_mean.correction", concrete=("correction",))
def var_mean(t: Trace, x: Meta, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False) -> list[Meta]:
    return list(variance(t, x, dim, correction, keepdim))


@lowers("aten::std_mean.correction", concrete=("correction",))
def std_mean(t: Trace, x: Meta, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False) -> list[Meta]:
    out, average = variance(t, x, dim, correction, keepdim)
    return [t.map("sqrt", out), average]


# --- norms


def norm_over(t: Trace, x: Meta, ord: float, dims: Sequence[int], keepdim: bool) -> Meta:
    """The vector norm of order ``ord`` in the accumulate type."""
    size = complex_abs(t, x) if x.dtype in COMPLEX else t.map("abs", t.acc(x))
    size = t.acc(size)
    if ord == math.inf:
        return t.reduce("reduce_max", size, dims, keepdim) if count_of(x, dims) else _zeros_over(t, size, dims, keepdim)
    if ord == -math.inf:
        return t.reduce("reduce_min", size, dims, keepdim)
    if ord == 0:
        return t.reduce("sum", t.cast(t.map("ne", size, 0.0), size.dtype), dims, keepdim)
    if ord == 1:
        return t.reduce("sum", size, dims, keepdim)
    if ord == 2:
        return t.map("sqrt", t.reduce("sum", t.map("mul", size, size), dims, keepdim))
    return t.map("pow", t.reduce("sum", t.map("pow", size, ord), dims, keepdim), 1.0 / ord)


def _zeros_over(t: Trace, x: Meta, dims: Sequence[int], keepdim: bool) -> Meta:
    out = t.full(tuple(1 if d in dims else n for d, n in enumerate(x.shape)), 0, x.dtype)
    return out if keepdim else t.drop(out, dims)


@lowers("aten::linalg_vector_norm", concrete=("ord",))
def vector_norm(t: Trace, x: Meta, ord: Number = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Meta:
    x = x if dtype is None else t.cast(x, wis_dtype(dtype))
    dims = all_dims(x, dim)
    if ord and count_of(x, dims) == 1:  # as torch: what is raised to a power and back is less exact
        return norm_over(t, x, math.inf, dims, keepdim)
    return norm_over(t, x, float(ord.real), dims, keepdim)


@lowers("aten::norm.Scalar", "aten::norm.ScalarOpt_dim", "aten::norm.ScalarOpt_dim_dtype", "aten::norm.ScalarOpt_dtype", concrete=("p",))
def norm(t: Trace, x: Meta, p: Number | None = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Meta:
    return vector_norm(t, x, 2 if p is None else p, dim, keepdim, dtype=dtype)


@lowers("aten::logsumexp")
def logsumexp(t: Trace, x: Meta, dim: Dims, keepdim: bool = False) -> Meta:
    if x.dtype in COMPLEX:
        raise Unsupported("logsumexp of a complex tensor")
    dims = all_dims(x, dim)
    x = t.acc(t.cast(x, float_type(x.dtype)))
    if count_of(x, dims) == 0:
        return t.map("log", t.reduce("sum", x, dims, keepdim))
    top = t.reduce("reduce_max", x, dims, True)
    top = t.where(t.map("is_inf", top), 0.0, top, dtype=top.dtype)
    total = t.reduce("sum", t.map("exp", t.map("sub", x, top)), dims, True)
    out = t.map("add", t.map("log", total), top)
    return out if keepdim else t.drop(out, dims)


@lowers("aten::linalg_cross")
def cross(t: Trace, a: Meta, b: Meta, *, dim: int = -1) -> Meta:
    dtype, shape = result_type((a, b)), broadcast_shapes(a.shape, b.shape)
    a, b = t.cast(a, dtype).expand(shape), t.cast(b, dtype).expand(shape)
    out = t.temp(dtype, shape)
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        first = t.map("mul", a.narrow(dim, j, 1), b.narrow(dim, k, 1))
        second = t.map("mul", a.narrow(dim, k, 1), b.narrow(dim, j, 1))
        t.store(out.narrow(dim, i, 1), t.map("sub", first, second))
    return out


@lowers("aten::trace")
def trace_(t: Trace, x: Meta) -> Meta:
    n = min(x.shape)
    diagonal = Meta(x.slot, x.dtype, (n,), (x.strides[0] + x.strides[1],), x.offset)
    return t.reduce("sum", diagonal, [0], False, _sum_dtype(x, None))
