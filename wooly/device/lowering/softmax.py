"""Softmax, its logarithm, and their gradients along any dimension."""

from __future__ import annotations

import math

import torch

from wis.dtypes import DType
from wooly.device.lowering.dtypes import wis_dtype
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta

__all__: list[str] = []


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
