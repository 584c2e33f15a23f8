"""max_pool, avg_pool, avg_pool_dx -> records."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from jit.host.library.build import Build, View, view
from jit.host.library.elements import ELEMENTS
from jit.host.library.windows import five, plane_args, spread, walk_of, window_args
from jit.host.record import Arg, Record
from jit.plan.access import overlaps
from wis.dtypes import ACCUMULATE
from wis.program import BoundInstr

__all__ = ["avg_pool", "avg_pool_dx", "max_pool"]


@dataclass(frozen=True, slots=True)
class _Window:
    k: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]


def _window(attrs: tuple[int, ...], parts: int) -> _Window:
    """From kernel, stride, pad (and dilation) of every spatial dimension."""
    rank = len(attrs) // parts
    lists = [tuple(attrs[i * rank : (i + 1) * rank]) for i in range(parts)]
    dilation = lists[3] if parts == 4 else (1,) * rank
    return _Window(spread(lists[0], 1), spread(lists[1], 1), spread(lists[2], 0), spread(dilation, 1))


def _rows_merge(t: View) -> bool:
    """Whether the rows of a plane have one stride, and their elements are neighbours."""
    d, h, w = t.shape[2:]
    if w > 1 and t.strides[4] != 1:
        return False
    return d == 1 or h == 1 or t.strides[2] == h * t.strides[3]


def _args(x: View, t: View, window: _Window) -> dict[str, Arg]:
    return window_args(x, t, window.k, window.stride, window.pad, window.dilation) | plane_args(x, t) | {"x": x.ptr(), "y": t.ptr()}


def max_pool(instr: BoundInstr) -> list[Record] | None:
    """The greatest of each window and its flat index."""
    build = Build()
    x, out, index = five(view(instr.ins[0])), *(five(view(o)) for o in instr.outs)
    if out.numel == 0:
        return []
    if overlaps(instr) or x.dtype.text not in ELEMENTS or x.numel == 0 or prod(x.shape[2:]) >= 1 << 31:
        return None
    window = _window(instr.attrs, 4)
    best, where = out, index
    if not (_rows_merge(out) and out.strides == index.strides):
        best, where = build.temp(out.dtype, out.shape), build.temp(index.dtype, index.shape)
    args = _args(x, best, window) | {"index": where.ptr()}
    grain = prod(best.shape[2:]) * prod(window.k) * 0.3 + 50
    units = x.shape[0] * x.shape[1]
    family = f"max_pool.{x.dtype.text}.{walk_of(x, best, window.stride)}"
    build.call(family, units=units, grain=grain, reads=(x,), writes=(best, where), args=args)
    if best is not out:
        build.copy(best, out)
        build.copy(where, index)
    return build.records


def avg_pool(instr: BoundInstr) -> list[Record] | None:
    """The mean of each window."""
    build = Build()
    x, out = five(view(instr.ins[0])), five(view(instr.outs[0]))
    if out.numel == 0:
        return []
    if overlaps(instr) or x.numel == 0:
        return None
    count_pad, divisor, *rest = instr.attrs
    window = _window(tuple(rest), 3)
    mean = out if _rows_merge(out) else build.temp(out.dtype, out.shape)
    args = _args(x, mean, window) | {"divisor": divisor, "count_pad": count_pad}
    grain = prod(mean.shape[2:]) * prod(window.k) * 0.3 + 50
    units = x.shape[0] * x.shape[1]
    family = f"avg_pool.{x.dtype.text}.{walk_of(x, mean, window.stride)}"
    build.call(family, units=units, grain=grain, reads=(x,), writes=(mean,), args=args)
    if mean is not out:
        build.copy(mean, out)
    return build.records


def avg_pool_dx(instr: BoundInstr) -> list[Record] | None:
    """The gradient of avg_pool by its input; f16 and bf16 sum in f32."""
    build = Build()
    dy, out = five(view(instr.ins[0])), five(view(instr.outs[0]))
    if out.numel == 0:
        return []
    if overlaps(instr):
        return None
    if dy.numel == 0:
        build.zero(out)
        return build.records
    count_pad, divisor, *rest = instr.attrs
    window = _window(tuple(rest), 3)
    wide = ACCUMULATE.get(out.dtype, out.dtype)
    if dy.dtype is not wide or not _rows_merge(dy):
        dy = build.packed(dy, wide)
    dx = out if out.dtype is wide else build.temp(wide, out.shape)
    args = _args(dx, dy, window) | {"divisor": divisor, "count_pad": count_pad}
    grain = prod(dy.shape[2:]) * prod(window.k) * 0.5 + prod(dx.shape[2:]) * 0.2 + 50
    units = dx.shape[0] * dx.shape[1]
    scratch = prod(dy.shape[2:]) * wide.itemsize + 64
    family = f"avg_pool_dx.{wide.text}.{walk_of(dx, dy, window.stride)}"
    build.call(family, units=units, grain=grain, reads=(dy,), writes=(dx,), args=args, scratch_bytes=scratch)
    if dx is not out:
        build.copy(dx, out)
    return build.records
