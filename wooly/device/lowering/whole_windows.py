"""Convolution and average pooling of whole numbers, which the instructions for sliding windows do not take: windows as a strided view of a
padded copy, then a product of matrices or a sum. Arithmetic wraps, as torch's does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from wis.dtypes import DType
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta

__all__ = ["convolved", "pooled"]

Sizes = Sequence[int]


def _placed(t: Trace, x: Meta, sizes: Sizes, at: Sizes, steps: Sizes) -> Meta:
    """Zeros [n, c, *sizes] with element i of each dimension of ``x`` at ``at`` + i * step, where that is inside."""
    out = t.full((*x.shape[:2], *sizes), 0, x.dtype)
    target = out
    for dim, (size, start, step) in enumerate(zip(sizes, at, steps, strict=True), 2):
        first = max(-(start // step), 0)
        count = max(min(x.shape[dim], (size - 1 - start) // step + 1) - first, 0)
        x, target = x.narrow(dim, first, count), target.narrow(dim, start + first * step, count, step)
    t.store(target, x)
    return out


def _windows(x: Meta, counts: Sizes, kernel: Sizes, stride: Sizes, dilation: Sizes) -> Meta:
    """[n, c, *counts, *kernel]: every window of ``x``."""
    strides = [s * step for steps in (stride, dilation) for s, step in zip(x.strides[2:], steps, strict=True)]
    return replace(x, shape=(*x.shape[:2], *counts, *kernel), strides=(*x.strides[:2], *strides))


def _reach(counts: Sizes, kernel: Sizes, stride: Sizes, dilation: Sizes) -> list[int]:
    """The size of what windows cover."""
    return [(n - 1) * s + (k - 1) * d + 1 for n, k, s, d in zip(counts, kernel, stride, dilation, strict=True)]


def convolved(t: Trace, x: Meta, weight: Meta, shape: Sizes, attrs: Sizes, transposed: bool) -> Meta:
    """``attrs``: groups, then stride, padding and dilation of every dimension. A transposed convolution is one of stride 1, by the flipped
    kernel, over inputs that lie ``stride`` apart."""
    groups, rank = attrs[0], x.ndim - 2
    stride, padding, dilation = (attrs[1 + i * rank : 1 + (i + 1) * rank] for i in range(3))
    kernel, counts, ones = weight.shape[2:], shape[2:], [1] * rank
    steps: Sizes = ones
    if transposed:
        steps, stride = stride, ones
        padding = [(k - 1) * d - p for k, d, p in zip(kernel, dilation, padding, strict=True)]
        for dim in range(2, weight.ndim):
            weight = weight.flip(dim)
        weight = weight.split(0, weight.shape[0] // groups).move(1, 2)
    else:
        weight = weight.split(0, weight.shape[0] // groups)
    canvas = _placed(t, x, _reach(counts, kernel, stride, dilation), padding, steps)
    windows = _windows(canvas, counts, kernel, stride, dilation).split(1, x.shape[1] // groups)  # [n, g, c / g, *counts, *kernel]
    order = (0, 1, 2, *range(3 + rank, 3 + 2 * rank), *range(3, 3 + rank))
    n, inner, places = x.shape[0], math.prod(weight.shape[2:]), math.prod(counts)
    columns = t.reshape(windows.permute(order), (n, groups, inner, places))
    rows = t.reshape(weight, (groups, weight.shape[1], inner)).unsqueeze(0, n)
    out = t.temp(x.dtype, (n, groups, weight.shape[1], places))
    t.emit("matmul", [out], [t.contiguous(rows), columns])
    return t.reshape(out, shape)


def pooled(t: Trace, x: Meta, counts: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, *, count_pad: bool, divisor: int | None) -> Meta:
    """Sums of windows, divided by their size (in the padded image, or in the image) or by ``divisor``, towards 0."""
    rank, ones = len(kernel), [1] * len(kernel)
    canvas = _placed(t, x, _reach(counts, kernel, stride, ones), padding, ones)
    total = t.reduce("sum", _windows(canvas, counts, kernel, stride, ones), range(2 + rank, 2 + 2 * rank))
    if divisor:
        return t.map("trunc_div", total, divisor)
    area = t.full((), 1, DType.I64)
    for dim, (n, k, s, p, size) in enumerate(zip(counts, kernel, stride, padding, x.shape[2:], strict=True)):
        start = t.iota(n, DType.I64, -p, s)
        end = t.map("min", t.map("add", start, k), size + p)
        if not count_pad:
            start, end = t.map("max", start, 0), t.map("min", end, size)
        length = t.map("sub", end, start)
        area = t.map("mul", area, t.reshape(length, (n, *ones[dim + 1 :])))
    return t.map("trunc_div", total, area, dtype=x.dtype)
