"""Products, convolutions and attention: native kernels written for processors, and how instructions become calls of them. What else does
not fuse is in ``jit.library``.

``lower(instr)`` gives the records of one instruction, or None when it has no native form (the caller then runs the reference);
``source(symbol)`` gives the LLVM IR of one kernel, to be compiled when first needed; ``requires(symbol)`` the symbols to load before it.

    value, emit, elements, nest    the means: typed values, functions with loops and branches, element types, index spaces
    blas                           numpy's BLAS
    kernels/                       the functions, as IR emitters; one module a family (``tiles``: the matrix product all others use)
    build, matmul, conv, ...       the lowerings; one module a family of operations

May live here: kernels that the kernel tier has no form of which is as fast, and their lowerings. May not: memory layout, running.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jit.errors import Inexpressible
from jit.host.library import attention, blas, conv, matmul
from jit.host.library.kernels import kernel
from jit.host.record import Record
from wis.program import BoundInstr

__all__ = ["LOWER", "blas", "lower", "requires", "source"]

LOWER: Final[dict[str, Callable[[BoundInstr], list[Record] | None]]] = {
    "matmul": matmul.matmul,
    "conv": conv.conv,
    "conv_dx": conv.conv_dx,
    "conv_dw": conv.conv_dw,
    "sdpa": attention.sdpa,
    "sdpa_dx": attention.sdpa_dx,
}
"""The lowering of each operation that has one, by name."""


def lower(instr: BoundInstr) -> list[Record] | None:
    """The records that carry out ``instr``, to be run in order (each may be cut anywhere), or None when it has no native form here."""
    lowering = LOWER.get(instr.op.name)
    if lowering is None:
        return None
    try:
        return lowering(instr)
    except Inexpressible:
        return None


def source(symbol: str) -> str:
    """The LLVM IR of the function called ``symbol``: a module that defines it and nothing else. Raises KeyError when unknown."""
    return kernel(symbol).text


def requires(symbol: str) -> tuple[str, ...]:
    """The symbols whose modules must be loaded into the same engine before that of ``symbol``: it calls functions of theirs."""
    return kernel(symbol).requires
