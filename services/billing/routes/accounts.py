"""Accounts of tenants: balance, tier, budgets (what a tenant may spend in a day, a month or in all), the credits given to them, and the
ledger.
"""

from __future__ import annotations

import time
import uuid
from typing import Final, Literal

from litestar import Response, get, post, put

from billing.periods import PERIODS, bounds
from billing.projection import BillingView, Grant
from billing.report import amount_text, credits_text
from bus_schemas.events import BudgetSet, Event, GrantRecorded
from services.billing.parts import (
    Ask,
    BudgetBody,
    GrantBody,
    Json,
    TenantName,
    budget_answer,
    fresh_view,
    known_tenants,
    parts_of,
    tenant_must_be,
)
from services.kit.access.web import audit_record, permit, tenant_filter
from services.kit.errors import Invalid, RequestError
from services.kit.problems import problems
from services.kit.rest import Revision, check_revision, revision_of

__all__ = ["BUDGETS", "GRANTS", "ROUTES"]


def _account(view: BillingView, tenant: str, now_ns: int) -> Json:
    tier = view.tiers.tier_of(tenant, now_ns)
    balance = view.ledger.balance_micro(tenant)
    return {
        "tenant": tenant,
        "tier": tier,
        "priority_ceiling": view.tiers.ceiling(tier, now_ns),
        "balance_micro": balance,
        "balance_credits": credits_text(balance),
        "granted_micro": view.budgets.granted.get(tenant, 0),
        "charged_micro": view.budgets.used_micro(tenant, 0, 0),
        "spent_micro": {period: view.budgets.used_micro(tenant, *bounds(period, now_ns)) for period in PERIODS},
        "budgets": [budget_answer(view, tenant, period, b, now_ns) for period, b in sorted(view.budgets.by_tenant.get(tenant, {}).items())],
        "revision": view.revisions.get(tenant, 0),
    }


@get("/api/v1/billing/accounts", summary="List balances, tiers and budgets", action="credits.read", responses=problems())
async def accounts(request: Ask, tenant: TenantName = None) -> Json:
    only = tenant_filter(request, "credits.read", tenant)
    view = await fresh_view(request)
    now_ns = time.time_ns()
    names = [only] if only is not None else sorted(known_tenants(request, view))
    return {"items": [_account(view, name, now_ns) for name in names], "total": len(names), "position": view.position}


@get("/api/v1/billing/accounts/{tenant:str}", summary="Get balance, tier and budgets", action="credits.read", responses=problems(404))
async def account(request: Ask, tenant: str) -> Json:
    """The balance is the credits granted minus those charged; negative if the tenant owes."""
    view = await fresh_view(request)
    tenant_must_be(request, view, "credits.read", tenant)
    return _account(view, tenant, time.time_ns())


@get(
    "/api/v1/billing/ledger", summary="Get every account and its balance; debits equal credits", action="credits.read", responses=problems()
)
async def ledger(request: Ask) -> Json:
    permit(request, "credits.read")
    view = await fresh_view(request)
    book = view.ledger
    return {
        "position": view.position,
        "transactions": book.transactions,
        "debits_micro": book.debits_micro,
        "credits_micro": book.credits_micro,
        "accounts": [{"account": name, "micro": book.balances[name]} for name in sorted(book.balances)],
    }


ROUTES: Final = (accounts, account, ledger)


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


BUDGETS: Final = (budgets, budgets_of, put_budget)


class GrantExists(RequestError):
    """The id belongs to a grant of another tenant or another amount."""

    kind, title = "grant-exists", "The grant exists"

    def __init__(self, message: str) -> None:
        super().__init__(message, "id")


def _answer(name: str, grant: Grant) -> Json:
    return {
        "id": name,
        "tenant": grant.tenant,
        "micro": grant.micro,
        "credits": credits_text(grant.micro),
        "at_ns": grant.at_ns,
        "position": grant.position,
    }


def _made(view: BillingView, name: str, asked: GrantBody) -> Grant | None:
    """The grant that was made under this id. Raises GrantExists when it is not the one asked for."""
    known = view.grants.get(name)
    if known is not None and (known.tenant, known.micro) != (asked.tenant, asked.micro):
        raise GrantExists(f"the id {name} names a grant of another tenant or amount")
    return known


@get("/api/v1/billing/grants", summary="List grants of credits, newest first", action="credits.read", responses=problems())
async def grants(request: Ask, tenant: TenantName = None) -> Json:
    only = tenant_filter(request, "credits.read", tenant)
    view = await fresh_view(request)
    found = [(name, grant) for name, grant in view.grants.items() if only is None or grant.tenant == only]
    found.sort(key=lambda item: -item[1].position)
    return {"items": [_answer(name, grant) for name, grant in found], "total": len(found)}


@post("/api/v1/billing/grants", summary="Grant credits to a tenant", action="credits.grant", responses=problems(404, 409, 413))
async def post_grant(request: Ask, data: GrantBody) -> Response[Json]:
    """201: granted. 200: the same grant exists under this id. 409: the id belongs to another grant."""
    if data.micro == 0:
        raise Invalid("micro", "a grant of nothing is none")
    parts = parts_of(request)
    tenant_must_be(request, await fresh_view(request), "credits.grant", data.tenant)
    name = data.id or uuid.uuid4().hex
    fact = GrantRecorded(time.time_ns(), name, data.tenant, data.micro)
    detail = f"{amount_text(data.micro)} credits{f': {data.note}' if data.note else ''} (grant {name})"
    action = audit_record(request, "credits.grant", data.tenant, detail, tenant=data.tenant)

    def decide(view: BillingView) -> list[Event]:
        return [] if _made(view, name, data) else [fact, action]

    written = await parts.writer.tenant(data.tenant, decide)
    # The log orders what is given to several tenants under one id at once: the first one counts.
    made = _made(parts.projection.view, name, data)
    assert made is not None, "the view holds what was written"
    return Response(_answer(name, made), status_code=201 if written == made.position else 200)


GRANTS: Final = (grants, post_grant)
