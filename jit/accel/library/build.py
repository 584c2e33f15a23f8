"""Lowerings with what only accelerators have: matrix products of the device's own library."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jit.accel.calls import Call, ProductCall
from jit.accel.device import Facts
from jit.library import build
from jit.library.build import Launch
from jit.plan.access import access
from jit.plan.calls import ArgBlock
from wis.program import Operand

__all__ = ["Build"]


class Build(build.Build[Call]):
    """``facts``: of the device."""

    def __init__(self, new_temp: Callable[[int], int], make: Callable[[Launch], Call], facts: Facts) -> None:
        super().__init__(new_temp, make, gangs=False)
        self.facts = facts

    def product(self, out: Operand, a: Operand, b: Operand) -> None:
        """Add a matrix product [.., m, k] x [.., k, n] for the device's own library."""
        x = (out, a, b)
        pointers = np.array([(at, v.buffer, 0) for at, v in enumerate(x)], np.int64)
        block = ArgBlock(np.zeros(0, np.int64), pointers, (), ())
        self.calls.append(
            ProductCall(
                block, (access(a), access(b)), (access(out),), out.dtype, tuple(v.shape for v in x), tuple(v.strides for v in x),
                tuple(v.offset for v in x),
            )
        )  # fmt: skip
