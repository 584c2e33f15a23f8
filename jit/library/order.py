"""sort, topk, search_sorted, nonzero.

Short lines are sorted by counting, for each element, how many come before it; long ones by a bitonic network over copies padded to a power
of two. Both order by (element, index), so equal elements keep their order; NaN is greatest.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from jit.errors import Inexpressible
from jit.kernels.scalar_ops import held
from jit.library.build import Args, Build, merged, operand, places
from jit.library.writer import Made, Points, Val, Walk, Writer
from jit.plan.access import overlaps
from wis.dtypes import DType
from wis.kernel.model import Access
from wis.program import BoundInstr

__all__ = ["sort", "search_sorted", "nonzero"]

THREADS = Walk.POINTS.value
COUNTED_MAX = 1024
CHUNK = 256


def _before(w: Writer, dtype: DType, down: bool, a: Val, i: Val, b: Val, j: Val) -> Val:
    """Whether element a, of index i, comes before b, of index j."""
    less = w.operation("gt" if down else "lt", DType.BOOL, (dtype, dtype), a, b)
    same = w.operation("eq", DType.BOOL, (dtype, dtype), a, b)
    if dtype.is_float:
        a_nan, b_nan = a.ne(a), b.ne(b)
        less = less | ((a_nan & ~b_nan) if down else (b_nan & ~a_nan))
        same = same | (a_nan & b_nan)
    return less | (same & (i < j))


@cache
def _counted(dtype: DType, down: bool, rank: int) -> Made:
    """A thread an element: line n, then place in the line."""
    w = Writer()
    w.buffer("x", dtype)
    w.buffer("y", dtype, Access.WRITE)
    w.buffer("i", DType.I64, Access.WRITE)
    n = w.numbers("n", rank)
    stride = {name: w.numbers(f"{name}_s", rank) for name in "xyi"}
    start = {name: w.number(f"{name}_at") for name in "xyi"}
    length, kept = w.number("length"), w.number("kept")
    step = {name: w.number(f"{name}_step") for name in "xyi"}
    thread = w.index()
    w.leave_unless(thread < w.product(n) * length)
    at, own = w.coordinates(thread // length, n), thread % length
    line = {name: w.place(start[name], at, stride[name]) for name in "xyi"}
    value = w.load("x", line["x"] + own * step["x"])
    rank_ = w.var(w.const(0))
    with w.loop(length) as j:
        other = w.load("x", line["x"] + j * step["x"])
        rank_.set(rank_ + _before(w, dtype, down, other, j, value, own).pick(w.const(1), 0))
    with w.when(rank_ < kept):
        w.store("y", line["y"] + rank_ * step["y"], value)
        w.store("i", line["i"] + rank_ * step["i"], own)
    return w.made(f"sort_counted_{dtype.text}_{int(down)}_{rank}")


@cache
def _padded(dtype: DType, rank: int) -> Made:
    """Lines [n] of ``length`` elements into keys [lines, size], beside their indices; beyond the line an index that sorts last."""
    w = Writer()
    w.buffer("x", dtype)
    w.buffer("k", dtype, Access.WRITE)
    w.buffer("j", DType.I64, Access.WRITE)
    n, x_s = w.numbers("n", rank), w.numbers("x_s", rank)
    x_at, length, x_step, size = (w.number(name) for name in ("x_at", "length", "x_step", "size"))
    thread = w.index()
    w.leave_unless(thread < w.product(n) * size)
    own = thread % size
    value = w.variable(dtype, 0)
    with w.when(own < length):
        value.set(w.load("x", w.place(x_at, w.coordinates(thread // size, n), x_s) + own * x_step))
    w.store("k", thread, value)
    w.store("j", thread, own)
    return w.made(f"sort_padded_{dtype.text}_{rank}")


@cache
def _exchanged(dtype: DType, down: bool) -> Made:
    """One stage of the network: a thread a pair of elements ``span`` apart, runs of ``run`` in turns up and down."""
    w = Writer()
    w.buffer("k", dtype, Access.READ_WRITE)
    w.buffer("j", DType.I64, Access.READ_WRITE)
    total, length, size, run, span = (w.number(name) for name in ("total", "length", "size", "run", "span"))
    thread = w.index()
    w.leave_unless(thread < total)
    low = (thread // span) * span * 2 + thread % span
    high = low + span
    a, b, i, j = w.load("k", low), w.load("k", high), w.load("j", low), w.load("j", high)
    beyond_a, beyond_b = i >= length, j >= length
    ordered = (~beyond_a & beyond_b) | (~(beyond_a ^ beyond_b) & ((beyond_a & (i < j)) | (~beyond_a & _before(w, dtype, down, a, i, b, j))))
    up = ((low % size) & run).eq(0)
    with w.when(ordered ^ up):
        w.store("k", low, b)
        w.store("k", high, a)
        w.store("j", low, j)
        w.store("j", high, i)
    return w.made(f"sort_exchanged_{dtype.text}_{int(down)}")


@cache
def _taken(dtype: DType, rank: int) -> Made:
    """The first ``kept`` of every line of keys [lines, size] and indices, to where they belong."""
    w = Writer()
    w.buffer("k", dtype)
    w.buffer("j", DType.I64)
    w.buffer("y", dtype, Access.WRITE)
    w.buffer("i", DType.I64, Access.WRITE)
    n, y_s, i_s = w.numbers("n", rank), w.numbers("y_s", rank), w.numbers("i_s", rank)
    y_at, i_at, y_step, i_step, kept, size = (w.number(name) for name in ("y_at", "i_at", "y_step", "i_step", "kept", "size"))
    thread = w.index()
    w.leave_unless(thread < w.product(n) * kept)
    line, own = thread // kept, thread % kept
    at, source = w.coordinates(line, n), line * size + own
    w.store("y", w.place(y_at, at, y_s) + own * y_step, w.load("k", source))
    w.store("i", w.place(i_at, at, i_s) + own * i_step, w.load("j", source))
    return w.made(f"sort_taken_{dtype.text}_{rank}")


def sort(build: Build[Any], instr: BoundInstr) -> None:
    """sort and topk along a dimension, with the original indices."""
    (dim, down), x, (y, i) = instr.attrs, operand(instr.ins[0]), instr.outs
    if overlaps(instr) or not x.shape or x.dtype.is_complex:
        raise Inexpressible
    if y.numel == 0:
        return
    args: Args
    operands = {"x": x, "y": y, "i": i}
    lines = (*x.shape[:dim], *x.shape[dim + 1 :])
    over = merged(lines, {name: (*v.strides[:dim], *v.strides[dim + 1 :]) for name, v in operands.items()})
    steps = {f"{name}_step": v.strides[dim] for name, v in operands.items()}
    length, kept = x.shape[dim], y.shape[dim]
    if length <= COUNTED_MAX:
        args = {**over.args(), **places(operands), **steps, "length": length, "kept": kept}
        made = _counted(x.dtype, bool(down), over.rank)
        build.call(made, -(-over.numel * length // THREADS), reads=(x,), writes=(y, i), args=args)
        return
    size = 1 << (length - 1).bit_length()
    keys, order = build.temp(x.dtype, (over.numel, size)), build.temp(DType.I64, (over.numel, size))
    pair = {name: v for name, v in places({"k": keys, "j": order}).items() if not name.endswith("_at")}
    n: Args = {f"n{d}": s for d, s in enumerate(over.sizes)}

    def strides(name: str) -> Args:
        return {f"{name}_s{d}": s for d, s in enumerate(over.strides[name])}

    args = {**n, **strides("x"), **places({"x": x}), **pair, "length": length, "x_step": steps["x_step"], "size": size}
    build.call(_padded(x.dtype, over.rank), -(-over.numel * size // THREADS), reads=(x,), writes=(keys, order), args=args)
    total = over.numel * size // 2
    run = 2
    while run <= size:
        span = run // 2
        while span:
            args = {**pair, "total": total, "length": length, "size": size, "run": run, "span": span}
            made = _exchanged(x.dtype, bool(down))
            build.call(made, -(-total // THREADS), reads=(keys, order), writes=(keys, order), args=args)
            span //= 2
        run *= 2
    args = {**n, **strides("y"), **strides("i"), **places({"y": y, "i": i}), **pair, "kept": kept, "size": size}
    args |= {name: steps[name] for name in ("y_step", "i_step")}
    build.call(_taken(x.dtype, over.rank), -(-over.numel * kept // THREADS), reads=(keys, order), writes=(y, i), args=args)


@cache
def _searched(walk: Walk, dtype: DType, right: bool, rank: int) -> Made:
    w = Writer(walk)
    w.buffer("line", dtype)
    w.buffer("v", dtype)
    w.buffer("y", DType.I64, Access.WRITE)
    n = w.numbers("n", rank)
    stride = {name: w.numbers(f"{name}_s", rank) for name in ("line", "v", "y")}
    start = {name: w.number(f"{name}_at") for name in ("line", "v", "y")}
    length, step = w.number("length"), w.number("step")
    with Points(w, n).each() as at:
        line = w.place(start["line"], at, stride["line"])
        value = w.load("v", w.place(start["v"], at, stride["v"]))
        low, high = w.var(w.const(0)), w.var(length)
        with w.while_(lambda: low < high):
            middle = (low + high) >> 1
            found = w.load("line", line + middle * step)
            # What no comparison holds for (a NaN) is greater than everything.
            on = ~w.operation("gt" if right else "ge", DType.BOOL, (dtype, dtype), found, value)
            low.set(on.pick(middle + 1, low))
            high.set(on.pick(high, middle))
        w.store("y", w.place(start["y"], at, stride["y"]), low)
    return w.made(f"search_sorted_{dtype.text}_{int(right)}_{rank}")


def search_sorted(build: Build[Any], instr: BoundInstr) -> None:
    """Positions of values in sorted lines."""
    line, values, y, (right,) = operand(instr.ins[0]), operand(instr.ins[1]), instr.outs[0], instr.attrs
    if overlaps(instr) or line.dtype is not values.dtype:
        raise Inexpressible
    held(line.dtype)
    over = merged(y.shape, {"line": (*line.strides[:-1], 0), "v": values.strides, "y": y.strides})
    made, length = _searched(build.runs, line.dtype, bool(right), over.rank), line.shape[-1]
    cost, extra = 5.0 * max(1, length.bit_length()), {"length": length, "step": line.strides[-1]}
    build.walk(made, over, reads={"line": line, "v": values}, writes={"y": y}, point_ns=cost, run=256, extra=extra)


@cache
def _nonzeros(dtype: DType, rank: int, writing: bool) -> Made:
    """A thread a chunk of elements: counts its nonzeros, or writes their rows from where those of the chunks before end."""
    w = Writer()
    w.buffer("x", dtype)
    w.buffer("c", DType.I64, Access.READ if writing else Access.WRITE)
    if writing:
        w.buffer("y", DType.I64, Access.WRITE)
        y_at, row, column = w.number("y_at"), w.number("row"), w.number("column")
    n, x_s, x_at, total = w.numbers("n", rank), w.numbers("x_s", rank), w.number("x_at"), w.number("total")
    thread = w.index()
    first = thread * CHUNK
    w.leave_unless(first < total)
    found = w.var(w.load("c", thread) if writing else w.const(0))
    with w.loop((first + CHUNK).op("min_s", total), first) as i:
        at = w.coordinates(i, n)
        x = w.load("x", w.place(x_at, at, x_s))
        with w.when(x if dtype is DType.BOOL else x.ne(0)):
            if writing:
                for d, p in enumerate(at):
                    w.store("y", y_at + found * row + column * d, p)
            found.set(found + 1)
    if not writing:
        w.store("c", thread, found)
    return w.made(f"nonzero_{'rows' if writing else 'counts'}_{dtype.text}_{rank}")


@cache
def _summed() -> Made:
    """One thread: counts become the sums of those before, and the total."""
    w = Writer(threads=1)
    w.buffer("c", DType.I64, Access.READ_WRITE)
    w.buffer("t", DType.I64, Access.WRITE)
    chunks, t_at = w.number("chunks"), w.number("t_at")
    total = w.var(w.const(0))
    with w.loop(chunks) as i:
        count = w.load("c", i)
        w.store("c", i, total)
        total.set(total + count)
    w.store("t", t_at, total)
    return w.made("nonzero_sums")


@cache
def _emptied(rank: int) -> Made:
    w = Writer()
    w.buffer("y", DType.I64, Access.WRITE)
    n, y_s, y_at = w.numbers("n", rank), w.numbers("y_s", rank), w.number("y_at")
    thread = w.index()
    w.leave_unless(thread < w.product(n))
    w.store("y", w.place(y_at, w.coordinates(thread, n), y_s), w.const(0))
    return w.made(f"nonzero_empty_{rank}")


@cache
def _nonzeros_in_order(dtype: DType, rank: int) -> Made:
    """One thread: the rows of all nonzeros, rows of 0 behind them, and the count."""
    w = Writer(Walk.RUNS)
    w.buffer("x", dtype)
    w.buffer("y", DType.I64, Access.WRITE)
    w.buffer("c", DType.I64, Access.WRITE)
    n, x_s = w.numbers("n", rank), w.numbers("x_s", rank)
    x_at, y_at, c_at, row, column, total = (w.number(name) for name in ("x_at", "y_at", "c_at", "row", "column", "total"))
    found, line = w.var(w.const(0)), w.var(y_at)
    with w.loops(n) as at:
        x = w.load("x", w.place(x_at, at, x_s))
        with w.when(x if dtype is DType.BOOL else x.ne(0)):
            for d, p in enumerate(at):
                w.store("y", line + column * d, p)
            line.set(line + row)
            found.set(found + 1)
    with w.loop(total, found):
        for d in range(rank):
            w.store("y", line + column * d, w.const(0))
        line.set(line + row)
    w.store("c", c_at, found)
    return w.made(f"nonzero_{dtype.text}_{rank}")


def nonzero(build: Build[Any], instr: BoundInstr) -> None:
    """Rows of indices of nonzeros, and their count."""
    x, (y, count) = operand(instr.ins[0]), instr.outs
    if overlaps(instr) or (x.numel == 0 and not build.gangs):
        raise Inexpressible
    held(x.dtype)
    rank, chunks = len(x.shape), -(-x.numel // CHUNK)
    args: Args = {**places({"x": x, "y": y, "c": count, "t": count}), "row": y.strides[0], "column": y.strides[1], "total": x.numel}
    args |= {f"n{d}": s for d, s in enumerate(x.shape)} | {f"x_s{d}": s for d, s in enumerate(x.strides)}
    if build.gangs:
        made, block_ns = _nonzeros_in_order(x.dtype, rank), 1.5 * x.numel
        build.call(made, 1, reads=(x,), writes=(y, count), args=args, block_ns=block_ns)
        return
    counts = build.temp(DType.I64, (chunks,))
    if y.numel:
        over = merged(y.shape, {"y": y.strides})
        build.walk(_emptied(over.rank), over, reads={}, writes={"y": y})
    args |= {"c": places({"c": counts})["c"], "chunks": chunks}
    blocks = -(-chunks // THREADS)
    build.call(_nonzeros(x.dtype, rank, False), blocks, reads=(x,), writes=(counts,), args=args)
    build.call(_summed(), 1, reads=(counts,), writes=(counts, count), args=args)
    build.call(_nonzeros(x.dtype, rank, True), blocks, reads=(x, counts), writes=(y,), args=args)
