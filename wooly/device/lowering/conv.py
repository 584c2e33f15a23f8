"""Convolutions of one to three spatial dimensions, transposed ones, and their gradients."""

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


# --- transposed convolution whose output padding reaches past one stride: done without padding on a canvas that holds every window


def _beyond(attrs: Sequence[int], output_padding: Sizes) -> bool:
    """Would a convolution of the output see more windows than there are inputs?"""
    rank = len(attrs) // 3
    return any(extra >= stride for extra, stride in zip(_attrs(rank, 0, output_padding)[1:], attrs[1 : 1 + rank], strict=True))


def _unpadded(attrs: Sequence[int]) -> list[int]:
    rank = len(attrs) // 3
    return [*attrs[: 1 + rank], *[0] * rank, *attrs[1 + 2 * rank :]]


def _canvas_shape(shape: Sizes, x: Meta, weight: Meta, attrs: Sequence[int]) -> tuple[int, ...]:
    """[n, c, (windows - 1) * stride + (kernel - 1) * dilation + 1]."""
    rank = len(attrs) // 3
    stride, dilation = attrs[1 : 1 + rank], attrs[1 + 2 * rank :]
    sizes = zip(x.shape[2:], stride, weight.shape[2:], dilation, strict=True)
    return (*shape[:2], *((n - 1) * s + (k - 1) * d + 1 for n, s, k, d in sizes))


def _overlap(out: Meta, canvas: Meta, attrs: Sequence[int]) -> tuple[Meta, Meta]:
    """The parts of both that are one: the output starts ``pad`` elements into the canvas and may reach past its end."""
    rank = len(attrs) // 3
    for d, pad in enumerate(attrs[1 + rank : 1 + 2 * rank]):
        length = max(min(out.shape[2 + d], canvas.shape[2 + d] - pad), 0)
        out, canvas = out.narrow(2 + d, 0, length), canvas.narrow(2 + d, pad, length)
    return out, canvas


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
    *,
    output_padding: Sizes,
    groups: int,
) -> Meta:
    attrs = _attrs(_check(x), groups, stride, padding, dilation)
    shape = t.want().shape
    if x.numel == 0 or weight.numel == 0:
        out = t.full(shape, 0, x.dtype)
    elif transposed and _beyond(attrs, output_padding):
        canvas = t.temp(x.dtype, _canvas_shape(shape, x, weight, attrs))
        t.emit("conv_dx", [canvas], [x, weight], _unpadded(attrs))
        out = t.full(shape, 0, x.dtype)
        inner, part = _overlap(out, canvas, attrs)
        t.store(inner, part)
    else:
        out = t.temp(x.dtype, shape)
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
    *,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    output_mask: Sequence[bool],
) -> list[Meta | None]:
    attrs = _attrs(_check(x), groups, stride, padding, dilation)
    dx = dw = db = None
    bias_dy = dy
    if transposed and _beyond(attrs, output_padding):
        canvas = t.full(_canvas_shape(dy.shape, x, weight, attrs), 0, dy.dtype)
        part, inner = _overlap(dy, canvas, attrs)
        t.store(inner, part)
        dy, attrs = canvas, _unpadded(attrs)
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
        db = t.reduce("sum", t.cast(bias_dy, accumulate(dy.dtype)), [d for d in range(dy.ndim) if d != 1])
    return [dx, dw, db]
