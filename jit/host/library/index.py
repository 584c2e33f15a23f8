"""gather, scatter, index, index_put -> records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from jit.errors import Inexpressible
from jit.host.library.build import Build, View, view
from jit.host.library.elements import ELEMENTS
from jit.host.library.nest import space
from jit.host.record import Arg, Record, ScalarArg, TrapPtr, TrapSite
from jit.plan.access import overlaps
from wis.dtypes import ACCUMULATE, DType
from wis.ops import ScatterMode
from wis.program import BoundInstr, Operand, Scalar

__all__ = ["gather", "index", "index_put", "scatter"]

_PARTS = {DType.C64: DType.F32, DType.C128: DType.F64}


def _without(values: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return values[:dim] + values[dim + 1 :]


def _trap(idx: View, dim: int, size: int) -> dict[str, Arg]:
    """The arguments of a kernel with one index operand: where traps go, and what is added to a negative index."""
    return {"trap": TrapPtr(), "site": TrapSite(dim), "wrap": _wrap(idx, size)}


def _wrap(idx: View, size: int) -> int:
    return size if idx.dtype is DType.I64 else 0


def gather(instr: BoundInstr) -> list[Record] | None:
    """out[i] = x[i with i[dim] replaced by index[i]]."""
    if overlaps(instr):
        return None
    build, (dim,) = Build(), instr.attrs
    x, idx = (view(v) for v in instr.ins)
    out = view(instr.outs[0])
    if out.numel == 0:
        return []
    fixed = (*x.strides[:dim], 0, *x.strides[dim + 1 :])
    over = space(out.shape, {"x": fixed, "index": idx.strides, "y": out.strides}, order_by="y")
    extra: dict[str, Arg] = {"x_size": x.shape[dim], "x_dim": x.strides[dim], **_trap(idx, dim, x.shape[dim])}
    family = f"gather.{out.dtype.itemsize}.{over.rank}"
    build.walk(family, over, grain=1.0, reads={"x": x, "index": idx}, writes={"y": out}, extra=extra)
    return build.records


def _mode_and_kind(mode: ScatterMode, dtype: DType) -> str:
    """The first two words of a writing kernel's name: how elements are treated, and the mode."""
    if mode is ScatterMode.SET:
        return f"{dtype.itemsize}.set"
    if dtype is DType.BOOL or dtype.text not in ELEMENTS:
        raise Inexpressible("combining elements of this type")
    return f"{dtype.text}.{mode.name.lower()}"


def _parts(v: View) -> View:
    """A complex view as its real and imaginary parts along a new last dimension."""
    strides = (*(2 * s for s in v.strides), 1)
    return replace(v, dtype=_PARTS[v.dtype], shape=(*v.shape, 2), strides=strides, offset=2 * v.offset)


def _summing(build: Build, mode: ScatterMode, out: View, source: View | None, emit: Callable[[View, View | None], None]) -> None:
    """Run ``emit(out, source)`` on forms in which sums are exact enough: f16 and bf16 sums and products run in f32 and round once."""
    if mode in (ScatterMode.ADD, ScatterMode.MUL) and out.dtype in ACCUMULATE:
        wide = ACCUMULATE[out.dtype]
        total = build.packed(out, wide)
        emit(total, build.packed(source, wide) if source is not None else None)
        build.copy(total, out)
    else:
        emit(out, source)


def scatter(instr: BoundInstr) -> list[Record] | None:
    """out[i with i[dim] replaced by index[i]] = or op= src[i]."""
    if overlaps(instr):
        return None
    build, dim, mode = Build(), instr.attrs[0], ScatterMode(instr.attrs[1])
    source, idx, out = instr.ins[0], view(instr.ins[1]), view(instr.outs[0])
    if idx.numel == 0:
        return []
    if isinstance(source, Scalar):
        value = ScalarArg(source.slot, source.dtype)
        if out.dtype.is_complex:
            return None
        _summing(build, mode, out, None, lambda y, _: _scatter_value(build, y, idx, value, dim, mode))
    elif mode is ScatterMode.ADD and out.dtype.is_complex:
        wide_index = replace(idx, shape=(*idx.shape, 2), strides=(*idx.strides, 0))
        _scatter(build, _parts(out), _parts(view(source)), wide_index, dim, mode)
    else:
        _summing(build, mode, out, view(source), lambda y, x: _scatter(build, y, x, idx, dim, mode))
    return build.records


