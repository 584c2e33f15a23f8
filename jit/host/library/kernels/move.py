"""Copies: strided, and converting between element types on the way."""

from __future__ import annotations

from jit.host.library.elements import ELEMENTS, MOVERS
from jit.host.library.emit import Fn
from jit.host.library.nest import rows


def copy(f: Fn, width: str, rank: str) -> None:
    """y = x, elements of ``width`` bytes."""
    type = MOVERS[int(width)]
    with rows(f, int(rank), {"x": type, "y": type}) as r:
        x_step, y_step = r.step["x"], r.step["y"]
        with f.when((x_step | y_step).eq(1) & x_step.eq(y_step)):
            f.copy(r.base["y"].at(r.start, type), r.base["x"].at(r.start, type), (r.stop - r.start) * int(width))
        with f.otherwise(), f.loop(r.start, r.stop) as i:
            r.base["y"].at(i * y_step, type).store(r.base["x"].at(i * x_step, type).load(type))


def cast(f: Fn, source: str, target: str, rank: str) -> None:
    """y = x converted between float types of at most 32 bits."""
    x_type, y_type = ELEMENTS[source], ELEMENTS[target]
    with rows(f, int(rank), {"x": x_type.storage, "y": y_type.storage}) as r:
        x, y = r.base["x"], r.base["y"]
        with f.when(r.step["x"].eq(1) & r.step["y"].eq(1)), f.loop(r.start, r.stop) as i:
            y_type.store(y.at(i, y_type.storage), x_type.load(x.at(i, x_type.storage)))
        with f.otherwise(), f.loop(r.start, r.stop) as i:
            y_type.store(y.at(i * r.step["y"], y_type.storage), x_type.load(x.at(i * r.step["x"], x_type.storage)))


def fill_zero(f: Fn, width: str, rank: str) -> None:
    """y = 0, elements of ``width`` bytes."""
    type = MOVERS[int(width)]
    with rows(f, int(rank), {"y": type}) as r, f.loop(r.start, r.stop) as i:
        r.base["y"].at(i * r.step["y"], type).store(f.const(type, 0))
