"""Sampling images at positions from a tensor: ``grid_sample`` of images and volumes.

A sample is a sum over taps: an element for every dimension (two by linear modes, four by bicubic, one by nearest), with a weight. Taps
beyond the border are left out, as CUDA does: what is stored elsewhere in the image, NaN for example, does not reach the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Final

from wis.dtypes import DType
from wooly.device.lowering.dtypes import accumulate
from wooly.device.lowering.interpolate import cubic_weights
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta

__all__: list[str] = []

Tap = tuple[Meta, Meta | None]
"""Elements of one dimension as whole floats [N, 1, P], and their weights of that shape (None: 1)."""

_LINEAR, _NEAREST, _CUBIC = range(3)
_BORDER, _REFLECTION = 1, 2
_PIXEL: Final = -0.5  # where an image begins whose corners are not aligned


@lowers("aten::grid_sampler_2d", "aten::grid_sampler_3d")
def grid_sampler(t: Trace, x: Meta, grid: Meta, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Meta:
    """[N, C, *sizes] at [N, *out, rank] positions, the last dimension's first, -1 to 1 across the image: [N, C, *out]."""
    n, channels, *sizes = x.shape
    out = grid.shape[1:-1]
    wide = accumulate(x.dtype)
    grid = t.cast(grid, wide)

    def taps_of(dim: int, size: int) -> list[Tap]:
        given = t.reshape(grid.select(grid.ndim - 1, len(sizes) - 1 - dim), (n, 1, prod(out)))
        place = _place(t, given, size, align_corners)
        return _taps(t, place, interpolation_mode, lambda place: _padded(t, place, size, padding_mode, align_corners))

    taps = [taps_of(dim, size) for dim, size in enumerate(sizes)]
    rows = t.reshape(t.cast(x, wide), (n, channels, prod(sizes)))
    total: Meta | None = None
    for chosen in product(*taps):
        part = _read(t, rows, [place for place, _ in chosen], sizes)
        for _, weight in reversed(chosen):
            part = part if weight is None else t.map("mul", part, weight)
        total = part if total is None else t.map("add", total, part)
    assert total is not None, "every mode has taps"
    return t.reshape(t.cast(total, x.dtype), (n, channels, *out))


def _place(t: Trace, x: Meta, size: int, align_corners: bool) -> Meta:
    """Positions of -1 to 1 as those of elements."""
    scaled = t.map("mul", t.map("add", x, 1.0), (size - 1) / 2 if align_corners else size / 2)
    return scaled if align_corners else t.map("add", scaled, _PIXEL)


def _padded(t: Trace, place: Meta, size: int, padding: int, align_corners: bool) -> Meta:
    """``place`` inside of the image, where there is padding; NaN becomes 0."""
    if padding == _REFLECTION:
        start, span = (0.0, size - 1) if align_corners else (_PIXEL, size)
        distance = t.map("abs", t.map("sub", place, start))
        rest = t.map("fmod", distance, 2.0 * span) if span else t.map("mul", distance, 0.0)
        place = t.map("add", t.map("min", rest, t.map("sub", 2.0 * span, rest)), start)
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


def _read(t: Trace, rows: Meta, places: Sequence[Meta], sizes: Sequence[int]) -> Meta:
    """The elements of ``rows`` [N, C, all] at these places [N, 1, P]; 0 where a place is beyond the border."""
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
    n, channels, _ = rows.shape
    shape = (n, channels, index.shape[-1])
    found = t.temp(rows.dtype, shape)
    t.emit("gather", [found], [rows, index.expand(shape)], (2,))
    return t.where(exists, found, 0.0)
