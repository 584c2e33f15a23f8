"""torchvision's operators: suppression of overlapping boxes, pooling of regions, deformable convolution, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import torch
from torch import Tensor

from wooly.device.lowering.composed import in_f32
from wooly.device.lowering.registry import composite
from wooly.device.lowering.values import Unsupported

__all__: list[str] = []

_FLOATS: Final = (torch.float16, torch.float32, torch.float64)
_NUMBERS_MAX: Final = 1 << 24
"""The most numbers that one step gathers; each step costs a few instructions."""
_STEPS_MAX: Final = 512


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Unsupported(what)


# --- suppression of boxes

_BOXES_MAX: Final = 1 << 14
"""The most boxes whose pairs are all compared; the library's kernel for the CPU looks at the pairs of those that it keeps."""
_BLOCK: Final = 512
_SWEEPS: Final = 16


@composite("torchvision::nms")
@in_f32
def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Waits once, and again only where more than ``_SWEEPS`` boxes suppress each other in a chain."""
    _require(boxes.dtype in _FLOATS and scores.dtype == boxes.dtype, f"boxes of {boxes.dtype}, scores of {scores.dtype}")
    _require(boxes.dim() == 2 and boxes.size(1) == 4 and scores.size() == boxes.size()[:1], "boxes and scores that do not fit")
    _require(boxes.size(0) <= _BOXES_MAX, f"{boxes.size(0)} boxes")
    if not boxes.size(0):
        return torch.empty(0, dtype=torch.int64, device=boxes.device)
    order = torch.sort(scores, stable=True, descending=True)[1]
    ordered = boxes.index_select(0, order)
    sweeps = _SWEEPS
    while True:
        kept, settled = _kept(ordered, iou_threshold, sweeps)
        count, done = torch.stack([kept.sum(), settled.to(torch.int64)]).tolist()
        if done:
            return order.index_select(0, torch.nonzero_static(kept, size=count).squeeze(1))
        sweeps *= 8


def _kept(boxes: Tensor, threshold: float, sweeps: int) -> tuple[Tensor, Tensor]:
    """(bool [n]: is a box, ordered by score, suppressed by none that is kept; bool: are these answers final?).

    keep[j] = no kept i < j suppresses j is solved block by block: each sweep over a block decides at least the first box that is open.
    """
    n = boxes.size(0)
    suppressed = torch.zeros(n, dtype=torch.bool, device=boxes.device)
    settled = torch.ones((), dtype=torch.bool, device=boxes.device)
    parts = []
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        later = _overlap(boxes[start:], boxes[start:stop]) > threshold
        size = stop - start
        before = torch.ones(size, size, dtype=torch.bool, device=boxes.device).tril(-1)
        within, alive = later[:size] & before, ~suppressed[start:stop]
        keep = last = alive
        for _ in range(min(sweeps, size)):
            keep, last = alive & ~(within & keep).any(1), keep
        settled = settled & ((keep == last).all() if sweeps < size else True)
        parts.append(keep)
        if stop < n:
            suppressed[stop:] |= (later[size:] & keep).any(1)
    return torch.cat(parts), settled


def _overlap(rows: Tensor, columns: Tensor) -> Tensor:
    """Areas shared by two boxes over the areas they cover, in f64, into which kernels convert it to compare it; [rows, columns]."""
    x1, y1, x2, y2 = rows.unsqueeze(1).unbind(-1)
    left, top, right, bottom = columns.unsqueeze(0).unbind(-1)
    width = (torch.where(right < x2, right, x2) - torch.where(left < x1, x1, left)).clamp_min(0)
    height = (torch.where(bottom < y2, bottom, y2) - torch.where(top < y1, y1, top)).clamp_min(0)
    shared = width * height
    areas = (right - left) * (bottom - top) + (x2 - x1) * (y2 - y1)
    return (shared / (areas - shared)).double()


# --- regions


class _Axis(NamedTuple):
    """Where the bins of regions read along one dimension."""

    #: i64 [samples, regions, bins]
    places: Tensor
    #: [samples, regions, bins]; 0: nothing is read
    weight: Tensor


def _check_regions(x: Tensor, rois: Tensor) -> None:
    _require(x.dtype in _FLOATS and rois.dtype == x.dtype, f"regions of {rois.dtype} of {x.dtype}")
    _require(x.dim() == 4 and rois.dim() == 2 and rois.size(1) == 5, "regions that are not [n, 5] of images")


def _steps(y: _Axis, x: _Axis, width: int, channels: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(i64 positions in an image, weights), each [samples, regions, bins down, bins across], in row-major order of the samples."""
    numbers = y.places[0].numel() * x.places.size(2) * max(channels, 1)
    across = min(max(_NUMBERS_MAX // numbers, 1), x.places.size(0))
    down = min(max(_NUMBERS_MAX // (numbers * across), 1), y.places.size(0)) if across == x.places.size(0) else 1
    count = math.ceil(y.places.size(0) / down) * math.ceil(x.places.size(0) / across)
    _require(count <= _STEPS_MAX, f"{count} steps of {numbers} numbers")
    for top in range(0, y.places.size(0), down):
        for left in range(0, x.places.size(0), across):
            rows, columns = (_Axis(*(part[at : at + n] for part in axis)) for axis, at, n in ((y, top, down), (x, left, across)))
            places = rows.places[:, None, :, :, None] * width + columns.places[None, :, :, None]
            weights = rows.weight[:, None, :, :, None] * columns.weight[None, :, :, None]
            yield places.flatten(0, 1), weights.flatten(0, 1)


def _collected(values: Tensor, base: Tensor, y: _Axis, x: _Axis, width: int) -> Tensor:
    """Weighted sums of rows of ``values`` [positions, channels], [regions, bins down, bins across, channels]; ``base``: the first position
    of the image that a bin reads."""
    channels = values.size(1)
    total = torch.zeros(*base.shape, channels, dtype=values.dtype, device=values.device)
    for places, weights in _steps(y, x, width, channels):
        rows = values.index_select(0, (places + base).flatten()).view(*places.shape, channels)
        weights = weights.unsqueeze(-1)
        total += torch.where(weights != 0, rows * weights, 0).sum(0)
    return total


def _spread(slope: Tensor, size: int, base: Tensor, y: _Axis, x: _Axis, width: int) -> Tensor:
    """The gradient of ``_collected`` by its ``values``, [size, channels]; ``slope``: that by its result."""
    channels = slope.size(-1)
    out = torch.zeros(size, channels, dtype=slope.dtype, device=slope.device)
    for places, weights in _steps(y, x, width, channels):
        weights = weights.unsqueeze(-1)
        rows = torch.where(weights != 0, weights * slope, 0).reshape(-1, channels)
        out.index_add_(0, (places + base).flatten(), rows)
    return out


def _base(rois: Tensor, size: int, down: int, across: int, shared: bool) -> Tensor:
    """The first position of the image of every bin, i64 [regions, down, across]. Not ``shared``: every bin has an image of its own."""
    batch = rois[:, 0].to(torch.int64)[:, None, None]
    if shared:
        return (batch * size).expand(-1, down, across)
    bins = torch.arange(down * across, device=rois.device).view(down, across)
    return (batch * (down * across) + bins) * size


def _as_rows(x: Tensor, down: int, across: int, shared: bool) -> Tensor:
    """Images [n, channels, h, w] as rows of channels that a bin may read."""
    if shared:
        return x.permute(0, 2, 3, 1).reshape(-1, x.size(1))
    parts = x.reshape(x.size(0), -1, down, across, *x.shape[2:])
    return parts.permute(0, 2, 3, 4, 5, 1).reshape(-1, parts.size(1))


def _channels_first(bins: Tensor) -> Tensor:
    return bins.permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)


def _as_images(rows: Tensor, shape: tuple[int, int, int, int], down: int, across: int, shared: bool) -> Tensor:
    """The inverse of ``_as_rows``; ``shape``: of the images."""
    n, _, height, width = shape
    if shared:
        return _channels_first(rows.view(n, height, width, -1))
    return rows.view(n, down, across, height, width, -1).permute(0, 5, 1, 2, 3, 4).reshape(shape)


class _Aligned(NamedTuple):
    """Regions sampled between pixels."""

    base: Tensor
    y: _Axis
    x: _Axis
    #: samples of a bin, [regions, 1, 1, 1]
    samples: Tensor


def _interpolated(start: Tensor, step: Tensor, grids: Tensor, grid: int, bins: int, size: int) -> _Axis:
    """Samples in the middle of ``grids`` parts of each bin, of which there are at most ``grid``: what they take of both neighbours."""
    bin_, part = torch.arange(bins, device=start.device), torch.arange(grid, device=start.device).view(-1, 1, 1)
    at = start[:, None] + bin_ * step[:, None] + (part + 0.5).to(start.dtype) * step[:, None] / grids[:, None]
    inside = (at >= -1) & (at <= size) & (part < grids[:, None])
    at = torch.where(inside, at, 0).clamp_min(0)
    low = at.to(torch.int64).clamp_max(size - 1)
    high = (low + 1).clamp_max(size - 1)
    share = torch.where(low < size - 1, at - low, 0)
    weights = torch.stack([1 - share, share], 1) * inside.unsqueeze(1)
    return _Axis(torch.stack([low, high], 1).flatten(0, 1), weights.flatten(0, 1))


def _aligned(rois: Tensor, scale: float, pooled: tuple[int, int], size: tuple[int, int], ratio: int, how: tuple[bool, bool]) -> _Aligned:
    """``how``: (are pixels centred at halves, and regions as small as they are?; do bins share an image?). Waits once where ``ratio``, the
    samples of a bin along a dimension, is not given."""
    aligned, shared = how
    x1, y1, x2, y2 = (rois[:, 1:] * scale - (0.5 if aligned else 0.0)).unbind(1)
    spans = [y2 - y1, x2 - x1]
    if not aligned:
        spans = [span.clamp_min(1) for span in spans]
    steps = [span / bins for span, bins in zip(spans, pooled, strict=True)]
    if ratio > 0:
        grids, most = [torch.full_like(span, ratio) for span in spans], [ratio, ratio]
    else:
        grids = [step.ceil() for step in steps]
        most = [max(int(n), 0) for n in torch.stack(grids).amax(1).tolist()]
    axes = [
        _interpolated(start, step, grid, n, bins, extent)
        for start, step, grid, n, bins, extent in zip((y1, x1), steps, grids, most, pooled, size, strict=True)
    ]
    count = (grids[0] * grids[1]).view(-1, 1, 1, 1)
    return _Aligned(_base(rois, size[0] * size[1], *pooled, shared), axes[0], axes[1], count)


@composite("torchvision::roi_align")
@in_f32
def roi_align(
    x: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int, aligned: bool
) -> Tensor:
    _check_regions(x, rois)
    pooled, size = (pooled_height, pooled_width), (x.size(2), x.size(3))
    if not rois.size(0) * x.size(1) * math.prod(pooled):
        return x.new_zeros(rois.size(0), x.size(1), *pooled)
    at = _aligned(rois, spatial_scale, pooled, size, sampling_ratio, (aligned, True))
    total = _collected(_as_rows(x, *pooled, True), at.base, at.y, at.x, size[1])
    return _channels_first(total / at.samples.clamp_min(1))


@composite("torchvision::_roi_align_backward")
@in_f32
def roi_align_backward(dy: Tensor, rois: Tensor, spatial_scale: float, *numbers: int) -> Tensor:
    pooled_height, pooled_width, batch_size, channels, height, width, sampling_ratio, aligned = numbers
    _check_regions(dy, rois)
    shape, pooled = (batch_size, channels, height, width), (pooled_height, pooled_width)
    if not dy.numel():
        return dy.new_zeros(shape)
    at = _aligned(rois, spatial_scale, pooled, (height, width), sampling_ratio, (bool(aligned), True))
    rows = _spread(dy.permute(0, 2, 3, 1) / at.samples, batch_size * height * width, at.base, at.y, at.x, width)
    return _as_images(rows, shape, *pooled, True)


def _mapping(x: Tensor, rois: Tensor, pooled: tuple[int, int]) -> Tensor:
    """The channel of ``x`` that each bin of a result reads, i32 [regions, channels / bins, down, across]. Raises Unsupported when there is
    not the same number for each bin."""
    _check_regions(x, rois)
    _require(x.size(1) % math.prod(pooled) == 0, f"{x.size(1)} channels")
    each = torch.arange(x.size(1), dtype=torch.int32, device=rois.device).view(-1, *pooled)
    return each.expand(rois.size(0), *each.shape).clone(memory_format=torch.contiguous_format)


@composite("torchvision::ps_roi_align")
@in_f32
def ps_roi_align(
    x: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int
) -> tuple[Tensor, Tensor]:
    pooled, size = (pooled_height, pooled_width), (x.size(2), x.size(3))
    mapping = _mapping(x, rois, pooled)
    if not mapping.numel():
        return torch.zeros_like(mapping, dtype=x.dtype), mapping
    at = _aligned(rois, spatial_scale, pooled, size, sampling_ratio, (True, False))
    total = _collected(_as_rows(x, *pooled, False), at.base, at.y, at.x, size[1])
    return _channels_first(total / at.samples), mapping


@composite("torchvision::_ps_roi_align_backward")
@in_f32
def ps_roi_align_backward(dy: Tensor, rois: Tensor, channel_mapping: Tensor, spatial_scale: float, *numbers: int) -> Tensor:
    pooled_height, pooled_width, sampling_ratio, batch_size, channels, height, width = numbers
    _check_regions(dy, rois)
    shape, pooled = (batch_size, channels, height, width), (pooled_height, pooled_width)
    if not dy.numel():
        return dy.new_zeros(shape)
    at = _aligned(rois, spatial_scale, pooled, (height, width), sampling_ratio, (True, False))
    size = batch_size * math.prod(pooled) * height * width
    return _as_images(_spread(dy.permute(0, 2, 3, 1) / at.samples, size, at.base, at.y, at.x, width), shape, *pooled, False)


# --- regions of whole pixels


def _rounded(x: Tensor) -> Tensor:
    """To the nearest integer, halves away from 0."""
    whole = x.trunc()
    return whole + torch.where((x - whole).abs() >= 0.5, x.sign(), 0)


def _windows(rois: Tensor, scale: float, pooled: tuple[int, int], ends: tuple[int, int], closed: int) -> tuple[_Axis, _Axis, Tensor]:
    """(pixels of every bin down, across, with weights 1; numbers of pixels [regions, down, across], 0 where there are none), of regions
    that include their last pixel if ``closed``, cut at ``ends``. Waits once, for the largest bin."""
    x1, y1, x2, y2 = _rounded(rois[:, 1:] * scale).unbind(1)
    bounds = []
    for low, high, bins, end in zip((y1, x1), (y2, x2), pooled, ends, strict=True):
        step = ((high - low + closed).clamp_min(1) / bins).unsqueeze(1)
        each = torch.arange(bins, device=rois.device)
        first, last = ((n * step).floor() if n is each else (n * step).ceil() for n in (each, each + 1))
        bounds.append([(at + low.unsqueeze(1)).clamp(0, end).to(torch.int64) for at in (first, last)])
    sizes = [last - first for first, last in bounds]
    most = [max(n, 0) for n in torch.stack([size.amax() for size in sizes]).tolist()]
    axes = []
    for (first, last), n in zip(bounds, most, strict=True):
        at = first + torch.arange(n, device=rois.device).view(-1, 1, 1)
        inside = at < last
        axes.append(_Axis(torch.where(inside, at, 0), inside.to(rois.dtype)))
    down, across = (size.clamp_min(0) for size in sizes)
    return axes[0], axes[1], down.unsqueeze(2) * across.unsqueeze(1)


_LEAST: Final = torch.finfo(torch.float32).min
"""What a maximum starts from, in every type."""


@composite("torchvision::roi_pool")
@in_f32
def roi_pool(x: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int) -> tuple[Tensor, Tensor]:
    """(maxima, 0 of nothing; the pixel that has it, i32, -1 of nothing)."""
    _check_regions(x, rois)
    pooled, size, channels = (pooled_height, pooled_width), (x.size(2), x.size(3)), x.size(1)
    shape = (rois.size(0), *pooled, channels)
    if not math.prod(shape):
        empty = x.new_zeros(shape[0], channels, *pooled)
        return empty, empty.to(torch.int32)
    down, across, area = _windows(rois, spatial_scale, pooled, size, 1)
    values, base = _as_rows(x, *pooled, True), _base(rois, size[0] * size[1], *pooled, True)
    best = torch.where(area > 0, _LEAST, 0.0).to(x.dtype).unsqueeze(-1).expand(shape)
    chosen = torch.full(shape, -1, dtype=torch.int64, device=x.device)
    for places, weights in _steps(down, across, size[1], channels):
        rows = values.index_select(0, (places + base).flatten()).view(*places.shape, channels)
        rows = torch.where((weights == 0).unsqueeze(-1) | rows.isnan(), -math.inf, rows)
        most, which = rows.max(0)
        at = places.unsqueeze(-1).expand(rows.shape).gather(0, which.unsqueeze(0)).squeeze(0)
        better = most > best
        best, chosen = torch.where(better, most, best), torch.where(better, at, chosen)
    return _channels_first(best), _channels_first(chosen).to(torch.int32)


@composite("torchvision::_roi_pool_backward")
@in_f32
def roi_pool_backward(dy: Tensor, rois: Tensor, argmax: Tensor, spatial_scale: float, *numbers: int) -> Tensor:
    batch_size, channels, height, width = numbers[2:]  # behind the sizes of the pooled
    _check_regions(dy, rois)
    out = dy.new_zeros(batch_size, channels, height, width)
    if not dy.numel():
        return out
    batch = rois[:, 0].to(torch.int64)[:, None, None, None]
    each = torch.arange(channels, device=dy.device)[:, None, None]
    places = (batch * channels + each) * (height * width) + argmax.clamp_min(0)
    return out.flatten().index_add_(0, places.flatten(), torch.where(argmax < 0, 0, dy).flatten()).view(out.shape)


@composite("torchvision::ps_roi_pool")
@in_f32
def ps_roi_pool(x: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int) -> tuple[Tensor, Tensor]:
    """Bins of the result end before the last row and column, as in the library; those of the gradient do not."""
    pooled, size = (pooled_height, pooled_width), (x.size(2), x.size(3))
    mapping = _mapping(x, rois, pooled)
    if not mapping.numel():
        return torch.zeros_like(mapping, dtype=x.dtype), mapping
    down, across, area = _windows(rois, spatial_scale, pooled, (size[0] - 1, size[1] - 1), 0)
    base = _base(rois, size[0] * size[1], *pooled, False)
    total = _collected(_as_rows(x, *pooled, False), base, down, across, size[1])
    return _channels_first(total / area.clamp_min(1).unsqueeze(-1)), mapping


@composite("torchvision::_ps_roi_pool_backward")
@in_f32
def ps_roi_pool_backward(dy: Tensor, rois: Tensor, channel_mapping: Tensor, spatial_scale: float, *numbers: int) -> Tensor:
    pooled_height, pooled_width, batch_size, channels, height, width = numbers
    _check_regions(dy, rois)
    shape, pooled = (batch_size, channels, height, width), (pooled_height, pooled_width)
    if not dy.numel():
        return dy.new_zeros(shape)
    down, across, area = _windows(rois, spatial_scale, pooled, (height, width), 0)
    slope = dy.permute(0, 2, 3, 1) / area.clamp_min(1).unsqueeze(-1)
    base = _base(rois, height * width, *pooled, False)
    return _as_images(_spread(slope, batch_size * math.prod(pooled) * height * width, base, down, across, width), shape, *pooled, False)


# --- deformable convolution


class _Geometry(NamedTuple):
    """Sizes of a deformable convolution, as the operators take them."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    offset_groups: int
    use_mask: bool


class _Corner(NamedTuple):
    """One of four pixels around a sampled position."""

    #: i64 [n, groups, 1, positions]; 0 where it is outside
    places: Tensor
    #: [n, groups, channels, positions]; 0 where it is outside
    value: Tensor
    #: of rows and of columns, [n, groups, 1, positions]; 0 where it is outside
    share_y: Tensor
    share_x: Tensor
    inside: Tensor


def _geometry(numbers: tuple[int | bool, ...], x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor) -> _Geometry:
    """Raises Unsupported for operands that do not fit together, which the library's kernel words."""
    (sy, sx, py, px, dy, dx, groups, offset_groups), use_mask = numbers[:8], bool(numbers[8])
    _require(x.dtype in _FLOATS and weight.dtype == offset.dtype == mask.dtype == x.dtype, f"deformed convolution of {x.dtype}")
    _require(x.dim() == weight.dim() == offset.dim() == 4 and (not use_mask or mask.dim() == 4), "ranks")
    _require(min(sy, sx, dy, dx, groups, offset_groups) > 0 and min(py, px) >= 0 and weight.numel() > 0, "sizes")
    kernel = weight.shape[2:]
    out = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in zip(x.shape[2:], (py, px), (dy, dx), kernel, (sy, sx), strict=True)]
    places = offset_groups * math.prod(kernel)
    _require(min(out) > 0 and list(offset.shape) == [x.size(0), 2 * places, *out], "offsets")
    _require(mask.size(0) == x.size(0) and (not use_mask or list(mask.shape) == [x.size(0), places, *out]), "masks")
    _require(weight.size(1) * groups == x.size(1) and weight.size(0) % groups == 0 and x.size(1) % offset_groups == 0, "channels")
    return _Geometry((sy, sx), (py, px), (dy, dx), groups, offset_groups, use_mask)


def _corners(x: Tensor, offset: Tensor, kernel: tuple[int, int], at: _Geometry) -> list[_Corner]:
    """The pixels above left, above right, below left, below right of every position."""
    n, channels, height, width = x.shape
    parts = offset.view(n, at.offset_groups, math.prod(kernel), 2, *offset.shape[2:])
    axes = []
    for d, size in enumerate((height, width)):
        out = torch.arange(offset.size(2 + d), device=x.device) * at.stride[d] - at.padding[d]
        tap = torch.arange(kernel[d], device=x.device) * at.dilation[d]
        tap = tap.repeat_interleave(kernel[1]) if d == 0 else tap.repeat(kernel[0])
        shape = (-1, 1) if d == 0 else (1, -1)
        position = (parts.select(3, d) + (out.view(shape) + tap.view(-1, 1, 1))).reshape(n, at.offset_groups, 1, -1)
        low = position.floor()
        share = position - low
        axes.append([(where, part, (where >= 0) & (where < size)) for where, part in ((low, 1 - share), (low + 1, share))])
    images = x.reshape(n, at.offset_groups, channels // at.offset_groups, height * width)
    corners = []
    for y, share_y, inside_y in axes[0]:
        for column, share_x, inside_x in axes[1]:
            inside = inside_y & inside_x
            index = torch.where(inside, y * width + column, 0).to(torch.int64)
            value = images.gather(3, index.expand(-1, -1, images.size(2), -1))
            corners.append(_Corner(index, torch.where(inside, value, 0), share_y, share_x, inside))
    return corners


def _sampled(corners: list[_Corner]) -> Tensor:
    total = corners[0].value * (corners[0].share_y * corners[0].share_x)
    for corner in corners[1:]:
        total = total + torch.where(corner.inside, corner.value * (corner.share_y * corner.share_x), 0)
    return total


def _batches(x: Tensor, kernel: tuple[int, int], offset: Tensor) -> Iterator[slice]:
    """Images whose columns are formed at a time."""
    numbers = x.size(1) * math.prod(kernel) * math.prod(offset.shape[2:])
    step = max(_NUMBERS_MAX // max(numbers, 1), 1)
    return (slice(at, at + step) for at in range(0, x.size(0), step))


def _per_place(mask: Tensor, at: _Geometry) -> Tensor:
    return mask.reshape(mask.size(0), at.offset_groups, 1, -1)


@composite("torchvision::deform_conv2d")
@in_f32
def deform_conv2d(x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, *numbers: int | bool) -> Tensor:
    at = _geometry(numbers, x, weight, offset, mask)
    kernel = (weight.size(2), weight.size(3))
    filters = weight.reshape(at.groups, weight.size(0) // at.groups, -1)
    results = []
    for part in _batches(x, kernel, offset):
        columns = _sampled(_corners(x[part], offset[part], kernel, at))
        if at.use_mask:
            columns = columns * _per_place(mask[part], at)
        results.append(filters @ columns.reshape(columns.size(0), at.groups, filters.size(2), -1))
    shape = (x.size(0), weight.size(0), *offset.shape[2:])
    return torch.cat(results).view(shape) + bias.view(-1, 1, 1) if results else x.new_zeros(shape)


@composite("torchvision::_deform_conv2d_backward")
@in_f32
def deform_conv2d_backward(
    dy: Tensor, x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, *numbers: int | bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    at = _geometry(numbers, x, weight, offset, mask)
    kernel = (weight.size(2), weight.size(3))
    filters = weight.reshape(at.groups, weight.size(0) // at.groups, -1)
    slopes = dy.reshape(dy.size(0), at.groups, filters.size(1), -1)
    dx, d_offset, d_mask, d_filters = (torch.zeros_like(t) for t in (x, offset, mask, filters))
    for part in _batches(x, kernel, offset):
        corners = _corners(x[part], offset[part], kernel, at)
        above_left, above_right, below_left, below_right = (corner.value for corner in corners)
        sampled = _sampled(corners)
        d_columns = (filters.mT @ slopes[part]).view(sampled.shape)
        columns = sampled
        if at.use_mask:
            d_mask[part] = (d_columns * sampled).sum(2).view(d_mask[part].shape)
            columns, d_columns = sampled * _per_place(mask[part], at), d_columns * _per_place(mask[part], at)
        d_filters += (slopes[part] @ columns.reshape(columns.size(0), at.groups, filters.size(2), -1).mT).sum(0)
        low, high = corners[0], corners[3]
        by_y = high.share_x * (below_right - above_right) + low.share_x * (below_left - above_left)
        by_x = high.share_y * (below_right - below_left) + low.share_y * (above_right - above_left)
        moved = [(d_columns * by).sum(2).view(-1, at.offset_groups, math.prod(kernel), *offset.shape[2:]) for by in (by_y, by_x)]
        d_offset[part] = torch.stack(moved, 3).view(d_offset[part].shape)
        d_images = dx[part].view(*d_columns.shape[:3], -1)
        for corner in corners:
            share = torch.where(corner.inside, corner.share_y * corner.share_x, 0)
            d_images.scatter_add_(3, corner.places.expand(d_columns.shape), d_columns * share)
    return dx, d_filters.view(weight.shape), d_offset, d_mask, torch.ones_like(bias) * dy.sum((0, 2, 3))
