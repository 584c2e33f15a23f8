"""The Dashboard as a page and as a live topic: both from one rendering, so that the stream changes exactly what the page shows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from litestar import Request, Response, get

from services.controller.parts import Parts
from services.controller.web.channel import Patch, Topic
from services.controller.web.charts import (
    Chart,
    chart_data,
    chart_points,
    chart_table,
    cluster_charts,
    credits_chart,
    credits_per_hour,
    past_charts,
)
from services.controller.web.context import context_of
from services.controller.web.dashboard.rows import Glance, glance
from services.controller.web.history import History
from services.controller.web.metrics_store import RANGES, Unanswered, range_of
from services.controller.web.scope import Scope
from services.controller.web.templating import ENVIRONMENT, page, scope_of
from services.kit.access.requests import who

__all__ = ["ROUTES", "dashboard_topic"]

Ask = Request[Any, Any, Any]

_PARTS: Final = ("stats", "devices", "sessions", "queue")
_IDS: Final = ("chart-load", "chart-vram", "chart-credits")
_TITLES: Final = ("Utilization and starvation", "VRAM", "Credits per hour")


def _charts(history: History, scope: Scope, now_s: float) -> tuple[Chart, Chart, Chart]:
    return *cluster_charts(history, now_s), credits_chart(history, scope, now_s)


def _context(parts: Parts, history: History, scope: Scope) -> tuple[dict[str, Any], tuple[Chart, Chart, Chart]]:
    now_ns = time.time_ns()
    seen: Glance = glance(parts.projection.view, parts.gauges.last(), scope, now_ns)
    charts = _charts(history, scope, now_ns / 1e9)
    return {"glance": seen, "figures": seen.figures, "rate": credits_per_hour(charts[2]), "scope": scope}, charts


@get("/", action="cluster.read", include_in_schema=False)
async def dashboard(request: Ask) -> Response[str]:
    parts: Parts = request.app.state.parts
    await parts.projection.caught_up()
    context, charts = _context(parts, request.app.state.web.history, scope_of(request))
    store, chosen, away = context_of(request).metrics, range_of(request.query_params), ""
    drawn = dict(zip(_IDS, zip(_TITLES, charts, strict=True), strict=True))
    if chosen is not RANGES[0]:
        try:
            past = (await past_charts(store, chosen, time.time()))[""]
            drawn = {f"past-{name}": (title, chart) for name, title, chart in zip(_IDS[:2], _TITLES, past, strict=False)}
        except Unanswered as error:
            chosen, away = RANGES[0], str(error)
    return page(
        request,
        "dashboard/page.html",
        live="dashboard",
        charts={name: (title, chart_data(chart), chart_table(chart)) for name, (title, chart) in drawn.items()},
        ranges=RANGES if store.url and (chosen is not RANGES[0] or away or await store.there()) else (),
        chosen=chosen,
        away=away,
        **{k: v for k, v in context.items() if k != "scope"},
    )


@get("/charts/cluster/{name:str}", action="cluster.read", include_in_schema=False)
async def cluster_chart(request: Ask, name: str) -> Response[dict[str, Any]]:
    """One chart's data, whole: read by a page that was cut off for a while."""
    if name not in _IDS:
        return Response({}, status_code=404)
    charts = _charts(request.app.state.web.history, Scope.of(who(request)), time.time())
    return Response(chart_data(charts[_IDS.index(name)]), headers={"cache-control": "no-store"})


def dashboard_topic(parts: Parts, history: History) -> Topic:
    def render(scope: Scope, query: Mapping[str, str]) -> Patch:
        context, charts = _context(parts, history, scope)
        html = {f"dash-{name}": ENVIRONMENT.get_template(f"dashboard/{name}.html").render(context) for name in _PARTS}
        # Slots are shown full: the credits' when they have ended, the others' as they fill.
        points = {name: chart_points(chart, 2 if name == "chart-credits" else 1) for name, chart in zip(_IDS, charts, strict=True)}
        return Patch(html, {}, points)

    return Topic("dashboard", frozenset({"telemetry", "node", "task", "session", "config", "billing"}), "cluster.read", render)


ROUTES: Final[list[Any]] = [dashboard, cluster_chart]
