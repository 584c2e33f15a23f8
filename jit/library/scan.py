"""cumsum, cumprod, cummax, cummin, argmax, argmin: a thread walks a line, or the lanes of a warp share it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from jit.errors import Inexpressible
from jit.kernels.scalar_ops import held, round_to
from jit.library.build import Build, Grid, merged, operand
from jit.library.writer import Made, Points, Val, Walk, Writer
from jit.plan.access import overlaps
from wis.dtypes import DType
from wis.kernel.model import WARP, Access, RegType, Shuffle, Special
from wis.program import BoundInstr, Operand


def _lines(build: Build[Any], dim: int, operands: dict[str, Operand]) -> tuple[Grid, Walk]:
    """The index space of everything but ``dim``, and how it is walked: by lanes where lines are neighbours in memory."""
    shape = next(iter(operands.values())).shape
    strides = {name: (*x.strides[:dim], *x.strides[dim + 1 :]) for name, x in operands.items()}
    over = merged((*shape[:dim], *shape[dim + 1 :]), strides, next(iter(operands)))
    return over, Walk.LANES if over.sizes[-1] >= 4 and build.unit(over) else build.runs


@contextmanager
def _each_line(w: Writer, rank: int, names: Sequence[str]) -> Iterator[dict[str, Val]]:
    """Declares the lines' index space; where a line starts in each operand."""
    n = w.numbers("n", rank)
    strides = {name: w.strides(f"{name}_s", rank) for name in names}
    starts = {name: w.number(f"{name}_at") for name in names}
    with Points(w, n).each() as at:
        yield {name: w.place(starts[name], at, strides[name]) for name in names}


