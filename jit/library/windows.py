"""Kernels over sliding windows: what they share (their numbers, and where a position leads); max_pool, avg_pool and its gradient: a thread
an element of the result, or lanes along its last dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, reduce
from math import prod
from typing import Any

from jit.errors import Inexpressible
from jit.kernels.scalar_ops import held, identity
from jit.library.build import Args, Build, Grid, copy, operand
from jit.library.writer import Made, Points, Val, Walk, Writer
from jit.plan.access import overlaps
from wis.dtypes import ACCUMULATE, DType
from wis.kernel.model import Access, RegType, Special
from wis.program import BoundInstr, Operand
from wis.windows import Window, window_of

__all__ = ["Numbers", "each_source", "each_target", "rows_inside", "source", "target", "window_args", "avg_pool", "avg_pool_dx", "max_pool"]


@dataclass(frozen=True, slots=True)
class Numbers:
    """The window's parameters in a kernel: one of each a spatial dimension. ``size``: the input's; ``count``: windows."""

    kernel: list[Val]
    stride: list[Val]
    pad: list[Val]
    dilation: list[Val]
    size: list[Val]
    count: list[Val]

    @classmethod
    def declare(cls, w: Writer, r: int, stride: Sequence[int] = ()) -> Numbers:
        """``stride``: becomes part of the kernel."""
        found = {name: w.numbers(name, r) for name in ("kernel", "pad", "dilation", "size", "count")}
        return cls(stride=[w.const(x) for x in stride] or w.numbers("stride", r), **found)


def window_args(window: Window, size: Sequence[int], count: Sequence[int]) -> dict[str, int]:
    """Their values."""
    rows = {"kernel": window.kernel, "stride": window.stride, "pad": window.pad, "dilation": window.dilation, "size": size, "count": count}
    return {f"{name}{d}": x for name, xs in rows.items() for d, x in enumerate(xs)}


def _place(numbers: Numbers, d: int, window: Val, position: Val) -> tuple[Val, Val]:
    """Where in the input a position of a window is along dimension ``d``, and whether that is inside."""
    at = window * numbers.stride[d] + position * numbers.dilation[d] - numbers.pad[d]
    return at, at.near().below(numbers.size[d].near())


def _window(numbers: Numbers, d: int, place: Val, position: Val) -> tuple[Val, Val]:
    """Which window has an element of the input at a position along dimension ``d``, and whether there is one."""
    shifted = place + numbers.pad[d] - position * numbers.dilation[d]
    i = (shifted >= 0).pick(shifted, shifted.w.const(0)) // numbers.stride[d]
    return i, (shifted >= 0) & (i * numbers.stride[d]).eq(shifted) & (i < numbers.count[d])


Step = Callable[[Numbers, int, Val, Val], tuple[Val, Val]]


def _all(step: Step, numbers: Numbers, at: Sequence[Val], position: Sequence[Val]) -> tuple[list[Val], Val]:
    found = [step(numbers, d, i, k) for d, (i, k) in enumerate(zip(at, position, strict=True))]
    return [place for place, _ in found], reduce(lambda a, b: a & b, (ok for _, ok in found))


def source(numbers: Numbers, window: Sequence[Val], position: Sequence[Val]) -> tuple[list[Val], Val]:
    """Where in the input a position of a window is, and whether that is inside."""
    return _all(_place, numbers, window, position)


def target(numbers: Numbers, place: Sequence[Val], position: Sequence[Val]) -> tuple[list[Val], Val]:
    """Which window has an element of the input at a position, and whether there is one."""
    return _all(_window, numbers, place, position)


@contextmanager
def _each(w: Writer, step: Step, numbers: Numbers, at: Sequence[Val]) -> Iterator[list[Val]]:
    with ExitStack() as stack:
        *outer, last = numbers.kernel
        position = stack.enter_context(w.loops(outer))
        found: list[Val] = []
        if outer:
            found, inside = _all(step, numbers, at[:-1], position)
            stack.enter_context(w.when(inside))
        place, inside = step(numbers, len(outer), at[-1], stack.enter_context(w.loop(last)))
        stack.enter_context(w.when(inside))
        yield [*found, place]


def each_source(w: Writer, numbers: Numbers, window: Sequence[Val]) -> AbstractContextManager[list[Val]]:
    """For every position of a window in row-major order that is inside of the input: where in the input it is."""
    return _each(w, _place, numbers, window)


def each_target(w: Writer, numbers: Numbers, place: Sequence[Val]) -> AbstractContextManager[list[Val]]:
    """For every position, in row-major order, at which a window has an element of the input: which window."""
    return _each(w, _window, numbers, place)


@contextmanager
def rows_inside(w: Writer, numbers: Numbers, position: Sequence[Val]) -> Iterator[tuple[list[Val], list[Val]]]:
    """All but the last coordinate of windows of which a position is inside of the input, and those of where it is."""
    with w.loops(numbers.count[:-1]) as rows, ExitStack() as stack:
        places: list[Val] = []
        if rows:
            places, inside = _all(_place, numbers, rows, position)
            stack.enter_context(w.when(inside))
        yield rows, places


_LANES = 16
_STRIDE_MAX = 4
"""Lanes take windows that are at most so far apart: they load what neighbours see at once, and their stride is part of the kernel."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a kernel is made for: ``r`` spatial dimensions; ``threads`` of a block that takes planes of the result (0: a thread takes an
    element); for lanes (more than one) ``stride`` of the windows, and last strides are 1."""

    r: int
    threads: int
    stride: tuple[int, ...]

    def writer(self) -> Writer:
        return Writer(Walk.RUNS, self.threads) if self.threads else Writer()

    @property
    def text(self) -> str:
        return "_".join(map(str, (self.r, self.threads, *self.stride)))


def _shape(build: Build[Any], instr: BoundInstr, *operands: Operand) -> _Shape:
    window, sizes = window_of(instr), [n for x in (*instr.outs, *instr.ins) if isinstance(x, Operand) for n in x.shape[2:]]
    far = max(sizes) + 2 * max(window.pad) + max(window.stride)  # no window ends behind that
    if overlaps(instr) or far >= 1 << 31 or any(x.numel == 0 or prod(x.shape[2:]) >= 1 << 31 for x in operands):
        raise Inexpressible
    held(operands[0].dtype)
    stride, r = window.stride, len(operands[0].shape) - 2
    if not build.gangs:
        return _Shape(r, 0, ())
    lanes = max(stride) <= _STRIDE_MAX and all(x.strides[-1] == 1 and x.shape[-1] > 3 for x in operands)
    return _Shape(r, _LANES, stride) if lanes else _Shape(r, 1, ())


class _Planes:
    """The window, and the operands as [n, c, *s]; the first is the result."""

    def __init__(self, w: Writer, shape: _Shape, names: tuple[str, ...]) -> None:
        self._w, self._threads = w, shape.threads
        self.numbers = Numbers.declare(w, shape.r, shape.stride)
        self._n = w.numbers("n", 2 + shape.r)
        self._start = {name: w.number(f"{name}_at") for name in names}
        self._stride = {name: w.strides(f"{name}_s", 2 + shape.r, shape.threads > 1) for name in names}

    @contextmanager
    def each(self) -> Iterator[list[Val]]:
        """Every element of the result, and maybe some that are not ``kept``."""
        w = self._w
        if not self._threads:
            with Points(w, self._n).each() as at:
                yield at
            return
        lane = w.special(Special.TID_X) if self._threads > 1 else w.const(0)
        with Points(w, self._n[:2]).each() as plane, w.loops(self._n[2:-1]) as rows, w.loop(self._n[-1], step=self._threads) as at:
            yield [*plane, *rows, at + lane]

    def kept(self, at: list[Val]) -> AbstractContextManager[None]:
        """Where there is such an element: lanes go beyond the end of a row."""
        return self._w.when(at[-1].near() < self._n[-1].near()) if self._threads > 1 else nullcontext()

    def place(self, name: str, at: list[Val]) -> Val:
        return self._w.place(self._start[name], at, self._stride[name])


def _call(build: Build[Any], made: Made, instr: BoundInstr, reads: dict[str, Operand], writes: dict[str, Operand], size: tuple[int, ...],
          count: tuple[int, ...], **extra: int) -> None:  # fmt: skip
    result, window = next(iter(writes.values())), window_of(instr)
    args: Args = {**window_args(window, size, count), **extra}
    for name, x in {**reads, **writes}.items():
        args |= {f"{name}_s{d}": s for d, s in enumerate(x.strides)}
    args |= {f"n{d}": s for d, s in enumerate(result.shape)}
    over = Grid(result.shape[:2] if build.gangs else result.shape, {})
    point_ns = 0.3 * window.n_positions * result.numel / (over.numel or 1)
    build.walk(made, over, reads=reads, writes=writes, point_ns=point_ns, run=1, extra=args)


@cache
def _max_pool(shape: _Shape, dtype: DType) -> Made:
    w = shape.writer()
    w.buffer("x", dtype)
    w.buffer("y", dtype, Access.WRITE)
    w.buffer("i", DType.I64, Access.WRITE)
    planes = _Planes(w, shape, ("x", "y", "i"))
    with planes.each() as at:
        best, where, seen = w.variable(dtype, identity("reduce_max", dtype)), w.var(w.const(0).near()), w.variable(DType.BOOL, 0)
        with each_source(w, planes.numbers, at[2:]) as place:
            x = w.load("x", planes.place("x", [*at[:2], *place]))
            flat = w.const(0)
            for size, p in zip(planes.numbers.size, place, strict=True):
                flat = flat * size + p
            wins = w.operation("gt", DType.BOOL, (dtype, dtype), x, best) | ~seen
            if dtype.is_float:
                wins = wins | x.ne(x)
            best.set(wins.pick(x, best))
            where.set(wins.pick(flat.near(), where))
            seen.set(1)
        with planes.kept(at):
            w.store("y", planes.place("y", at), best)
            w.store("i", planes.place("i", at), where.to("sext", RegType.I64) if shape.threads else where)
    return w.made(f"max_pool_{dtype.text}_{shape.text}")


def max_pool(build: Build[Any], instr: BoundInstr) -> None:
    """The greatest of each window and its flat index in *s."""
    x, y, i = operand(instr.ins[0]), *instr.outs
    made = _max_pool(_shape(build, instr, x, y, i), x.dtype)
    _call(build, made, instr, {"x": x}, {"y": y, "i": i}, x.shape[2:], y.shape[2:])


def _divisor(w: Writer, numbers: Numbers, window: list[Val], count_pad: bool, given: Val | None) -> Val:
    """What a window's sum is divided by."""
    if given is not None:
        return given
    total = w.const(1).near()
    for d, i in enumerate(window):
        size, pad = numbers.size[d].near(), numbers.pad[d].near()
        start = (i * numbers.stride[d]).near() - pad
        end = (start + numbers.kernel[d].near()).op("min_s", size + pad)
        if not count_pad:
            start, end = start.op("max_s", 0), end.op("min_s", size)
        total = total * (end - start).op("max_s", 0)
    return total.op("max_s", 1)


