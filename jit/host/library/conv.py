"""conv, conv_dx, conv_dw -> records: tiles of images, layouts that products can write, and the cheap special cases.

Every size decision depends on sizes alone, never on the machine, because it decides the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from jit.host.library.build import Build, View, contiguous, view
from jit.host.library.kernels.conv import SLACK
from jit.host.library.matmul import product
from jit.host.record import Arg, Record
from jit.plan.access import overlaps
from wis.dtypes import ACCUMULATE, DType
from wis.program import BoundInstr

__all__ = ["conv", "conv_dw", "conv_dx"]


def five(v: View) -> View:
    """A view [n, c, *s] with spatial dimensions of size 1 put in front until there are three."""
    missing = 5 - len(v.shape)
    shape = v.shape[:2] + (1,) * missing + v.shape[2:]
    return replace(v, shape=shape, strides=v.strides[:2] + (0,) * missing + v.strides[2:])


def spread(values: tuple[int, ...], fill: int) -> tuple[int, ...]:
    """One value a spatial dimension, with ``fill`` for those put in front."""
    return (fill,) * (3 - len(values)) + values


def is_plane(v: View) -> bool:
    """Whether the spatial dimensions of each channel are one run of neighbours."""
    return all(size == 1 or a == b for size, a, b in zip(v.shape[2:], v.strides[2:], contiguous(v.shape[2:]), strict=True))


def walk_of(x: View, y: View, stride: tuple[int, ...]) -> str:
    """ "flat" or "deep", and how neighbouring outputs of a row of ``y`` read ``x``: the end of a kernel's name."""
    depth = "flat" if y.shape[2] == 1 else "deep"
    step = stride[2] * x.strides[4]
    if step == 1:
        return f"{depth}.unit"
    return f"{depth}.pair" if step == 2 and x.strides[4] == 1 else f"{depth}.strided"


def window_args(
    x: View, y: View, k: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...], dilation: tuple[int, ...]
) -> dict[str, Arg]:
    """The arguments that ``kernels.windows.geometry`` declares."""
    args: dict[str, Arg] = {"t_h": y.shape[3], "t_w": y.shape[4]}
    for name, values in (("k", k), ("size", x.shape[2:]), ("stride", stride), ("pad", pad), ("dilation", dilation), ("x_s", x.strides[2:])):
        args |= {f"{name}{d}": value for d, value in enumerate(values)}
    return args


def plane_args(x: View, t: View) -> dict[str, Arg]:
    """The arguments that ``kernels.pool.planes`` declares; t is the side with output geometry."""
    return {
        "channels": x.shape[1], "rows": t.shape[2] * t.shape[3], "x_n": x.strides[0], "x_c": x.strides[1],
        "t_n": t.strides[0], "t_c": t.strides[1], "t_row": t.strides[3] if t.shape[3] > 1 else t.strides[2],
    }  # fmt: skip


_TILE_BYTES: Final = 512 << 10  # of the columns matrix: leaves room in a core's L2 for weights and results
_LINE_BYTES: Final = 4 << 20  # of the columns matrix of one line; longer lines are cut
_MAX_PARTS: Final = 16
_PART_FLOPS: Final = 8e6
_PARTS_BYTES: Final = 32 << 20
_FLOPS_PER_NS: Final = 100.0
_LOSS: Final = 1.2  # of work on vectors that are not full, at which small images had better share them


