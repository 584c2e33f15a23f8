"""Dependencies of the routes, and access to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from litestar import Request

from billing.budgets import Budget, level, stop_micro
from billing.periods import bounds
from billing.projection import BillingView
from billing.report import credits_text
from services.billing.projection import BillingProjection
from services.billing.requests import Json
from services.billing.writer import Writer
from services.kit.access.access import Access
from services.kit.access.rules import Action
from services.kit.access.web import permit
from services.kit.errors import NotThere

__all__ = ["Ask", "Parts", "budget_answer", "fresh_view", "parts_of", "tenant_must_be"]

Ask = Request[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Parts:
    projection: BillingProjection
    writer: Writer
    access: Access


def parts_of(request: Ask) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


async def fresh_view(request: Ask) -> BillingView:
    """The view, with everything that is in the log now."""
    return await parts_of(request).projection.fresh_view()


def known_tenants(request: Ask, view: BillingView) -> set[str]:
    """Every tenant that was ever charged, granted, given a budget or a tier, or that access knows."""
    charged = {account.removeprefix("tenant:") for account in view.ledger.balances if account.startswith("tenant:")}
    found = charged | view.budgets.by_tenant.keys() | view.tiers.members.keys() | {grant.tenant for grant in view.grants.values()}
    access = parts_of(request).access
    return found | set(access.view.tenants) if access.on else found


def tenant_must_be(request: Ask, view: BillingView, action: Action, tenant: str) -> None:
    """Raises NotThere (or Hidden, in the same words) unless the caller may do ``action`` to ``tenant`` and there is such a tenant. Without
    authentication every name is a tenant, as it is for clients that open sessions."""
    nothing = f"there is no tenant {tenant}"
    asking = permit(request, action, tenant, hidden=nothing)
    if parts_of(request).access.on and asking.tenant != tenant and tenant not in known_tenants(request, view):
        raise NotThere(nothing)


def budget_answer(view: BillingView, tenant: str, period: str, budget: Budget, now_ns: int) -> Json:
    """A budget as it stands in the period of ``now_ns``."""
    from_ns, to_ns = bounds(period, now_ns)
    effective = view.budgets.effective_micro(tenant, period, budget.limit_micro)
    used = view.budgets.used_micro(tenant, from_ns, to_ns)
    stop = stop_micro(effective, budget.stop_percent)
    return {
        "tenant": tenant,
        "period": period,
        "from_ns": from_ns,
        "to_ns": to_ns,
        "limit_micro": budget.limit_micro,
        "granted_micro": effective - budget.limit_micro,
        "used_micro": used,
        "left_micro": None if stop is None else stop - used,
        "limit_credits": credits_text(budget.limit_micro),
        "used_credits": credits_text(used),
        "warn_percent": budget.warn_percent,
        "stop_percent": budget.stop_percent,
        "state": level(used, effective, budget.warn_percent, budget.stop_percent),
        "revision": budget.position,
    }