@cache
def _avg_pool(shape: _Shape, dtype: DType, count_pad: bool, fixed: bool) -> Made:
    w = shape.writer()
    w.buffer("x", dtype)
    w.buffer("y", dtype, Access.WRITE)
    planes = _Planes(w, shape, ("x", "y"))
    given = w.number("divisor") if fixed else None
    with planes.each() as at:
        total = w.variable(dtype, 0)
        with each_source(w, planes.numbers, at[2:]) as place:
            total.set(total + w.load("x", planes.place("x", [*at[:2], *place])))
        mean = total / _divisor(w, planes.numbers, at[2:], count_pad, given).to("s2f", held(dtype))
        with planes.kept(at):
            w.store("y", planes.place("y", at), mean)
    return w.made(f"avg_pool_{dtype.text}_{shape.text}_{int(count_pad)}_{int(fixed)}")


def avg_pool(build: Build[Any], instr: BoundInstr) -> None:
    """Each window's sum over its divisor."""
    x, y, (count_pad, divisor) = operand(instr.ins[0]), instr.outs[0], instr.attrs[:2]
    made = _avg_pool(_shape(build, instr, x, y), x.dtype, bool(count_pad), bool(divisor))
    _call(build, made, instr, {"x": x}, {"y": y}, x.shape[2:], y.shape[2:], **({"divisor": divisor} if divisor else {}))


