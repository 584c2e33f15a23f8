"""Charts of the cluster and of devices as data for static/charts.js, and as tables for screen readers. Pure: the time comes with the
question.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from services.controller.web.formats import bytes_text, clock_time, credits_text
from services.controller.web.history import ALL_TENANTS, History
from services.controller.web.metrics_store import RANGES, MetricsStore, Range, Unanswered, range_of, times_of
from services.controller.web.ring import Floats
from services.controller.web.scope import Scope

__all__ = [
    "Chart", "Line", "Charts", "chart_context", "chart_data", "chart_points", "chart_table", "cluster_charts", "credits_chart",
    "credits_per_hour", "device_charts", "past_charts",
]  # fmt: skip

_TABLE_ROWS: Final = 12
_TEXTS: Final = {"%": lambda value: f"{value:.0f} %", "bytes": bytes_text, "": credits_text}
_HOUR_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a chart."""

    label: str
    shade: str  #: class of the stylesheet, k1 to k6
    unit: str  #: ``%``, ``bytes`` or empty
    values: Floats


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over the same times."""

    times: Sequence[int]  #: Unix seconds, evenly apart
    lines: tuple[Line, ...]
    stacked: bool = False
    top: float | None = None  #: end of the axis; None: by the values
    least: float = 1.0  #: the least end of the axis
    span_s: int = 3600  #: how much time the axis shows


def chart_data(chart: Chart) -> dict[str, Any]:
    """The data of a chart in a page."""
    series = [
        {"label": line.label, "class": line.shade, "unit": line.unit, "values": [_number(value) for value in line.values]}
        for line in chart.lines
    ]
    return {
        "t": list(chart.times),
        "series": series,
        "stacked": chart.stacked,
        "max": chart.top,
        "least": chart.least,
        "span": chart.span_s,
    }


def chart_points(chart: Chart, back: int = 1) -> tuple[tuple[float | None, ...], ...]:
    """The last two points as the stream sends them, oldest first: what was measured at the end of a slot is sent in the next one. ``back``
    2: the two before, where the last slot is not full yet."""
    ends = range(len(chart.times) - back - 1, len(chart.times) - back + 1)
    return tuple((float(chart.times[at]), *(_number(line.values[at]) for line in chart.lines)) for at in ends if at >= 0)


def chart_table(chart: Chart) -> tuple[list[str], list[list[str]]]:
    """Head and rows: the mean of a twelfth of the time each, newest first."""
    size = max(1, len(chart.times) // _TABLE_ROWS)
    rows = []
    for end in range(len(chart.times), 0, -size):
        start = max(0, end - size)
        cells = [_mean([float(value) for value in line.values[start:end] if value == value], line.unit) for line in chart.lines]
        rows.append([clock_time(chart.times[start] * 10**9)[11 if chart.span_s <= 86_400 else 5 : 16] + " UTC", *cells])
    return ["From", *(line.label for line in chart.lines)], rows


def _number(value: Any) -> float | int | None:
    """JSON-ready, with as many digits as show; None for what was not measured."""
    number = float(value)
    if math.isnan(number):
        return None
    return int(number) if number >= 1000 else round(number, 1)


def _mean(values: list[float], unit: str) -> str:
    return _TEXTS[unit](sum(values) / len(values)) if values else "–"


Charts = Mapping[str, tuple[str, Chart]]
"""By id in the document: title and chart."""


async def chart_context(
    query: Mapping[str, str], store: MetricsStore, charts: Charts, past: Callable[[Range], Awaitable[Charts]]
) -> dict[str, Any]:
    """What a page shows of its charts over the range that its address asks for: ``charts`` for the last hour, else those of ``past``."""
    chosen, away = range_of(query), ""
    if chosen is not RANGES[0]:
        try:
            charts = await past(chosen)
        except Unanswered as error:
            chosen, away = RANGES[0], str(error)
    return {
        "charts": {name: (title, chart_data(chart), chart_table(chart)) for name, (title, chart) in charts.items()},
        "ranges": RANGES if store.url and (chosen is not RANGES[0] or away or await store.there()) else (),
        "chosen": chosen,
        "away": away,
    }


def cluster_charts(history: History, now_s: float) -> tuple[Chart, Chart]:
    """(utilization and starvation: the mean over devices; VRAM: the sum)."""
    sums = history.devices.means(now_s)
    count = np.maximum(sums["count"], 1).astype(np.float32)
    times = history.devices.times(now_s)
    return _load(times, sums["utilization"] / count, sums["starvation"] / count), _vram(times, sums)


def device_charts(history: History, node: str, gpu: int, now_s: float, total_bytes: int) -> tuple[Chart, Chart]:
    """The same of one device; VRAM up to what it has."""
    means = history.devices.means(now_s, [(node, gpu)])
    times = history.devices.times(now_s)
    return _load(times, means["utilization"], means["starvation"]), _vram(times, means, float(total_bytes))


async def past_charts(store: MetricsStore, chosen: Range, now_s: float, node: str | None = None) -> dict[str, tuple[Chart, Chart]]:
    """The same charts further back: by GPU of ``node``, or of the cluster (under ""). Raises Unanswered."""
    times = times_of(chosen, now_s)
    fields = await store.load(chosen, times, node)
    empty = np.full(len(times), np.nan, np.float32)
    found = {}
    for gpu in {"", *fields["utilization"], *fields["resident"]}:
        of = {name: values.get(gpu, empty) for name, values in fields.items()}
        charts = (_load(times, of["utilization"], of["starvation"]), _vram(times, of))
        found[gpu] = (replace(charts[0], span_s=chosen.span_s), replace(charts[1], span_s=chosen.span_s))
    return found


def credits_chart(history: History, scope: Scope, now_s: float) -> Chart:
    """Credits per hour at the rate of each half minute: everybody's, or the scope's tenant's."""
    ring = history.credits
    spent = ring.series(scope.tenant or ALL_TENANTS, now_s)["spent"] * (_HOUR_S / ring.step_s)
    spent[-1] = np.nan  # it has only begun
    return Chart(ring.times(now_s), (Line("Credits per hour", "k1", "", spent),))


def credits_per_hour(chart: Chart) -> float:
    """The last full half minute's rate, 0 when nothing was measured."""
    last = float(chart.lines[0].values[-2])
    return last if last == last else 0.0


def _load(times: list[int], utilization: Floats, starvation: Floats) -> Chart:
    return Chart(times, (Line("Utilization", "k1", "%", utilization), Line("Starvation", "k2", "%", starvation)), top=100.0)


def _vram(times: list[int], sums: dict[str, Floats], total: float | None = None) -> Chart:
    lines = (
        Line("Resident", "k3", "bytes", sums["resident"]),
        Line("Shared", "k5", "bytes", sums["shared"]),
        Line("Swapped", "k4", "bytes", sums["swapped"]),
    )
    return Chart(times, lines, stacked=True, least=total or float(1 << 20))
