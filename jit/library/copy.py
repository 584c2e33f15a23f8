"""Copies between layouts and element types, for lowerings that need an operand in another form."""

from __future__ import annotations

from functools import cache
from typing import Any

from jit.library.build import Build, merged
from jit.library.writer import Made, Points, Walk, Writer
from wis.dtypes import DType
from wis.kernel.model import Access
from wis.program import Operand

__all__ = ["copy"]


@cache
def _copy(walk: Walk, source: DType, target: DType, rank: int, unit: bool) -> Made:
    w = Writer(walk)
    w.buffer("x", source)
    w.buffer("y", target, Access.WRITE)
    n, x_s, y_s = w.numbers("n", rank), w.strides("x_s", rank, unit), w.strides("y_s", rank, unit)
    x_at, y_at = w.number("x_at"), w.number("y_at")
    with Points(w, n).each() as at:
        value = w.load("x", w.place(x_at, at, x_s))
        if source is not target:
            value = w.operation("cast", target, (source,), value)
        w.store("y", w.place(y_at, at, y_s), value)
    return w.made(f"copy_{source.text}_{target.text}_{rank}" + "_unit" * unit)


def copy(build: Build[Any], x: Operand, y: Operand) -> None:
    """y = x (one shape), converted as ``cast`` says."""
    assert x.shape == y.shape
    over = merged(x.shape, {"x": x.strides, "y": y.strides}, "y")
    made = _copy(build.runs, x.dtype, y.dtype, over.rank, build.unit(over))
    build.walk(made, over, reads={"x": x}, writes={"y": y}, point_ns=0.3)
