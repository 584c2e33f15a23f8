"""Load of devices further back than the last hour, read from a Prometheus (WOOLY_METRICS_URL) that scrapes the controllers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import httpx
import numpy as np

from services.controller.web.ring import Floats

__all__ = ["RANGES", "MetricsStore", "Range", "Unanswered", "query_of", "range_of", "times_of", "values_of"]

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
