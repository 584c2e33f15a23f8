"""Kernels that are measured: launches, arguments and checks of their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jit.kernels.launch import Dim3

__all__ = ["CASES", "CUDA", "OPENCL", "Case"]

Array = npt.NDArray[Any]
_HERE: Final = Path(__file__).parent
CUDA: Final = (_HERE / "kernels.cu").read_text()
OPENCL: Final = (_HERE / "kernels.cl").read_text()


@dataclass(frozen=True)
class Case:
    """``args``: arrays and i32 numbers in order; the array at ``out`` is compared between back ends.

    ``also``: another shape of the same kernel, shown beside the one that has a bar.
    """

    name: str
    grid: Dim3
    block: Dim3
    args: Callable[[], Sequence[Any]]
    out: int
    numpy: Callable[[Sequence[Any]], Any] | None = None
    also: str = ""

    @property
    def title(self) -> str:
        return f"{self.name} {self.also}".rstrip()


def _floats(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


_VADD: Final = 1 << 24
_N: Final = 512
_REDUCE: Final = 1 << 22
_BODIES: Final = 2048
_SIDE: Final = 1024

CASES: Final = (
    Case(
        "vadd",
        (_VADD // 256, 1, 1),
        (256, 1, 1),
        lambda: (_floats(_VADD), _floats(_VADD), np.zeros(_VADD, np.float32), np.int32(_VADD)),
        2,
        lambda a: np.add(a[0], a[1], out=a[2]),
    ),
    Case(
        "matmul",
        (_N // 16, _N // 16, 1),
        (16, 16, 1),
        lambda: (_floats(_N, _N), _floats(_N, _N), np.zeros((_N, _N), np.float32), np.int32(_N)),
        2,
    ),
    Case("reduce", (64, 1, 1), (256, 1, 1), lambda: (_floats(_REDUCE), np.zeros(64, np.float32), np.int32(_REDUCE)), 1),
    Case(
        "nbody",
        (_BODIES // 256, 1, 1),
        (256, 1, 1),
        lambda: (np.abs(_floats(_BODIES, 4)), np.zeros((_BODIES, 4), np.float32), np.int32(_BODIES)),
        1,
    ),
    Case("mandelbrot", (32, 32, 1), (16, 16, 1), lambda: (np.zeros((512, 512), np.int32), np.int32(512), np.int32(512), np.int32(256)), 0),
    Case(
        "stencil",
        (_SIDE // 256, _SIDE, 1),
        (256, 1, 1),
        lambda: (_floats(_SIDE, _SIDE), np.zeros((_SIDE, _SIDE), np.float32), np.int32(_SIDE), np.int32(_SIDE)),
        1,
    ),
    Case(
        "stencil",
        (_SIDE // 32, _SIDE // 8, 1),
        (32, 8, 1),
        lambda: (_floats(_SIDE, _SIDE), np.zeros((_SIDE, _SIDE), np.float32), np.int32(_SIDE), np.int32(_SIDE)),
        1,
        also="32 x 8",
    ),
)
