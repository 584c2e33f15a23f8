"""Normalisation: layer, group, batch and root-mean-square norm, softmax along any dimension and its logarithm, with their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from wis.dtypes import DType
from wis.program import Imm
from wooly.device.lowering.dtypes import accumulate, wis_dtype
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


def along(t: Trace, op: str, dim: int, *xs: Meta) -> Meta:
    """``op`` (over the last dimension) along ``dim`` of operands of one shape: moved there by strides, never copied."""
    if xs[0].ndim == 0:
        out = t.temp(xs[0].dtype, (1,))
        t.emit(op, [out], [x.unsqueeze(0) for x in xs])
        return out.squeeze(0)
    out = t.temp(xs[0].dtype, xs[0].shape)
    t.emit(op, [out.move(dim % out.ndim, -1)], [x.move(dim % x.ndim, -1) for x in xs])
    return out


@lowers("aten::_softmax")
def softmax(t: Trace, x: Meta, dim: int, half_to_float: bool) -> Meta:
    return along(t, "softmax", dim, t.cast(x, DType.F32) if half_to_float else x)


@lowers("aten::_log_softmax")
def log_softmax(t: Trace, x: Meta, dim: int, half_to_float: bool) -> Meta:
    return along(t, "log_softmax", dim, t.cast(x, DType.F32) if half_to_float else x)


@lowers("aten::_safe_softmax")
def safe_softmax(t: Trace, x: Meta, dim: int, dtype: torch.dtype | None = None) -> Meta:
    """A row of nothing but -inf gives zeros."""
    x = x if dtype is None else t.cast(x, wis_dtype(dtype))
    top = t.reduce("reduce_max", x, [dim], True) if x.ndim else x
    return t.where(t.map("eq", top, -math.inf), 0, along(t, "softmax", dim, x), dtype=x.dtype)


@lowers("aten::_softmax_backward_data")
def softmax_backward(t: Trace, dy: Meta, y: Meta, dim: int, input_dtype: torch.dtype) -> Meta:
    return along(t, "softmax_dx", dim, t.cast(dy, y.dtype), y)


@lowers("aten::_log_softmax_backward_data")
def log_softmax_backward(t: Trace, dy: Meta, y: Meta, dim: int, input_dtype: torch.dtype) -> Meta:
    return along(t, "log_softmax_dx", dim, t.cast(dy, y.dtype), y)


@dataclass(frozen=True, slots=True)
class _Result:
    """What every batch norm overload is made of. ``mean``/``rstd`` are what the backward pass needs (empty in evaluation)."""

    y: Meta
    mean: Meta
    rstd: Meta
    running_mean: Meta | None
    running_var: Meta | None


def _over(x: Meta) -> list[int]:
    return [d for d in range(x.ndim) if d != 1]


def _channel(t: Trace, v: Meta, x: Meta) -> Meta:
    """[c] as [1, c, 1, ...]."""
    return t.reshape(v, (1, x.shape[1], *(1 for _ in range(x.ndim - 2))))


def _batch_norm(
    t: Trace,
    x: Meta,
    weight: Meta | None,
    bias: Meta | None,
    *,
    running_mean: Meta | None,
    running_var: Meta | None,
    training: bool,
    momentum: Any,
    eps: Value,
) -> _Result:
    wide = t.acc(x)
    dtype = wide.dtype
    new_mean, new_var = running_mean, running_var
    if training:
        dims, count = _over(x), x.numel // max(x.shape[1], 1)
        mean = t.map("div", t.reduce("sum", wide, dims), float(count))
        gap = t.map("sub", wide, _channel(t, mean, x))
        var = t.map("div", t.reduce("sum", t.map("mul", gap, gap), dims), float(count))
        rstd = t.map("rsqrt", t.map("add", var, eps))
        if running_mean is not None:
            new_mean = _moved(t, running_mean, mean, momentum, 1.0)
        if running_var is not None:
            new_var = _moved(t, running_var, var, momentum, count / (count - 1) if count > 1 else math.nan)
    else:
        assert running_mean is not None and running_var is not None, "evaluation needs running statistics"
        mean = t.cast(running_mean, dtype)
        rstd = t.map("rsqrt", t.map("add", t.cast(running_var, dtype), eps))
        gap = t.map("sub", wide, _channel(t, mean, x))
    scale = rstd if weight is None else t.map("mul", rstd, weight, dtype=dtype)
    y = t.map("mul", gap, _channel(t, scale, x))
    if bias is not None:
        y = t.map("add", y, _channel(t, bias, x), dtype=dtype)
    return _Result(y, mean, rstd, new_mean, new_var)


def _moved(t: Trace, old: Meta, new: Meta, momentum: Any, factor: float) -> Meta:
    """(1 - momentum) * old + momentum * factor * new."""
    kept = t.map("mul", old, t.derive(lambda m: 1.0 - m, momentum), dtype=new.dtype)
    return t.cast(t.map("add", kept, t.map("mul", new, t.derive(lambda m: m * factor, momentum))), old.dtype)


def _stat(t: Trace, index: int, value: Meta) -> Meta:
    """A saved statistic in the shape torch expects: evaluation saves none."""
    shape = t.want(index).shape
    return value if shape == value.shape else t.full(shape, 0, value.dtype)


def _outputs(t: Trace, r: _Result) -> list[Meta]:
    return [r.y, _stat(t, 1, r.mean), _stat(t, 2, r.rstd)]


def _update(t: Trace, r: _Result, running_mean: Meta | None, running_var: Meta | None) -> None:
    for target, value in ((running_mean, r.running_mean), (running_var, r.running_var)):
        if target is not None and value is not None and value is not target:
            t.write(target, value)


@lowers("aten::native_batch_norm", "aten::_native_batch_norm_legit", mutates=(3, 4))
def native_batch_norm(
    t: Trace,
    x: Meta,
    weight: Meta | None,
    bias: Meta | None,
    running_mean: Meta | None,
    running_var: Meta | None,
    training: bool,
    momentum: Any,
    *,
    eps: Value,
) -> list[Meta]:
    r = _batch_norm(t, x, weight, bias, running_mean=running_mean, running_var=running_var, training=training, momentum=momentum, eps=eps)
    _update(t, r, running_mean, running_var)
    return _outputs(t, r)


@lowers("aten::_native_batch_norm_legit.no_stats")
def native_batch_norm_no_stats(
    t: Trace, x: Meta, weight: Meta | None, bias: Meta | None, training: bool, momentum: Any, eps: Value
) -> list[Meta]:
    return _outputs(t, _batch_norm(t, x, weight, bias, running_mean=None, running_var=None, training=True, momentum=momentum, eps=eps))


@lowers("aten::_native_batch_norm_legit_functional")
def native_batch_norm_functional(
    t: Trace,
    x: Meta,
    weight: Meta | None,
    bias: Meta | None,
    running_mean: Meta,
    running_var: Meta,
    training: bool,
    momentum: Any,
    *,
    eps: Value,
) -> list[Meta]:
    r = _batch_norm(t, x, weight, bias, running_mean=running_mean, running_var=running_var, training=training, momentum=momentum, eps=eps)
    return [*_outputs(t, r), r.running_mean or running_mean, r.running_var or running_var]


@lowers("aten::_batch_norm_with_update", mutates=(3, 4))
def batch_norm_with_update(
    t: Trace, x: Meta, weight: Meta | None, bias: Meta | None, running_mean: Meta, running_var: Meta, momentum: Any, eps: Value
) -> list[Meta]:
    r = _batch_norm(t, x, weight, bias, running_mean=running_mean, running_var=running_var, training=True, momentum=momentum, eps=eps)
    _update(t, r, running_mean, running_var)
    return [*_outputs(t, r), t.full(t.want(3).shape, 0, DType.U8)]


@lowers("aten::_batch_norm_no_update")
def batch_norm_no_update(
    t: Trace,
    x: Meta,
    weight: Meta | None,
    bias: Meta | None,
    running_mean: Meta | None,
    running_var: Meta | None,
    momentum: Any,
    eps: Value,
) -> list[Meta]:
    r = _batch_norm(
        t, x, weight, bias, running_mean=running_mean, running_var=running_var, training=running_mean is None, momentum=momentum, eps=eps
    )
    return [*_outputs(t, r), t.full(t.want(3).shape, 0, DType.U8)]


@lowers("aten::native_batch_norm_backward")
def native_batch_norm_backward(
    t: Trace,
    dy: Meta,
    x: Meta,
    weight: Meta | None,
    running_mean: Meta | None,
    running_var: Meta | None,
    save_mean: Meta | None,
    save_invstd: Meta | None,
    *,
    train: bool,
    eps: Value,
    output_mask: Sequence[bool],
) -> list[Meta | None]:
    """Training: dx = w rstd (dy - mean(dy) - normal mean(dy normal)); evaluation: dx = w rstd dy."""
    wide, dy, dims = t.acc(x), t.acc(dy), _over(x)
    dtype = accumulate(x.dtype)
    if train:
        assert save_mean is not None and save_invstd is not None, "training saves its statistics"
        mean, rstd = t.cast(save_mean, dtype), t.cast(save_invstd, dtype)
    else:
        assert running_mean is not None and running_var is not None, "evaluation needs running statistics"
        mean, rstd = t.cast(running_mean, dtype), t.map("rsqrt", t.map("add", t.cast(running_var, dtype), eps))
    normal = t.map("mul", t.map("sub", wide, _channel(t, mean, x)), _channel(t, rstd, x))
    db = t.reduce("sum", dy, dims)
    dw = t.reduce("sum", t.map("mul", dy, normal), dims)
    slope = dy
    if train:
        count = float(x.numel // max(x.shape[1], 1))
        slope = t.map("sub", slope, _channel(t, t.map("div", db, count), x))
        slope = t.map("sub", slope, t.map("mul", normal, _channel(t, t.map("div", dw, count), x)))
    scale = rstd if weight is None else t.map("mul", rstd, weight, dtype=dtype)
    dx = t.map("mul", slope, _channel(t, scale, x))
    return [r if t.wanted(i) else None for i, r in enumerate((dx, dw, db))]


@lowers("aten::batch_norm_backward")
def batch_norm_backward(
    t: Trace,
    dy: Meta,
    x: Meta,
    weight: Meta,
    running_mean: Meta | None,
    running_var: Meta | None,
    save_mean: Meta | None,
    save_var: Meta | None,
    *,
    update: bool,
    eps: Value,
    output_mask: Sequence[bool],
    reserve: Meta,
) -> list[Meta | None]:
    return native_batch_norm_backward(
        t, dy, x, weight, running_mean, running_var, save_mean, save_var, train=update, eps=eps, output_mask=output_mask
    )
