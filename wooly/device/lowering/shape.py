"""Operations that move elements without computing: copies, joins, pads, triangles, scatters into views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from wis.dtypes import DType
from wooly.device.lowering.dtypes import result_type
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta, Value

__all__ = ["triangle_mask"]


@lowers("aten::clone", "aten::_to_copy", "aten::lift_fresh_copy", "aten::alias_copy", "aten::detach_copy")
def copy_of(t: Trace, x: Meta, **layout: object) -> Meta:
    """Layout and element type are those of the output; the binding copies and casts."""
    return x


@lowers("aten::copy_", mutates=(0,))
def copy_(t: Trace, target: Meta, source: Value, non_blocking: bool = False) -> None:
    t.write(target, source if isinstance(source, Meta) else t.full((), source, target.dtype))


@lowers("aten::copy")
def copy(t: Trace, target: Meta, source: Value, non_blocking: bool = False) -> Meta:
    value = source if isinstance(source, Meta) else t.full((), source, target.dtype)
    return t.cast(value, target.dtype).expand(target.shape)


@lowers("aten::_conj_physical", "aten::conj_physical")
def conj_physical(t: Trace, x: Meta) -> Meta:
    return t.map("conj", x) if x.dtype.is_complex else x


# --- joining


@lowers("aten::cat")
def cat(t: Trace, tensors: Sequence[Meta], dim: int = 0) -> Meta:
    parts = [x for x in tensors if x.shape != (0,)]  # torch joins empty 1-d tensors with anything
    dtype = result_type(tensors)
    if not parts:
        return t.full((0,), 0, dtype)
    dim %= parts[0].ndim
    shape = list(parts[0].shape)
    shape[dim] = sum(x.shape[dim] for x in parts)
    out, at = t.temp(dtype, shape), 0
    for x in parts:
        t.store(out.narrow(dim, at, x.shape[dim]), x)
        at += x.shape[dim]
    return out


@lowers("aten::stack")
def stack(t: Trace, tensors: Sequence[Meta], dim: int = 0) -> Meta:
    return cat(t, [x.unsqueeze(dim) for x in tensors], dim)


@lowers("aten::repeat")
def repeat(t: Trace, x: Meta, repeats: Sequence[int]) -> Meta:
    """Each dimension n repeated r times is a [r, n] view with stride 0 for r."""
    sizes = (1,) * (len(repeats) - x.ndim) + x.shape
    wide = x.expand(sizes)
    for d in reversed(range(len(sizes))):
        wide = wide.unsqueeze(d, repeats[d])
    out_shape = tuple(r * n for r, n in zip(repeats, sizes, strict=True))
    out = t.temp(x.dtype, wide.shape)
    t.store(out, wide)
    return t.reshape(out, out_shape)


# --- moving


@lowers("aten::flip")
def flip(t: Trace, x: Meta, dims: Sequence[int]) -> Meta:
    if x.ndim:
        for dim in dims:
            x = x.flip(dim % x.ndim)
    return x


@lowers("aten::roll")
def roll(t: Trace, x: Meta, shifts: Sequence[int], dims: Sequence[int] = ()) -> Meta:
    if not dims:
        return t.reshape(roll(t, t.reshape(x, (x.numel,)), shifts, [0]), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        if x.numel == 0:
            return x
        dim %= x.ndim
        size = x.shape[dim]
        shift %= size
        if shift:
            out = t.temp(x.dtype, x.shape)
            t.store(out.narrow(dim, shift, size - shift), x.narrow(dim, 0, size - shift))
            t.store(out.narrow(dim, 0, shift), x.narrow(dim, size - shift, shift))
            x = out
    return x


@lowers("aten::constant_pad_nd")
def constant_pad_nd(t: Trace, x: Meta, pad: Sequence[int], value: Value = 0) -> Meta:
    """``pad`` holds (before, after) from the last dimension on; negative ones cut."""
    before, after = [0] * x.ndim, [0] * x.ndim
    for i in range(len(pad) // 2):
        before[x.ndim - 1 - i], after[x.ndim - 1 - i] = pad[2 * i], pad[2 * i + 1]
    shape = tuple(b + n + a for b, n, a in zip(before, x.shape, after, strict=True))
    out = t.full(shape, value, x.dtype)
    inner = out
    for d, (b, a) in enumerate(zip(before, after, strict=True)):
        x = x.narrow(d, max(-b, 0), x.shape[d] + min(b, 0) + min(a, 0))
        inner = inner.narrow(d, max(b, 0), x.shape[d])
    t.store(inner, x)
    return out


# --- triangles


def triangle_mask(t: Trace, rows: int, columns: int, diagonal: int) -> Meta:
    """bool [rows, columns]: true where column - row <= diagonal."""
    row, column = t.iota(rows, start=diagonal), t.iota(columns)
    return t.map("le", column.unsqueeze(0), row.unsqueeze(-1), dtype=DType.I64)


@lowers("aten::tril")
def tril(t: Trace, x: Meta, diagonal: int = 0) -> Meta:
    return t.where(triangle_mask(t, x.shape[-2], x.shape[-1], diagonal), x, 0, dtype=x.dtype)


@lowers("aten::triu")
def triu(t: Trace, x: Meta, diagonal: int = 0) -> Meta:
    return t.where(triangle_mask(t, x.shape[-2], x.shape[-1], diagonal - 1), 0, x, dtype=x.dtype)


def _diagonal(x: Meta, offset: int, dim1: int, dim2: int) -> Meta:
    """The diagonal as a view, as the last dimension."""
    dim1, dim2 = dim1 % x.ndim, dim2 % x.ndim
    rows, columns = x.shape[dim1], x.shape[dim2]
    length = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    start = x.offset + (max(-offset, 0) * x.strides[dim1] + max(offset, 0) * x.strides[dim2] if length else 0)
    rest = [d for d in range(x.ndim) if d not in (dim1, dim2)]
    shape = (*(x.shape[d] for d in rest), length)
    strides = (*(x.strides[d] for d in rest), x.strides[dim1] + x.strides[dim2])
    return replace(x, shape=shape, strides=strides, offset=start)


# --- gradients of views, and views with new content


def _slice(x: Meta, dim: int, start: int | None, end: int | None, step: int) -> Meta:
    size = x.shape[dim]
    first, last, _ = slice(start, end, step).indices(size)
    return x.narrow(dim % x.ndim, first, max(-(-(last - first) // step), 0), step)


@lowers("aten::slice_backward")
def slice_backward(t: Trace, dy: Meta, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Meta:
    out = t.full(sizes, 0, dy.dtype)
    t.store(_slice(out, dim, start, end, step), dy)
    return out


@lowers("aten::select_backward")
def select_backward(t: Trace, dy: Meta, sizes: Sequence[int], dim: int, index: int) -> Meta:
    out = t.full(sizes, 0, dy.dtype)
    t.store(out.select(dim % len(sizes), index % sizes[dim]), dy)
    return out


@lowers("aten::diagonal_backward")
def diagonal_backward(t: Trace, dy: Meta, sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> Meta:
    out = t.full(sizes, 0, dy.dtype)
    t.store(_diagonal(out, offset, dim1, dim2), dy)
    return out


@lowers("aten::diag_embed")
def diag_embed(t: Trace, x: Meta, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Meta:
    out = t.full(t.want().shape, 0, x.dtype)
    t.store(_diagonal(out, offset, dim1, dim2), x)
    return out


@lowers("aten::unfold_backward")
def unfold_backward(t: Trace, dy: Meta, sizes: Sequence[int], dim: int, size: int, step: int) -> Meta:
    """Window i wrote elements [i * step, i * step + size) of ``dim``: add at a time as much of all windows as is disjoint, the earliest
    windows of each element first, as torch does."""
    out = t.full(sizes, 0, dy.dtype)
    if not sizes:
        return t.reshape(dy, ())
    dim %= len(sizes)
    for first in reversed(range(0, size, step)):
        width = min(step, size - first)
        begins, given = out.narrow(dim, first, dy.shape[dim], step), dy.narrow(dy.ndim - 1, first, width)
        part = replace(begins, shape=(*begins.shape, width), strides=(*begins.strides, out.strides[dim]))
        if step >= size:
            t.store(part, given)
        else:
            t.emit("add", [part], [part, given])
    return out


@lowers("aten::pixel_shuffle")
def pixel_shuffle(t: Trace, x: Meta, upscale_factor: int) -> Meta:
    r, (c, h, w), lead = upscale_factor, x.shape[-3:], x.shape[:-3]
    n = len(lead)
    split = t.reshape(x, (*lead, c // (r * r), r, r, h, w))
    moved = split.permute((*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return t.reshape(moved, (*lead, c // (r * r), h * r, w * r))


@lowers("aten::pixel_unshuffle")
def pixel_unshuffle(t: Trace, x: Meta, downscale_factor: int) -> Meta:
    r, (c, h, w), lead = downscale_factor, x.shape[-3:], x.shape[:-3]
    n = len(lead)
    split = t.reshape(x, (*lead, c, h // r, r, w // r, r))
    moved = split.permute((*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return t.reshape(moved, (*lead, c * r * r, h // r, w // r))


_REFLECT: Final = "reflect"
_REPLICATE: Final = "replicate"
Strip = tuple[Meta, Meta]


def _strips(x: Meta, out: Meta, dim: int, before: int, after: int, mode: str) -> list[Strip]:
    """Pairs (part of the padded tensor, what of the unpadded one it repeats)."""
    n = x.shape[dim]
    cut, drop = max(-before, 0), max(-after, 0)
    before, after = max(before, 0), max(after, 0)
    kept = n - cut - drop
    pairs: list[Strip] = [(out.narrow(dim, before, kept), x.narrow(dim, cut, kept))]
    for size, place, nearest, away in ((before, 0, 0, 1), (after, before + kept, n - 1, -1)):
        if not size:
            continue
        target = out.narrow(dim, place, size)
        if mode == _REPLICATE:
            edge = x.narrow(dim, nearest, 1)
            pairs.append((target, edge.expand(target.shape)))
        else:  # the strip next to the edge, without the edge itself, backwards
            start = nearest + away if away < 0 else nearest + size
            pairs.append((target, x.narrow(dim, start, size, -1)))
    return pairs


def _padded(t: Trace, x: Meta, padding: Sequence[int], mode: str) -> Meta:
    for i in range(len(padding) // 2):
        before, after = padding[2 * i], padding[2 * i + 1]
        if before == after == 0:
            continue
        dim = x.ndim - 1 - i
        out = t.temp(x.dtype, (*x.shape[:dim], x.shape[dim] + before + after, *x.shape[dim + 1 :]))
        for target, source in _strips(x, out, dim, before, after, mode):
            t.store(target, source)
        x = out
    return x


def _unpadded(t: Trace, dy: Meta, x: Meta, padding: Sequence[int], mode: str) -> Meta:
    wide = t.acc(dy)
    for i in reversed(range(len(padding) // 2)):
        before, after = padding[2 * i], padding[2 * i + 1]
        if before == after == 0:
            continue
        dim = x.ndim - 1 - i
        out = t.full((*wide.shape[:dim], wide.shape[dim] - before - after, *wide.shape[dim + 1 :]), 0, wide.dtype)
        for from_padded, into in _strips(out, wide, dim, before, after, mode):
            if mode == _REPLICATE and into.strides[dim] == 0 and from_padded.shape[dim] > 1:
                into, from_padded = into.narrow(dim, 0, 1), t.reduce("sum", from_padded, [dim], True)
            t.emit("add", [into], [into, from_padded])
        wide = out
    return wide


for _rank in (1, 2, 3):
    lowers(f"aten::reflection_pad{_rank}d")(lambda t, x, padding: _padded(t, x, padding, _REFLECT))
    lowers(f"aten::replication_pad{_rank}d")(lambda t, x, padding: _padded(t, x, padding, _REPLICATE))
    lowers(f"aten::reflection_pad{_rank}d_backward")(lambda t, dy, x, padding: _unpadded(t, dy, x, padding, _REFLECT))
    lowers(f"aten::replication_pad{_rank}d_backward")(lambda t, dy, x, padding: _unpadded(t, dy, x, padding, _REPLICATE))
