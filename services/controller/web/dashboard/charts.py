"""The charts of the cluster and of one device, from the history. Pure: the time comes with the question."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from services.controller.web.charts import Chart, Line
from services.controller.web.history import EVERYBODY, History
from services.controller.web.metrics_store import MetricsStore, Range, times_of
from services.controller.web.ring import Floats
from services.controller.web.scope import Scope

__all__ = ["cluster_charts", "credits_chart", "credits_per_hour", "device_charts", "past_charts"]

_HOUR_S: Final = 3600


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
    spent = ring.series(scope.tenant or EVERYBODY, now_s)["spent"] * (_HOUR_S / ring.step_s)
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
