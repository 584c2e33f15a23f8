"""Reading and writing at computed positions.

A negative index counts from the end where ``wrap`` is the dimension's size, and is outside where it is 0. Outside, loads give 0, stores are
dropped, and the trap word is lowered to the index' key (``wis.traps``): ``site``, plus the number of the index operand, plus the index.

Where positions may coincide, one unit visits all of them in order: units divide only the dimensions along which nothing can collide.
Variants name either a width in bytes (elements are only carried) or an element type (they are combined), then the mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from jit.host.library.elements import ELEMENTS, MOVERS, Element
from jit.host.library.emit import I64, PTR, U64, Fn, Type, Value
from jit.host.library.nest import rows
from wis.traps import INDEX_MAX, INDEX_MIN, index_key

__all__ = ["gather", "index", "index_put", "scatter", "scatter_value"]


def _position(index: Value, size: Value, wrap: Value) -> tuple[Value, Value]:
    """(position counted from the start, whether it lies inside)."""
    position = (index < 0).select(index + wrap, index)
    return position, position.to(U64) < size.to(U64)


def _report(f: Fn, x: list[Value]) -> None:
    """Lower a trap word to the key of an index of a site; a function of its own, so that loops stay as they are without it."""
    word, site, index = x
    key = site + index.max(INDEX_MIN).min(INDEX_MAX)
    f.op(I64, f"atomicrmw min ptr {word.text}, i64 {key.text} monotonic")


class _Trap:
    """Where traps are reported; declares the parameters ``trap`` and ``site``."""

    def __init__(self, f: Fn) -> None:
        self._f, self._word, self._site = f, f.ptr("trap"), f.i64("site")

    def report(self, index: Value, operand: int = 0) -> None:
        """An index of this operand is outside."""
        site = self._site + (index_key(operand, 0) - index_key(0, 0))
        self._f.invoke(self._f.helper("report", [PTR, I64, I64], _report), self._word, site, index)

    @contextmanager
    def unless(self, inside: Value, index: Value) -> Iterator[None]:
        """The block runs when ``inside`` holds; else the index is reported."""
        with self._f.when(inside):
            yield
        with self._f.otherwise():
            self.report(index)


def _combine(mode: str, old: Value, new: Value) -> Value:
    if mode == "add":
        return old + new
    if mode == "mul":
        return old * new
    if mode == "max":
        better = (old >= new) if old.type.kind != "f" else (old >= new) | old.is_nan()
        return better.select(old, new)
    better = (old <= new) if old.type.kind != "f" else (old <= new) | old.is_nan()
    return better.select(old, new)


def _write(element: Element | None, type: Type, mode: str, place: Value, source: Value) -> None:
    """Store or combine one element from the address ``source``."""
    if element is None:
        place.store(source.load(type))
    else:
        element.store(place, _combine(mode, element.load(place), element.load(source)))


def _kind(what: str) -> tuple[Element | None, Type]:
    """(element to compute with or None for a plain move, type in memory) of a variant's first word."""
    if what.isdigit():
        return None, MOVERS[int(what)]
    return ELEMENTS[what], ELEMENTS[what].storage


def gather(f: Fn, width: str, rank: str) -> None:
    """y = x at index along one dimension (``x_dim``: its stride; its stride among ``x_s*`` is 0)."""
    type = MOVERS[int(width)]
    size, wrap, step, trap = f.i64("x_size"), f.i64("wrap"), f.i64("x_dim"), _Trap(f)
    with rows(f, int(rank), {"x": type, "index": I64, "y": type}) as r, f.loop(r.start, r.stop) as i:
        chosen = r.base["index"].at(i * r.step["index"], I64).load(I64)
        position, inside = _position(chosen, size, wrap)
        target = r.base["y"].at(i * r.step["y"], type)
        target.store(f.const(type, 0))
        with trap.unless(inside, chosen):
            target.store(r.base["x"].at(i * r.step["x"] + position * step, type).load(type))


def scatter(f: Fn, what: str, mode: str, order: str, rank: str) -> None:
    """y at index along one dimension = or op= x. ``order``: "lanes" walks the dimension outside of the lanes, "dim" inside of them."""
    element, type = _kind(what)
    n, size, wrap, y_dim = f.i64("n"), f.i64("y_size"), f.i64("wrap"), f.i64("y_dim")
    x_dim, index_dim, trap = f.i64("x_dim"), f.i64("index_dim"), _Trap(f)
    with rows(f, int(rank), {"x": type, "index": I64, "y": type}) as r, ExitStack() as loops:
        spans = [(f.const(I64, 0), n), (r.start, r.stop)]
        a, b = (loops.enter_context(f.loop(*span)) for span in (spans if order == "lanes" else reversed(spans)))
        j, i = (a, b) if order == "lanes" else (b, a)
        chosen = r.base["index"].at(i * r.step["index"] + j * index_dim, I64).load(I64)
        position, inside = _position(chosen, size, wrap)
        with trap.unless(inside, chosen):
            source = r.base["x"].at(i * r.step["x"] + j * x_dim, type)
            _write(element, type, mode, r.base["y"].at(i * r.step["y"] + position * y_dim, type), source)


def scatter_value(f: Fn, dtype: str, mode: str, rank: str) -> None:
    """y at index along one dimension = or op= one value."""
    element = ELEMENTS[dtype]
    type, compute = element.storage, element.compute
    n, size, wrap, y_dim, index_dim = f.i64("n"), f.i64("y_size"), f.i64("wrap"), f.i64("y_dim"), f.i64("index_dim")
    trap = _Trap(f)
    value = f.real("value", compute) if compute.kind == "f" else f.i64("value").to(compute)
    with rows(f, int(rank), {"index": I64, "y": type}) as r, f.loop(r.start, r.stop) as i, f.loop(0, n) as j:
        chosen = r.base["index"].at(i * r.step["index"] + j * index_dim, I64).load(I64)
        position, inside = _position(chosen, size, wrap)
        with trap.unless(inside, chosen):
            place = r.base["y"].at(i * r.step["y"] + position * y_dim, type)
            element.store(place, value if mode == "set" else _combine(mode, element.load(place), value))


