"""Copies between layouts and element types, for lowerings that need an operand in another form."""

from __future__ import annotations

from functools import cache

from jit.accel.library.build import Build, merged
from jit.accel.library.writer import Made, Writer
from wis.dtypes import DType
from wis.kernel.model import Access
from wis.program import Operand

__all__ = ["copy"]


@cache
def _copy(source: DType, target: DType, rank: int) -> Made:
    w = Writer()
    w.buffer("x", source)
    w.buffer("y", target, Access.WRITE)
    n, x_s, y_s = (w.numbers(name, rank) for name in ("n", "x_s", "y_s"))
    x_at, y_at = w.number("x_at"), w.number("y_at")
    thread = w.index()
    w.leave_unless(thread < w.product(n))
    at = w.coordinates(thread, n)
    value = w.load("x", w.place(x_at, at, x_s))
    if source is not target:
        value = w.operation("cast", target, (source,), value)
    w.store("y", w.place(y_at, at, y_s), value)
    return w.made(f"copy_{source.text}_{target.text}_{rank}")


def copy(build: Build, x: Operand, y: Operand) -> None:
    """y = x (one shape), converted as ``cast`` says."""
    assert x.shape == y.shape
    over = merged(x.shape, {"x": x.strides, "y": y.strides})
    build.walk(_copy(x.dtype, y.dtype, over.rank), over, reads={"x": x}, writes={"y": y})
