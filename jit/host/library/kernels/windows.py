"""Rows of windows: which outputs of a row read inside the input, and vectors of what they read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from jit.host.library.emit import I32, I64, U32, U64, Fn, Type, Value

__all__ = ["WALKS", "Geometry", "Span", "geometry", "planes", "row_of", "span", "taps", "vector_at", "vector_of"]

WALKS = ("unit", "pair", "strided")
"""How neighbouring outputs of a row read the input: neighbours, every other element, or any stride."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of a window; lists are (depth, height, width). x is the side with input geometry, t the side with output geometry."""

    k: list[Value]
    size: list[Value]
    t_h: Value
    t_w: Value
    stride: list[Value]
    pad: list[Value]
    dilation: list[Value]
    x: list[Value]


def geometry(f: Fn) -> Geometry:
    """Declare the arguments; ``x_s``: strides of x in elements."""
    return Geometry(
        f.i64s("k", 3), f.i64s("size", 3), f.i64("t_h"), f.i64("t_w"), f.i64s("stride", 3), f.i64s("pad", 3), f.i64s("dilation", 3),
        f.i64s("x_s", 3),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Span:
    """The outputs [low, high) of a row that read inside the input at one column of the window; ``shift``: input of output 0."""

    low: Value
    high: Value
    shift: Value


def _ceil_div(value: Value, by: Value) -> Value:
    """ceil(value / by) for value > -by."""
    return (value + by - 1) // by


def span(g: Geometry, kw: Value) -> Span:
    shift = kw * g.dilation[2] - g.pad[2]
    low = (shift < 0).select(_ceil_div(-shift, g.stride[2]), 0).min(g.t_w)
    left = g.size[2] - shift
    high = (left > 0).select(_ceil_div(left, g.stride[2]), 0).min(g.t_w)
    return Span(low, high, shift)


def row_of(g: Geometry, depth: str, q: Value, kd: Value, kh: Value) -> tuple[Value, Value]:
    """The input row that output row ``q`` reads: its offset, and whether it lies inside."""
    h = q if depth == "flat" else q % g.t_h
    y = h * g.stride[1] - g.pad[1] + kh * g.dilation[1]
    d = kd * g.dilation[0] - g.pad[0]
    if depth == "deep":
        d = d + (q // g.t_h) * g.stride[0]
    inside = (y >= 0) & (y < g.size[1]) & (d >= 0) & (d < g.size[0])
    return d * g.x[0] + y * g.x[1], inside


def vector_of(f: Fn, type: Type, walk: str, row: Value, t: Value, step: Value, low: Value, high: Value) -> tuple[Value, Value]:
    """What outputs t, t+1, .. read: (values, mask of those in [low, high)); ``row``: address read by output 0; others read nothing."""
    lanes = type.lanes
    from_low, below = (low - t).to(I32).splat(lanes), (high - t).to(I32).splat(lanes)
    lane = f.iota(I32, lanes)
    mask = (lane >= from_low) & (lane < below)
    if walk == "unit":
        return f.masked_load(row.at(t, type), mask, type), mask
    if walk == "pair":
        # two neighbouring vectors hold every other element that is wanted; what lies between is read only where both sides are
        both = type.element.vec(2 * lanes)
        wide = f.iota(I32, 2 * lanes)
        first, last = ((low - t) * 2).to(I32).splat(2 * lanes), ((high - t) * 2 - 1).to(I32).splat(2 * lanes)
        values = f.masked_load(row.at(t * 2, type), (wide >= first) & (wide < last), both)
        return values.shuffle(list(range(0, 2 * lanes, 2))), mask
    index = f.iota(I64, lanes) * step.splat(lanes)
    return f.gather(row.at(t * step, type), index, mask, type), mask


def vector_at(f: Fn, g: Geometry, type: Type, walk: str, row: Value, t: Value, shift: Value) -> Value:
    """As ``vector_of``, without divisions: ``row`` is where the input row starts, lanes whose input lies outside of it are 0."""
    lanes, first = type.lanes, t * g.stride[2] + shift
    size, start = g.size[2].to(U32), first.to(U32)
    if walk == "pair":
        wide = f.iota(U32, 2 * lanes) + start.splat(2 * lanes) < size.splat(2 * lanes)
        values = f.masked_load(row.at(first, type), wide, type.element.vec(2 * lanes))
        return values.shuffle(list(range(0, 2 * lanes, 2)))
    # one unsigned comparison: what lies before 0 is huge
    if walk == "unit":
        return f.masked_load(row.at(first, type), f.iota(U32, lanes) + start.splat(lanes) < size.splat(lanes), type)
    lane = f.iota(I64, lanes)
    # strides may be so long that lanes behind the last output are more than 32 bits away
    mask = (lane * g.stride[2].splat(lanes) + first.splat(lanes)).to(U64) < g.size[2].to(U64).splat(lanes)
    return f.gather(row.at(first * g.x[2], type), lane * (g.stride[2] * g.x[2]).splat(lanes), mask, type)


@dataclass(frozen=True, slots=True)
class Planes:
    """Images and channels of x and of an output-sided operand t; strides in elements."""

    channels: Value
    rows: Value
    x_n: Value
    x_c: Value
    t_n: Value
    t_c: Value
    t_row: Value

    def offsets(self, unit: Value) -> tuple[Value, Value]:
        image, channel = unit // self.channels, unit % self.channels
        return image * self.x_n + channel * self.x_c, image * self.t_n + channel * self.t_c


def planes(f: Fn) -> Planes:
    return Planes(*(f.i64(name) for name in ("channels", "rows", "x_n", "x_c", "t_n", "t_c", "t_row")))


@dataclass(frozen=True, slots=True)
class Tap:
    """One window point of one output row: its number, the offset of the input row it sees, the input of output 0 in that row."""

    point: Value
    offset: Value
    shift: Value


@contextmanager
def taps(f: Fn, g: Geometry, depth: str, q: Value) -> Iterator[Tap]:
    """Loops over the window points of output row ``q`` that see an input row, in row-major order."""
    with f.loop(0, g.k[0]) as kd, f.loop(0, g.k[1]) as kh:
        offset, inside = row_of(g, depth, q, kd, kh)
        with f.when(inside), f.loop(0, g.k[2]) as kw:
            yield Tap((kd * g.k[1] + kh) * g.k[2] + kw, offset, kw * g.dilation[2] - g.pad[2])
