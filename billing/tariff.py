"""Tariff: prices by tier and time, and measured use as micro-credits, in integers. A price in force is an event of the log; without one the
base prices below hold.

Source of the two meters: what a task used of the device's cores (core time) and of its memory (bytes over time), never wall time. The time
that the node's compiler worked for it is core time too, of one core of the node's processor.
Nothing works backwards: a price is valid from the later of the moment it names and the moment it was set.

core_micro = core_ns x price / 1e9 and vram_micro = byte_ms x price / (2**30 x 1e3), each rounded down once a usage fact. Facts are
permanent, so the rounding is too: recomputing gives the same amounts to the last unit.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bus_schemas.events import TariffSet

TIERS: Final = ("premium", "standard", "basic")
DEFAULT_TIER: Final = "standard"


class Price(msgspec.Struct, frozen=True, array_like=True):
    """Micro-credits a core-second and a GiB-second, valid from ``from_ns`` (Unix time)."""

    from_ns: int
    core_second_micro: int
    gib_second_micro: int


class PriceWindow(msgspec.Struct, frozen=True):
    """``price`` holds for what is used in [from_ns, to_ns) (to_ns 0: until another is set)."""

    from_ns: int
    to_ns: int
    price: Price


BASE_PRICES: Final[dict[str, Price]] = {
    "premium": Price(0, 1_500_000_000, 1_500_000_000),
    "standard": Price(0, 1_000_000_000, 1_000_000_000),
    "basic": Price(0, 700_000_000, 700_000_000),
}
"""In force where the log sets nothing. Frozen for ever: old bills are recomputed with them. New prices are TariffSet facts."""


class Tariff(msgspec.Struct, array_like=True):
    """Every price the log has set so far, by tier, in log order."""

    prices: dict[str, list[Price]] = {}

    def record(self, fact: TariffSet) -> None:
        valid_ns = max(fact.from_ns, fact.at_ns)
        self.prices.setdefault(fact.tier, []).append(Price(valid_ns, fact.core_second_micro, fact.gib_second_micro))

    def at(self, tier: str, at_ns: int) -> Price:
        """The price of ``tier`` at ``at_ns``: the last one set whose validity has begun. An unknown tier pays the default tier's price."""
        for price in reversed(self.prices.get(tier, [])):
            if price.from_ns <= at_ns:
                return price
        if tier in BASE_PRICES:
            return BASE_PRICES[tier]
        return self.at(DEFAULT_TIER, at_ns)

    def windows(self, tier: str) -> tuple[PriceWindow, ...]:
        """The prices of ``tier`` over all time, in order and without a hole, as ``at`` gives them."""
        starts = sorted({0, *(price.from_ns for known in (tier, DEFAULT_TIER) for price in self.prices.get(known, []))})
        out: list[PriceWindow] = []
        for start, end in zip(starts, [*starts[1:], 0], strict=True):
            price = self.at(tier, start)
            if out and out[-1].price == price:
                out[-1] = PriceWindow(out[-1].from_ns, end, price)
            else:
                out.append(PriceWindow(start, end, price))
        return tuple(out)


_NS: Final = 1_000_000_000
_GIB_MS: Final = (1 << 30) * 1_000


class Charge(msgspec.Struct, frozen=True, array_like=True):
    """What one usage fact costs, in micro-credits."""

    core_micro: int
    vram_micro: int


def charge(core_ns: int, byte_ms: int, price: Price) -> Charge:
    """The charge for ``core_ns`` (core-nanoseconds) and ``byte_ms`` (byte-milliseconds) at ``price``."""
    return Charge(core_ns * price.core_second_micro // _NS, byte_ms * price.gib_second_micro // _GIB_MS)
