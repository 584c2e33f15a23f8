"""Converts measured use to micro-credits, in integers.

core_micro = core_ns x price / 1e9 and vram_micro = byte_ms x price / (2**30 x 1e3), each rounded down once a usage fact. Facts are
permanent, so the rounding is too: recomputing gives the same amounts to the last unit.
"""

from __future__ import annotations

from typing import Final

import msgspec

from billing.tariff import Price

__all__ = ["Charge", "charge"]

_NS: Final = 1_000_000_000
_GIB_MS: Final = (1 << 30) * 1_000


class Charge(msgspec.Struct, frozen=True, array_like=True):
    """What one usage fact costs, in micro-credits."""

    core_micro: int
    vram_micro: int


def charge(core_ns: int, byte_ms: int, price: Price) -> Charge:
    """The charge for ``core_ns`` (core-nanoseconds) and ``byte_ms`` (byte-milliseconds) at ``price``."""
    return Charge(core_ns * price.core_second_micro // _NS, byte_ms * price.gib_second_micro // _GIB_MS)
