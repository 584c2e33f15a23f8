"""Resampling images: resizing (nearest, linear and cubic, one dimension after the other) with gradients, and sampling at positions from a
tensor (``grid_sample`` of images and volumes).

Every mode is a list of taps a dimension: (which input each output reads, with which weight). Forward gathers along the taps, backward adds
along them. Positions are computed as CUDA does: of f64 images in f64, of others in f32, and always in f32 by nearest.

A sample is a sum over taps: an element for every dimension (two by linear modes, four by bicubic, one by nearest), with a weight. Taps
beyond the border are left out, as CUDA does: what is stored elsewhere in the image, NaN for example, does not reach the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any, Final

from wis.dtypes import FLOATS, DType
from wis.ops import ScatterMode
from wooly.device.lowering.dtypes import accumulate
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta, Unsupported

__all__ = ["cubic_weights"]

Tap = tuple[Meta, Meta | None]
"""Elements of one dimension as whole floats [N, 1, P], and their weights of that shape (None: 1)."""
Taps = Callable[[Trace, int, int, Sequence[Any], float | None, DType], list[Tap]]
"""(trace, size, count, flags, scale, type of positions) -> taps of one dimension."""
_CUBIC: Final = -0.75
_SCALES: Final = ("scales", "scales_d", "scales_h", "scales_w")


def _clamped(t: Trace, index: Meta, size: int) -> Meta:
    return t.map("min", t.map("max", index, 0), size - 1)


def _nearest(t: Trace, size: int, count: int, scale: float | None, shift: float) -> list[Tap]:
    step = 1 / scale if scale else size / count
    place = t.map("mul", t.map("add", t.iota(count, DType.F32), shift), step)
    return [(_clamped(t, t.cast(t.map("floor", place), DType.I64), size), None)]


def _place(t: Trace, size: int, count: int, align_corners: bool, scale: float | None, clamp: bool, wide: DType) -> Meta:
    """The position in the input that each output looks at, [count] in ``wide``."""
    index = t.iota(count, wide)
    if clamp and size == count:
        return index  # as torch: whatever the scale is
    if align_corners:
        return t.map("mul", index, (size - 1) / (count - 1) if count > 1 else 0.0)
    place = t.map("sub", t.map("mul", t.map("add", index, 0.5), 1 / scale if scale else size / count), 0.5)
    return t.map("max", place, 0.0) if clamp else place


def _linear(t: Trace, size: int, count: int, align_corners: bool, scale: float | None, wide: DType) -> list[Tap]:
    place = _place(t, size, count, align_corners, scale, True, wide)
    low = _clamped(t, t.cast(t.map("floor", place), DType.I64), size)
    high = t.map("min", t.map("add", low, 1), size - 1)
    share = t.map("min", t.map("max", t.map("sub", place, t.cast(low, wide)), 0.0), 1.0)
    return [(low, t.map("sub", 1.0, share)), (high, share)]


def _near(t: Trace, x: Meta) -> Meta:
    """((A + 2) x - (A + 3)) x^2 + 1, for |x| <= 1."""
    inner = t.map("sub", t.map("mul", x, _CUBIC + 2), _CUBIC + 3)
    return t.map("add", t.map("mul", t.map("mul", inner, x), x), 1.0)


def _far(t: Trace, x: Meta) -> Meta:
    """((A x - 5 A) x + 8 A) x - 4 A, for 1 < |x| < 2."""
    inner = t.map("sub", t.map("mul", x, _CUBIC), 5 * _CUBIC)
    return t.map("sub", t.map("mul", t.map("add", t.map("mul", inner, x), 8 * _CUBIC), x), 4 * _CUBIC)


def _cubic(t: Trace, size: int, count: int, align_corners: bool, scale: float | None, wide: DType) -> list[Tap]:
    place = _place(t, size, count, align_corners, scale, False, wide)
    floor = t.map("floor", place)
    low = t.cast(floor, DType.I64)
    weights = cubic_weights(t, t.map("sub", place, floor))
    return [(_clamped(t, t.map("add", low, k - 1), size), weight) for k, weight in enumerate(weights)]


def cubic_weights(t: Trace, share: Meta) -> list[Meta]:
    """Weights of the four elements around a position that lies ``share`` behind the second of them."""
    other = t.map("sub", 1.0, share)
    return [_far(t, t.map("add", share, 1.0)), _near(t, share), _near(t, other), _far(t, t.map("add", other, 1.0))]


def _column(weight: Meta, ndim: int, dim: int) -> Meta:
    """A weight per output as a tensor that broadcasts along ``dim``."""
    for _ in range(ndim - dim - 1):
        weight = weight.unsqueeze(-1)
    return weight


def _gathered(t: Trace, x: Meta, dim: int, taps: Sequence[Tap]) -> Meta:
    total: Meta | None = None
    for index, weight in taps:
        part = t.temp(x.dtype, (*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :]))
        t.emit("index", [part.move(dim, 0)], [x.move(dim, 0), index])
        if weight is not None:
            part = t.map("mul", part, _column(weight, x.ndim, dim), dtype=x.dtype)
        total = part if total is None else t.map("add", total, part)
    assert total is not None, "every mode has taps"
    return total


def _scattered(t: Trace, dy: Meta, dim: int, size: int, taps: Sequence[Tap]) -> Meta:
    out = t.full((*dy.shape[:dim], size, *dy.shape[dim + 1 :]), 0, dy.dtype)
    for index, weight in taps:
        part = dy if weight is None else t.map("mul", dy, _column(weight, dy.ndim, dim), dtype=dy.dtype)
        t.emit("index_put", [out.move(dim, 0)], [part.move(dim, 0), index], (ScatterMode.ADD,))
    return out


def _forward(taps: Taps, rank: int, n_flags: int) -> Callable[..., Meta]:
    """``n_flags``: 1 when the overload takes align_corners before its scales."""

    def lowering(t: Trace, x: Meta, output_size: Sequence[int], *rest: Any) -> Meta:
        flags, scales = rest[:n_flags], [*rest[n_flags:], *[None] * rank]
        if n_flags and x.dtype not in FLOATS:
            raise Unsupported(f"interpolation between {x.dtype.text}")  # torch's CPU kernel rounds in fixed point
        out = t.acc(x)
        for i in range(rank):
            dim = x.ndim - rank + i
            out = _gathered(t, out, dim, taps(t, x.shape[dim], output_size[i], flags, scales[i], accumulate(x.dtype)))
        return out

    return lowering


def _backward(taps: Taps, rank: int, n_flags: int) -> Callable[..., Meta]:
    def lowering(t: Trace, dy: Meta, output_size: Sequence[int], input_size: Sequence[int], *rest: Any) -> Meta:
        flags, scales = rest[:n_flags], [*rest[n_flags:], *[None] * rank]
        out = t.acc(dy)
        for i in reversed(range(rank)):
            dim = dy.ndim - rank + i
            out = _scattered(t, out, dim, input_size[dim], taps(t, input_size[dim], output_size[i], flags, scales[i], accumulate(dy.dtype)))
        return out

    return lowering


_MODES: Final[dict[str, tuple[Taps, int, int]]] = {
    "upsample_linear1d": (lambda t, n, m, flags, s, wide: _linear(t, n, m, flags[0], s, wide), 1, 1),
    "upsample_bilinear2d": (lambda t, n, m, flags, s, wide: _linear(t, n, m, flags[0], s, wide), 2, 1),
    "upsample_trilinear3d": (lambda t, n, m, flags, s, wide: _linear(t, n, m, flags[0], s, wide), 3, 1),
    "upsample_bicubic2d": (lambda t, n, m, flags, s, wide: _cubic(t, n, m, flags[0], s, wide), 2, 1),
}
for _rank in (1, 2, 3):
    _MODES[f"upsample_nearest{_rank}d"] = (lambda t, n, m, flags, s, wide: _nearest(t, n, m, s, 0.0), _rank, 0)
    _MODES[f"_upsample_nearest_exact{_rank}d"] = (lambda t, n, m, flags, s, wide: _nearest(t, n, m, s, 0.5), _rank, 0)
for _name, _mode in _MODES.items():
    lowers(f"aten::{_name}", concrete=_SCALES)(_forward(*_mode))
    lowers(f"aten::{_name}_backward", concrete=_SCALES)(_backward(*_mode))


_LINEAR, _NEAREST, _BICUBIC = range(3)
_BORDER, _REFLECTION = 1, 2
_PIXEL: Final = -0.5  # where an image begins whose corners are not aligned


@lowers("aten::grid_sampler_2d", "aten::grid_sampler_3d")
def grid_sampler(t: Trace, x: Meta, grid: Meta, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Meta:
    """[N, C, *sizes] at [N, *out, rank] positions, the last dimension's first, -1 to 1 across the image: [N, C, *out]."""
    n, channels, *sizes = x.shape
    out = grid.shape[1:-1]
    wide = accumulate(x.dtype)
    grid = t.cast(grid, wide)

    taps = []
    for dim, size in enumerate(sizes):
        place = _grid_place(t, _coordinate(t, grid, len(sizes) - 1 - dim), size, align_corners)
        taps.append(_taps(t, place, interpolation_mode, partial(_padded, t, size=size, padding=padding_mode, align_corners=align_corners)))
    rows = t.reshape(t.cast(x, wide), (n, channels, prod(sizes)))
    total: Meta | None = None
    for chosen in product(*taps):
        part = _found(t, rows, *_located(t, [place for place, _ in chosen], sizes))
        for _, weight in reversed(chosen):
            part = part if weight is None else t.map("mul", part, weight)
        total = part if total is None else t.map("add", total, part)
    assert total is not None, "every mode has taps"
    return t.reshape(t.cast(total, x.dtype), (n, channels, *out))


