"""Budgets: what a tenant may spend in a day, a month or in all."""

from __future__ import annotations

import time
from typing import Final, Literal

from litestar import get, put

from billing.projection import BillingView
from billing.report import amount_text
from bus_schemas.events import BudgetSet, Event
from services.billing.parts import Ask, budget_answer, fresh_view, parts_of, tenant_must_be
from services.billing.requests import BudgetBody, Json, TenantName
from services.kit.access.requests import audit_record, tenant_filter
from services.kit.problems import problems
from services.kit.rest import Revision, check_revision, revision_of

__all__ = ["ROUTES"]


def _items(view: BillingView, only: str | None) -> list[Json]:
    now_ns = time.time_ns()
    return [
        budget_answer(view, tenant, period, budget, now_ns)
        for tenant, budgets in sorted(view.budgets.by_tenant.items())
        for period, budget in sorted(budgets.items())
        if only is None or tenant == only
    ]


@get("/api/v1/billing/budgets", summary="List budgets and how much of each is used", action="credits.read", responses=problems())
async def budgets(request: Ask, tenant: TenantName = None) -> Json:
    only = tenant_filter(request, "credits.read", tenant)
    items = _items(await fresh_view(request), only)
    return {"items": items, "total": len(items)}


@get("/api/v1/billing/budgets/{tenant:str}", summary="List a tenant's budgets", action="credits.read", responses=problems(404))
async def budgets_of(request: Ask, tenant: str) -> Json:
    view = await fresh_view(request)
    tenant_must_be(request, view, "credits.read", tenant)
    items = _items(view, tenant)
    return {"items": items, "total": len(items)}


@put(
    "/api/v1/billing/budgets/{tenant:str}/{period:str}",
    summary="Set or remove a tenant's budget per day, per month (UTC) or in total",
    action="budget.write",
    responses=problems(404, 409, 413),
)
async def put_budget(
    request: Ask, tenant: str, period: Literal["day", "month", "total"], data: BudgetBody, if_match: Revision = None
) -> Json:
    """At ``warn_percent`` of the limit a warning is recorded. At ``stop_percent`` a running batch finishes, and the next one is refused
    until the limit is raised, the period ends, or (``total``) credits are granted."""
    parts = parts_of(request)
    tenant_must_be(request, await fresh_view(request), "budget.write", tenant)
    expected = revision_of(if_match)
    limit = -1 if data.limit_micro is None else data.limit_micro
    fact = BudgetSet(time.time_ns(), tenant, period, limit, data.warn_percent, data.stop_percent)
    most = "no limit" if limit < 0 else f"{amount_text(limit)} credits, warn at {data.warn_percent} %, stop at {data.stop_percent} %"
    detail = f"{period}: {most}{f': {data.note}' if data.note else ''}"
    action = audit_record(request, "budget.write", tenant, detail, tenant=tenant)

    def decide(view: BillingView) -> list[Event]:
        budget = view.budgets.by_tenant.get(tenant, {}).get(period)
        check_revision(f"the {period} budget of {tenant}", budget.position if budget is not None else 0, expected)
        return [fact, action]

    await parts.writer.tenant(tenant, decide)
    view = parts.projection.view
    budget = view.budgets.by_tenant.get(tenant, {}).get(period)
    if budget is None:
        return {"tenant": tenant, "period": period, "limit_micro": None, "state": "open", "revision": 0}
    return budget_answer(view, tenant, period, budget, time.time_ns())


ROUTES: Final = (budgets, budgets_of, put_budget)
