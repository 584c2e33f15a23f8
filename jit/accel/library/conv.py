"""conv and its gradients, as products of matrices around two kernels.

``columns`` is x [n, c, *s] as its windows see it, [n, c, *k, *t], 0 in the padding; its inverse adds up what windows hand back. With c cut
into g groups and K = c/g * positions, T = prod(t):

    y [n, g, o/g, T] = w [g, o/g, K] columns [n, g, K, T]
    dx = windows' sum of w^T [g, K, o/g] dy [n, g, o/g, T]
    dw [g, o/g, K] = dy [g, o/g, nT] columns^T [g, nT, K]

Images are taken some at a time, which bounds the memory of the columns. Half precision is computed in f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import prod

from jit.accel.library.matmul import Build, product
from jit.errors import Inexpressible
from jit.library.build import Args, copy, merged, operand, places
from jit.library.windows import Numbers, source, target, window_args
from jit.library.writer import Made, Writer
from jit.plan.access import overlaps
from wis.dtypes import ACCUMULATE, DType
from wis.kernel.model import Access
from wis.program import BoundInstr, Operand
from wis.views import contiguous_strides, is_contiguous, narrow
from wis.windows import Window, window_of

__all__ = ["conv", "conv_dx", "conv_dw"]

COLUMNS_BYTES = 128 << 20


@cache
def _columns(dtype: DType, target_dtype: DType, r: int) -> Made:
    """A thread an element of the columns [n, c, *k, *t]."""
    w = Writer()
    w.buffer("x", dtype)
    w.buffer("y", target_dtype, Access.WRITE)
    numbers = Numbers.declare(w, r)
    n, x_s, y_s = w.numbers("n", 2 + 2 * r), w.numbers("x_s", 2 + r), w.numbers("y_s", 2 + 2 * r)
    x_at, y_at = w.number("x_at"), w.number("y_at")
    thread = w.index()
    w.leave_unless(thread < w.product(n))
    at = w.coordinates(thread, n)
    place, inside = source(numbers, at[2 + r :], at[2 : 2 + r])
    value = w.variable(dtype, 0)
    with w.when(inside):
        value.set(w.load("x", w.place(w.place(x_at, at[:2], x_s[:2]), place, x_s[2:])))
    w.store("y", w.place(y_at, at, y_s), value)
    return w.made(f"columns_{dtype.text}_{r}")


@cache
def _summed(dtype: DType, target_dtype: DType, r: int) -> Made:
    """A thread an element of x: the sum of the columns that show it."""
    w = Writer()
    w.buffer("y", dtype)
    w.buffer("x", target_dtype, Access.WRITE)
    numbers = Numbers.declare(w, r)
    n, x_s, y_s = w.numbers("n", 2 + r), w.numbers("x_s", 2 + r), w.numbers("y_s", 2 + 2 * r)
    x_at, y_at = w.number("x_at"), w.number("y_at")
    thread = w.index()
    w.leave_unless(thread < w.product(n))
    at = w.coordinates(thread, n)
    line = w.place(y_at, at[:2], y_s[:2])
    total = w.variable(dtype, 0)
    with w.loops(numbers.kernel) as position:
        window, there = target(numbers, at[2:], position)
        with w.when(there):
            total.set(total + w.load("y", w.place(w.place(line, position, y_s[2 : 2 + r]), window, y_s[2 + r :])))
    w.store("x", w.place(x_at, at, x_s), total)
    return w.made(f"columns_summed_{target_dtype.text}_{r}")


@cache
def _folded(dtype: DType, rank: int) -> Made:
    """out = the sum of parts along their first dimension."""
    w = Writer()
    w.buffer("x", dtype)
    w.buffer("y", dtype, Access.WRITE)
    n, x_s, y_s = (w.numbers(name, rank) for name in ("n", "x_s", "y_s"))
    x_at, y_at, parts, step = (w.number(name) for name in ("x_at", "y_at", "parts", "step"))
    thread = w.index()
    w.leave_unless(thread < w.product(n))
    at = w.coordinates(thread, n)
    line = w.place(x_at, at, x_s)
    total = w.variable(dtype, 0)
    with w.loop(parts) as i:
        total.set(total + w.load("x", line + i * step))
    w.store("y", w.place(y_at, at, y_s), total)
    return w.made(f"folded_{dtype.text}_{rank}")


def _window_args(instr: BoundInstr, x: Operand, columns: Operand, over: Sequence[int]) -> Args:
    r = len(x.shape) - 2
    args: Args = {**window_args(window_of(instr), x.shape[2:], columns.shape[2 + r :]), **places({"x": x, "y": columns})}
    args |= {f"n{d}": s for d, s in enumerate(over)}
    for name, v in (("x", x), ("y", columns)):
        args |= {f"{name}_s{d}": s for d, s in enumerate(v.strides)}
    return args


def _to_columns(build: Build, instr: BoundInstr, x: Operand, columns: Operand) -> None:
    made = _columns(x.dtype, columns.dtype, len(x.shape) - 2)
    args = _window_args(instr, x, columns, columns.shape)
    build.call(made, -(-columns.numel // made.threads), reads=(x,), writes=(columns,), args=args)


def _from_columns(build: Build, instr: BoundInstr, columns: Operand, x: Operand) -> None:
    made = _summed(columns.dtype, x.dtype, len(x.shape) - 2)
    args = _window_args(instr, x, columns, x.shape)
    build.call(made, -(-x.numel // made.threads), reads=(columns,), writes=(x,), args=args)


def _chunks(n: int, each_bytes: int) -> Iterator[tuple[int, int]]:
    """(first image, how many) of each turn."""
    step = max(1, COLUMNS_BYTES // max(each_bytes, 1))
    for first in range(0, n, step):
        yield first, min(step, n - first)


def _wide(dtype: DType) -> DType:
    return ACCUMULATE.get(dtype, dtype)


def _dense(build: Build, x: Operand) -> Operand:
    """``x`` contiguous and in the type that sums are made in."""
    wide = _wide(x.dtype)
    if x.dtype is wide and is_contiguous(x):
        return replace(x, strides=contiguous_strides(x.shape))
    made = build.temp(wide, x.shape)
    copy(build, x, made)
    return made


def _as(x: Operand, *shape: int) -> Operand:
    """A contiguous operand under another shape."""
    return replace(x, shape=shape, strides=contiguous_strides(shape))


def _checked(instr: BoundInstr) -> tuple[Operand, Operand, Operand, int, Window]:
    out, a, b = instr.outs[0], operand(instr.ins[0]), operand(instr.ins[1])
    if overlaps(instr) or 0 in (out.numel, a.numel, b.numel):
        raise Inexpressible
    return out, a, b, instr.attrs[0], window_of(instr)


def conv(build: Build, instr: BoundInstr) -> None:
    """x [n, c, *s], w [o, c/groups, *k] -> y [n, o, *t]."""
    y, x, weights, g, window = _checked(instr)
    (n, c), t, (o, c_each), k = x.shape[:2], y.shape[2:], weights.shape[:2], window.n_positions
    wide, width = _wide(y.dtype), prod(t)
    w = _as(_dense(build, weights), g, o // g, c_each * k)
    direct = y.dtype is wide and is_contiguous(y)
    result = replace(y, strides=contiguous_strides(y.shape)) if direct else build.temp(wide, y.shape)
    each = c * k * width * wide.itemsize
    columns = build.temp(wide, (min(n, next(_chunks(n, each))[1]), c, *window.kernel, *t))
    for first, count in _chunks(n, each):
        part = narrow(columns, 0, 0, count)
        _to_columns(build, instr, narrow(x, 0, first, count), part)
        out = _as(narrow(result, 0, first, count), count, g, o // g, width)
        product(build, out, _repeated(w, count), _as(part, count, g, c_each * k, width))
    if not direct:
        copy(build, result, y)


def _repeated(x: Operand, n: int) -> Operand:
    return replace(x, shape=(n, *x.shape), strides=(0, *x.strides))


def _turned(x: Operand) -> Operand:
    return replace(x, shape=(*x.shape[:-2], x.shape[-1], x.shape[-2]), strides=(*x.strides[:-2], x.strides[-1], x.strides[-2]))


def conv_dx(build: Build, instr: BoundInstr) -> None:
    """dy [n, o, *t], w [o, c/groups, *k] -> dx [n, c, *s]."""
    dx, dy, weights, g, window = _checked(instr)
    (n, o), t, c, c_each, k = dy.shape[:2], dy.shape[2:], dx.shape[1], weights.shape[1], window.n_positions
    wide, width = _wide(dx.dtype), prod(t)
    w = _turned(_as(_dense(build, weights), g, o // g, c_each * k))
    given = _dense(build, dy)
    each = c * k * width * wide.itemsize
    columns = build.temp(wide, (min(n, next(_chunks(n, each))[1]), c, *window.kernel, *t))
    for first, count in _chunks(n, each):
        part = narrow(columns, 0, 0, count)
        source_part = _as(narrow(given, 0, first, count), count, g, o // g, width)
        product(build, _as(part, count, g, c_each * k, width), _repeated(w, count), source_part)
        _from_columns(build, instr, part, narrow(dx, 0, first, count))


def conv_dw(build: Build, instr: BoundInstr) -> None:
    """dy [n, o, *t], x [n, c, *s] -> dw [o, c/groups, *k]."""
    dw, dy, x, g, window = _checked(instr)
    (n, o), t, c, k = dy.shape[:2], dy.shape[2:], x.shape[1], window.n_positions
    wide, width, c_each = _wide(dw.dtype), prod(t), c // g
    chunks = list(_chunks(n, c * k * width * wide.itemsize))
    size = chunks[0][1]
    columns, given = build.temp(wide, (c, *window.kernel, size, *t)), build.temp(wide, (o, size, *t))
    direct = len(chunks) == 1 and dw.dtype is wide and is_contiguous(dw)
    results = replace(dw, shape=(1, *dw.shape), strides=(0, *contiguous_strides(dw.shape))) if direct else build.temp(
        wide, (len(chunks), *dw.shape)
    )  # fmt: skip
    for at, (first, count) in enumerate(chunks):
        seen, came = _as(columns, c, *window.kernel, count, *t), _as(given, o, count, *t)
        _to_columns(build, instr, narrow(x, 0, first, count), _moved(seen, 1 + len(window.kernel)))
        copy(build, narrow(dy, 0, first, count), _moved(came, 1))
        out = narrow(results, 0, at, 1)
        flat = replace(out, shape=(g, o // g, c_each * k), strides=contiguous_strides((g, o // g, c_each * k)))
        product(build, flat, _as(came, g, o // g, count * width), _turned(_as(seen, g, c_each * k, count * width)))
    if not direct:
        _fold(build, results, dw)


def _moved(x: Operand, dim: int) -> Operand:
    """Dimension ``dim`` in front."""
    order = [dim, *(d for d in range(len(x.shape)) if d != dim)]
    return replace(x, shape=tuple(x.shape[d] for d in order), strides=tuple(x.strides[d] for d in order))


def _fold(build: Build, parts: Operand, out: Operand) -> None:
    """out = the sum of parts [n, *out]."""
    whole = out if out.dtype is parts.dtype else build.temp(parts.dtype, out.shape)
    over = merged(out.shape, {"x": parts.strides[1:], "y": whole.strides})
    extra = {"parts": parts.shape[0], "step": parts.strides[0]}
    build.walk(_folded(parts.dtype, over.rank), over, reads={"x": parts}, writes={"y": whole}, extra=extra)
    if whole is not out:
        copy(build, whole, out)
