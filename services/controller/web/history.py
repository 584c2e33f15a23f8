"""Measurements over time by device, and estimated credits by tenant: the last hour in memory (a ring of slots for each key, one slot for
each step of time), from the telemetry stream, which holds them over a restart; further back, from a Prometheus (WOOLY_METRICS_URL) that
scrapes the controllers.

Memory: 24 bytes and a stamp for each of 360 slots of a device, about 12 KiB; at most 16,384 devices and 2,048 tenants.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import httpx
import msgspec
import numpy as np
import numpy.typing as npt

from billing.tariff import Tariff
from billing.tiers import TierBook
from bus_schemas.events import Event, TariffSet
from bus_schemas.subjects import TELEMETRY_STREAM
from bus_schemas.telemetry import Telemetry, telemetry_on
from services.kit.bus import Bus
from services.kit.errors import BusRefused, BusUnavailable
from services.kit.follow import Follower
from services.kit.log import get_logger

__all__ = [
    "ALL_TENANTS", "RANGES", "History", "MetricsStore", "PriceBook", "Range", "Ring", "Unanswered", "query_of", "range_of", "times_of",
    "values_of",
]  # fmt: skip

_FIRST_ROWS: Final = 16
Floats = npt.NDArray[np.float32]


class Ring:
    """``fields`` are added up in their slot by ``add``; ``count`` (how often) comes with them. At most ``rows_max`` keys: then the one
    with the oldest last value is evicted."""

    def __init__(self, fields: Sequence[str], *, step_s: int, slots: int, rows_max: int) -> None:
        self.step_s = step_s
        self.slots = slots
        self._fields = (*fields, "count")
        self._rows_max = rows_max
        self._rows: dict[Hashable, int] = {}
        self._numbers: npt.NDArray[np.int64] = np.zeros((_FIRST_ROWS, slots), np.int64)
        self._kept: tuple[int, Floats] | None = None
        self._values: Floats = np.zeros((len(self._fields), _FIRST_ROWS, slots), np.float32)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        return int(self._numbers.nbytes + self._values.nbytes)

    def add(self, key: Hashable, at_s: float, values: Sequence[float]) -> None:
        """Add ``values`` (in the order of the fields) to the slot of ``at_s`` (Unix seconds). Values older than the ring are dropped."""
        number = int(at_s) // self.step_s
        slot = number % self.slots
        row = self._rows.get(key)
        if row is None:
            row = self._new_row(key)
        held = self._numbers[row, slot]
        if number < held:
            return
        if self._kept is not None and number < self._kept[0] - 1:
            self._kept = None  # late: a slot that was complete is not
        if number > held:
            self._numbers[row, slot] = number
            self._values[:, row, slot] = 0
        self._values[:, row, slot] += (*values, 1.0)

    def times(self, now_s: float) -> list[int]:
        """Unix seconds of the beginnings of the slots that end by ``now_s``, oldest first, and of the one that has begun."""
        last = int(now_s) // self.step_s
        return [number * self.step_s for number in range(last - self.slots + 1, last + 1)]

    def series(self, key: Hashable, now_s: float) -> dict[str, Floats]:
        """By field, one value for each of ``times``; NaN where nothing was added."""
        row = self._rows.get(key)
        if row is None:
            return {name: np.full(self.slots, np.nan, np.float32) for name in self._fields}
        return self._read([row], now_s)

    def means(self, now_s: float, keys: Sequence[Hashable] | None = None) -> dict[str, Floats]:
        """Each field's sum over ``keys`` (None: all) of its mean in the slot; ``count``: how many keys have one. NaN: none has."""
        last = int(now_s) // self.step_s
        if keys is None:
            sums = self._all(last)
        else:
            sums = self._sums([self._rows[key] for key in keys if key in self._rows], self._numbers_until(last, self.slots))
        return dict(zip(self._fields, sums, strict=True))

    def _all(self, last: int) -> Floats:
        """Sums over all keys up to slot ``last``: those of slots that are over are kept, so that thousands of keys cost little a second."""
        known = self._kept if self._kept is not None and self._kept[0] <= last else None
        new = self.slots if known is None else min(self.slots, last - known[0] + 2)
        fresh = self._sums(slice(0, len(self._rows)), self._numbers_until(last, new))
        if known is not None and new < self.slots:
            fresh = np.concatenate([known[1][:, new - 2 :][:, : self.slots - new], fresh], axis=1)
        self._kept = last, fresh
        return fresh

    def _numbers_until(self, last: int, count: int) -> npt.NDArray[np.int64]:
        return np.arange(last - count + 1, last + 1)

    def _sums(self, rows: list[int] | slice, numbers: npt.NDArray[np.int64]) -> Floats:
        """(field, time): what ``means`` says, for slots with these numbers."""
        values, there = self._slots(rows, numbers)
        counts = np.where(there, values[-1], 1.0)
        out: Floats = np.where(there, values / counts, 0.0).sum(axis=1, dtype=np.float64).astype(np.float32)
        out[-1] = there.sum(axis=0)
        out[:, ~there.any(axis=0)] = np.nan
        return out

    def _read(self, rows: list[int], now_s: float) -> dict[str, Floats]:
        values, there = self._slots(rows, self._numbers_until(int(now_s) // self.step_s, self.slots))
        return {name: np.where(there, values[at], np.nan).sum(axis=0) for at, name in enumerate(self._fields)}

    def _slots(self, rows: list[int] | slice, numbers: npt.NDArray[np.int64]) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """(field, row, time) of the slots with these numbers, and which of (row, time) were filled."""
        order = numbers % self.slots
        return self._values[:, rows][:, :, order], self._numbers[rows][:, order] == numbers

    def _new_row(self, key: Hashable) -> int:
        if len(self._rows) >= self._rows_max:
            newest = self._numbers.max(axis=1)
            oldest = min(self._rows, key=lambda name: int(newest[self._rows[name]]))
            row = self._rows.pop(oldest)
            self._numbers[row] = 0
            self._kept = None
        else:
            row = len(self._rows)
            if row == len(self._numbers):
                self._numbers = np.concatenate([self._numbers, np.zeros_like(self._numbers)])
                self._values = np.concatenate([self._values, np.zeros_like(self._values)], axis=1)
        self._rows[key] = row
        return row


_TIMEOUT_S: Final = 5.0
_CHECK_TIMEOUT_S: Final = 0.5
_CHECK_EVERY_S: Final = 30.0
_LABEL: Final = "gpu"
_METRICS: Final = {
    "utilization": "wooly_device_utilization_percent",
    "starvation": "wooly_device_starvation_percent",
    "used": "wooly_device_vram_used_bytes",
    "shared": "wooly_device_vram_shared_bytes",
    "swapped": "wooly_device_vram_swapped_bytes",
}
_MEANS: Final = ("utilization", "starvation")


@dataclass(frozen=True, slots=True)
class Range:
    """A range of time for charts."""

    name: str  #: in addresses
    label: str
    span_s: int
    step_s: int  #: between two points


RANGES: Final = (
    Range("hour", "Hour", 3_600, 10),
    Range("6h", "6 hours", 6 * 3_600, 60),
    Range("day", "24 hours", 86_400, 300),
    Range("week", "7 days", 7 * 86_400, 1_800),
    Range("month", "30 days", 30 * 86_400, 7_200),
)
"""The first is the live hour, for which no store is needed."""


class Unanswered(Exception):
    """The store did not answer, or not as Prometheus does. The message is for people."""


def range_of(query: Mapping[str, str]) -> Range:
    """The range an address asks for; the hour for what is none."""
    return next((one for one in RANGES if one.name == query.get("range")), RANGES[0])


def times_of(chosen: Range, now_s: float) -> list[int]:
    """Unix seconds of the points of a range, whole steps; the last ends the step that has begun."""
    last = int(now_s) // chosen.step_s + 1
    return [at * chosen.step_s for at in range(last - chosen.span_s // chosen.step_s + 1, last + 1)]


def query_of(field: str, step_s: int, node: str | None = None) -> str:
    """PromQL for ``field`` at the end of each step: of the devices of ``node`` by GPU, or of the cluster (mean or sum over its devices).
    Values of one device from several controllers count once."""
    chosen = "" if node is None else f"{{node={json.dumps(node)}}}"
    each = f"max by (node, {_LABEL}) (avg_over_time({_METRICS[field]}{chosen}[{step_s}s]))"
    whole = f"{'avg' if field in _MEANS else 'sum'} ({each})"
    return whole if node is None else f"max by ({_LABEL}) ({each})"


def values_of(answer: Any, times: Sequence[int]) -> dict[str, Floats]:
    """By GPU ("" for the cluster), a value for each of ``times``, NaN where there is none. Raises Unanswered."""
    at = {second: index for index, second in enumerate(times)}
    found: dict[str, Floats] = {}
    try:
        for series in answer["data"]["result"]:
            values = found[str(series["metric"].get(_LABEL, ""))] = np.full(len(times), np.nan, np.float32)
            for second, text in series["values"]:
                if int(second) in at:
                    values[at[int(second)]] = float(text)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unanswered(f"The metrics store does not answer like a Prometheus ({type(error).__name__}).") from error
    return found


class MetricsStore:
    """``async with MetricsStore(url)``; url empty: there is none."""

    def __init__(self, url: str, *, verify: Any = True) -> None:
        self.url = url.rstrip("/")
        self._verify = verify
        self._checked_s = -_CHECK_EVERY_S
        self._there = False

    async def __aenter__(self) -> Self:
        self._http = httpx.AsyncClient(base_url=self.url, timeout=_TIMEOUT_S, verify=self._verify, follow_redirects=False)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self._http.aclose()

    async def there(self) -> bool:
        """Whether it answers; asked every half minute at most."""
        now_s = time.monotonic()
        if self.url and now_s - self._checked_s >= _CHECK_EVERY_S:
            self._checked_s = now_s
            try:
                self._there = (await self._http.get("/-/ready", timeout=_CHECK_TIMEOUT_S)).status_code == 200
            except httpx.HTTPError:
                self._there = False
        return self._there

    async def load(self, chosen: Range, times: Sequence[int], node: str | None = None) -> dict[str, dict[str, Floats]]:
        """By field and GPU, as ``values_of``; ``resident`` is what is used and not shared. Raises Unanswered."""
        answers = await asyncio.gather(*(self._ask(query_of(field, chosen.step_s, node), chosen, times) for field in _METRICS))
        found = dict(zip(_METRICS, answers, strict=True))
        shared = found["shared"]
        used = found.pop("used")
        return found | {"resident": {gpu: values - shared.get(gpu, np.float32(0)) for gpu, values in used.items()}}

    async def _ask(self, query: str, chosen: Range, times: Sequence[int]) -> dict[str, Floats]:
        given = {"query": query, "start": str(times[0]), "end": str(times[-1]), "step": str(chosen.step_s)}
        try:
            answer = await self._http.get("/api/v1/query_range", params=given)
            answer.raise_for_status()
            return values_of(answer.json(), times)
        except (httpx.HTTPError, ValueError) as error:
            raise Unanswered(f"The metrics store does not answer ({type(error).__name__}).") from error


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
