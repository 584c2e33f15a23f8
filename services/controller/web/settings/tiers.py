"""The page /settings/tiers: prices and priority ceilings of tiers over time, and the tenants in each. Billing holds and checks them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from litestar import Response, get, post

from services.controller.errors import Invalid
from services.controller.parts import Ask
from services.controller.web.billing import Refused, Unreachable
from services.controller.web.context import context_of
from services.controller.web.forms import Values, form_values, redirect, revision_in
from services.controller.web.settings.shared import micro_of, settings_page

__all__ = ["ROUTES"]

_PATH: Final = "/settings/tiers"


@get("/settings/tiers", action="credits.read", include_in_schema=False)
async def tiers(request: Ask) -> Response[str]:
    return await _page(request, {}, {})


async def _page(request: Ask, values: Values, errors: dict[str, str], status: int = 200) -> Response[str]:
    missing, answer = "", {"items": [], "tenants": {}, "default_tier": ""}
    try:
        answer = await context_of(request).billing.get("tiers", request)
    except (Unreachable, Refused) as error:
        missing = str(error)
    return settings_page(
        request,
        "settings/tiers.html",
        status=status,
        missing=missing,
        tiers=answer["items"],
        members=answer["tenants"],
        default=answer["default_tier"],
        values=values,
        errors=errors,
    )


async def _send(request: Ask, path: str, body: Mapping[str, Any], revision: int | None, values: Values, done: str) -> Response[Any]:
    try:
        await context_of(request).billing.send("PUT", path, request, body, revision)
    except Unreachable as error:
        return redirect(_PATH, str(error), "bad")
    except Refused as error:
        if error.status == 409:
            return redirect(_PATH, "It was changed since this page was loaded. Nothing was saved: check the current values.", "warn")
        return await _page(request, values, {error.field: str(error)}, 400)
    return redirect(_PATH, done)


@post("/settings/tiers/{tier:str}/price", action="tariff.write", include_in_schema=False, csrf="form")
async def price(request: Ask, tier: str) -> Response[Any]:
    values = await form_values(request)
    revision = revision_in(values)
    try:
        body = {
            "core_second_micro": micro_of("core_second", str(values.get("core_second", ""))),
            "gib_second_micro": micro_of("gib_second", str(values.get("gib_second", ""))),
            "from": str(values.get("from", "")),
        }
    except Invalid as error:
        return await _page(request, {**values, "tier": tier}, {error.field: str(error)}, 400)
    done = f"New prices of {tier}: earlier usage keeps its price."
    return await _send(request, f"prices/{quote(tier, safe='')}", body, revision, {**values, "tier": tier}, done)


@post("/settings/tiers/{tier:str}/ceiling", action="tariff.write", include_in_schema=False, csrf="form")
async def ceiling(request: Ask, tier: str) -> Response[Any]:
    values = await form_values(request)
    revision = revision_in(values)
    text = str(values.get("priority_ceiling", ""))
    if text not in ("0", "1", "2", "3", "4"):
        return await _page(request, {**values, "tier": tier}, {"priority_ceiling": "Write 0 to 4."}, 400)
    vram = str(values.get("default_vram_mb", ""))
    if vram and not (vram.isascii() and vram.isdigit() and len(vram) < 12):
        return await _page(request, {**values, "tier": tier}, {"default_vram_mb": "Write an integer of MiB, or nothing."}, 400)
    body = {"priority_ceiling": int(text), "default_vram_mb": int(vram) if vram else None}
    size = f"{vram} MiB" if vram else "the cluster's default"
    done = f"New tasks of {tier} may have P{text} at best. A task that names no VRAM gets {size}."
    return await _send(request, f"tiers/{quote(tier, safe='')}", body, revision, {**values, "tier": tier}, done)


@post("/settings/tiers/member", action="tariff.write", include_in_schema=False, csrf="form")
async def member(request: Ask) -> Response[Any]:
    values = await form_values(request)
    tenant, tier = str(values.get("tenant", "")), str(values.get("tier", ""))
    if not tenant:
        return await _page(request, values, {"tenant": "Name a tenant."}, 400)
    return await _send(request, f"tenants/{quote(tenant, safe='')}/tier", {"tier": tier}, None, values, f"{tenant} is {tier} from now on.")


ROUTES: Final = [tiers, price, ceiling, member]
