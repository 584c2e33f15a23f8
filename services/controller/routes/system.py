"""The service itself: live measurements, health, metrics."""

from __future__ import annotations

import time
from typing import Any, Final

from litestar import Request, Response, get

from services.controller.answers import Json
from services.controller.identity import caller_of
from services.controller.metrics import metrics_text
from services.controller.mirror import Mirror
from services.controller.parts import parts_of
from services.controller.routes.described import problems
from services.controller.telemetry_answer import telemetry_answer

__all__ = ["ROUTES"]

Ask = Request[Any, Any, Any]


@get("/api/v1/telemetry", summary="The last measurements of every device: live, not from the log", action="node.read", responses=problems())
async def telemetry(request: Ask) -> Json:
    caller = caller_of(request)
    now_ns = time.time_ns()
    items = [telemetry_answer(seen, now_ns, lambda tenant: caller.may("task.read", tenant)) for seen in parts_of(request).gauges.last()]
    return {"items": items, "total": len(items)}


@get("/health", summary="Whether the controller follows the log", action=None, exclude_from_auth=True)
async def health(request: Ask) -> Response[Json]:
    parts = parts_of(request)
    mirror: Mirror = parts.mirror
    if mirror.failure is not None:
        return Response({"status": "failed", "position": mirror.position, "detail": str(mirror.failure)}, status_code=503)
    if not mirror.connected:
        return Response({"status": "disconnected", "position": mirror.position, "detail": "the bus is away"}, status_code=503)
    return Response({"status": "ok", "position": mirror.position, "sentinel": parts.sentinel.on_duty})


@get("/metrics", summary="Prometheus metrics", media_type="text/plain; version=0.0.4", action="cluster.read", responses=problems())
async def metrics(request: Ask) -> str:
    parts = parts_of(request)
    return metrics_text(parts.mirror, parts.gauges)


ROUTES: Final = [telemetry, health, metrics]