def _coordinate(t: Trace, grid: Meta, at: int) -> Meta:
    """One of the numbers of every position, [N, 1, P]."""
    return t.reshape(grid.select(grid.ndim - 1, at), (grid.shape[0], 1, prod(grid.shape[1:-1])))


@lowers("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward")
def grid_sampler_backward(
    t: Trace, dy: Meta, x: Meta, grid: Meta, interpolation_mode: int, padding_mode: int, align_corners: bool, *, output_mask: Sequence[bool]
) -> list[Meta | None]:
    """Every tap gives its element ``dy`` times its weight, and positions ``dy`` times the element times the slope of the weight."""
    n, channels, *sizes = x.shape
    wide = accumulate(x.dtype)
    grid_shape, grid = grid.shape, t.cast(grid, wide)
    places = [_grid_place(t, _coordinate(t, grid, len(sizes) - 1 - d), size, align_corners) for d, size in enumerate(sizes)]
    taps = []
    for place, size in zip(places, sizes, strict=True):
        inside = partial(_padded, t, size=size, padding=padding_mode, align_corners=align_corners)
        of_dim = _taps(t, place, interpolation_mode, inside)
        taps.append(list(zip(of_dim, _slopes(t, place, interpolation_mode, of_dim), strict=True)))
    dy = t.reshape(t.cast(dy, wide), (n, channels, prod(grid_shape[1:-1])))
    rows = t.reshape(t.cast(x, wide), (n, channels, prod(sizes)))
    dx, slopes = t.full(rows.shape, 0, wide), [t.full((n, 1, dy.shape[-1]), 0, wide) for _ in sizes]
    for chosen in product(*taps):
        exists, index = _located(t, [place for (place, _), _ in chosen], sizes)
        weights = [weight for (_, weight), _ in chosen]
        if t.wanted(0):
            t.emit("scatter", [dx], [t.where(exists, _times(t, dy, weights), 0.0), index.expand(dy.shape)], (2, ScatterMode.ADD))
        if t.wanted(1) and interpolation_mode != _NEAREST:
            found = t.reduce("sum", t.map("mul", dy, _found(t, rows, exists, index)), [1], True)
            for d, (_, slope) in enumerate(chosen):
                part = _times(t, found, [slope, *weights[:d], *weights[d + 1 :]])
                slopes[d] = t.map("add", slopes[d], t.where(exists, part, 0.0))
    dgrid = t.temp(wide, grid_shape)
    for d, (slope, place, size) in enumerate(zip(slopes, places, sizes, strict=True)):
        if interpolation_mode == _LINEAR and padding_mode:
            slope = t.map("mul", slope, _padded_slope(t, place, size, padding_mode, align_corners))
        slope = t.map("mul", slope, (size - 1) / 2 if align_corners else size / 2)
        t.store(dgrid.select(dgrid.ndim - 1, len(sizes) - 1 - d), t.reshape(slope, grid_shape[:-1]))
    return [t.reshape(dx, x.shape) if t.wanted(0) else None, dgrid if t.wanted(1) else None]