class _Positions:
    """What some indices choose together: ``offset``, and whether all of them are ``inside``; ``points``: where each index lies."""

    def __init__(self, f: Fn, points: list[Value], steps: list[Value]) -> None:
        self._f = f
        sizes, wraps = f.i64s("size", len(points)), f.i64s("wrap", len(points))
        self.offset, self.inside = f.const(I64, 0), f.const(I64, 0).eq(0)
        self._each: list[tuple[Value, Value]] = []
        for point, size, wrap, step in zip(points, sizes, wraps, steps, strict=True):
            chosen = point.load(I64)
            position, inside = _position(chosen, size, wrap)
            self.offset, self.inside = self.offset + position * step, self.inside & inside
            self._each.append((chosen, inside))

    def report(self, trap: _Trap) -> None:
        """Report those that are not inside."""
        for number, (chosen, inside) in enumerate(self._each):
            with self._f.when(~inside):
                trap.report(chosen, number)


def index(f: Fn, width: str, count: str, rank: str, rest: str) -> None:
    """y[S, rest] = x[index0[S], .., rest]. Units walk S (``rank`` dimensions), elements copy the rest (``rest`` dimensions)."""
    type, k, inner = MOVERS[int(width)], int(count), int(rest)
    x, trap, steps = f.ptr("x"), _Trap(f), f.i64s("x_dim", k)
    sizes, x_rest, y_rest = f.i64s("rest", inner), f.i64s("x_rest", inner), f.i64s("y_rest", inner)
    operands = {f"index{d}": I64 for d in range(k)} | {"y": type}
    with rows(f, int(rank), operands) as r, f.loop(r.start, r.stop) as i:
        points = [r.base[f"index{d}"].at(i * r.step[f"index{d}"], I64) for d in range(k)]
        found = _Positions(f, points, steps)
        target = r.base["y"].at(i * r.step["y"], type)
        with f.when(found.inside):
            with _rest(f, sizes) as (at, lanes):
                source, place = _along(x.at(found.offset, type), at, x_rest, type), _along(target, at, y_rest, type)
                _copy_line(f, type, source, x_rest, place, y_rest, lanes)
        with f.otherwise():
            found.report(trap)
            with _rest(f, sizes) as (at, lanes), f.loop(0, lanes) as lane:
                step = y_rest[-1] if inner else f.const(I64, 1)
                _along(target, at, y_rest, type).at(lane * step, type).store(f.const(type, 0))


@contextmanager
def _rest(f: Fn, sizes: list[Value]) -> Iterator[tuple[list[Value], Value]]:
    """Loops over all but the last of ``sizes``; yields their indices and the length of the last (1 when there is none)."""
    with ExitStack() as loops:
        at = [loops.enter_context(f.loop(0, size)) for size in sizes[:-1]]
        yield at, sizes[-1] if sizes else f.const(I64, 1)


def _along(base: Value, at: list[Value], strides: list[Value], type: Type) -> Value:
    for position, stride in zip(at, strides, strict=False):  # the last stride belongs to the lanes
        base = base.at(position * stride, type)
    return base


def _copy_line(f: Fn, type: Type, x: Value, x_steps: list[Value], y: Value, y_steps: list[Value], lanes: Value) -> None:
    if not x_steps:
        y.store(x.load(type))
        return
    x_step, y_step = x_steps[-1], y_steps[-1]
    with f.when((x_step | y_step).eq(1) & x_step.eq(y_step)):
        f.copy(y, x, lanes * type.nbytes)
    with f.otherwise(), f.loop(0, lanes) as lane:
        y.at(lane * y_step, type).store(x.at(lane * x_step, type).load(type))


def index_put(f: Fn, what: str, mode: str, count: str, outer: str, rank: str) -> None:
    """y[index0[S], .., rest] = or op= x[S, rest]. Units walk the rest (``rank`` dimensions); each visits all of S (``outer``) in order."""
    element, type = _kind(what)
    k, depth = int(count), int(outer)
    trap, steps, points = _Trap(f), f.i64s("y_dim", k), [f.ptr(f"index{d}") for d in range(k)]
    sizes, x_outer = f.i64s("outer", depth), f.i64s("x_outer", depth)
    strides = [f.i64s(f"index{d}_s", depth) for d in range(k)]
    with rows(f, int(rank), {"x": type, "y": type}) as r, ExitStack() as loops:
        at = [loops.enter_context(f.loop(0, size)) for size in sizes]

        def place(base: Value, by: list[Value], of: Type) -> Value:
            for position, stride in zip(at, by, strict=True):
                base = base.at(position * stride, of)
            return base

        found = _Positions(f, [place(point, by, I64) for point, by in zip(points, strides, strict=True)], steps)
        with f.when(found.inside):
            source, target = place(r.base["x"], x_outer, type), r.base["y"].at(found.offset, type)
            with f.when(r.step["x"].eq(1) & r.step["y"].eq(1)), f.loop(r.start, r.stop) as i:
                _write(element, type, mode, target.at(i, type), source.at(i, type))
            with f.otherwise(), f.loop(r.start, r.stop) as i:
                _write(element, type, mode, target.at(i * r.step["y"], type), source.at(i * r.step["x"], type))
        with f.otherwise():
            found.report(trap)
