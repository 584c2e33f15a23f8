"""Prices, by tier and time. A price in force is a fact of the log; without one the base prices below hold.

Source of the two meters: what a task used of the device's cores (core time) and of its memory (bytes over time), never wall time.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bus_schemas.events import TariffSet

__all__ = ["BASE_PRICES", "DEFAULT_TIER", "TIERS", "Price", "Tariff"]

TIERS: Final = ("premium", "standard", "basic")
DEFAULT_TIER: Final = "standard"


class Price(msgspec.Struct, frozen=True, array_like=True):
    """Micro-credits a core-second and a GiB-second, valid from ``from_ns`` (Unix time)."""

    from_ns: int
    core_second_micro: int
    gib_second_micro: int


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
        self.prices.setdefault(fact.tier, []).append(Price(fact.from_ns, fact.core_second_micro, fact.gib_second_micro))

    def at(self, tier: str, at_ns: int) -> Price:
        """The price of ``tier`` at ``at_ns``: the last one set whose validity has begun. An unknown tier pays the default tier's price."""
        for price in reversed(self.prices.get(tier, [])):
            if price.from_ns <= at_ns:
                return price
        if tier in BASE_PRICES:
            return BASE_PRICES[tier]
        return self.at(DEFAULT_TIER, at_ns)
