"""Billing's own state: verification, health, metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from litestar import MediaType, Response, get
from litestar.openapi.datastructures import ResponseSpec
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from billing.budgets import STOPPED, WARNING
from billing.ledger import CORE, VRAM
from services.billing.parts import Ask, Json, parts_of
from services.kit.access.web import permit
from services.kit.problems import problems

__all__ = ["ROUTES"]

_CATCH_UP_S: Final = 1.0
"""How long a question about readiness waits for messages that are under way; less than health checks wait."""
_NOT_READY: Final = {503: ResponseSpec(dict[str, Any], description="It is not; detail gives the reason", generate_examples=False)}


@get("/api/v1/billing/verify", summary="Recompute the whole bill from the log and compare", action="credits.read", responses=problems())
async def verify(request: Ask) -> Json:
    permit(request, "credits.read")
    found: Json = msgspec.to_builtins(await parts_of(request).projection.verify())
    return found


def _health(request: Ask) -> Response[Any]:
    projection = parts_of(request).projection
    if projection.failure is not None:
        return Response({"status": "failed", "position": projection.view.position, "detail": str(projection.failure)}, status_code=503)
    return Response({"status": "ok", "position": projection.view.position})


@get("/health", summary="Check whether billing follows the event log", action=None)
async def health(request: Ask) -> Response[Any]:
    return _health(request)


@get("/health/live", summary="Liveness: whether the process answers", action=None)
async def live() -> Json:
    return {"status": "ok"}


@get("/health/ready", summary="Readiness: whether all events of the log are applied", action=None, responses=_NOT_READY)
async def ready(request: Ask) -> Response[Any]:
    """503 while the bus is unreachable, and while events are not applied yet, for example in the first minutes with a long log."""
    projection = parts_of(request).projection
    if projection.failure is not None:
        return _health(request)
    answer = {"status": "disconnected", "position": projection.view.position, "detail": "the bus is away"}
    if projection.connected:
        end = await projection.log_end()
        if await projection.reached(end, _CATCH_UP_S):
            return _health(request)
        position = projection.view.position
        answer = {"status": "behind", "position": position, "detail": f"{position:,} of {end:,} messages of the log are applied"}
    return Response(answer, status_code=503)


class _Charged(Collector):
    """Credits charged so far: totals that only grow."""

    def __init__(self, core: float, vram: float) -> None:
        self._credits = {"core": core, "vram": vram}

    def collect(self) -> Iterator[Metric]:
        for kind, credits in self._credits.items():
            yield CounterMetricFamily(f"wooly_billing_{kind}_credits", f"Credits charged for {kind}", value=credits)


@get("/metrics", summary="Prometheus metrics", media_type=MediaType.TEXT, action="cluster.read", responses=problems())
async def metrics(request: Ask) -> str:
    """For the whole cluster; not available to users of a tenant."""
    permit(request, "cluster.read", "")
    projection = parts_of(request).projection
    view = projection.view
    levels = [budget.level for budgets in view.budgets.by_tenant.values() for budget in budgets.values()]
    registry = CollectorRegistry()
    registry.register(_Charged(-view.ledger.balances.get(CORE, 0) / 1e6, -view.ledger.balances.get(VRAM, 0) / 1e6))
    values = {
        "wooly_billing_log_position": ("Position of the last event billed", view.position),
        "wooly_billing_following": ("1 while the event log is followed", projection.failure is None),
        "wooly_billing_bus_connected": ("1 while the bus is connected", projection.connected),
        "wooly_billing_findings": ("Inconsistencies found in the log", len(view.findings)),
        "wooly_billing_unbelieved_usage_events": ("Usage events of nodes that are not charged", sum(view.unbelieved.values())),
        "wooly_billing_budgets_warning": ("Budgets beyond their warning, not used up", levels.count(WARNING)),
        "wooly_billing_budgets_stopped": ("Budgets that are used up", levels.count(STOPPED)),
    }
    for name, (text, value) in values.items():
        Gauge(name, text, registry=registry).set(value)
    return generate_latest(registry).decode()


ROUTES: Final = (verify, health, live, ready, metrics)