def _scatter(build: Build, y: View, x: View | None, idx: View, dim: int, mode: ScatterMode) -> None:
    assert x is not None
    strides = {"x": _without(x.strides, dim), "index": _without(idx.strides, dim), "y": _without(y.strides, dim)}
    n = idx.shape[dim]
    lanes_inside = space(_without(idx.shape, dim), strides, block=256)
    # the innermost loop should walk the smaller strides
    order = "lanes" if abs(lanes_inside.strides["index"][-1]) < abs(idx.strides[dim]) else "dim"
    over = lanes_inside if order == "lanes" else replace(lanes_inside, block=max(1, 2048 // max(n, 1)))
    extra: dict[str, Arg] = {
        "n": n, "y_size": y.shape[dim], "y_dim": y.strides[dim], "x_dim": x.strides[dim], "index_dim": idx.strides[dim],
        **_trap(idx, dim, y.shape[dim]),
    }  # fmt: skip
    family = f"scatter.{_mode_and_kind(mode, y.dtype)}.{order}.{over.rank}"
    build.walk(family, over, grain=1.5 * n, reads={"x": x, "index": idx}, writes={"y": y}, extra=extra)


def _scatter_value(build: Build, y: View, idx: View, value: ScalarArg, dim: int, mode: ScatterMode) -> None:
    if y.dtype.text not in ELEMENTS or (mode is not ScatterMode.SET and y.dtype is DType.BOOL):
        raise Inexpressible("scatter of this type")
    n = idx.shape[dim]
    strides = {"index": _without(idx.strides, dim), "y": _without(y.strides, dim)}
    over = space(_without(idx.shape, dim), strides, block=max(1, 2048 // max(n, 1)))
    extra: dict[str, Arg] = {
        "n": n, "y_size": y.shape[dim], "y_dim": y.strides[dim], "index_dim": idx.strides[dim], "value": value,
        **_trap(idx, dim, y.shape[dim]),
    }  # fmt: skip
    family = f"scatter_value.{y.dtype.text}.{mode.name.lower()}.{over.rank}"
    build.walk(family, over, grain=1.5 * n, reads={"index": idx}, writes={"y": y}, extra=extra)


def _indices(instr: BoundInstr) -> list[View]:
    return [view(v) for v in instr.ins[1:]]


def index(instr: BoundInstr) -> list[Record] | None:
    """out[S, rest] = x[index_1[S], .., index_k[S], rest]."""
    if overlaps(instr):
        return None
    build, x, out, indices = Build(), view(instr.ins[0]), view(instr.outs[0]), _indices(instr)
    k, lead = len(indices), len(indices[0].shape)
    if indices[0].numel == 0:
        return []
    if out.numel == 0:
        return None  # nothing to read, but an index outside must still trap
    rest = space(out.shape[lead:], {"x": x.strides[k:], "y": out.strides[lead:]})
    inner = 0 if prod(rest.sizes) == 1 else rest.rank
    strides = {f"index{d}": v.strides for d, v in enumerate(indices)} | {"y": out.strides[:lead]}
    over = space(out.shape[:lead], strides, block=max(1, 8192 // prod(rest.sizes)), order_by="y")
    extra: dict[str, Arg] = {"x": x.ptr(), "trap": TrapPtr(), "site": TrapSite()}
    for d, v in enumerate(indices):
        extra |= {f"x_dim{d}": x.strides[d], f"size{d}": x.shape[d], f"wrap{d}": _wrap(v, x.shape[d])}
    for d in range(inner):
        extra |= {f"rest{d}": rest.sizes[d], f"x_rest{d}": rest.strides["x"][d], f"y_rest{d}": rest.strides["y"][d]}
    args = {**over.args(), **extra, "y": out.ptr(), **{f"index{d}": v.ptr() for d, v in enumerate(indices)}}
    grain = over.lanes * (2.0 * k + prod(rest.sizes) * 0.2) + 5
    family = f"index.{out.dtype.itemsize}.{k}.{over.rank}.{inner}"
    build.call(family, units=over.units, grain=grain, reads=(x, *indices), writes=(out,), args=args)
    return build.records


def index_put(instr: BoundInstr) -> list[Record] | None:
    """out[index_1[S], .., index_k[S], rest] = or op= src[S, rest]."""
    if overlaps(instr) or not isinstance(instr.ins[0], Operand):
        return None
    build, mode, indices = Build(), ScatterMode(instr.attrs[0]), _indices(instr)
    out, source = view(instr.outs[0]), view(instr.ins[0])
    if indices[0].numel == 0:
        return []
    if source.numel == 0:
        return None  # nothing to write, but an index outside must still trap
    if mode is ScatterMode.ADD and out.dtype.is_complex:
        _index_put(build, _parts(out), _parts(source), indices, mode)
    else:
        _summing(build, mode, out, source, lambda y, x: _index_put(build, y, x, indices, mode))
    return build.records


def _index_put(build: Build, y: View, x: View | None, indices: list[View], mode: ScatterMode) -> None:
    assert x is not None
    k, lead = len(indices), len(indices[0].shape)
    strides = {"x": x.strides[:lead]} | {f"index{d}": v.strides for d, v in enumerate(indices)}
    outer = space(x.shape[:lead], strides)
    over = space(x.shape[lead:], {"x": x.strides[lead:], "y": y.strides[k:]}, block=64, order_by="y")
    args: dict[str, Arg] = {"trap": TrapPtr(), "site": TrapSite(), "x": x.ptr(), "y": y.ptr(), **over.args()}
    for d, v in enumerate(indices):
        args |= {f"y_dim{d}": y.strides[d], f"size{d}": y.shape[d], f"wrap{d}": _wrap(v, y.shape[d]), f"index{d}": v.ptr()}
        args |= {f"index{d}_s{e}": stride for e, stride in enumerate(outer.strides[f"index{d}"])}
    for e in range(outer.rank):
        args |= {f"outer{e}": outer.sizes[e], f"x_outer{e}": outer.strides["x"][e]}
    grain = prod(outer.sizes) * (2.0 * k + over.lanes * 0.3)
    family = f"index_put.{_mode_and_kind(mode, y.dtype)}.{k}.{outer.rank}.{over.rank}"
    build.call(family, units=over.units, grain=grain, reads=(x, y, *indices), writes=(y,), args=args)
