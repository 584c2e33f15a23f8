"""Trap records: the first thread of a launch that trapped, with place and cause, in one number that orders them; and their wording for the
kernel's author.

Every back end keeps the least key of a launch, so the trap that is reported is the same everywhere: that of the first block of the grid,
in it of the first thread, in it of the first site in order of code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wis.dtypes import DType
from wis.kernel.model import BufferParam, Op, Space, TrapKind
from wis.kernel.ops import BY_CODE, Sig
from wis.kernel.verify import VerifiedKernel

__all__ = ["NO_TRAP", "Trap", "describe_site", "describe_trap", "trap_key", "trap_of"]

NO_TRAP: Final = (1 << 63) - 1
_KIND_BITS: Final = 2
_SITE_BITS: Final = 17
_THREAD_BITS: Final = 10


@dataclass(frozen=True, slots=True)
class Trap:
    """A trap of one thread."""

    kind: TrapKind
    #: number of its block in the grid (x fastest)
    cta: int
    #: number in its block (x fastest)
    thread: int
    #: index into ``VerifiedKernel.sites``; their number: at a barrier
    site: int


def trap_key(trap: Trap) -> int:
    """cta, thread, site, kind from the highest bits down: 31, 10, 17 and 2 bits."""
    return ((trap.cta << _THREAD_BITS | trap.thread) << _SITE_BITS | trap.site) << _KIND_BITS | trap.kind


def trap_of(key: int) -> Trap | None:
    """The trap with this key; None for NO_TRAP."""
    if key == NO_TRAP:
        return None
    rest, kind = key >> _KIND_BITS, key & (1 << _KIND_BITS) - 1
    site, rest = rest & (1 << _SITE_BITS) - 1, rest >> _SITE_BITS
    return Trap(TrapKind(kind), rest >> _THREAD_BITS, rest & (1 << _THREAD_BITS) - 1, site)


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
