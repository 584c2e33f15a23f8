"""Batch normalisation: forward in training and evaluation, running statistics, gradient. All in base operations, which fuse on the node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wis.dtypes import DType
from wooly.device.lowering.dtypes import accumulate
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta, Value

__all__: list[str] = []


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
