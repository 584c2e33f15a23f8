"""gather, scatter, index, index_put.

What is read is read element by element, and what is written line by line in the order that the definition says, so that positions named
twice come out as defined. Positions outside of a dimension read 0, store nothing, and are reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import cache, reduce
from typing import Any

from jit.errors import Inexpressible
from jit.kernels.scalar_ops import held
from jit.library.build import Args, Build, Grid, copy, merged, operand, parts, raw
from jit.library.writer import Made, Points, Val, Walk, Writer
from jit.plan.access import overlaps
from jit.plan.calls import Site, TrapWord
from wis.dtypes import ACCUMULATE, DType
from wis.kernel.model import Access
from wis.ops import ScatterMode
from wis.program import BoundInstr, Operand, Scalar

_RMW = Access.READ_WRITE
_SPAN = 64
"""Elements of a line of rest that are written at once, where a thread takes runs: positions are read once for all of them."""
_COMBINE = {ScatterMode.ADD: "add", ScatterMode.MUL: "mul", ScatterMode.MAX: "max", ScatterMode.MIN: "min"}


def _resolved(w: Writer, index: Val, size: Val, wrap: Val) -> tuple[Val, Val]:
    """A position counted from the start, and whether it is inside; ``wrap``: what is added to a negative index."""
    position = (index < 0).pick(index + wrap, index)
    return position, position.below(size)


def _trap(index: Operand, dim: int, size: int) -> Args:
    """The arguments of a kernel with one index operand: the trap word, its site, and what is added to a negative index."""
    return {"trap": TrapWord(), "site": Site(dim), "wrap": _wrap(index, size)}


def _wrap(index: Operand, size: int) -> int:
    return size if index.dtype is DType.I64 else 0


# --- reading
@cache
def _gather(walk: Walk, dtype: DType, rank: int) -> Made:
    w = Writer(walk)
    w.buffer("x", dtype)
    w.buffer("i", DType.I64)
    w.buffer("y", dtype, Access.WRITE)
    n, x_s, i_s, y_s = (w.numbers(name, rank) for name in ("n", "x_s", "i_s", "y_s"))
    x_at, i_at, y_at, size, wrap, step = (w.number(name) for name in ("x_at", "i_at", "y_at", "size", "wrap", "step"))
    w.reports()
    with Points(w, n).each() as at:
        chosen = w.load("i", w.place(i_at, at, i_s))
        position, inside = _resolved(w, chosen, size, wrap)
        value = w.variable(dtype, 0)
        with w.when(inside):
            value.set(w.load("x", w.place(x_at, at, x_s) + position * step))
        with w.when(~inside):
            w.report(chosen)
        w.store("y", w.place(y_at, at, y_s), value)
    return w.made(f"gather_{dtype.text}_{rank}")


def gather(build: Build[Any], instr: BoundInstr) -> None:
    """out[i] = x[i with i[dim] replaced by idx[i]]."""
    if overlaps(instr):
        raise Inexpressible
    x, i, y, (dim,) = operand(instr.ins[0]), operand(instr.ins[1]), instr.outs[0], instr.attrs
    if x.dtype is DType.C128:
        x, y = parts(x), parts(y)
        i = replace(i, shape=(*i.shape, 2), strides=(*i.strides, 0))
    x, y = raw(x), raw(y)
    strides = {"x": _cleared(x.strides, dim), "i": i.strides, "y": y.strides}
    over = merged(i.shape, strides, "y")
    step, size = (x.strides[dim], x.shape[dim]) if x.shape else (0, 1)
    extra: Args = {"size": size, "step": step, **_trap(i, dim, size)}
    build.walk(_gather(build.runs, x.dtype, over.rank), over, reads={"x": x, "i": i}, writes={"y": y}, extra=extra)


def _cleared(strides: Sequence[int], dim: int) -> tuple[int, ...]:
    return tuple(0 if d == dim else s for d, s in enumerate(strides))


@cache
def _index(walk: Walk, dtype: DType, k: int, rank: int, inner: int, unit: bool) -> Made:
    """Index space S (n) x rest (r)."""
    w = Writer(walk)
    w.buffer("x", dtype)
    w.buffer("y", dtype, Access.WRITE)
    for d in range(k):
        w.buffer(f"i{d}", DType.I64)
    n, r, y_s = w.numbers("n", rank), w.numbers("r", inner), w.numbers("y_s", rank)
    x_r, y_r = w.strides("x_r", inner, unit), w.strides("y_r", inner, unit)
    i_at, i_s = [w.number(f"i{d}_at") for d in range(k)], [w.numbers(f"i{d}_s", rank) for d in range(k)]
    sizes, steps, x_at, y_at = w.numbers("size", k), w.numbers("step", k), w.number("x_at"), w.number("y_at")
    wraps = w.numbers("wrap", k)
    w.reports()
    flat = walk is Walk.POINTS

    with Points(w, [*n, *r] if flat else n).each() as at:
        outer = at[:rank]
        chosen = [w.load(f"i{d}", w.place(i_at[d], outer, i_s[d])) for d in range(k)]
        start, each = _all_resolved(w, x_at, chosen, sizes, wraps, steps)
        target = w.place(y_at, outer, y_s)
        inside = reduce(lambda a, b: a & b, each)
        with w.when(inside), nullcontext(at[rank:]) if flat else w.loops(r) as within:
            w.store("y", w.place(target, within, y_r), w.load("x", w.place(start, within, x_r)))
        with w.when(~inside):
            _report_all(w, chosen, each)
            with nullcontext(at[rank:]) if flat else w.loops(r) as within:
                w.store("y", w.place(target, within, y_r), w.const(0, held(dtype)))
    return w.made(f"index_{dtype.text}_{k}_{rank}_{inner}" + "_unit" * unit)


def _all_resolved(
    w: Writer, place: Val, chosen: Sequence[Val], sizes: Sequence[Val], wraps: Sequence[Val], steps: Sequence[Val]
) -> tuple[Val, list[Val]]:
    """Where several indices lead from ``place``, and which of them are inside."""
    each = []
    for index, size, wrap, step in zip(chosen, sizes, wraps, steps, strict=True):
        position, inside = _resolved(w, index, size, wrap)
        place = place + position * step
        each.append(inside)
    return place, each


def _report_all(w: Writer, chosen: Sequence[Val], each: Sequence[Val]) -> None:
    """Report those of several indices that are not inside."""
    for number, (index, inside) in enumerate(zip(chosen, each, strict=True)):
        with w.when(~inside):
            w.report(index, number)


def index(build: Build[Any], instr: BoundInstr) -> None:
    """out[S, rest] = x[idx_1[S], .., idx_k[S], rest]."""
    x, y, indices = operand(instr.ins[0]), instr.outs[0], [operand(i) for i in instr.ins[1:]]
    if overlaps(instr) or (y.numel == 0 and indices[0].numel):
        raise Inexpressible  # nothing to read, but a position outside must still trap
    if x.dtype is DType.C128:
        x, y = parts(x), parts(y)
    x, y = raw(x), raw(y)
    k, lead = len(indices), len(indices[0].shape)
    over = merged(y.shape[:lead], {"y": y.strides[:lead]} | _strides(indices), "y")
    rest = merged(y.shape[lead:], {"x": x.strides[k:], "y": y.strides[lead:]}, "y")
    inner = rest.rank if rest.numel > 1 else 0
    extra: Args = {**over.args(), **_lines(x, indices)}
    unit = inner > 0 and build.unit(rest)
    for d in range(inner):
        extra |= {f"r{d}": rest.sizes[d], f"x_r{d}": rest.strides["x"][d], f"y_r{d}": rest.strides["y"][d]}
    made = _index(build.runs, x.dtype, k, over.rank, inner, unit)
    over = over if build.gangs else Grid((*over.sizes, *rest.sizes[:inner]), {})
    point_ns, run = 2.0 * k + 0.2 * rest.numel, max(1, 8192 // rest.numel)
    build.walk(made, over, reads={"x": x, **_named(indices)}, writes={"y": y}, point_ns=point_ns, run=run, extra=extra)


def _strides(indices: Sequence[Operand]) -> dict[str, tuple[int, ...]]:
    return {name: i.strides for name, i in _named(indices).items()}


def _named(indices: Sequence[Operand]) -> dict[str, Operand]:
    return {f"i{d}": i for d, i in enumerate(indices)}


def _lines(x: Operand, indices: Sequence[Operand]) -> Args:
    """Sizes and strides of the dimensions that positions choose in, the trap word and its site."""
    found: Args = {"trap": TrapWord(), "site": Site()}
    for d, i in enumerate(indices):
        found |= {f"size{d}": x.shape[d], f"wrap{d}": _wrap(i, x.shape[d]), f"step{d}": x.strides[d]}
    return found


# --- writing
def _put(w: Writer, mode: ScatterMode, dtype: DType, place: Val, value: Val) -> None:
    """Write to ``y``, or change what is there."""
    if mode is not ScatterMode.SET:
        value = w.operation(_COMBINE[mode], dtype, (dtype, dtype), w.load("y", place), value)
    w.store("y", place, value)


@cache
def _scatter(walk: Walk, mode: ScatterMode, dtype: DType, rank: int, constant: bool, across: bool) -> Made:
    """Lines along the dimension; ``constant``: every element is the same number; ``across``: neighbouring lines are taken step by step
    together, because they are neighbours in memory."""
    w = Writer(walk)
    w.buffer("i", DType.I64)
    w.buffer("y", dtype, Access.WRITE if mode is ScatterMode.SET else _RMW)
    n, i_s, y_s = (w.numbers(name, rank) for name in ("n", "i_s", "y_s"))
    i_at, y_at, size, wrap, step, i_step, length = (w.number(x) for x in ("i_at", "y_at", "size", "wrap", "step", "i_step", "length"))
    w.reports()
    if constant:
        given = w.value("value", dtype)
    else:
        w.buffer("x", dtype)
        x_s, x_at, x_step = w.numbers("x_s", rank), w.number("x_at"), w.number("x_step")
    points = Points(w, n)
    with ExitStack() as loops:
        if across:
            j = loops.enter_context(w.loop(length))
        at = loops.enter_context(points.each())
        i_line, y_line = w.place(i_at, at, i_s), w.place(y_at, at, y_s)
        x_line = None if constant else w.place(x_at, at, x_s)
        if not across:
            j = loops.enter_context(w.loop(length))
        chosen = w.load("i", i_line + j * i_step)
        position, inside = _resolved(w, chosen, size, wrap)
        with w.when(inside):
            _put(w, mode, dtype, y_line + position * step, given if x_line is None else w.load("x", x_line + j * x_step))
        with w.when(~inside):
            w.report(chosen)
    return w.made(f"scatter_{mode.name.lower()}_{dtype.text}_{rank}" + "_value" * constant + "_across" * across)


def _in_form(build: Build[Any], mode: ScatterMode, y: Operand, x: Operand | Scalar) -> tuple[Operand, Operand | Scalar, Operand | None]:
    """Operands in a form in which elements can be combined, and what the first has to be copied back to.

    f16 and bf16 sums and products run in f32 and round once.
    """
    if mode is ScatterMode.SET:
        if isinstance(x, Operand):
            return raw(y), raw(x), None
        if y.dtype.is_complex:
            raise Inexpressible("a complex immediate")
        return y, x, None
    if mode in (ScatterMode.ADD, ScatterMode.MUL) and y.dtype in ACCUMULATE:
        wide = build.temp(ACCUMULATE[y.dtype], y.shape)
        copy(build, y, wide)
        return wide, x if isinstance(x, Scalar) else _widened(build, x, wide.dtype), y
    if y.dtype is DType.BOOL or y.dtype.is_complex:
        raise Inexpressible(f"{mode.name} of {y.dtype.text}")
    return y, x, None


def _widened(build: Build[Any], x: Operand, dtype: DType) -> Operand:
    wide = build.temp(dtype, x.shape)
    copy(build, x, wide)
    return wide


def scatter(build: Build[Any], instr: BoundInstr) -> None:
    """out[i with i[dim] replaced by idx[i]] = or op= src[i], in row-major order of i: lines are independent of each other."""
    if overlaps(instr):
        raise Inexpressible
    dim, mode = instr.attrs[0], ScatterMode(instr.attrs[1])
    x, i, y = instr.ins[0], operand(instr.ins[1]), instr.outs[0]
    if not i.shape:
        raise Inexpressible("no dimension")
    if isinstance(x, Operand) and _by_parts(y.dtype, mode):
        x, y = parts(x), parts(y)
        i = replace(i, shape=(*i.shape, 2), strides=(*i.strides, 0))
    if isinstance(x, Scalar) and y.dtype in ACCUMULATE and mode in (ScatterMode.ADD, ScatterMode.MUL) and not build.gangs:
        raise Inexpressible("an immediate that is rounded before it is widened")
    y, x, back = _in_form(build, mode, y, x)
    constant = isinstance(x, Scalar)
    reads = {"i": i} if isinstance(x, Scalar) else {"i": i, "x": x}
    strides = {name: _without(v.strides, dim) for name, v in {**reads, "y": y}.items()}
    over, length = merged(_without(i.shape, dim), strides), i.shape[dim]
    across = build.gangs and over.numel > 1 and abs(over.strides["i"][-1]) < abs(i.strides[dim])
    extra: Args = {f"{name}_step": v.strides[dim] for name, v in reads.items()}
    extra |= {"step": y.strides[dim], "size": y.shape[dim], "length": length, **_trap(i, dim, y.shape[dim])}
    if isinstance(x, Scalar):
        extra["value"] = x
    made = _scatter(build.runs, mode, y.dtype, over.rank, constant, across)
    run = 256 if across else max(1, 2048 // max(length, 1))
    build.walk(made, over, reads=reads, writes={"y": y}, point_ns=1.5 * length, run=run, extra=extra)
    if back is not None:
        copy(build, y, back)


def _by_parts(dtype: DType, mode: ScatterMode) -> bool:
    """Complex elements whose parts are summed, or are moved and too wide for one register."""
    return (mode is ScatterMode.SET and dtype is DType.C128) or (mode is ScatterMode.ADD and dtype.is_complex)


def _without(values: Sequence[int], dim: int) -> tuple[int, ...]:
    return (*values[:dim], *values[dim + 1 :])


@cache
def _index_put(walk: Walk, mode: ScatterMode, dtype: DType, k: int, rank: int, inner: int, unit: bool) -> Made:
    """Points of rest (n), for each of which S (o) is walked in order."""
    w = Writer(walk)
    w.buffer("x", dtype)
    w.buffer("y", dtype, Access.WRITE if mode is ScatterMode.SET else _RMW)
    for d in range(k):
        w.buffer(f"i{d}", DType.I64)
    n, x_s, y_s = w.numbers("n", inner), w.strides("x_s", inner, unit), w.strides("y_s", inner, unit)
    o, x_o = w.numbers("o", rank), w.numbers("x_o", rank)
    i_at, i_s = [w.number(f"i{d}_at") for d in range(k)], [w.numbers(f"i{d}_s", rank) for d in range(k)]
    sizes, steps, x_at, y_at = w.numbers("size", k), w.numbers("step", k), w.number("x_at"), w.number("y_at")
    wraps = w.numbers("wrap", k)
    w.reports()
    points = Points(w, n)
    with w.loops(o) as outer:
        chosen = [w.load(f"i{d}", w.place(i_at[d], outer, i_s[d])) for d in range(k)]
        target, each = _all_resolved(w, y_at, chosen, sizes, wraps, steps)
        source = w.place(x_at, outer, x_o)
        inside = reduce(lambda a, b: a & b, each)
        with w.when(inside), points.each() as within:
            _put(w, mode, dtype, w.place(target, within, y_s), w.load("x", w.place(source, within, x_s)))
        with w.when(~inside):
            _report_all(w, chosen, each)
    return w.made(f"index_put_{mode.name.lower()}_{dtype.text}_{k}_{rank}_{inner}" + "_unit" * unit)


def index_put(build: Build[Any], instr: BoundInstr) -> None:
    """out[idx_1, .., idx_k, rest] = or op= src[S, rest], in row-major order: elements of rest are independent of each other."""
    mode = ScatterMode(instr.attrs[0])
    source, y, indices = operand(instr.ins[0]), instr.outs[0], [operand(i) for i in instr.ins[1:]]
    k, lead = len(indices), len(indices[0].shape)
    if overlaps(instr) or (source.numel == 0 and indices[0].numel):
        raise Inexpressible  # nothing to write, but a position outside must still trap
    if _by_parts(y.dtype, mode):
        source, y = parts(source), parts(y)
    y, x, back = _in_form(build, mode, y, source)
    assert isinstance(x, Operand)
    rest = merged(x.shape[lead:], {"x": x.strides[lead:], "y": y.strides[k:]}, "y")
    outer = merged(x.shape[:lead], {"x": x.strides[:lead]} | _strides(indices))
    extra: Args = {**rest.args(), **_lines(y, indices)}
    for e, size in enumerate(outer.sizes):
        extra |= {f"o{e}": size, f"x_o{e}": outer.strides["x"][e]}
        extra |= {f"i{d}_s{e}": outer.strides[f"i{d}"][e] for d in range(k)}
    made = _index_put(build.runs, mode, y.dtype, k, outer.rank, rest.rank, build.unit(rest))
    cost = outer.numel * (0.3 + 2.0 * k / max(1, min(_SPAN, rest.sizes[-1])))
    build.walk(made, rest, reads={"x": x, "y": y, **_named(indices)}, writes={"y": y}, point_ns=cost, run=_SPAN, extra=extra)
    if back is not None:
        copy(build, y, back)
