"""Shared parts of kernels over sliding windows: their numbers, and where a position leads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce

from jit.library.writer import Val, Writer
from wis.windows import Window

__all__ = ["Numbers", "each_source", "each_target", "rows_inside", "source", "target", "window_args"]


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
