"""Tiers: what they cost and allow, over time, and the tenants in each. Changes are never retroactive."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from litestar import get, put
from msgspec import UnsetType

from billing.projection import BillingView
from billing.report import amount_text
from billing.tariff import DEFAULT_TIER, TIERS
from bus_schemas.events import Event, TariffSet, TierSet
from services.billing.parts import Ask, Json, MembershipBody, PriceBody, TierBody, fresh_view, not_past_ns, parts_of, tenant_must_be
from services.kit.access.web import audit_record, identity_of, permit
from services.kit.errors import NotThere
from services.kit.problems import problems
from services.kit.rest import Revision, check_revision, revision_of

__all__ = ["ROUTES"]


def _tier(view: BillingView, tier: str, now_ns: int) -> Json:
    price = view.tariff.at(tier, now_ns)
    return {
        "tier": tier,
        "priority_ceiling": view.tiers.ceiling(tier, now_ns),
        "default_vram_mb": view.tiers.default_vram_mb(tier, now_ns),
        "live_tasks": view.tiers.live_tasks(tier, now_ns),
        "exclusive": view.tiers.exclusive(tier, now_ns),
        "queued_tasks": view.tiers.queued_tasks(tier, now_ns),
        "hold_percent": view.tiers.hold_percent(tier, now_ns),
        "core_second_micro": price.core_second_micro,
        "gib_second_micro": price.gib_second_micro,
        "windows": [
            {
                "from_ns": window.from_ns,
                "to_ns": window.to_ns,
                "core_second_micro": window.price.core_second_micro,
                "gib_second_micro": window.price.gib_second_micro,
            }
            for window in view.tariff.windows(tier)
        ],
        "revision": view.revisions.get(f"tier:{tier}", 0),
    }


def _all(request: Ask, view: BillingView) -> Json:
    now_ns = time.time_ns()
    asking = identity_of(request)
    members = {tenant: view.tiers.tier_of(tenant, now_ns) for tenant in sorted(view.tiers.members) if asking.may("credits.read", tenant)}
    return {"items": [_tier(view, tier, now_ns) for tier in TIERS], "tenants": members, "default_tier": DEFAULT_TIER}


@get("/api/v1/billing/prices", summary="List prices by tier, current and over time", action="credits.read", responses=problems())
async def prices(request: Ask) -> Json:
    return _all(request, await fresh_view(request))


@get("/api/v1/billing/tiers", summary="List tiers: prices, what they allow, their tenants", action="credits.read", responses=problems())
async def tiers(request: Ask) -> Json:
    return _all(request, await fresh_view(request))


def _must_be_tier(tier: str) -> None:
    if tier not in TIERS:
        raise NotThere(f"there is no tier {tier[:60]!r}; there are: {', '.join(TIERS)}")


@put(
    "/api/v1/billing/prices/{tier:str}",
    summary="Set the prices of a tier, from a given time on",
    action="tariff.write",
    responses=problems(404, 409, 413),
)
async def put_price(request: Ask, tier: str, data: PriceBody, if_match: Revision = None) -> Json:
    """Usage before that time keeps its price; a time in the past is refused."""
    permit(request, "tariff.write")
    _must_be_tier(tier)
    now_ns = time.time_ns()
    fact = TariffSet(now_ns, tier, not_past_ns(data.from_, now_ns), data.core_second_micro, data.gib_second_micro)
    detail = f"{amount_text(data.core_second_micro)} credits per core-second, {amount_text(data.gib_second_micro)} per GiB-second"
    return await _write(request, tier, lambda _: fact, detail, if_match)


@put(
    "/api/v1/billing/tiers/{tier:str}",
    summary="Set what a tier allows, from a given time on",
    action="tariff.write",
    responses=problems(404, 409, 413),
)
async def put_tier(request: Ask, tier: str, data: TierBody, if_match: Revision = None) -> Json:
    """Tasks that are not over keep what they have. Null: the default of cluster or tier applies; left out: unchanged."""
    permit(request, "tariff.write")
    _must_be_tier(tier)
    now_ns = time.time_ns()
    from_ns = not_past_ns(data.from_, now_ns)

    def fact(view: BillingView) -> Event:
        kept = view.tiers.in_force(tier, max(from_ns, now_ns))
        default_vram_mb = kept.default_vram_mb if isinstance(data.default_vram_mb, UnsetType) else data.default_vram_mb or 0
        live_tasks = kept.live_tasks if isinstance(data.live_tasks, UnsetType) else data.live_tasks or 0
        exclusive = kept.exclusive if isinstance(data.exclusive, UnsetType) else data.exclusive
        queued_tasks = kept.queued_tasks if isinstance(data.queued_tasks, UnsetType) else data.queued_tasks or 0
        return TierSet(
            at_ns=now_ns,
            tier=tier,
            priority_ceiling=data.priority_ceiling,
            from_ns=from_ns,
            default_vram_mb=default_vram_mb,
            live_tasks=live_tasks,
            exclusive=exclusive,
            queued_tasks=queued_tasks,
            hold_percent=kept.hold_percent if isinstance(data.hold_percent, UnsetType) else data.hold_percent,
        )

    said = {
        "default VRAM": data.default_vram_mb,
        "live tasks": data.live_tasks,
        "exclusive": data.exclusive,
        "queued tasks": data.queued_tasks,
        "hold percent": data.hold_percent,
    }
    changes = [f"{name} {'default' if value is None else value}" for name, value in said.items() if not isinstance(value, UnsetType)]
    return await _write(request, tier, fact, ", ".join([f"priority ceiling {data.priority_ceiling}", *changes]), if_match)


async def _write(request: Ask, tier: str, fact: Callable[[BillingView], Event], detail: str, if_match: str | None) -> Json:
    parts = parts_of(request)
    expected = revision_of(if_match)
    action = audit_record(request, "tariff.write", tier, detail)

    def decide(view: BillingView) -> list[Event]:
        check_revision(f"tier {tier}", view.revisions.get(f"tier:{tier}", 0), expected)
        return [fact(view), action]

    await parts.writer.tier(tier, decide)
    return _tier(parts.projection.view, tier, time.time_ns())


@put(
    "/api/v1/billing/tenants/{tenant:str}/tier",
    summary="Assign a tenant to a tier, from a given time on",
    action="tariff.write",
    responses=problems(404, 409, 413),
)
async def put_membership(request: Ask, tenant: str, data: MembershipBody, if_match: Revision = None) -> Json:
    parts = parts_of(request)
    tenant_must_be(request, await fresh_view(request), "tariff.write", tenant)
    expected = revision_of(if_match)
    now_ns = time.time_ns()
    fact = TierSet(now_ns, data.tier, 0, tenant, not_past_ns(data.from_, now_ns))
    action = audit_record(request, "tariff.write", tenant, f"tier {data.tier}", tenant=tenant)

    def decide(view: BillingView) -> list[Event]:
        check_revision(f"the account of {tenant}", view.revisions.get(tenant, 0), expected)
        return [fact, action]

    await parts.writer.tenant(tenant, decide)
    view = parts.projection.view
    tier = view.tiers.tier_of(tenant, time.time_ns())
    return {"tenant": tenant, "tier": tier, "from_ns": fact.from_ns, "next_tier": data.tier, "revision": view.revisions.get(tenant, 0)}


ROUTES: Final = (prices, tiers, put_price, put_tier, put_membership)