def _times(t: Trace, x: Meta, factors: Sequence[Meta | None]) -> Meta:
    for factor in factors:
        x = x if factor is None else t.map("mul", x, factor)
    return x


def _slopes(t: Trace, place: Meta, mode: int, taps: Sequence[Tap]) -> list[Meta | None]:
    """The derivatives of the weights of taps by the position."""
    if mode == _NEAREST:
        return [None]
    if mode == _LINEAR:
        return [t.full((), sign, place.dtype) for sign in (-1.0, 1.0)]
    share = t.map("sub", place, t.map("floor", place))
    other = t.map("sub", 1.0, share)
    first, second = _far_slope(t, t.map("add", share, 1.0)), _near_slope(t, share)
    return [first, second, t.map("neg", _near_slope(t, other)), t.map("neg", _far_slope(t, t.map("add", other, 1.0)))]


def _near_slope(t: Trace, x: Meta) -> Meta:
    return t.map("mul", t.map("sub", t.map("mul", x, 3 * (_CUBIC + 2)), 2 * (_CUBIC + 3)), x)


def _far_slope(t: Trace, x: Meta) -> Meta:
    return t.map("add", t.map("mul", t.map("sub", t.map("mul", x, 3 * _CUBIC), 10 * _CUBIC), x), 8 * _CUBIC)


