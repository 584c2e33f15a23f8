"""max_pool, avg_pool and its gradient: a thread an element of the result."""

from __future__ import annotations

from functools import cache
from typing import Any

from jit.errors import Inexpressible
from jit.kernels.scalar_ops import held, identity
from jit.library.build import Build, operand, places
from jit.library.windows import Numbers, source, target, window_args
from jit.library.writer import Made, Val, Writer
from jit.plan.access import overlaps
from wis.dtypes import DType
from wis.kernel.model import Access
from wis.program import BoundInstr, Operand
from wis.windows import window_of

__all__ = ["max_pool", "avg_pool", "avg_pool_dx"]


def _declare(w: Writer, names: tuple[str, ...], r: int) -> tuple[Numbers, list[Val], dict[str, Val], dict[str, list[Val]]]:
    """The window, the sizes of the result [n, c, *t], and start and strides of each operand."""
    numbers = Numbers.declare(w, r)
    n = w.numbers("n", 2 + r)
    return numbers, n, {name: w.number(f"{name}_at") for name in names}, {name: w.numbers(f"{name}_s", 2 + r) for name in names}


def _call(build: Build[Any], made: Made, instr: BoundInstr, reads: dict[str, Operand], writes: dict[str, Operand], size: tuple[int, ...],
          count: tuple[int, ...], **extra: int) -> None:  # fmt: skip
    result = next(iter(writes.values()))
    operands = {**reads, **writes}
    args = {**window_args(window_of(instr), size, count), **places(operands), **extra}
    args |= {f"n{d}": s for d, s in enumerate(result.shape)}
    for name, x in operands.items():
        args |= {f"{name}_s{d}": s for d, s in enumerate(x.strides)}
    build.call(made, -(-result.numel // made.threads), reads=list(reads.values()), writes=list(writes.values()), args=args)


@cache
def _max_pool(dtype: DType, r: int) -> Made:
    w = Writer()
    w.buffer("x", dtype)
    w.buffer("y", dtype, Access.WRITE)
    w.buffer("i", DType.I64, Access.WRITE)
    numbers, n, start, stride = _declare(w, ("x", "y", "i"), r)
    thread = w.index()
    w.leave_unless(thread < w.product(n))
    at = w.coordinates(thread, n)
    line = w.place(start["x"], at[:2], stride["x"][:2])
    best, where, seen = w.variable(dtype, identity("reduce_max", dtype)), w.var(w.const(0)), w.variable(DType.BOOL, 0)
    with w.loops(numbers.kernel) as position:
        place, inside = source(numbers, at[2:], position)
        with w.when(inside):
            x = w.load("x", w.place(line, place, stride["x"][2:]))
            flat = w.const(0)
            for size, p in zip(numbers.size, place, strict=True):
                flat = flat * size + p
            wins = w.operation("gt", DType.BOOL, (dtype, dtype), x, best) | ~seen
            if dtype.is_float:
                wins = wins | x.ne(x)
            best.set(wins.pick(x, best))
            where.set(wins.pick(flat, where))
            seen.set(1)
    w.store("y", w.place(start["y"], at, stride["y"]), best)
    w.store("i", w.place(start["i"], at, stride["i"]), where)
    return w.made(f"max_pool_{dtype.text}_{r}")


def max_pool(build: Build[Any], instr: BoundInstr) -> None:
    """The greatest of each window and its flat index in *s."""
    x, y, i = operand(instr.ins[0]), *instr.outs
    if overlaps(instr) or x.numel == 0:
        raise Inexpressible
    held(x.dtype)
    made = _max_pool(x.dtype, len(x.shape) - 2)
    _call(build, made, instr, {"x": x}, {"y": y, "i": i}, x.shape[2:], y.shape[2:])


def _divisor(w: Writer, numbers: Numbers, window: list[Val], count_pad: bool, given: Val | None) -> Val:
    """What a window's sum is divided by."""
    if given is not None:
        return given
    total = w.const(1)
    for d, i in enumerate(window):
        start = i * numbers.stride[d] - numbers.pad[d]
        end = (start + numbers.kernel[d]).op("min_s", numbers.size[d] + numbers.pad[d])
        if not count_pad:
            start, end = start.op("max_s", 0), end.op("min_s", numbers.size[d])
        total = total * (end - start).op("max_s", 0)
    return total.op("max_s", 1)


@cache
def _avg_pool(dtype: DType, r: int, count_pad: bool, fixed: bool) -> Made:
    w = Writer()
    w.buffer("x", dtype)
    w.buffer("y", dtype, Access.WRITE)
    numbers, n, start, stride = _declare(w, ("x", "y"), r)
    given = w.number("divisor") if fixed else None
    thread = w.index()
    w.leave_unless(thread < w.product(n))
    at = w.coordinates(thread, n)
    line = w.place(start["x"], at[:2], stride["x"][:2])
    total = w.variable(dtype, 0)
    with w.loops(numbers.kernel) as position:
        place, inside = source(numbers, at[2:], position)
        with w.when(inside):
            total.set(total + w.load("x", w.place(line, place, stride["x"][2:])))
    mean = total / _divisor(w, numbers, at[2:], count_pad, given).to("s2f", held(dtype))
    w.store("y", w.place(start["y"], at, stride["y"]), mean)
    return w.made(f"avg_pool_{dtype.text}_{r}_{int(count_pad)}_{int(fixed)}")


def avg_pool(build: Build[Any], instr: BoundInstr) -> None:
    """Each window's sum over its divisor."""
    x, y, (count_pad, divisor) = operand(instr.ins[0]), instr.outs[0], instr.attrs[:2]
    if overlaps(instr) or x.numel == 0:
        raise Inexpressible
    made = _avg_pool(x.dtype, len(x.shape) - 2, bool(count_pad), bool(divisor))
    _call(build, made, instr, {"x": x}, {"y": y}, x.shape[2:], y.shape[2:], **({"divisor": divisor} if divisor else {}))


@cache
def _avg_pool_dx(dtype: DType, r: int, count_pad: bool, fixed: bool) -> Made:
    w = Writer()
    w.buffer("y", dtype)
    w.buffer("x", dtype, Access.WRITE)
    numbers, n, start, stride = _declare(w, ("y", "x"), r)
    given = w.number("divisor") if fixed else None
    thread = w.index()
    w.leave_unless(thread < w.product(n))
    at = w.coordinates(thread, n)
    line = w.place(start["y"], at[:2], stride["y"][:2])
    total = w.variable(dtype, 0)
    with w.loops(numbers.kernel) as position:
        window, there = target(numbers, at[2:], position)
        with w.when(there):
            share = w.load("y", w.place(line, window, stride["y"][2:]))
            total.set(total + share / _divisor(w, numbers, window, count_pad, given).to("s2f", held(dtype)))
    w.store("x", w.place(start["x"], at, stride["x"]), total)
    return w.made(f"avg_pool_dx_{dtype.text}_{r}_{int(count_pad)}_{int(fixed)}")


def avg_pool_dx(build: Build[Any], instr: BoundInstr) -> None:
    """Each window hands its share back to the elements it saw."""
    y, x, (count_pad, divisor) = operand(instr.ins[0]), instr.outs[0], instr.attrs[:2]
    if overlaps(instr) or y.numel == 0:
        raise Inexpressible
    made = _avg_pool_dx(y.dtype, len(y.shape) - 2, bool(count_pad), bool(divisor))
    _call(build, made, instr, {"y": y}, {"x": x}, x.shape[2:], y.shape[2:], **({"divisor": divisor} if divisor else {}))
