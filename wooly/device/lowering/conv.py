"""Convolutions of one to three spatial dimensions, transposed ones, and their gradients.

May live here: what becomes conv, conv_dx, conv_dw. May not: pooling.
"""

from __future__ import annotations

from collections.abc import Sequence

from wis.dtypes import FLOATS
from wooly.device.lowering.dtypes import accumulate
from wooly.device.lowering.errors import Unsupported
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta

__all__: list[str] = []

Sizes = Sequence[int]


def _attrs(rank: int, groups: int, *starred: Sizes) -> list[int]:
    """groups, then stride, pad, dilation for every spatial dimension (torch lets one number stand for all)."""
    attrs = [groups]
    for sizes in starred:
        attrs += list(sizes) * rank if len(sizes) == 1 else list(sizes)
    return attrs


def _check(x: Meta) -> int:
    rank = x.ndim - 2
    if x.dtype not in FLOATS:
        raise Unsupported(f"convolution in {x.dtype.text}")
    if not 1 <= rank <= 3:
        raise Unsupported(f"convolution over {rank} dimensions")
    return rank


@lowers("aten::convolution", "aten::convolution_overrideable")
def convolution(
    t: Trace,
    x: Meta,
    weight: Meta,
    bias: Meta | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Meta:
    attrs = _attrs(_check(x), groups, stride, padding, dilation)
    out = t.temp(x.dtype, t.want().shape)
    if x.numel == 0 or weight.numel == 0:
        out = t.full(out.shape, 0, x.dtype)
    else:
        t.emit("conv_dx" if transposed else "conv", [out], [x, weight], attrs)
    if bias is None:
        return out
    return t.map("add", out, t.reshape(bias, (1, bias.shape[0], *(1 for _ in range(x.ndim - 2)))), dtype=out.dtype)


@lowers("aten::convolution_backward", "aten::convolution_backward_overrideable")
def convolution_backward(
    t: Trace,
    dy: Meta,
    x: Meta,
    weight: Meta,
    bias_sizes: Sizes | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    output_mask: Sequence[bool],
) -> list[Meta | None]:
    attrs = _attrs(_check(x), groups, stride, padding, dilation)
    dx = dw = db = None
    empty = dy.numel == 0 or x.numel == 0 or weight.numel == 0
    if t.wanted(0):
        dx = t.full(x.shape, 0, x.dtype) if empty else t.temp(x.dtype, x.shape)
        if not empty:
            t.emit("conv" if transposed else "conv_dx", [dx], [dy, weight], attrs)
    if t.wanted(1):
        dw = t.full(weight.shape, 0, weight.dtype) if empty else t.temp(weight.dtype, weight.shape)
        if not empty:
            t.emit("conv_dw", [dw], [x, dy] if transposed else [dy, x], attrs)
    if t.wanted(2):
        db = t.reduce("sum", t.cast(dy, accumulate(dy.dtype)), [d for d in range(dy.ndim) if d != 1])
    return [dx, dw, db]
