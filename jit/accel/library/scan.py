"""cumsum, cumprod, cummax, cummin, argmax, argmin: a thread walks a line."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from jit.accel.library.build import Build, merged, operand
from jit.accel.library.writer import Made, Val, Writer
from jit.errors import Inexpressible
from jit.kernels.scalar_ops import held, round_to
from jit.plan.access import overlaps
from wis.dtypes import DType
from wis.kernel.model import Access
from wis.program import BoundInstr, Operand

__all__ = ["running", "running_extreme", "arg_extreme"]


def _lines(dim: int, shape: Sequence[int], operands: dict[str, Operand]) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    """Shape and strides of everything but ``dim``."""
    return (*shape[:dim], *shape[dim + 1 :]), {name: (*x.strides[:dim], *x.strides[dim + 1 :]) for name, x in operands.items()}


def _open(w: Writer, rank: int, names: Sequence[str]) -> dict[str, Val]:
    """Declare the lines' index space and leave the threads beyond it; where the line of this thread starts in each operand."""
    n = w.numbers("n", rank)
    strides = {name: w.numbers(f"{name}_s", rank) for name in names}
    starts = {name: w.number(f"{name}_at") for name in names}
    thread = w.index()
    w.leave_unless(thread < w.product(n))
    at = w.coordinates(thread, n)
    return {name: w.place(starts[name], at, strides[name]) for name in names}


@cache
def _running(name: str, dtype: DType, rank: int) -> Made:
    w = Writer()
    w.buffer("x", dtype)
    w.buffer("y", dtype, Access.WRITE)
    length, x_step, y_step = (w.number(f) for f in ("length", "x_step", "y_step"))
    line = _open(w, rank, ("x", "y"))
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


def running(build: Build, instr: BoundInstr) -> None:
    """cumsum, cumprod."""
    x, y, (dim,) = _ordered(instr), instr.outs[0], instr.attrs
    if x.numel == 0:
        return
    if x.dtype is DType.BOOL:
        raise Inexpressible
    shape, strides = _lines(dim, x.shape, {"x": x, "y": y})
    over = merged(shape, strides)
    made = _running(instr.op.name, x.dtype, over.rank)
    build.walk(made, over, reads={"x": x}, writes={"y": y}, length=x.shape[dim], x_step=x.strides[dim], y_step=y.strides[dim])


@cache
def _running_extreme(greatest: bool, dtype: DType, rank: int) -> Made:
    w = Writer()
    w.buffer("x", dtype)
    w.buffer("y", dtype, Access.WRITE)
    w.buffer("i", DType.I64, Access.WRITE)
    length, x_step, y_step, i_step = (w.number(f) for f in ("length", "x_step", "y_step", "i_step"))
    line = _open(w, rank, ("x", "y", "i"))
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


def running_extreme(build: Build, instr: BoundInstr) -> None:
    """cummax, cummin, with the index of each."""
    x, y, i, (dim,) = _ordered(instr), instr.outs[0], instr.outs[1], instr.attrs
    if x.numel == 0:
        return
    shape, strides = _lines(dim, x.shape, {"x": x, "y": y, "i": i})
    over = merged(shape, strides)
    made = _running_extreme(instr.op.name == "cummax", x.dtype, over.rank)
    steps = {"x_step": x.strides[dim], "y_step": y.strides[dim], "i_step": i.strides[dim]}
    build.walk(made, over, reads={"x": x}, writes={"y": y, "i": i}, length=x.shape[dim], **steps)


@cache
def _arg_extreme(greatest: bool, dtype: DType, rank: int) -> Made:
    w = Writer()
    w.buffer("x", dtype)
    w.buffer("y", DType.I64, Access.WRITE)
    length, x_step = w.number("length"), w.number("x_step")
    line = _open(w, rank, ("x", "y"))
    best, where = w.var(w.load("x", line["x"])), w.var(w.const(0))
    with w.loop(length, 1) as i:
        x = w.load("x", line["x"] + i * x_step)
        wins = w.operation("gt" if greatest else "lt", DType.BOOL, (dtype, dtype), x, best)
        if dtype.is_float:  # the first NaN wins
            wins = (wins | x.ne(x)) & best.eq(best)
        best.set(wins.pick(x, best))
        where.set(wins.pick(i, where))
    w.store("y", line["y"], where)
    return w.made(f"arg{'max' if greatest else 'min'}_{dtype.text}_{rank}")


def arg_extreme(build: Build, instr: BoundInstr) -> None:
    """argmax, argmin: y has size 1 along the dimension."""
    x, y, (dim,) = _ordered(instr), instr.outs[0], instr.attrs
    if y.numel == 0:
        return
    if x.numel == 0:
        raise Inexpressible
    shape, strides = _lines(dim, x.shape, {"x": x, "y": y})
    over = merged(shape, strides)
    made = _arg_extreme(instr.op.name == "argmax", x.dtype, over.rank)
    build.walk(made, over, reads={"x": x}, writes={"y": y}, length=x.shape[dim], x_step=x.strides[dim])
