"""Estimated charges for a period like the last one: prices from the log times what nodes measured. Pure.

A rate for people to look at, never the basis of a bill: bills come from usage facts (billing). Per session and window:
core time (core-seconds) x price of a core-second + memory charged to it (GiB) x length of the window x price of a GiB-second.
"""

from __future__ import annotations

from typing import Final

from billing.tariff import Tariff
from billing.tiers import TierBook
from bus_schemas.events import Event, TariffSet
from bus_schemas.telemetry import Telemetry

__all__ = ["PriceBook"]

_GIB: Final = 1 << 30


class PriceBook:
    """A fold over the log: which tier a tenant is in, what its tier pays."""

    def __init__(self) -> None:
        self._tiers = TierBook()
        self._tariff = Tariff()

    def apply(self, position: int, event: Event) -> None:
        if isinstance(event, TariffSet):
            self._tariff.record(event)
        else:
            self._tiers.apply(position, event)

    def spent(self, seen: Telemetry) -> dict[str, float]:
        """Credits that the window of ``seen`` comes to, by tenant."""
        out: dict[str, float] = {}
        window_s = seen.window_ms / 1e3
        for run in seen.running:
            price = self._tariff.at(self._tiers.tier_of(run.tenant, seen.at_ns), seen.at_ns)
            micro = run.core_ns / 1e9 * price.core_second_micro + run.resident_bytes / _GIB * window_s * price.gib_second_micro
            out[run.tenant] = out.get(run.tenant, 0.0) + micro / 1e6
        return out
