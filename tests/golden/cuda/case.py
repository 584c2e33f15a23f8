"""What a case of the kernel corpus is.

A case names a source beside this file, a launch, and a function that draws the inputs from a generator with a fixed seed and computes the
answer in NumPy without looking at the kernel. Every buffer argument without an expected value must come back as it went in.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["ROOT", "CASES", "Given", "Case", "case"]

Array = npt.NDArray[Any]
ROOT: Final = Path(__file__).parent


@dataclass(frozen=True)
class Given:
    """``args``: arrays are buffers, NumPy scalars are scalars of that type, bytes are structs. ``expect``: the array that the buffer at a
    position, or the module variable of a name, must hold afterwards; what is not named must keep its contents. ``order_free``: of a
    position or name, what of its contents does not depend on the order in which threads came by.
    """

    args: Sequence[Any]
    expect: Mapping[int | str, Array]
    order_free: Mapping[int | str, Callable[[Array], Array]] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """``name``: category, slash, file, and where a source serves several cases a colon and which. ``grid``, ``block``: x, y, z.

    ``shared``: dynamic shared memory in bytes. ``rtol``, ``atol``: both 0 means equal bit by bit (any NaN equals any NaN).
    ``racy``: how many instructions run depends on the order of threads.
    """

    name: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    make: Callable[[np.random.Generator], Given]
    shared: int = 0
    rtol: float = 0.0
    atol: float = 0.0
    options: tuple[str, ...] = ("--fmad=false",)
    racy: bool = False

    @property
    def source(self) -> str:
        return self.name.partition(":")[0]

    @property
    def category(self) -> str:
        return self.source.partition("/")[0]

    @property
    def text(self) -> str:
        return (ROOT / f"{self.source}.cu").read_text()

    def given(self) -> Given:
        """Inputs and answer; the same every time."""
        return self.make(np.random.default_rng(zlib.crc32(self.name.encode())))


CASES: Final[dict[str, Case]] = {}


def case(
    name: str, *, grid: int | tuple[int, ...], block: int | tuple[int, ...], kernel: str = "", **more: Any
) -> Callable[[Callable[[np.random.Generator], Given]], Callable[[np.random.Generator], Given]]:
    """Add a case; ``kernel`` is the file's name unless said otherwise."""

    def add(make: Callable[[np.random.Generator], Given]) -> Callable[[np.random.Generator], Given]:
        assert name not in CASES, name
        CASES[name] = Case(name, kernel or name.rpartition("/")[2], _dim3(grid), _dim3(block), make, **more)
        return make

    return add


def _dim3(value: int | tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*((value,) if isinstance(value, int) else value), 1, 1)[:3]
    return x, y, z