@dataclass(frozen=True, slots=True)
class _Conv:
    """One convolution over three spatial dimensions: x [n, c, *s], w [o, c/groups, *k], y [n, o, *t] (y: the result or its gradient)."""

    x: View
    w: View
    y: View
    groups: int
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def filters(self) -> int:
        return self.w.shape[0] // self.groups

    @property
    def channels(self) -> int:
        return self.w.shape[1]

    @property
    def window(self) -> int:
        return prod(self.w.shape[1:])

    @property
    def rows(self) -> int:
        """Rows of an output image (depth and height together)."""
        return self.y.shape[2] * self.y.shape[3]

    @property
    def variant(self) -> str:
        """The end of the name of a kernel that lays out columns."""
        short = self.y.shape[4] == self.x.shape[4] < 64 // self.x.dtype.itemsize
        flat = self.x.shape[2] == self.y.shape[2] == self.w.shape[2] == 1
        neighbours = self.x.strides[4] == 1 and self.x.strides[3] == self.x.shape[4]
        if short and flat and neighbours and prod(self.stride) == 1:
            return f"{self.x.dtype.text}.flat.plane"
        return f"{self.x.dtype.text}.{walk_of(self.x, self.y, self.stride)}"

    def with_tables(self, args: dict[str, Arg], scratch: int) -> int:
        """Add the place of the walk's tables behind ``scratch`` bytes, if it has any; returns the scratch needed then."""
        if not self.variant.endswith("plane"):
            return scratch
        args["tables_at"] = scratch = (scratch + 63) // 64 * 64
        return scratch + 2 * (4 * self.rows * self.y.shape[4] + SLACK)

    @property
    def flops_per_image(self) -> float:
        """Per group."""
        return 2.0 * self.filters * self.window * self.rows * self.y.shape[4]

    @property
    def is_depthwise(self) -> bool:
        return self.channels == self.filters == 1

    @property
    def is_product(self) -> bool:
        """A window of one point: the columns matrix would be a copy of x."""
        point = prod(self.w.shape[2:]) == 1 and prod(self.stride) == 1 and not any(self.pad)
        return point and is_plane(self.x) and is_plane(self.y) and self.rows * self.y.shape[4] >= 64


def conv(instr: BoundInstr) -> list[Record] | None:
    """y = conv(x, w)."""
    return _lower(instr, lambda a, b, out: (a, b, out), _forward)


def conv_dx(instr: BoundInstr) -> list[Record] | None:
    """dx from dy and w."""
    return _lower(instr, lambda a, b, out: (out, b, a), _gradient_x)


def conv_dw(instr: BoundInstr) -> list[Record] | None:
    """dw from dy and x."""
    return _lower(instr, lambda a, b, out: (b, out, a), _gradient_w)


def _lower(
    instr: BoundInstr, roles: Callable[[View, View, View], tuple[View, View, View]], emit: Callable[[Build, _Conv], None]
) -> list[Record] | None:
    """Common to the three: types through f32, results through a temporary where they overlap, three spatial dimensions."""
    if overlaps(instr):
        return None
    build = Build()
    ins, out = [view(x) for x in instr.ins], view(instr.outs[0])
    if out.numel == 0:
        return []
    if any(x.numel == 0 for x in ins):
        build.zero(out)
        return build.records
    target = out
    if out.dtype in ACCUMULATE:
        wide = ACCUMULATE[out.dtype]
        ins, target = [build.packed(x, wide) for x in ins], build.temp(wide, out.shape)
    if target.dtype not in (DType.F32, DType.F64):
        return None
    x, w, y = (five(v) for v in roles(ins[0], ins[1], target))
    groups, *rest = instr.attrs
    rank = len(rest) // 3
    stride, dilation = spread(tuple(rest[:rank]), 1), spread(tuple(rest[2 * rank :]), 1)
    pad = spread(tuple(rest[rank : 2 * rank]), 0)
    emit(build, _Conv(x, w, y, groups, stride, pad, dilation))
    if target is not out:
        build.copy(target, out)
    return build.records


def _with_packed_weights(build: Build, c: _Conv) -> _Conv:
    """w is read as a matrix [o, window]: its rows must be runs of neighbours."""
    rows = replace(c.w, shape=c.w.shape[1:], strides=c.w.strides[1:])
    return c if rows.is_contiguous else replace(c, w=build.packed(c.w))


def _with_planes(build: Build, c: _Conv) -> _Conv:
    """The arriving gradient y, with each channel a run of neighbours."""
    return c if is_plane(c.y) else replace(c, y=build.packed(c.y))