@cache
def _avg_pool_dx(shape: _Shape, dtype: DType, count_pad: bool, fixed: bool) -> Made:
    w = shape.writer()
    w.buffer("y", dtype)
    w.buffer("x", dtype, Access.WRITE)
    planes = _Planes(w, shape, ("y", "x"))
    given = w.number("divisor") if fixed else None
    with planes.each() as at:
        total = w.variable(dtype, 0)
        with each_target(w, planes.numbers, at[2:]) as window:
            share = w.load("y", planes.place("y", [*at[:2], *window]))
            total.set(total + share / _divisor(w, planes.numbers, window, count_pad, given).to("s2f", held(dtype)))
        with planes.kept(at):
            w.store("x", planes.place("x", at), total)
    return w.made(f"avg_pool_dx_{dtype.text}_{shape.text}_{int(count_pad)}_{int(fixed)}")


@cache
def _shares(shape: _Shape, dtype: DType, wide: DType, count_pad: bool, fixed: bool) -> Made:
    """What each window hands back to one element."""
    w = shape.writer()
    w.buffer("y", dtype)
    w.buffer("s", wide, Access.WRITE)
    planes = _Planes(w, shape, ("s", "y"))
    given = w.number("divisor") if fixed else None
    with planes.each() as at, planes.kept(at):
        divisor = _divisor(w, planes.numbers, at[2:], count_pad, given)
        w.store("s", planes.place("s", at), w.load("y", planes.place("y", at)) / divisor.to("s2f", held(wide)))
    return w.made(f"avg_pool_shares_{dtype.text}_{shape.text}_{int(count_pad)}_{int(fixed)}")


