"""The Dashboard as a page and as a live topic, both from one rendering, so that the stream changes exactly what the page shows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from litestar import Response, get

from bus_schemas.telemetry import Telemetry
from scheduler.placement import ClusterView, queue_order
from services.controller.parts import Ask, Parts
from services.controller.presenters.nodes import DeviceRow, Seen, SessionRow, device_rows, first_sessions, of_now
from services.controller.presenters.tasks import TaskRow, task_row
from services.controller.web.charts import (
    Chart,
    Charts,
    chart_context,
    chart_data,
    chart_points,
    cluster_charts,
    credits_chart,
    credits_per_hour,
    past_charts,
)
from services.controller.web.context import context_of
from services.controller.web.history import History, Range
from services.controller.web.live import Patch, Topic
from services.controller.web.scope import Scope
from services.controller.web.templating import ENVIRONMENT, page, scope_of
from services.kit.access.web import identity_of

__all__ = ["ROUTES", "dashboard_topic", "Figures", "Glance", "glance"]


_PARTS: Final = ("stats", "devices", "sessions", "queue")
_IDS: Final = ("chart-load", "chart-vram", "chart-credits")
_TITLES: Final = ("Utilization and starvation", "VRAM", "Credits per hour")
_DEVICES: Final = 8
_SESSIONS: Final = 10
_QUEUE: Final = 8


def _charts(history: History, scope: Scope, now_s: float) -> tuple[Chart, Chart, Chart]:
    return *cluster_charts(history, now_s), credits_chart(history, scope, now_s)


def _context(parts: Parts, history: History, scope: Scope) -> tuple[dict[str, Any], tuple[Chart, Chart, Chart]]:
    now_ns = time.time_ns()
    seen: Glance = glance(parts.projection.view, parts.gauges.last(), scope, now_ns)
    charts = _charts(history, scope, now_ns / 1e9)
    return {"glance": seen, "figures": seen.figures, "rate": credits_per_hour(charts[2])}, charts


@get("/", action="cluster.read", include_in_schema=False)
async def dashboard(request: Ask) -> Response[str]:
    parts: Parts = request.app.state.parts
    await parts.projection.caught_up()
    context, charts = _context(parts, request.app.state.web.history, scope_of(request))
    store = context_of(request).metrics

    async def past(chosen: Range) -> Charts:
        found = (await past_charts(store, chosen, time.time()))[""]
        return {f"past-{name}": (title, chart) for name, title, chart in zip(_IDS, _TITLES, found, strict=False)}

    live = dict(zip(_IDS, zip(_TITLES, charts, strict=True), strict=True))
    drawn = await chart_context(request.query_params, store, live, past)
    return page(request, "dashboard/page.html", live="dashboard", **drawn, **context)


@get("/charts/cluster/{name:str}", action="cluster.read", include_in_schema=False)
async def cluster_chart(request: Ask, name: str) -> Response[dict[str, Any]]:
    """One chart's data, whole: read by a page that was cut off for a while."""
    if name not in _IDS:
        return Response({}, status_code=404)
    charts = _charts(request.app.state.web.history, Scope.of(identity_of(request)), time.time())
    return Response(chart_data(charts[_IDS.index(name)]), headers={"cache-control": "no-store"})


def dashboard_topic(parts: Parts, history: History) -> Topic:
    def render(scope: Scope, query: Mapping[str, str]) -> Patch:
        context, charts = _context(parts, history, scope)
        html = {f"dash-{name}": ENVIRONMENT.get_template(f"dashboard/{name}.html").render(context | {"scope": scope}) for name in _PARTS}
        # Slots are shown full: the credits' when they have ended, the others' as they fill.
        points = {name: chart_points(chart, 2 if name == "chart-credits" else 1) for name, chart in zip(_IDS, charts, strict=True)}
        return Patch(html, {}, points)

    return Topic("dashboard", frozenset({"telemetry", "node", "task", "session", "config", "billing"}), "cluster.read", render)


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of now: shares are means over the measured devices, bytes are sums; tasks are those that the scope sees."""

    nodes: int
    nodes_ready: int
    nodes_drained: int
    nodes_lost: int
    devices: int
    running: int
    queued: int
    waiting: int
    sessions: int
    utilization: int
    starvation: int
    used_bytes: int
    total_bytes: int
    swapped_bytes: int
    shared_bytes: int
    saved_bytes: int


@dataclass(frozen=True, slots=True)
class Glance:
    """What the Dashboard shows but the charts."""

    figures: Figures
    devices: Sequence[DeviceRow]  #: the busiest
    devices_total: int
    sessions: Sequence[SessionRow]  #: the first
    queue: Sequence[TaskRow]  #: the first waiting tasks


def glance(view: ClusterView, measured: Sequence[Telemetry], scope: Scope, now_ns: int) -> Glance:
    """Everything on the page but the charts."""
    now = [seen for seen in measured if _counts(view, seen)]
    by_device: Seen = {(seen.node, seen.gpu): seen for seen in now}
    sessions, sessions_total = first_sessions(view, now, scope.sees, _SESSIONS)
    waiting = [task for task in queue_order(view, now_ns) if scope.sees(task.submitted.tenant)]
    return Glance(
        figures=_figures(view, now, scope, len(waiting), sessions_total),
        devices=_busiest(view, by_device, scope),
        devices_total=sum(len(node.registered.devices) for node in view.nodes.values() if node.lost is None),
        sessions=sessions,
        queue=[task_row(view, task) for task in waiting[:_QUEUE]],
    )


def _counts(view: ClusterView, seen: Telemetry) -> bool:
    return of_now(view, seen) and view.nodes[seen.node].device(seen.gpu) is not None


def _figures(view: ClusterView, now: Sequence[Telemetry], scope: Scope, waiting: int, sessions: int) -> Figures:
    count = max(1, len(now))
    lost = sum(1 for node in view.nodes.values() if node.lost is not None)
    drained = sum(1 for name, node in view.nodes.items() if node.lost is None and view.drained(name))
    live = [view.tasks[name] for name in view.live if scope.sees(view.tasks[name].submitted.tenant)]
    running = sum(1 for task in live if task.state == "started")
    return Figures(
        nodes=len(view.nodes),
        nodes_ready=len(view.nodes) - lost - drained,
        nodes_drained=drained,
        nodes_lost=lost,
        devices=sum(len(node.registered.devices) for node in view.nodes.values() if node.lost is None),
        running=running,
        queued=len(live) - running,
        waiting=waiting,
        sessions=sessions,
        utilization=round(sum(seen.utilization_percent for seen in now) / count),
        starvation=round(sum(seen.starvation_percent for seen in now) / count),
        used_bytes=sum(seen.vram_used_bytes for seen in now),
        total_bytes=sum(seen.vram_total_bytes for seen in now),
        swapped_bytes=sum(seen.vram_swapped_bytes for seen in now),
        shared_bytes=sum(seen.vram_shared_bytes for seen in now),
        saved_bytes=sum(seen.vram_saved_bytes for seen in now),
    )


def _busiest(view: ClusterView, by_device: Seen, scope: Scope) -> list[DeviceRow]:
    """All devices in order where there are few, else the busiest."""
    keys = sorted(by_device)
    if len(keys) > _DEVICES:
        keys = sorted(keys, key=lambda key: (-by_device[key].utilization_percent, key))[:_DEVICES]
    rows = {(row.node, row.index): row for name in {node for node, _ in keys} for row in device_rows(view, by_device, scope.sees, name)}
    return [rows[key] for key in keys]


ROUTES: Final[list[Any]] = [dashboard, cluster_chart]
