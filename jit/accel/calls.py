"""Device calls of a plan's steps: launches of kernels, matrix products left to the device's own library, or reference steps.

The words of a launch are those of its row in the argument table (jit.accel.device): for every parameter in order offset and size in bytes
of a buffer, or the bits of a number.
"""

from __future__ import annotations

from dataclasses import dataclass

from jit.plan import calls
from wis.dtypes import DType

__all__ = ["Call", "KernelCall", "ProductCall"]


@dataclass(slots=True)
class Call(calls.Call):
    """Something that a device runs."""


@dataclass(slots=True)
class KernelCall(Call):
    """A launch; ``kernel`` names it in the lowering's table."""

    kernel: str
    blocks: int
    threads: int


@dataclass(slots=True)
class ProductCall(Call):
    """out[batch] = a[batch] b[batch]: pointers are out, a, b; each operand's shape, strides and offset in elements."""

    dtype: DType
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