def _walk_lines(build: Build[Any], made: Made, over: Grid, dim: int, reads: dict[str, Operand], writes: dict[str, Operand]) -> None:
    length = reads["x"].shape[dim]
    steps = {f"{name}_step": x.strides[dim] for name, x in {**reads, **writes}.items()}
    point_ns, run = length * (1.5 if made.walk is Walk.RUNS else 0.2), max(1, 4096 // max(length, 1))
    build.walk(made, over, reads=reads, writes=writes, point_ns=point_ns, run=run, extra={"length": length, **steps})


@cache
def _running(walk: Walk, name: str, dtype: DType, rank: int) -> Made:
    w = Writer(walk)
    w.buffer("x", dtype)
    w.buffer("y", dtype, Access.WRITE)
    length, x_step, y_step = (w.number(f) for f in ("length", "x_step", "y_step"))
    with _each_line(w, rank, ("x", "y")) as line:
        total = w.var(w.load("x", line["x"]))  # a line has an element, or there is no thread
        w.store("y", line["y"], w.rounded(dtype, total))
        with w.loop(length, 1) as i:
            total.set(_joined(w, name, dtype, total, w.load("x", line["x"] + i * x_step)))
            w.store("y", line["y"] + i * y_step, total)
    return w.made(f"{name}_{dtype.text}_{rank}")


def _joined(w: Writer, name: str, dtype: DType, total: Val, x: Val) -> Val:
    """Half precision accumulates in f32; integers wrap."""
    joined = total + x if name == "cumsum" else total * x
    return joined if dtype.is_float else Val(w, round_to(w.a, dtype, joined.reg))


def _ordered(instr: BoundInstr) -> Operand:
    x = operand(instr.ins[0])
    if overlaps(instr) or not x.shape:
        raise Inexpressible
    held(x.dtype)  # complex numbers have no register
    return x


def running(build: Build[Any], instr: BoundInstr) -> None:
    """cumsum, cumprod."""
    x, y, (dim,) = _ordered(instr), instr.outs[0], instr.attrs
    if x.dtype is DType.BOOL:
        raise Inexpressible
    over, walk = _lines(build, dim, {"x": x, "y": y})
    _walk_lines(build, _running(walk, instr.op.name, x.dtype, over.rank), over, dim, {"x": x}, {"y": y})


@cache
def _running_extreme(walk: Walk, greatest: bool, dtype: DType, rank: int) -> Made:
    w = Writer(walk)
    w.buffer("x", dtype)
    w.buffer("y", dtype, Access.WRITE)
    w.buffer("i", DType.I64, Access.WRITE)
    length, x_step, y_step, i_step = (w.number(f) for f in ("length", "x_step", "y_step", "i_step"))
    with _each_line(w, rank, ("x", "y", "i")) as line:
        best, where = w.var(w.load("x", line["x"])), w.var(w.const(0))
        with w.loop(length) as i:
            x = w.load("x", line["x"] + i * x_step)
            # The last index that equals the extreme so far; from the first NaN on, the last NaN.
            wins = w.operation("ge" if greatest else "le", DType.BOOL, (dtype, dtype), x, best)
            if dtype.is_float:
                wins = (wins & best.eq(best)) | x.ne(x)
            best.set(wins.pick(x, best))
            where.set(wins.pick(i, where))
            w.store("y", line["y"] + i * y_step, best)
            w.store("i", line["i"] + i * i_step, where)
    return w.made(f"cum{'max' if greatest else 'min'}_{dtype.text}_{rank}")


def running_extreme(build: Build[Any], instr: BoundInstr) -> None:
    """cummax, cummin, with the index of each."""
    x, y, i, (dim,) = _ordered(instr), instr.outs[0], instr.outs[1], instr.attrs
    over, walk = _lines(build, dim, {"x": x, "y": y, "i": i})
    _walk_lines(build, _running_extreme(walk, instr.op.name == "cummax", x.dtype, over.rank), over, dim, {"x": x}, {"y": y, "i": i})


def _beats(w: Writer, greatest: bool, dtype: DType) -> Callable[[Val, Val], Val]:
    """Whether a later value takes the place of the best so far: it is more extreme, or the first NaN."""

    def beats(x: Val, best: Val) -> Val:
        wins = w.operation("gt" if greatest else "lt", DType.BOOL, (dtype, dtype), x, best)
        return (wins | x.ne(x)) & best.eq(best) if dtype.is_float else wins

    return beats


@cache
def _arg_extreme(walk: Walk, greatest: bool, dtype: DType, rank: int) -> Made:
    w = Writer(walk)
    w.buffer("x", dtype)
    w.buffer("y", DType.I64, Access.WRITE)
    length, x_step, beats = w.number("length"), w.number("x_step"), _beats(w, greatest, dtype)
    with _each_line(w, rank, ("x", "y")) as line:
        best, where = w.var(w.load("x", line["x"])), w.var(w.const(0))
        with w.loop(length, 1) as i:
            x = w.load("x", line["x"] + i * x_step)
            wins = beats(x, best)
            best.set(wins.pick(x, best))
            where.set(wins.pick(i, where))
        w.store("y", line["y"], where)
    return w.made(f"arg{'max' if greatest else 'min'}_{dtype.text}_{rank}")


@cache
def _arg_extreme_along(greatest: bool, dtype: DType, rank: int) -> Made:
    """A warp a line of at least as many neighbours: each lane has a best of its own and the step at which it found it. Lanes meet by
    halves; of those with the best of all the earliest step wins, then the least lane."""
    w = Writer(Walk.RUNS, threads=WARP)
    w.buffer("x", dtype)
    w.buffer("y", DType.I64, Access.WRITE)
    length, lane, beats = w.number("length"), w.special(Special.TID_X), _beats(w, greatest, dtype)
    with _each_line(w, rank, ("x", "y")) as line:
        best, where = w.var(w.load("x", line["x"] + lane)), w.var(w.const(0, RegType.I32))
        base, step = w.var(w.const(WARP)), w.var(w.const(1, RegType.I32))

        def take() -> None:
            x = w.load("x", line["x"] + base + lane)
            wins = beats(x, best)
            best.set(wins.pick(x, best))
            where.set(wins.pick(step, where))

        with w.while_(lambda: base + WARP <= length):
            take()
            base.set(base + WARP)
            step.set(step + 1)
        with w.when(lane < length - base):
            take()
        winner = w.var(best)
        for half in (16, 8, 4, 2, 1):
            other = w.shuffled(Shuffle.BFLY, winner, half)
            winner.set(beats(other, winner).pick(other, winner))
        winner = w.shuffled(Shuffle.IDX, winner, 0)
        shares = w.operation("eq", DType.BOOL, (dtype, dtype), best, winner)
        if dtype.is_float:
            shares = shares | (best.ne(best) & winner.ne(winner))
        first = w.least(shares.pick(where, (1 << 31) - 1))
        place = w.least((shares & where.eq(first)).pick(lane.to("narrow", RegType.I32), WARP))
        w.store("y", line["y"], first.to("sext", RegType.I64) * WARP + place.to("sext", RegType.I64))
    return w.made(f"arg{'max' if greatest else 'min'}_{dtype.text}_{rank}_along")


def arg_extreme(build: Build[Any], instr: BoundInstr) -> None:
    """argmax, argmin: y has size 1 along the dimension."""
    x, y, (dim,) = _ordered(instr), instr.outs[0], instr.attrs
    if x.numel == 0:
        raise Inexpressible
    greatest = instr.op.name == "argmax"
    over, walk = _lines(build, dim, {"x": x, "y": y})
    if walk is Walk.RUNS and x.strides[dim] == 1 and x.shape[dim] >= WARP:
        made = _arg_extreme_along(greatest, x.dtype, over.rank)
    else:
        made = _arg_extreme(walk, greatest, x.dtype, over.rank)
    _walk_lines(build, made, over, dim, {"x": x}, {"y": y})
