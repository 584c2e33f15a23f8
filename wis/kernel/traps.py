"""Trap records: the first thread of a launch that trapped, with place and cause, in one number that orders them.

Every back end keeps the least key of a launch, so the trap that is reported is the same everywhere: that of the first block of the grid,
in it of the first thread, in it of the first site in order of code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wis.kernel.model import TrapKind

__all__ = ["NO_TRAP", "Trap", "trap_key", "trap_of"]

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
