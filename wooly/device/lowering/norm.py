"""Normalisation layers: layer, group, batch and root-mean-square norm with their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wis.dtypes import DType
from wis.program import Imm
from wooly.device.lowering.dtypes import accumulate
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta, Value

__all__: list[str] = []

Masked = list[Meta | None]


def _weight_rows(t: Trace, weight: Meta | None, rows: int, columns: int, dtype: DType, default: float) -> Meta | Imm:
    """A parameter of a normalised row as [rows, columns] (row stride 0), or the number that stands for a missing one."""
    if weight is None:
        return t.imm(default, dtype)
    if weight.dtype not in (dtype, accumulate(dtype)):
        weight = t.cast(weight, dtype)
    return t.reshape(weight, (columns,)).expand((rows, columns))


@lowers("aten::native_layer_norm")
def native_layer_norm(t: Trace, x: Meta, normalized_shape: Sequence[int], weight: Meta | None, bias: Meta | None, eps: Value) -> list[Meta]:
    columns = math.prod(normalized_shape)
    lead = x.shape[: x.ndim - len(normalized_shape)]
    rows = math.prod(lead)
    y, mean, rstd = _layer_norm(t, t.reshape(x, (rows, columns)), weight, bias, eps)
    stat_shape = lead + (1,) * len(normalized_shape)
    return [t.reshape(y, x.shape), t.reshape(mean, stat_shape), t.reshape(rstd, stat_shape)]


def _layer_norm(t: Trace, x: Meta, weight: Meta | None, bias: Meta | None, eps: Value) -> list[Meta]:
    """x [r, c] -> y [r, c], mean [r, 1], rstd [r, 1] (statistics in the accumulate type)."""
    rows, columns = x.shape
    stat = accumulate(x.dtype)
    outs = [t.temp(x.dtype, x.shape), t.temp(stat, (rows, 1)), t.temp(stat, (rows, 1))]
    w, b = _weight_rows(t, weight, rows, columns, x.dtype, 1.0), _weight_rows(t, bias, rows, columns, x.dtype, 0.0)
    t.emit("layer_norm", outs, [x, w, b, t.imm(eps, DType.F64)])
    return outs


@lowers("aten::native_layer_norm_backward")
def native_layer_norm_backward(
    t: Trace,
    dy: Meta,
    x: Meta,
    normalized_shape: Sequence[int],
    mean: Meta,
    rstd: Meta,
    weight: Meta | None,
    bias: Meta | None,
    *,
    output_mask: Sequence[bool],
) -> Masked:
    columns = math.prod(normalized_shape)
    rows = math.prod(x.shape[: x.ndim - len(normalized_shape)])
    stat = accumulate(x.dtype)
    dy2, x2 = t.reshape(t.cast(dy, x.dtype), (rows, columns)), t.reshape(x, (rows, columns))
    mean2, rstd2 = (t.cast(t.reshape(s, (rows, 1)), stat) for s in (mean, rstd))
    dx = t.temp(x.dtype, x2.shape)
    t.emit("layer_norm_dx", [dx], [dy2, x2, mean2, rstd2, _weight_rows(t, weight, rows, columns, x.dtype, 1.0)])
    dw, db = t.temp(stat, (1, columns)), t.temp(stat, (1, columns))
    if rows == 0:
        dw, db = t.full((1, columns), 0, stat), t.full((1, columns), 0, stat)
    else:
        t.emit("layer_norm_dwb", [dw, db], [dy2, x2, mean2, rstd2])
    shape = tuple(normalized_shape)
    return _masked(t, [t.reshape(dx, x.shape), t.reshape(dw, shape), t.reshape(db, shape)])


def _masked(t: Trace, results: Sequence[Meta | None]) -> Masked:
    return [r if t.wanted(i) else None for i, r in enumerate(results)]


# --- root mean square


@lowers("aten::_fused_rms_norm")
def fused_rms_norm(t: Trace, x: Meta, normalized_shape: Sequence[int], weight: Meta | None, eps: Any) -> list[Meta]:
    dims = list(range(x.ndim - len(normalized_shape), x.ndim))
    wide = t.acc(x)
    count = float(math.prod(normalized_shape))
    square = t.map("div", t.reduce("sum", t.map("mul", wide, wide), dims, True), count)
    rstd = t.map("rsqrt", t.map("add", square, _EPSILON[wide.dtype] if eps is None else eps))
    y = t.map("mul", wide, rstd)
    return [y if weight is None else t.map("mul", y, weight, dtype=wide.dtype), rstd]


_EPSILON = {DType.F32: 2.0**-23, DType.F64: 2.0**-52}


@lowers("aten::_fused_rms_norm_backward")
def fused_rms_norm_backward(
    t: Trace, dy: Meta, x: Meta, normalized_shape: Sequence[int], rstd: Meta, weight: Meta | None, output_mask: Sequence[bool]
) -> Masked:
    n = len(normalized_shape)
    dims = list(range(x.ndim - n, x.ndim))
    wide, dy, rstd = t.acc(x), t.acc(dy), t.acc(rstd)
    normal = t.map("mul", wide, rstd)
    slope = dy if weight is None else t.map("mul", dy, weight, dtype=dy.dtype)
    share = t.map("div", t.reduce("sum", t.map("mul", slope, normal), dims, True), float(math.prod(normalized_shape)))
    dx = t.map("mul", t.map("sub", slope, t.map("mul", normal, share)), rstd)
    dw = t.reduce("sum", t.map("mul", dy, normal), list(range(x.ndim - n)))
    return _masked(t, [dx, dw])


# --- group


@lowers("aten::native_group_norm")
def native_group_norm(
    t: Trace, x: Meta, weight: Meta | None, bias: Meta | None, N: int, C: int, HxW: int, group: int, *, eps: Value
) -> list[Meta]:
    wide = t.acc(x)  # rounded once, at the end
    y, mean, rstd = _layer_norm(t, t.reshape(wide, (N * group, C * HxW // group)), None, None, eps)
    y = t.reshape(y, (N, C, HxW))
    for op, parameter in (("mul", weight), ("add", bias)):
        if parameter is not None:
            y = t.map(op, y, t.reshape(parameter, (C, 1)), dtype=wide.dtype)
    return [t.reshape(y, x.shape), t.reshape(mean, (N, group)), t.reshape(rstd, (N, group))]


@lowers("aten::native_group_norm_backward")
def native_group_norm_backward(
    t: Trace,
    dy: Meta,
    x: Meta,
    mean: Meta,
    rstd: Meta,
    weight: Meta | None,
    N: int,
    C: int,
    *,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> Masked:
    wide = accumulate(x.dtype)
    per_group = (N, group, C // group, HxW)
    dy4, x4 = (t.reshape(t.cast(v, wide), per_group) for v in (dy, x))
    mean4, rstd4 = (t.cast(t.reshape(s, (N, group, 1, 1)), wide) for s in (mean, rstd))
    normal = t.map("mul", t.map("sub", x4, mean4), rstd4)
    slope = dy4 if weight is None else t.map("mul", dy4, t.reshape(weight, (1, group, C // group, 1)), dtype=wide)
    count = float(C // group * HxW)
    middle = t.map("div", t.reduce("sum", slope, [2, 3], True), count)
    share = t.map("div", t.reduce("sum", t.map("mul", slope, normal), [2, 3], True), count)
    dx = t.map("mul", t.map("sub", t.map("sub", slope, middle), t.map("mul", normal, share)), rstd4)
    dw = t.reshape(t.reduce("sum", t.map("mul", dy4, normal), [0, 3]), (C,))
    db = t.reshape(t.reduce("sum", dy4, [0, 3]), (C,))
    return _masked(t, [t.reshape(dx, x.shape), dw, db])
