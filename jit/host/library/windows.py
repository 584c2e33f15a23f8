"""Shared parts of the lowerings of convolution and pooling: operands in three spatial dimensions, and the arguments of
``kernels.windows``."""

from __future__ import annotations

from dataclasses import replace

from jit.host.library.build import View, contiguous
from jit.host.record import Arg

__all__ = ["five", "is_plane", "plane_args", "spread", "walk_of", "window_args"]


def five(v: View) -> View:
    """A view [n, c, *s] with spatial dimensions of size 1 put in front until there are three."""
    missing = 5 - len(v.shape)
    shape = v.shape[:2] + (1,) * missing + v.shape[2:]
    return replace(v, shape=shape, strides=v.strides[:2] + (0,) * missing + v.strides[2:])


def spread(values: tuple[int, ...], fill: int) -> tuple[int, ...]:
    """One value a spatial dimension, with ``fill`` for those put in front."""
    return (fill,) * (3 - len(values)) + values


def is_plane(v: View) -> bool:
    """Whether the spatial dimensions of each channel are one run of neighbours."""
    return all(size == 1 or a == b for size, a, b in zip(v.shape[2:], v.strides[2:], contiguous(v.shape[2:]), strict=True))


def walk_of(x: View, y: View, stride: tuple[int, ...]) -> str:
    """ "flat" or "deep", and how neighbouring outputs of a row of ``y`` read ``x``: the end of a kernel's name."""
    depth = "flat" if y.shape[2] == 1 else "deep"
    step = stride[2] * x.strides[4]
    if step == 1:
        return f"{depth}.unit"
    return f"{depth}.pair" if step == 2 and x.strides[4] == 1 else f"{depth}.strided"


def window_args(
    x: View, y: View, k: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...], dilation: tuple[int, ...]
) -> dict[str, Arg]:
    """The arguments that ``kernels.windows.geometry`` declares."""
    args: dict[str, Arg] = {"t_h": y.shape[3], "t_w": y.shape[4]}
    for name, values in (("k", k), ("size", x.shape[2:]), ("stride", stride), ("pad", pad), ("dilation", dilation), ("x_s", x.strides[2:])):
        args |= {f"{name}{d}": value for d, value in enumerate(values)}
    return args


def plane_args(x: View, t: View) -> dict[str, Arg]:
    """The arguments that ``kernels.pool.planes`` declares; t is the side with output geometry."""
    return {
        "channels": x.shape[1], "rows": t.shape[2] * t.shape[3], "x_n": x.strides[0], "x_c": x.strides[1],
        "t_n": t.strides[0], "t_c": t.strides[1], "t_row": t.strides[3] if t.shape[3] > 1 else t.strides[2],
    }  # fmt: skip
