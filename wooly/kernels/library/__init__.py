"""Kernels of operators that are no fixed number of tensor instructions.

May live here: CUDA sources, and the modules that ``wooly wis compile`` made of them, which need no compiler on this machine.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from wooly.kernels.raw import Function, RawModule


@cache
def kernel(module: str, name: str) -> Function:
    """Kernel ``name`` of ``module`` (the stem of its file)."""
    return RawModule(path=Path(__file__).with_name(f"{module}.wis")).get_function(name)