def _padded_slope(t: Trace, place: Meta, size: int, padding: int, align_corners: bool) -> Meta:
    """The derivative of ``_padded`` by the position: 1 or -1, and 0 at the border and beyond."""
    slope = t.full((), 1.0, place.dtype)
    if padding == _REFLECTION:
        start, span = _mirrors(size, align_corners)
        distance = t.map("sub", place, start)
        flips = t.map("floor", t.map("div", t.map("abs", distance), span)) if span else distance
        turned = t.map("ne", t.map("eq", t.map("mod", flips, 2.0), 1.0), t.map("lt", distance, 0.0), dtype=DType.BOOL)
        slope = t.where(turned, -1.0, slope)
        place = _reflected(t, place, size, align_corners)
    return t.where(t.map("and", t.map("gt", place, 0.0), t.map("lt", place, size - 1.0)), slope, 0.0)


def _grid_place(t: Trace, x: Meta, size: int, align_corners: bool) -> Meta:
    """Positions of -1 to 1 as those of elements."""
    scaled = t.map("mul", t.map("add", x, 1.0), (size - 1) / 2 if align_corners else size / 2)
    return scaled if align_corners else t.map("add", scaled, _PIXEL)


def _mirrors(size: int, align_corners: bool) -> tuple[float, float]:
    """Where an image begins, and how long it is."""
    return (0.0, size - 1) if align_corners else (_PIXEL, size)


def _reflected(t: Trace, place: Meta, size: int, align_corners: bool) -> Meta:
    start, span = _mirrors(size, align_corners)
    distance = t.map("abs", t.map("sub", place, start))
    rest = t.map("fmod", distance, 2.0 * span) if span else t.map("mul", distance, 0.0)
    return t.map("add", t.map("min", rest, t.map("sub", 2.0 * span, rest)), start)


def _padded(t: Trace, place: Meta, size: int, padding: int, align_corners: bool) -> Meta:
    """``place`` inside of the image, where there is padding; NaN becomes 0."""
    if padding == _REFLECTION:
        place = _reflected(t, place, size, align_corners)
    if padding in (_BORDER, _REFLECTION):
        place = t.where(t.map("gt", place, 0.0), t.map("min", place, size - 1), 0.0)
    return place


def _taps(t: Trace, place: Meta, mode: int, inside: Callable[[Meta], Meta]) -> list[Tap]:
    if mode == _NEAREST:
        return [(t.map("round", inside(place)), None)]
    if mode == _LINEAR:
        place = inside(place)
        low = t.map("floor", place)
        share = t.map("sub", place, low)
        return [(low, t.map("sub", 1.0, share)), (t.map("add", low, 1.0), share)]
    low = t.map("floor", place)
    weights = cubic_weights(t, t.map("sub", place, low))
    return [(inside(t.map("add", low, k - 1.0)), weight) for k, weight in enumerate(weights)]


def _located(t: Trace, places: Sequence[Meta], sizes: Sequence[int]) -> tuple[Meta, Meta]:
    """(is there an element at these places [N, 1, P], its position in the flattened image: 0 where there is none)."""
    exists: Meta | None = None
    for place, size in zip(places, sizes, strict=True):
        here = t.map("and", t.map("ge", place, 0.0), t.map("lt", place, float(size)), dtype=DType.BOOL)
        exists = here if exists is None else t.map("and", exists, here, dtype=DType.BOOL)
    assert exists is not None, "images have dimensions"
    index: Meta | None = None
    for place, size in zip(places, sizes, strict=True):
        at = t.cast(t.where(exists, place, 0.0), DType.I64)
        index = at if index is None else t.map("add", t.map("mul", index, size), at)
    assert index is not None, "images have dimensions"
    return exists, index


def _found(t: Trace, rows: Meta, exists: Meta, index: Meta) -> Meta:
    """The elements of ``rows`` [N, C, all], 0 where there are none."""
    n, channels, _ = rows.shape
    shape = (n, channels, index.shape[-1])
    found = t.temp(rows.dtype, shape)
    t.emit("gather", [found], [rows, index.expand(shape)], (2,))
    return t.where(exists, found, 0.0)
