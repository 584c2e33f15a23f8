"""The kernels by name: ``lib.<family>.<variant>...`` gives the parameters and the LLVM IR of one function.

May live here: the list of families. May not: plans (the sibling folders' modules decide which kernel runs on what).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

from jit.host.library.emit import Fn
from jit.host.library.kernels import attention, conv, gemm, move, tiles

__all__ = ["FAMILIES", "PREFIX", "Kernel", "kernel"]

PREFIX: Final = "lib."

FAMILIES: Final[dict[str, Callable[..., None]]] = {
    "copy": move.copy,
    "cast": move.cast,
    "zero": move.fill_zero,
    "tiles": tiles.tiles,
    "product": gemm.product,
    "gemm": gemm.gemm,
    "gemv": gemm.gemv,
    "igemm": gemm.igemm,
    "conv": conv.conv,
    "conv_dx": conv.conv_dx,
    "conv_dw": conv.conv_dw,
    "sum_parts": conv.sum_parts,
    "depthwise": conv.depthwise,
    "depthwise_dw": conv.depthwise_dw,
    "sdpa": attention.sdpa,
    "sdpa_dx": attention.sdpa_dx,
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One function: the names of its arguments in order, the LLVM IR module that defines it, and the modules to be loaded before."""

    symbol: str
    params: tuple[str, ...]
    text: str
    requires: tuple[str, ...]


@cache
def kernel(symbol: str) -> Kernel:
    """The kernel called ``symbol``. Raises KeyError when there is no such family."""
    family, *variant = symbol.removeprefix(PREFIX).split(".")
    f = Fn(symbol)
    FAMILIES[family](f, *variant)
    return Kernel(symbol, tuple(f.params), f.text(), tuple(f.requires))
