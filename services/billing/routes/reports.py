"""Reports over a period, and over time for charts: credits used, by tenant, task, model or node; utilization of devices: time in each
state, waste and its cost.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from litestar import MediaType, Response, get
from litestar.params import Parameter

from billing.report import credit_report, credit_series, report_csv
from billing.utilization_report import report_csv as utilization_csv
from billing.utilization_report import utilization_report, utilization_series
from services.billing.parts import (
    Ask,
    From,
    Json,
    Step,
    TaskName,
    TenantName,
    To,
    also_as,
    csv_or_json,
    fresh_view,
    parse_time_ns,
    series_period_ns,
)
from services.kit.access.web import tenant_filter
from services.kit.problems import problems

__all__ = ["CREDITS", "UTILIZATION"]

CreditsBy = Annotated[str, Parameter(description="tenant, task, model (the title of the session) or node", max_length=20)]
UtilizationBy = Annotated[str, Parameter(description="device, node, tenant, task or model (the title of the session)", max_length=20)]


@get(
    "/api/v1/billing/credits",
    summary="Report credits used, by tenant, task, model or node",
    media_type=MediaType.JSON,
    action="credits.read",
    responses=problems(),
    operation_class=also_as("text/csv"),
)
async def credits(
    request: Ask, by: CreditsBy = "tenant", from_: From = "", to: To = "", tenant: TenantName = None, task: TaskName = None
) -> Response[Any]:
    """JSON, or CSV if the Accept header prefers text/csv. Waits briefly until events that are already in the log are applied."""
    only = tenant_filter(request, "credits.read", tenant)
    view = await fresh_view(request)
    report = credit_report(view, by, parse_time_ns("from", from_), parse_time_ns("to", to), only, task)
    return csv_or_json(request, "credits.csv", lambda: report_csv(report), lambda: msgspec.to_builtins(report))


@get(
    "/api/v1/billing/series",
    summary="Report credits over time, in buckets of a minute, an hour or a day",
    action="credits.read",
    responses=problems(),
)
async def series(
    request: Ask,
    by: CreditsBy = "tenant",
    from_: From = "",
    to: To = "",
    step: Step = "hour",
    tenant: TenantName = None,
    top: Annotated[int, Parameter(ge=1, le=50, description="the number of separate lines; all others are summed into one")] = 8,
) -> Json:
    """Without ``from``: the day before ``to``. Without ``to``: up to now. The period is extended to whole buckets."""
    only = tenant_filter(request, "credits.read", tenant)
    view = await fresh_view(request)
    from_ns, to_ns = series_period_ns(from_, to)
    found: Json = msgspec.to_builtins(credit_series(view, by, from_ns, to_ns, step, tenant=only, top=top))
    return found


@get(
    "/api/v1/billing/utilization",
    summary="Report the states of devices, their waste and its cost",
    media_type=MediaType.JSON,
    action="credits.read",
    responses=problems(),
    operation_class=also_as("text/csv"),
)
async def utilization(
    request: Ask, by: UtilizationBy = "device", from_: From = "", to: To = "", tenant: TenantName = None, task: TaskName = None
) -> Response[Any]:
    """JSON, or CSV if the Accept header prefers text/csv. With a tenant: what its tasks are given, not what no task held."""
    only = tenant_filter(request, "credits.read", tenant)
    view = await fresh_view(request)
    report = utilization_report(view, by, parse_time_ns("from", from_), parse_time_ns("to", to), tenant=only, task=task)
    return csv_or_json(request, "utilization.csv", lambda: utilization_csv(report), lambda: msgspec.to_builtins(report))


@get(
    "/api/v1/billing/utilization/series",
    summary="Report the states of devices over time, in buckets of a minute, an hour or a day",
    action="credits.read",
    responses=problems(),
)
async def states(
    request: Ask,
    from_: From = "",
    to: To = "",
    step: Step = "hour",
    tenant: TenantName = None,
    top: Annotated[int, Parameter(ge=1, le=50, description="the number of devices: those with the most time that is not busy")] = 8,
) -> Json:
    """Without ``from``: the day before ``to``. Without ``to``: up to now. The period is extended to whole buckets."""
    only = tenant_filter(request, "credits.read", tenant)
    view = await fresh_view(request)
    from_ns, to_ns = series_period_ns(from_, to)
    answer: Json = msgspec.to_builtins(utilization_series(view, from_ns, to_ns, step, tenant=only, top=top))
    return answer


CREDITS: Final = (credits, series)
UTILIZATION: Final = (utilization, states)
