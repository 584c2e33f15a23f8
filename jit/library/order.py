"""sort, topk, search_sorted, nonzero.

On devices of threads, short lines are sorted by counting, for each element, how many come before it; long ones by a bitonic network over
copies padded to a power of two. Where a thread is scalar code it sorts a line by bytes. All keep the order of equal elements; NaN is
greatest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from jit.errors import Inexpressible
from jit.kernels.scalar_ops import held
from jit.library.build import Args, Build, Grid, merged, operand, places
from jit.library.writer import I64, Made, Points, Val, Walk, Writer
from jit.plan.access import overlaps
from wis.dtypes import DType
from wis.kernel.model import Access, RegType
from wis.program import BoundInstr, Operand

__all__ = ["sort", "search_sorted", "nonzero"]

THREADS = Walk.POINTS.value
COUNTED_MAX = 1024
CHUNK = 256
INSERTED_MAX = 48
TOP_MAX = 128  # longer lists of the best so far cost more than sorting


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


class _Keys:
    """Memory for keys of elements: unsigned numbers in the wanted order (NaN greatest, both zeros equal), each with its place in the line.
    Both are one word where they fit into it, else words of two arrays; keys that are equal stay in the order in which they came.
    """

    def __init__(self, w: Writer, dtype: DType, down: bool, room: int) -> None:
        self._w, self._dtype, self._down = w, dtype, down
        self.packed = dtype.itemsize < 8
        self._counts = w.shared(DType.I64, 256 * (4 if self.packed else 8))
        self._arrays = [w.shared(DType.I64, room) for _ in range(2 - self.packed)]

    def load(self, at: Val) -> list[Val]:
        return [self._w.get(array, DType.I64, at) for array in self._arrays]

    def store(self, at: Val, entry: Sequence[Val]) -> None:
        for array, word in zip(self._arrays, entry, strict=True):
            self._w.put(array, DType.I64, at, word)

    def place(self, entry: Sequence[Val]) -> Val:
        return entry[0] & 0xFFFFFFFF if self.packed else entry[1]

    def entry(self, value: Val, place: Val) -> list[Val]:
        """The key of an element, with its place."""
        w, dtype = self._w, self._dtype
        kind = RegType.I32 if self.packed else I64
        top = w.const(-(1 << kind.bits - 1), kind)
        if dtype.is_float:
            raw = (value + 0.0).to("reinterpret", kind)  # -0 + 0 is 0
            order = value.ne(value).pick(w.const(-1, kind), (raw < 0).pick(~raw, raw | top))
        else:
            unsigned = dtype in (DType.BOOL, DType.U8, DType.U16, DType.U32, DType.U64)
            order = value.pick(w.const(1, kind), 0) if dtype is DType.BOOL else value
            if order.kind is not kind:
                order = order.to("zext" if unsigned else "sext", kind)
            order = order if unsigned else order ^ top
        order = ~order if self._down else order
        return [(order.to("zext", I64) << 32) | place] if self.packed else [order, place]

    def insert(self, line: Val, end: Val, entry: Sequence[Val]) -> None:
        """Put an entry into the ascending ones from ``line`` to ``line + end``, which become one more."""
        w, at = self._w, self._w.var(end)

        def moves() -> Val:
            before = self.load(line + (at - 1).op("max_s", 0))
            return (at > 0) & entry[0].below(before[0])

        with w.while_(moves):
            self.store(line + at, self.load(line + at - 1))
            at.set(at - 1)
        self.store(line + at, entry)

    def sort(self, first: Val, second: Val, length: Val, entry: Callable[[Val], list[Val]]) -> Val:
        """Sort the entries 0 to ``length`` by bytes, low to high, in two places; where the sorted ones begin."""
        w, here, there, bytes_ = self._w, self._w.var(first), self._w.var(second), 4 if self.packed else 8
        with w.loop(256 * bytes_) as d:
            w.put(self._counts, DType.I64, d, w.const(0))
        with w.loop(length) as i:
            made = entry(i)
            self.store(first + i, made)
            for lower in range(bytes_):
                d = self._digit(made, w.const(lower))
                w.put(self._counts, DType.I64, d, w.get(self._counts, DType.I64, d) + 1)
        with w.loop(bytes_) as number:
            with w.when(w.get(self._counts, DType.I64, self._digit(self.load(here), number)).ne(length)):
                total = w.var(w.const(0))
                with w.loop(256) as value:
                    d = number * 256 + value
                    size = w.get(self._counts, DType.I64, d)
                    w.put(self._counts, DType.I64, d, total)
                    total.set(total + size)
                with w.loop(length) as i:
                    found = self.load(here + i)
                    d = self._digit(found, number)
                    target = w.get(self._counts, DType.I64, d)
                    self.store(there + target, found)
                    w.put(self._counts, DType.I64, d, target + 1)
                old = w.var(here)
                here.set(there)
                there.set(old)
        return here

    def _digit(self, entry: Sequence[Val], number: Val) -> Val:
        """The place of a byte of the key, the lowest is 0, among the counts of all values of all bytes."""
        shift = number * 8 + (32 if self.packed else 0)
        return number * 256 + ((entry[0] >> shift) & 0xFF)


@cache
def _sorted(dtype: DType, down: bool, rank: int, top: bool, room: int) -> Made:
    """One thread a line: its first ``kept`` elements, of all sorted, or (``top``) of those so far kept sorted. ``room``: for keys, twice as
    many as there are elements."""
    w = Writer(Walk.RUNS)
    w.buffer("x", dtype)
    w.buffer("y", dtype, Access.WRITE)
    w.buffer("i", DType.I64, Access.WRITE)
    keys = _Keys(w, dtype, down, room)
    n = w.numbers("n", rank)
    stride = {name: w.numbers(f"{name}_s", rank) for name in "xyi"}
    start = {name: w.number(f"{name}_at") for name in "xyi"}
    step = {name: w.number(f"{name}_step") for name in "xyi"}
    length, kept = w.number("length"), w.number("kept")
    with Points(w, n).each() as at:
        first = w.const(0)
        line = {name: w.place(start[name], at, stride[name]) for name in "xyi"}

        def entry(i: Val) -> list[Val]:
            return keys.entry(w.load("x", line["x"] + i * step["x"]), i)

        here = w.var(first)
        if top:
            with w.loop(kept) as i:
                keys.insert(first, i, entry(i))
            worst = w.var(keys.load(first + kept - 1)[0])
            with w.loop(length, kept) as i:
                found = entry(i)
                with w.when(found[0].below(worst)):
                    keys.insert(first, kept - 1, found)
                    worst.set(keys.load(first + kept - 1)[0])
        else:
            with w.when(length <= INSERTED_MAX), w.loop(length) as i:
                keys.insert(first, i, entry(i))
            with w.when(length > INSERTED_MAX):
                here.set(keys.sort(first, first + length, length, entry))
        with w.loop(kept) as i:
            place = keys.place(keys.load(here + i))
            w.store("y", line["y"] + i * step["y"], w.load("x", line["x"] + place * step["x"]))
            w.store("i", line["i"] + i * step["i"], place)
    return w.made(f"sort_{dtype.text}_{int(down)}_{rank}" + "_top" * top + f"_{room}")


def _sort_lines(build: Build[Any], instr: BoundInstr, over: Grid, operands: dict[str, Operand], extra: Args) -> None:
    (dim, down), x, kept = instr.attrs, operands["x"], operands["y"].shape[instr.attrs[0]]
    length = x.shape[dim]
    if length >= 1 << 31:
        raise Inexpressible("places do not fit into 32 bits")
    top = kept <= TOP_MAX and 4 * kept <= length and length > INSERTED_MAX
    room = 1 << max(16, (2 * length - 1).bit_length())
    made = _sorted(x.dtype, bool(down), over.rank, top, 1 << 16 if top else room)
    writes, run = {"y": operands["y"], "i": operands["i"]}, max(1, 512 // length)
    build.walk(made, over, reads={"x": x}, writes=writes, point_ns=length * (2.0 if top else 15.0), run=run, extra=extra)


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
    if build.gangs:
        _sort_lines(build, instr, over, operands, {**steps, "length": length, "kept": kept})
        return
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
