"""Accounts: a tenant's balance, tier and budgets; and the ledger they are in."""

from __future__ import annotations

import time
from typing import Final

from litestar import get

from billing.periods import PERIODS, bounds
from billing.projection import BillingView
from billing.report import credits_text
from services.billing.parts import Ask, budget_answer, fresh_view, known_tenants, tenant_must_be
from services.billing.requests import Json, TenantName
from services.kit.access.requests import permit, tenant_filter
from services.kit.problems import problems

__all__ = ["ROUTES"]


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