@cache
def _handed_back(dtype: DType, r: int, unit: bool) -> Made:
    """One thread a plane of x, which position after position adds the shares of the rows of windows; ``unit``: windows are neighbours."""
    w = Writer(Walk.RUNS)
    w.buffer("s", dtype)
    w.buffer("x", dtype, Access.READ_WRITE)
    numbers, n = Numbers.declare(w, r, (1,) * r if unit else ()), w.numbers("n", 2)
    start = {name: w.number(f"{name}_at") for name in ("s", "x")}
    stride = {name: w.strides(f"{name}_s", 2 + r, unit) for name in ("s", "x")}
    with Points(w, n).each() as plane:
        line = {name: w.place(start[name], plane, stride[name][:2]) for name in start}
        with w.loops(numbers.size) as at:
            w.store("x", w.place(line["x"], at, stride["x"][2:]), w.const(0, held(dtype)))
        with w.loops(numbers.kernel) as position:
            shift = position[-1] * numbers.dilation[-1] - numbers.pad[-1]
            step, count = numbers.stride[-1], numbers.count[-1]
            low, high = (((x + step - 1).op("max_s", 0) // step).op("min_s", count) for x in (w.const(0) - shift, numbers.size[-1] - shift))
            with rows_inside(w, numbers, position[:-1]) as (rows, places):
                share, x = (w.place(line[name], at, stride[name][2:-1]) for name, at in (("s", rows), ("x", places)))
                with w.loop(high, low) as t:
                    target = x + (t * step + shift) * stride["x"][-1]
                    w.store("x", target, w.load("x", target) + w.load("s", share + t * stride["s"][-1]))
    return w.made(f"avg_pool_handed_back_{dtype.text}_{r}" + "_unit" * unit)


def avg_pool_dx(build: Build[Any], instr: BoundInstr) -> None:
    """Each window hands its share back to the elements it saw. Half precision sums in f32."""
    y, x, (count_pad, divisor) = operand(instr.ins[0]), instr.outs[0], instr.attrs[:2]
    extra = {"divisor": divisor} if divisor else {}
    if not build.gangs:
        made = _avg_pool_dx(_shape(build, instr, y, x), y.dtype, bool(count_pad), bool(divisor))
        _call(build, made, instr, {"y": y}, {"x": x}, x.shape[2:], y.shape[2:], **extra)
        return
    shape, wide = _shape(build, instr, y), ACCUMULATE.get(x.dtype, x.dtype)
    shares, total = build.temp(wide, y.shape), x if x.dtype is wide else build.temp(wide, x.shape)
    made = _shares(shape, y.dtype, wide, bool(count_pad), bool(divisor))
    _call(build, made, instr, {"y": y}, {"s": shares}, x.shape[2:], y.shape[2:], **extra)
    unit = set(window_of(instr).stride) == {1} and total.strides[-1] == 1
    _call(build, _handed_back(wide, shape.r, unit), instr, {"s": shares}, {"x": total}, x.shape[2:], y.shape[2:])
    if total is not x:
        copy(build, total, x)
