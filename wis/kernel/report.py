"""Words traps for the kernel's author."""

from __future__ import annotations

from typing import Final

from wis.dtypes import DType
from wis.kernel.model import BufferParam, Op, Space, TrapKind
from wis.kernel.ops import BY_CODE, Sig
from wis.kernel.traps import Trap
from wis.kernel.verify import VerifiedKernel

__all__ = ["describe_trap", "describe_site"]

Dim3 = tuple[int, int, int]
_VERBS: Final = {
    Sig.LOAD: "load",
    Sig.BYTES_LOAD: "load",
    Sig.STORE: "store",
    Sig.BYTES_STORE: "store",
    Sig.ATOM: "atomic",
    Sig.RED: "atomic",
}


def describe_trap(verified: VerifiedKernel, grid: Dim3, block: Dim3, trap: Trap) -> str:
    """One sentence: kernel, what happened, the block and thread that did it, and the source line when it is known."""
    kernel = verified.flat
    if trap.kind is TrapKind.BARRIER:
        what, where = "threads wait at barriers that can never complete", ""
    else:
        site = verified.sites[trap.site]
        what = describe_site(verified, trap.site)
        what += {TrapKind.OUTSIDE: " outside of it", TrapKind.MISALIGNED: " at a misaligned offset"}.get(trap.kind, "")
        file = kernel.file or "line"
        where = f", {file}:{site.line}" if site.line else f", block of code {site.block}, op {site.op}"
    return f"kernel {kernel.name}: {what}; in block {_at(trap.cta, grid)}, thread {_at(trap.thread, block)}{where}"


def describe_site(verified: VerifiedKernel, number: int) -> str:
    """What the op at a site does: ``store of f32 to parameter 2``."""
    site = verified.sites[number]
    op = verified.flat.blocks[site.block].code[site.op]
    sig = BY_CODE[op.op].sig
    if sig is Sig.RAISE:
        return "the program raised a trap (trap or a failed assertion)"
    return f"{_VERBS[sig]} of {DType(op.attrs[2]).text} {'from' if _VERBS[sig] == 'load' else 'to'} {_memory(verified, op)}"


def _memory(verified: VerifiedKernel, op: Op) -> str:
    space, which = Space(op.attrs[0]), op.attrs[1]
    if space is Space.GLOBAL:
        return f"buffer parameter {[i for i, p in enumerate(verified.flat.params) if isinstance(p, BufferParam)].index(which)} (p{which})"
    return {Space.SHARED: "shared memory", Space.LOCAL: "local memory", Space.CONST: "constants"}.get(space, "an address")


def _at(number: int, sizes: Dim3) -> str:
    x, y, _ = sizes
    return f"({number % x}, {number // x % y}, {number // (x * y)})"
