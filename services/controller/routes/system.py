"""The service itself: live measurements, health, metrics, the global configuration."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

from litestar import Response, get, put
from litestar.openapi.datastructures import ResponseSpec

from bus_schemas.subjects import EVENTS_STREAM
from services.controller.bodies import ConfigBody
from services.controller.identity import caller_of
from services.controller.lookup import config_revision
from services.controller.metrics import log_copies, metrics_text
from services.controller.parts import Ask, Parts, parts_of
from services.controller.presenters import Json
from services.controller.presenters.config import config_answer
from services.controller.presenters.nodes import telemetry_answer
from services.controller.presenters.quotas import most_used, quota_uses
from services.controller.routes import Revision, problems, revision_of
from services.kit.errors import REFUSED, KitError

__all__ = ["CONFIG", "SERVICE"]

_STREAM_INFO_S: Final = 1.0
_UNWELL: Final = {503: ResponseSpec(dict[str, Any], description="It is not; detail gives the reason", generate_examples=False)}


@get("/api/v1/telemetry", summary="Get the last measurements of every device, live", action="node.read", responses=problems())
async def telemetry(request: Ask) -> Json:
    caller = caller_of(request)
    now_ns = time.time_ns()
    items = [telemetry_answer(seen, now_ns, caller.sees) for seen in parts_of(request).gauges.last()]
    return {"items": items, "total": len(items)}


@get("/health", summary="Check whether the controller follows the event log", action=None, responses=_UNWELL)
async def health(request: Ask) -> Response[Json]:
    return _health(parts_of(request))


@get("/health/live", summary="Liveness: if it fails, restart the process", action=None, responses=_UNWELL)
async def live(request: Ask) -> Response[Json]:
    """Stays healthy while the bus is unreachable, because the controller reconnects by itself; fails if the event log cannot be read."""
    parts = parts_of(request)
    if parts.projection.failure is not None:
        return _health(parts)
    return Response({"status": "ok", "position": parts.projection.position})


@get("/health/ready", summary="Readiness: whether to send requests here", action=None, responses=_UNWELL)
async def is_ready(request: Ask) -> Response[Json]:
    """Ready if bus and event log are reachable and all events of the log are applied."""
    parts = parts_of(request)
    if parts.projection.failure is None and parts.projection.connected and not await parts.projection.caught_up():
        return Response(
            {"status": "behind", "position": parts.projection.position, "detail": "the view is behind the log"}, status_code=503
        )
    return _health(parts)


def _health(parts: Parts) -> Response[Json]:
    projection = parts.projection
    if projection.failure is not None:
        return Response({"status": "failed", "position": projection.position, "detail": str(projection.failure)}, status_code=503)
    if not projection.connected:
        return Response({"status": "disconnected", "position": projection.position, "detail": "the bus is away"}, status_code=503)
    return Response({"status": "ok", "position": projection.position, "sentinel": parts.reconciler.on_duty})


@get("/metrics", summary="Prometheus metrics", media_type="text/plain; version=0.0.4", action="cluster.read", responses=problems())
async def metrics(request: Ask) -> str:
    """For the whole cluster; not available to users of a tenant."""
    caller_of(request).require("cluster.read", "")
    parts = parts_of(request)
    log_bytes = copies = None
    with contextlib.suppress(KitError):  # metrics that are missing, not a scrape that fails
        bus = parts.projection.bus
        stream = await bus.js_api(f"STREAM.INFO.{EVENTS_STREAM}", timeout_s=_STREAM_INFO_S)
        log_bytes, copies = int(stream["state"]["bytes"]), log_copies(stream, bus.copies)
    most = most_used(quota_uses(parts, lambda _: True))
    return metrics_text(
        parts.projection,
        parts.gauges,
        on_duty=parts.reconciler.on_duty,
        log_bytes=log_bytes,
        log_copies=copies,
        quotas={name: (use.used or 0, use.limit) for name, use in most.items()},
        refusals=REFUSED,
    )


@get("/api/v1/config", summary="Get the global configuration", action="config.read", responses=problems())
async def get_config(request: Ask) -> Json:
    parts = parts_of(request)
    await parts.fresh_view()
    return config_answer(parts.projection.view, config_revision(parts.projection))


@put("/api/v1/config", summary="Change the global configuration", action="config.write", responses=problems(409))
async def put_config(request: Ask, data: ConfigBody, if_match: Revision = None) -> Json:
    parts = parts_of(request)
    await parts.config.change(caller_of(request), data.changes(), revision=revision_of(if_match))
    return config_answer(parts.projection.view, config_revision(parts.projection))


SERVICE: Final = [telemetry, health, live, is_ready, metrics]
CONFIG: Final = [get_config, put_config]
