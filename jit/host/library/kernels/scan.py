"""Running sums, products and extremes along one dimension, and the places of extremes. The order along the dimension is always ascending.

Lines are independent; ``rows`` walks them. Variants of ``walk``: "lanes" when neighbouring lines are neighbours in memory (a vector of
lines at a time), "line" when they are not (one line at a time).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from jit.host.library.elements import ELEMENTS, Element
from jit.host.library.emit import I32, I64, Fn, Type, Value
from jit.host.library.nest import rows

__all__ = ["LANES", "arg_extreme", "running", "running_extreme"]

LANES = 16
"""Lines of one vector: the block of a space walked by "lanes" must be this."""


@dataclass(frozen=True, slots=True)
class _Lines:
    """One line, or a vector of them: element j of operand ``name`` is read or written under the lines' mask."""

    f: Fn
    lanes: int
    mask: Value
    base: dict[str, Value]
    dims: dict[str, Value]

    def _place(self, name: str, j: Value, type: Type) -> Value:
        return self.base[name].at(j * self.dims[name], type)

    def load(self, name: str, j: Value, element: Element) -> Value:
        place = self._place(name, j, element.storage)
        if self.lanes == 1:
            return element.load(place)
        return element.decode(self.f.masked_load(place, self.mask, element.storage.vec(self.lanes)))

    def store(self, name: str, j: Value, raw: Value) -> None:
        place = self._place(name, j, raw.type)
        if self.lanes == 1:
            place.store(raw)
        else:
            self.f.masked_store(place, self.mask, raw)

    def const(self, type: Type, value: float) -> Value:
        return self.f.const(type.vec(self.lanes), value)

    def spread(self, value: Value) -> Value:
        return value if self.lanes == 1 else value.splat(self.lanes)


@contextmanager
def _lines(f: Fn, walk: str, rank: str, operands: dict[str, Type]) -> Iterator[_Lines]:
    """Every line; declares ``<operand>_dim``, the strides along the dimension, and what ``rows`` declares."""
    dims = {name: f.i64(f"{name}_dim") for name in operands}
    with rows(f, int(rank), operands) as r:
        if walk == "lanes":
            mask = f.iota(I32, LANES) < (r.stop - r.start).to(I32).splat(LANES)
            yield _Lines(f, LANES, mask, {name: r.base[name].at(r.start, type) for name, type in operands.items()}, dims)
        else:
            with f.loop(r.start, r.stop) as i:
                base = {name: r.base[name].at(i * r.step[name], type) for name, type in operands.items()}
                yield _Lines(f, 1, f.const(I32, 0), base, dims)


def running(f: Fn, dtype: str, what: str, walk: str, rank: str) -> None:
    """y = running sum or product of x (``what``: "add", "mul")."""
    element = ELEMENTS[dtype]
    n = f.i64("n")
    with _lines(f, walk, rank, {"x": element.storage, "y": element.storage}) as line, f.when(n > 0):
        total = f.var(line.load("x", f.const(I64, 0), element))
        line.store("y", f.const(I64, 0), element.encode(total.get()))
        with f.loop(1, n) as j:
            value = line.load("x", j, element)
            total.set(total.get() + value if what == "add" else total.get() * value)
            line.store("y", j, element.encode(total.get()))


def _reaches(element: Element, greatest: bool, value: Value, best: Value) -> Value:
    """Whether ``value`` is at least as extreme as ``best``; NaN is the most extreme of all."""
    reaches = (value >= best) if greatest else (value <= best)
    return reaches | value.is_nan() if element.is_float else reaches


def running_extreme(f: Fn, dtype: str, what: str, walk: str, rank: str) -> None:
    """y = running extreme of x, index = where it was last met (``what``: "max", "min")."""
    element = ELEMENTS[dtype]
    n = f.i64("n")
    with _lines(f, walk, rank, {"x": element.storage, "y": element.storage, "index": I64}) as line, f.when(n > 0):
        best = f.var(line.load("x", f.const(I64, 0), element))
        place = f.var(line.const(I64, 0))
        with f.loop(0, n) as j:
            value = line.load("x", j, element)
            better = _reaches(element, what == "max", value, best.get())
            best.set(better.select(value, best.get()))
            place.set(better.select(line.spread(j), place.get()))
            line.store("y", j, element.encode(best.get()))
            line.store("index", j, place.get())


def _beats(element: Element, greatest: bool) -> Callable[[Value, Value], Value]:
    """Whether a later value takes the place of an earlier one: more extreme, or the first NaN."""

    def beats(value: Value, best: Value) -> Value:
        more = (value > best) if greatest else (value < best)
        return more | (value.is_nan() & ~best.is_nan()) if element.is_float else more

    return beats


def arg_extreme(f: Fn, dtype: str, what: str, walk: str, rank: str) -> None:
    """y = first index of the extreme along the dimension. ``walk`` may also be "along": the dimension itself lies in neighbours."""
    element, beats = ELEMENTS[dtype], _beats(ELEMENTS[dtype], what == "max")
    n = f.i64("n")
    with _lines(f, "line" if walk == "along" else walk, rank, {"x": element.storage, "y": I64}) as line:
        if walk == "along":
            line.store("y", f.const(I64, 0), _along(f, element, beats, line.base["x"], n))
        else:
            best = f.var(line.load("x", f.const(I64, 0), element))
            place = f.var(line.const(I64, 0))
            with f.loop(1, n) as j:
                value = line.load("x", j, element)
                better = beats(value, best.get())
                best.set(better.select(value, best.get()))
                place.set(better.select(line.spread(j), place.get()))
            line.store("y", f.const(I64, 0), place.get())


def _along(f: Fn, element: Element, beats: Callable[[Value, Value], Value], x: Value, n: Value) -> Value:
    """The winner of n neighbours: every lane finds its own, then lanes are compared; among equals the lower index wins."""
    vector = element.storage.vec(LANES)
    lane = f.iota(I64, LANES)
    best = f.var(f.const(element.compute.vec(LANES), 0))
    place = f.var(f.const(I64.vec(LANES), -1))
    with f.loop(0, n, LANES) as j:
        inside = f.iota(I32, LANES) < (n - j).min(LANES).to(I32).splat(LANES)
        value = element.decode(f.masked_load(x.at(j, element.storage), inside, vector))
        better = (beats(value, best.get()) | (place.get() < 0)) & inside
        best.set(better.select(value, best.get()))
        place.set(better.select(lane + j.splat(LANES), place.get()))
    winner, at = f.var(best.get().lane(0)), f.var(place.get().lane(0))
    for other in range(1, LANES):
        value, index = best.get().lane(other), place.get().lane(other)
        tie = ~beats(value, winner.get()) & ~beats(winner.get(), value) & (index < at.get())
        takes = (beats(value, winner.get()) | tie) & (index >= 0)
        winner.set(takes.select(value, winner.get()))
        at.set(takes.select(index, at.get()))
    return at.get()
