"""Shared parts of kernels over sliding windows: their numbers, and where a position leads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jit.library.writer import Val, Writer
from wis.windows import Window

__all__ = ["Numbers", "source", "target", "window_args"]


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
    def declare(cls, w: Writer, r: int) -> Numbers:
        return cls(*(w.numbers(name, r) for name in ("kernel", "stride", "pad", "dilation", "size", "count")))


def window_args(window: Window, size: Sequence[int], count: Sequence[int]) -> dict[str, int]:
    """Their values."""
    rows = {"kernel": window.kernel, "stride": window.stride, "pad": window.pad, "dilation": window.dilation, "size": size, "count": count}
    return {f"{name}{d}": x for name, xs in rows.items() for d, x in enumerate(xs)}


def source(numbers: Numbers, window: Sequence[Val], position: Sequence[Val]) -> tuple[list[Val], Val]:
    """Where in the input a position of a window is, and whether that is inside."""
    places: list[Val] = []
    inside: Val | None = None
    for d, (i, k) in enumerate(zip(window, position, strict=True)):
        at = i * numbers.stride[d] + k * numbers.dilation[d] - numbers.pad[d]
        ok = (at >= 0) & (at < numbers.size[d])
        places.append(at)
        inside = ok if inside is None else inside & ok
    assert inside is not None, "windows have at least one dimension"
    return places, inside


def target(numbers: Numbers, place: Sequence[Val], position: Sequence[Val]) -> tuple[list[Val], Val]:
    """Which window has an element of the input at a position, and whether there is one."""
    windows: list[Val] = []
    there: Val | None = None
    for d, (at, k) in enumerate(zip(place, position, strict=True)):
        shifted = at + numbers.pad[d] - k * numbers.dilation[d]
        whole = (shifted >= 0).pick(shifted, shifted.w.const(0))
        i = whole // numbers.stride[d]
        ok = (shifted >= 0) & (i * numbers.stride[d]).eq(shifted) & (i < numbers.count[d])
        windows.append(i)
        there = ok if there is None else there & ok
    assert there is not None, "windows have at least one dimension"
    return windows, there
