"""Sliding windows: convolutions of one to three spatial dimensions, transposed ones, and pooling (greatest, average, adaptive), with their
gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from wis.dtypes import FLOATS, DType
from wis.ops import ScatterMode
from wooly.device.lowering.dtypes import accumulate
from wooly.device.lowering.index import positions
from wooly.device.lowering.reduce import arg_extreme
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta, Unsupported
from wooly.device.lowering.whole_windows import convolved, pooled

__all__: list[str] = []

Sizes = Sequence[int]


def _attrs(rank: int, groups: int, *starred: Sizes) -> list[int]:
    """groups, then stride, pad, dilation for every spatial dimension (torch lets one number stand for all)."""
    attrs = [groups]
    for sizes in starred:
        attrs += list(sizes) * rank if len(sizes) == 1 else list(sizes)
    return attrs


def _check_conv(x: Meta) -> int:
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
    whole = x.dtype == DType.I64 and 1 <= x.ndim - 2 <= 3
    attrs = _attrs(x.ndim - 2 if whole else _check_conv(x), groups, stride, padding, dilation)
    shape = t.want().shape
    if x.numel == 0 or weight.numel == 0:
        out = t.full(shape, 0, x.dtype)
    elif whole:
        out = convolved(t, x, weight, shape, attrs, transposed)
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
    attrs = _attrs(_check_conv(x), groups, stride, padding, dilation)
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


_UNROLL_MAX = 64  # adaptive windows that are uneven are unrolled up to this many


def _all(sizes: Sizes, rank: int, default: Sizes = ()) -> list[int]:
    sizes = list(sizes) or list(default)
    return sizes * rank if len(sizes) == 1 else sizes


def _batched(x: Meta, rank: int) -> Meta:
    """torch lets the batch dimension be missing."""
    return x.unsqueeze(0) if x.ndim == rank + 1 else x


def _unbatched(x: Meta, like: Meta) -> Meta:
    return x.squeeze(0) if x.ndim > like.ndim else x


def _check_pool(x: Meta) -> None:
    if x.dtype not in FLOATS:
        raise Unsupported(f"pooling in {x.dtype.text}")


# --- greatest


def _max_pool(rank: int) -> Callable[..., list[Meta]]:
    def lowering(
        t: Trace, x: Meta, kernel: Sizes, stride: Sizes = (), padding: Sizes = (0,), dilation: Sizes = (1,), ceil_mode: bool = False
    ) -> list[Meta]:
        _check_pool(x)
        wide = _batched(x, rank)
        k = _all(kernel, rank)
        attrs = [*k, *_all(stride, rank, k), *_all(padding, rank), *_all(dilation, rank)]
        shape = (*wide.shape[:2], *t.want().shape[-rank:])
        outs = [t.temp(x.dtype, shape), t.temp(DType.I64, shape)]
        t.emit("max_pool", outs, [wide], attrs)
        return [_unbatched(out, x) for out in outs]

    return lowering


def _into_windows(t: Trace, dy: Meta, indices: Meta, shape: tuple[int, ...], rank: int, mode: ScatterMode) -> Meta:
    """Zeros of ``shape`` with ``dy`` written (or added) at flat spatial positions ``indices``."""
    wide = accumulate(dy.dtype)
    plane = math.prod(shape[-rank:])
    lead = shape[:-rank]
    out = t.full((*lead, plane), 0, wide)
    count = math.prod(dy.shape[-rank:])
    if dy.numel:
        source, index = t.reshape(t.cast(dy, wide), (*lead, count)), t.reshape(indices, (*lead, count))
        t.emit("scatter", [out], [source, positions(t, index)], (len(lead), mode))
    return t.reshape(out, shape)


def _max_pool_backward(rank: int) -> Callable[..., Meta]:
    def lowering(
        t: Trace, dy: Meta, x: Meta, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool, *, indices: Meta
    ) -> Meta:
        return _into_windows(t, dy, indices, x.shape, rank, ScatterMode.ADD)

    return lowering


for _rank in (2, 3):
    lowers(f"aten::max_pool{_rank}d_with_indices")(_max_pool(_rank))
    lowers(f"aten::max_pool{_rank}d_with_indices_backward")(_max_pool_backward(_rank))


@lowers("aten::max_unpool2d")
def max_unpool2d(t: Trace, x: Meta, indices: Meta, output_size: Sizes) -> Meta:
    return _into_windows(t, x, indices, (*x.shape[:-2], *output_size), 2, ScatterMode.SET)


@lowers("aten::max_unpool3d")
def max_unpool3d(t: Trace, x: Meta, indices: Meta, output_size: Sizes, stride: Sizes, padding: Sizes) -> Meta:
    return _into_windows(t, x, indices, (*x.shape[:-3], *output_size), 3, ScatterMode.SET)


# --- average


def _avg_attrs(rank: int, kernel: Sizes, stride: Sizes, padding: Sizes, count_pad: bool, divisor: int | None) -> list[int]:
    k = _all(kernel, rank)
    return [int(count_pad), divisor or 0, *k, *_all(stride, rank, k), *_all(padding, rank)]


def _avg_pool(rank: int) -> Callable[..., Meta]:
    def lowering(
        t: Trace,
        x: Meta,
        kernel: Sizes,
        stride: Sizes = (),
        padding: Sizes = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Meta:
        wide, counts = _batched(x, rank), t.want().shape[-rank:]
        if x.dtype == DType.I64:
            k = _all(kernel, rank)
            sizes = (k, _all(stride, rank, k), _all(padding, rank))
            return _unbatched(pooled(t, wide, counts, *sizes, count_pad=count_include_pad, divisor=divisor_override), x)
        _check_pool(x)
        out = t.temp(x.dtype, (*wide.shape[:2], *counts))
        t.emit("avg_pool", [out], [wide], _avg_attrs(rank, kernel, stride, padding, count_include_pad, divisor_override))
        return _unbatched(out, x)

    return lowering


def _avg_pool_backward(rank: int) -> Callable[..., Meta]:
    def lowering(
        t: Trace,
        dy: Meta,
        x: Meta,
        kernel: Sizes,
        stride: Sizes,
        padding: Sizes,
        ceil_mode: bool,
        count_include_pad: bool,
        *,
        divisor_override: int | None,
    ) -> Meta:
        _check_pool(x)
        out = t.temp(x.dtype, _batched(x, rank).shape)
        attrs = _avg_attrs(rank, kernel, stride, padding, count_include_pad, divisor_override)
        t.emit("avg_pool_dx", [out], [_batched(dy, rank)], attrs)
        return _unbatched(out, x)

    return lowering


for _rank in (2, 3):
    lowers(f"aten::avg_pool{_rank}d")(_avg_pool(_rank))
    lowers(f"aten::avg_pool{_rank}d_backward")(_avg_pool_backward(_rank))


# --- adaptive: window i of n over size s is [floor(i s / n), ceil((i + 1) s / n))


def _window(i: int, size: int, count: int) -> tuple[int, int]:
    start = i * size // count
    return start, -(-(i + 1) * size // count) - start


def _average_to(t: Trace, x: Meta, dim: int, count: int) -> Meta:
    """Adaptive average of one dimension (averages of several are averages one after the other)."""
    size = x.shape[dim]
    if size == count:
        return x
    if size % count == 0:
        split = t.reshape(x, (*x.shape[:dim], count, size // count, *x.shape[dim + 1 :]))
        return t.map("div", t.reduce("sum", split, [dim + 1]), float(size // count))
    out = t.temp(x.dtype, (*x.shape[:dim], count, *x.shape[dim + 1 :]))
    for i in range(count):
        start, length = _window(i, size, count)
        t.store(out.narrow(dim, i, 1), t.map("div", t.reduce("sum", x.narrow(dim, start, length), [dim], True), float(length)))
    return out


def _average_back(t: Trace, dy: Meta, dim: int, size: int) -> Meta:
    """Gradient of _average_to: every input of a window takes its share."""
    count = dy.shape[dim]
    if size == count:
        return dy
    shape = (*dy.shape[:dim], size, *dy.shape[dim + 1 :])
    if size % count == 0:
        share = t.map("div", dy, float(size // count))
        wide = share.unsqueeze(dim + 1, size // count)
        return t.reshape(wide, shape)
    out = t.full(shape, 0, dy.dtype)
    for i in range(count):
        start, length = _window(i, size, count)
        part = out.narrow(dim, start, length)
        share = t.map("div", dy.narrow(dim, i, 1), float(length))
        t.emit("add", [part], [part, share.expand(part.shape)])
    return out


@lowers("aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d")
def adaptive_avg_pool(t: Trace, x: Meta, output_size: Sizes) -> Meta:
    _check_pool(x)
    out, first = t.acc(x), x.ndim - len(output_size)
    for i, count in enumerate(output_size):
        out = _average_to(t, out, first + i, count)
    return out


@lowers("aten::_adaptive_avg_pool2d_backward", "aten::_adaptive_avg_pool3d_backward")
def adaptive_avg_pool_backward(t: Trace, dy: Meta, x: Meta) -> Meta:
    out = t.acc(dy)
    for dim in range(x.ndim):
        out = _average_back(t, out, dim, x.shape[dim])
    return out


@lowers("aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(t: Trace, x: Meta, output_size: Sizes) -> list[Meta]:
    rank = len(output_size)
    sizes = x.shape[-rank:]
    _check_pool(x)
    if x.numel and all(size % count == 0 for size, count in zip(sizes, output_size, strict=True)):
        windows = [size // count for size, count in zip(sizes, output_size, strict=True)]
        return _max_pool(rank)(t, x, windows)
    if x.numel == 0 or math.prod(output_size) > _UNROLL_MAX:
        raise Unsupported("adaptive maximum over many uneven windows")
    outs = [t.temp(x.dtype, (*x.shape[:-rank], *output_size)), t.temp(DType.I64, (*x.shape[:-rank], *output_size))]
    for flat in range(math.prod(output_size)):
        _one_window(t, x, outs, list(output_size), flat)
    return outs


def _one_window(t: Trace, x: Meta, outs: Sequence[Meta], counts: list[int], flat: int) -> None:
    """Write window number ``flat`` of an adaptive maximum: its value, and its position in the whole plane."""
    rank, first = len(counts), x.ndim - len(counts)
    place: list[int] = []
    lengths: list[int] = []
    starts: list[int] = []
    for count, size in zip(reversed(counts), reversed(x.shape[first:]), strict=True):
        flat, i = divmod(flat, count)
        start, length = _window(i, size, count)
        place.insert(0, i)
        starts.insert(0, start)
        lengths.insert(0, length)
    window = x
    for i in range(rank):
        window = window.narrow(first + i, starts[i], lengths[i])
    lead = x.shape[:first]
    row = t.reshape(window, (*lead, math.prod(lengths)))
    value, inner = t.reduce("reduce_max", row, [first]), arg_extreme(t, "argmax", row, first)
    position = t.full(lead, 0, DType.I64)
    step = 1
    for i in reversed(range(rank)):
        here = t.map("add", t.map("mod", inner, lengths[i]), starts[i])
        position = t.map("add", position, t.map("mul", here, step))
        inner = t.map("floor_div", inner, lengths[i])
        step *= x.shape[first + i]
    for out, part in zip(outs, (value, position), strict=True):
        target = out
        for i in place:
            target = target.select(first, i)
        t.store(target, part)


@lowers("aten::adaptive_max_pool2d_backward")
def adaptive_max_pool2d_backward(t: Trace, dy: Meta, x: Meta, indices: Meta) -> Meta:
    return _into_windows(t, dy, indices, x.shape, 2, ScatterMode.ADD)


@lowers("aten::adaptive_max_pool3d_backward")
def adaptive_max_pool3d_backward(t: Trace, dy: Meta, x: Meta, indices: Meta) -> Meta:
    return _into_windows(t, dy, indices, x.shape, 3, ScatterMode.ADD)