def _geometry(c: _Conv) -> dict[str, Arg]:
    args: dict[str, Arg] = {
        "channels": c.channels,
        "x_n": c.x.strides[0], "x_c": c.x.strides[1], "x": c.x.ptr(), "w": c.w.ptr(), "y": c.y.ptr(),
        "x_g": c.x.strides[1] * c.channels, "w_g": c.w.strides[0] * c.filters, "w_o": c.w.strides[0],
        "y_n": c.y.strides[0], "y_g": c.y.strides[1] * c.filters, "y_o": c.y.strides[1],
        "groups": c.groups, "filters": c.filters, "window": c.window, "all_rows": c.rows,
    }  # fmt: skip
    return args | window_args(c.x, c.y, c.w.shape[2:], c.stride, c.pad, c.dilation)


@dataclass(frozen=True, slots=True)
class _Tile:
    """``images`` whole images, or ``rows`` rows of one."""

    images: int
    rows: int
    pixels: int

    def ld(self, c: _Conv) -> int:
        """Elements from one row of the columns matrix to the next: an odd number of cache lines, so that rows spread over all sets."""
        line = 64 // c.x.dtype.itemsize
        return (-(-self.pixels // line) | 1) * line

    def col_bytes(self, c: _Conv) -> int:
        return (c.window * self.ld(c) * c.x.dtype.itemsize + SLACK + 63) // 64 * 64

    def panel_bytes(self, c: _Conv, columns: int, rows: int) -> int:
        """Of ``rows`` x ``columns`` packed into panels of up to 64 columns."""
        return -(-columns // 64) * 64 * rows * c.x.dtype.itemsize + SLACK


def _tile(c: _Conv, images: int) -> _Tile:
    """The largest tile whose columns stay within bounds, of at most ``images`` images."""
    row_bytes = c.window * c.y.shape[4] * c.x.dtype.itemsize
    count = max(1, min(images, _TILE_BYTES // (row_bytes * c.rows)))
    rows = c.rows if count > 1 else max(1, min(c.rows, _TILE_BYTES // row_bytes))
    return _Tile(count, rows, count * rows * c.y.shape[4])


def _forward(build: Build, c: _Conv) -> None:
    if c.is_product:
        _as_product(build, c.w, c.x, c.y, c.groups)
        return
    result = c.y
    c = _with_packed_weights(build, c)
    if not is_plane(c.y):
        c = replace(c, y=build.temp(c.y.dtype, c.y.shape))
    if c.is_depthwise:
        _depthwise(build, c)
    else:
        for piece in _pieces(c):
            _by_tiles(build, piece)
    if c.y is not result:
        build.copy(c.y, result)


def _pieces(c: _Conv) -> list[_Conv]:
    """A single output line too long for a tile, cut into pieces: each sees the input through a padding of its own."""
    length = c.y.shape[4]
    longest = max(64, _LINE_BYTES // (c.window * c.x.dtype.itemsize) // 64 * 64)
    if c.rows > 1 or length <= longest:
        return [c]
    pieces = []
    for start in range(0, length, longest):
        part = replace(c.y, shape=(*c.y.shape[:4], min(longest, length - start)), offset=c.y.offset + start * c.y.strides[4])
        pieces.append(replace(c, y=part, pad=(*c.pad[:2], c.pad[2] - start * c.stride[2])))
    return pieces


def _depthwise(build: Build, c: _Conv) -> None:
    """One channel by one filter a group."""
    n, channels = c.x.shape[:2]
    args = window_args(c.x, c.y, c.w.shape[2:], c.stride, c.pad, c.dilation) | plane_args(c.x, c.y)
    args |= {"x": c.x.ptr(), "w": c.w.ptr(), "y": c.y.ptr(), "w_o": c.w.strides[0]}
    family = f"depthwise.{c.x.dtype.text}.{walk_of(c.x, c.y, c.stride)}"
    grain = c.rows * -(-c.y.shape[4] // 16) * (3.0 * c.window + 3)
    build.call(family, units=n * channels, grain=grain, reads=(c.x, c.w), writes=(c.y,), args=args)


def _by_tiles(build: Build, c: _Conv) -> None:
    n, pixels = c.x.shape[0], c.rows * c.y.shape[4]
    tile = _tile(c, max(1, n // 8))
    row_tiles = -(-c.rows // tile.rows)
    tiles = -(-n // tile.images) * row_tiles
    joint = tile.images > 1 and -(-pixels // 16) * 16 > _LOSS * pixels
    result_at = tile.col_bytes(c)
    args = _geometry(c) | {
        "n": n, "images": tile.images, "rows": tile.rows, "row_tiles": row_tiles, "result_at": result_at, "ld": tile.ld(c),
        "joint": int(joint),
    }  # fmt: skip
    grain = 2.0 * c.filters * c.window * tile.pixels / _FLOPS_PER_NS + c.window * tile.pixels * 0.2 + 300
    scratch = c.with_tables(args, result_at + (c.filters * tile.ld(c) * c.x.dtype.itemsize if joint else 0))
    units = tiles * c.groups
    build.call(f"conv.{c.variant}", units=units, grain=grain, reads=(c.x, c.w), writes=(c.y,), args=args, scratch_bytes=scratch)


def _as_product(build: Build, w: View, x: View, y: View, groups: int) -> None:
    """y[n, g] = w[g] x[n, g], with the pixels of an image as columns."""
    n, pixels = x.shape[0], prod(x.shape[2:])

    def split(v: View) -> View:
        channels = v.shape[1] // groups
        strides = (v.strides[0], v.strides[1] * channels, v.strides[1], 1)
        return replace(v, shape=(n, groups, channels, pixels), strides=strides)

    o, c = w.shape[:2]
    matrix = replace(w, shape=(n, groups, o // groups, c), strides=(0, w.strides[0] * (o // groups), w.strides[0], w.strides[1]))
    product(build, matrix, split(x), split(y))


def _gradient_x(build: Build, c: _Conv) -> None:
    if c.is_product:
        filters, channels = c.filters, c.channels
        strides = (c.w.strides[0] * filters, c.w.strides[1], c.w.strides[0])
        turned = replace(c.w, shape=(c.groups, channels, filters), strides=strides)
        n, pixels = c.x.shape[0], prod(c.x.shape[2:])

        def split(v: View, size: int) -> View:
            return replace(v, shape=(n, c.groups, size, pixels), strides=(v.strides[0], v.strides[1] * size, v.strides[1], 1))

        matrix = replace(turned, shape=(n, *turned.shape), strides=(0, *turned.strides))
        product(build, matrix, split(c.y, filters), split(c.x, channels))
    elif prod(c.stride) == 1 and 2 * c.channels >= c.filters:
        _forward(build, _turned(build, c))
    else:
        _scatter_x(build, c)


def _turned(build: Build, c: _Conv) -> _Conv:
    """At stride 1 the gradient by x is itself a convolution: of dy, by the filters mirrored and with their channels exchanged."""
    filters, channels, k = c.filters, c.channels, c.w.shape[2:]
    s = c.w.strides
    mirrored = replace(
        c.w,
        shape=(c.groups, channels, filters, *k),
        strides=(s[0] * filters, s[1], s[0], *(-step for step in s[2:])),
        offset=c.w.offset + sum((size - 1) * step for size, step in zip(k, s[2:], strict=True)),
    )
    w = build.packed(mirrored).reshape((c.groups * channels, filters, *k))
    pad = tuple(d * (size - 1) - p for d, size, p in zip(c.dilation, k, c.pad, strict=True))
    return _Conv(c.y, w, c.x, c.groups, (1, 1, 1), pad, c.dilation)


def _scatter_x(build: Build, c: _Conv) -> None:
    c = _with_planes(build, _with_packed_weights(build, c))
    tile = _tile(c, 1)
    arrived_at = tile.col_bytes(c)
    args = _geometry(c) | {"rows": tile.rows, "ld": tile.ld(c), "arrived_at": arrived_at}
    grain = c.flops_per_image / _FLOPS_PER_NS + c.window * c.rows * c.y.shape[4] * 0.4 + 300
    units = c.x.shape[0] * c.groups
    scratch = arrived_at + tile.panel_bytes(c, tile.pixels, c.filters)
    family = f"conv_dx.{c.x.dtype.text}.{walk_of(c.x, c.y, c.stride)}"
    build.call(family, units=units, grain=grain, reads=(c.y, c.w), writes=(c.x,), args=args, scratch_bytes=scratch)


def _gradient_w(build: Build, c: _Conv) -> None:
    c = _with_planes(build, c)
    n, size, dtype = c.x.shape[0], c.w.numel, c.w.dtype
    parts = int(min(n, _MAX_PARTS, n * c.flops_per_image * c.groups / _PART_FLOPS, _PARTS_BYTES / (size * dtype.itemsize)))
    parts = max(parts, 1)
    pieces = [c] if c.is_depthwise else _pieces(c)
    partial = build.temp(dtype, (parts * len(pieces), c.groups, c.window, c.filters))
    for number, piece in enumerate(pieces):
        share = replace(partial, shape=(parts, *partial.shape[1:]), offset=number * parts * size)
        if c.is_depthwise:
            _depthwise_parts(build, piece, share)
        else:
            _parts_by_tiles(build, piece, share)
    total, k = _sum(build, partial), c.w.shape[1:]
    turned = replace(
        total, shape=(c.groups, c.filters, *k), strides=(c.window * c.filters, 1, *(c.filters * step for step in contiguous(k)))
    )
    target = replace(c.w, shape=turned.shape, strides=(c.w.strides[0] * c.filters, *c.w.strides))
    build.copy(turned, target)


def _depthwise_parts(build: Build, c: _Conv, partial: View) -> None:
    parts, groups = partial.shape[:2]
    args = window_args(c.x, c.y, c.w.shape[2:], c.stride, c.pad, c.dilation) | plane_args(c.x, c.y)
    args |= {"x": c.x.ptr(), "w": partial.ptr(), "y": c.y.ptr(), "n": c.x.shape[0], "parts": parts}
    family = f"depthwise_dw.{c.x.dtype.text}.{walk_of(c.x, c.y, c.stride)}"
    grain = c.x.shape[0] / parts * c.window * c.rows * (-(-c.y.shape[4] // 16) * 2.0 + 3)
    build.call(family, units=parts * groups, grain=grain, reads=(c.y, c.x), writes=(partial,), args=args)


def _parts_by_tiles(build: Build, c: _Conv, partial: View) -> None:
    n, parts = c.x.shape[0], partial.shape[0]
    tile = _tile(c, -(-n // parts))
    arrived_at = tile.col_bytes(c)
    args = _geometry(c) | {
        "n": n, "parts": parts, "images": tile.images, "rows": tile.rows, "arrived_at": arrived_at, "ld": tile.ld(c), "w": partial.ptr(),
    }  # fmt: skip
    del args["w_g"], args["w_o"]
    grain = n * c.flops_per_image / parts / _FLOPS_PER_NS * 1.3 + 300
    scratch, units = c.with_tables(args, arrived_at + tile.panel_bytes(c, c.filters, tile.pixels)), parts * c.groups
    family = f"conv_dw.{c.variant}"
    build.call(family, units=units, grain=grain, reads=(c.y, c.x), writes=(partial,), args=args, scratch_bytes=scratch)


def _sum(build: Build, partial: View) -> View:
    """The sum of the parts, in order."""
    parts, *rest = partial.shape
    if parts == 1:
        return replace(partial, shape=tuple(rest), strides=partial.strides[1:])
    total, size, block = build.temp(partial.dtype, rest), prod(rest), 4096
    args: dict[str, Arg] = {"x": partial.ptr(), "y": total.ptr(), "n": size, "parts": parts, "block": block}
    units = -(-size // block)
    build.call(f"sum_parts.{total.dtype.text}", units=units, grain=block * parts * 0.1, reads=(partial,), writes=(total,), args=args)
    return total
