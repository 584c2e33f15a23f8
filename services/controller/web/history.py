"""Measurements of the last hour by device, and estimated credits by tenant, from the telemetry stream (which holds them over a restart).

Memory: 24 bytes and a stamp for each of 360 slots of a device, about 12 KiB; at most 16,384 devices and 2,048 tenants.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from billing.tariff import Tariff
from billing.tiers import TierBook
from bus_schemas.events import Event, TariffSet
from bus_schemas.subjects import TELEMETRY_STREAM
from bus_schemas.telemetry import Telemetry, telemetry_on
from services.controller.web.ring import Ring
from services.kit.bus import Bus
from services.kit.errors import BusRefused, BusUnavailable
from services.kit.follow import Follower
from services.kit.log import get_logger

__all__ = ["History", "ALL_TENANTS", "PriceBook"]

ALL_TENANTS: Final = ""
"""The key under which credits of all tenants are added up."""

_HOUR_S: Final = 3600
_STEP_S: Final = 10
_CREDITS_STEP_S: Final = 30
_BURST: Final = 2_000
_REST_S: Final = 0.05
_GIB: Final = 1 << 30


class History:
    """Rings of measurements. ``prices`` is called for each measurement: the view may be replaced."""

    def __init__(self, prices: Callable[[], PriceBook]) -> None:
        self._prices = prices
        self.devices = Ring(
            ("utilization", "starvation", "resident", "shared", "swapped"), step_s=_STEP_S, slots=_HOUR_S // _STEP_S, rows_max=16_384
        )
        self.credits = Ring(("spent",), step_s=_CREDITS_STEP_S, slots=_HOUR_S // _CREDITS_STEP_S, rows_max=2_048)

    def take(self, seen: Telemetry) -> None:
        """One measurement; in any order."""
        at_s = seen.at_ns // 10**9
        resident = max(0, seen.vram_used_bytes - seen.vram_shared_bytes)
        values = (seen.utilization_percent, seen.starvation_percent, resident, seen.vram_shared_bytes, seen.vram_swapped_bytes)
        self.devices.add((seen.node, seen.gpu), at_s, values)
        spent = self._prices().spent(seen)
        for tenant, credits in spent.items():
            self.credits.add(tenant, at_s, (credits,))
        self.credits.add(ALL_TENANTS, at_s, (sum(spent.values()),))

    async def read_past(self, bus: Bus, before: int) -> None:
        """Take what the stream holds before position ``before``, in bursts with rests between, so that nothing waits for it long."""
        if before <= 1:
            return
        done = asyncio.Event()
        oldest_ns = time.time_ns() - _HOUR_S * 10**9
        taken = 0

        def on_message(position: int, subject: str, data: bytes) -> None:
            nonlocal taken
            if position >= before or done.is_set():
                done.set()
                return
            try:
                seen = telemetry_on(subject, data)
            except msgspec.DecodeError:
                return  # the live follower logs it
            if seen.at_ns >= oldest_ns:
                self.take(seen)
            taken += 1
            if taken % _BURST == 0:
                follower.pause()
                asyncio.get_running_loop().call_later(_REST_S, follower.resume)
            if position >= before - 1:
                done.set()

        follower: Follower = bus.follow(TELEMETRY_STREAM, 1, on_message)
        try:
            await follower.start()
            await done.wait()
        except (BusUnavailable, BusRefused) as error:
            get_logger().warning("the charts begin now: the past could not be read", error=str(error))
        finally:
            await follower.stop()
        get_logger().info("charts filled from the stream", measurements=taken)


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
