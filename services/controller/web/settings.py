"""What the pages of /settings share (their tabs, errors of forms, decimal credits), and two of them: /settings has overcommit and queue of
the whole cluster, values of nodes and swap; /settings/tiers has prices and priority ceilings of tiers over time, and the tenants in
each, which billing holds and checks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Any, Final
from urllib.parse import quote

from litestar import Response, get, post

from scheduler.placement.states import GLOBAL, GLOBAL_LIMITS, OVERCOMMIT_NODE
from services.controller.errors import Invalid, OutOfState, Stale, TaskExists
from services.controller.identity import caller_of
from services.controller.lookup import config_revision
from services.controller.parts import Ask, parts_of
from services.controller.presenters.config import SETTINGS, settings_of
from services.controller.web.billing import Refused, Unreachable
from services.controller.web.context import context_of
from services.controller.web.forms import Values, form_values, redirect, revision_in
from services.controller.web.scope import Scope
from services.controller.web.templating import page, scope_of
from services.kit.access import Action
from services.kit.errors import QuotaReached

__all__ = ["CLUSTER", "FORM_ERRORS", "TIERS", "form_error", "micro_of", "settings_page"]

FORM_ERRORS: Final = (Invalid, OutOfState, TaskExists, QuotaReached)
"""What a form can get wrong: shown beside the form, with what was typed still in it."""

_EXACT: Final = Context(traps=[InvalidOperation, Overflow, Inexact])
"""Arithmetic that rounds nothing."""
_THOUSANDS: Final = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?")

_TABS: Final[tuple[tuple[str, str, Action], ...]] = (
    ("/settings", "Cluster", "config.read"),
    ("/settings/tiers", "Tiers and prices", "credits.read"),
    ("/settings/keys", "API keys", "key.read"),
    ("/settings/totp", "Second factor", "key.read"),
    ("/settings/users", "Users", "user.read"),
    ("/settings/tenants", "Tenants", "tenant.read"),
    ("/settings/quotas", "Quotas", "tenant.read"),
    ("/settings/audit", "Audit", "audit.read"),
)


def settings_page(request: Ask, template: str, *, status: int = 200, **context: Any) -> Response[str]:
    return page(request, template, status=status, tabs=_tabs(scope_of(request)), **context)


def _tabs(scope: Scope) -> list[tuple[str, str]]:
    return [(path, label) for path, label, action in _TABS if scope.may(action)]


def form_error(error: Exception) -> tuple[str, str]:
    """(field or empty, sentence) of one of FORM_ERRORS."""
    field = str(getattr(error, "field", "") or "")
    text = str(error)
    return field, text[:1].upper() + text[1:]


def micro_of(field: str, text: str) -> int:
    """Decimal credits as micro-credits, exact. Commas part thousands and are nothing else: 0,25 is no number. Raises Invalid."""
    if "," in text and _THOUSANDS.fullmatch(text.strip()) is None:
        raise Invalid(field, "write credits with a point, for example 0.25; commas part thousands, as in 1,500")
    try:
        micro = _EXACT.multiply(Decimal(text.replace(",", "")), Decimal(1_000_000))
    except InvalidOperation:
        raise Invalid(field, "write a number of credits, for example 1500 or 0.25") from None
    except Inexact:
        micro = Decimal("NaN")
    if not micro.is_finite() or micro != micro.to_integral_value() or abs(micro) > 10**18:
        raise Invalid(field, "write credits with at most six digits after the point")
    return int(micro)


@get("/settings", action="config.read", include_in_schema=False)
async def cluster(request: Ask) -> Response[str]:
    return await _cluster_page(request, {}, {})


async def _cluster_page(request: Ask, values: Values, errors: dict[str, str], status: int = 200) -> Response[str]:
    parts = parts_of(request)
    view = await parts.fresh_view()
    own = [
        (name, node.registered.name, view.number(name, OVERCOMMIT_NODE), view.overcommit_percent(name))
        for name, node in sorted(view.nodes.items())
    ]
    return settings_page(
        request,
        "settings/cluster.html",
        status=status,
        settings=settings_of(view),
        revision=config_revision(parts.projection),
        nodes=own,
        values=values,
        errors=errors,
        running={one.node: one for one in parts.gauges.last()},
    )


@post("/settings", action="config.write", include_in_schema=False, csrf="form")
async def change(request: Ask) -> Response[Any]:
    """An empty field unsets the stored value: the environment's or the default then applies."""
    values = await form_values(request)
    revision = revision_in(values)
    changes: dict[str, int | None] = {}
    errors: dict[str, str] = {}
    for key, _, _, scale, _ in SETTINGS:
        text, most = str(values.get(key, "")), GLOBAL_LIMITS[key] // scale
        if not text:
            changes[key] = None
        elif text.isascii() and text.isdigit() and len(text) < 12 and int(text) <= most:
            changes[key] = int(text) * scale
        else:
            errors[key] = f"Write an integer from 0 to {most}, or nothing."
    if errors:
        return await _cluster_page(request, values, errors, 400)
    view = parts_of(request).projection.view
    differing = {key: value for key, value in changes.items() if value != view.number(GLOBAL, key)}
    if not differing:
        return redirect("/settings", "Nothing was changed.")
    try:
        await parts_of(request).config.change(caller_of(request), differing, revision=revision)
    except Stale:
        return redirect("/settings", "The settings have changed since this page was loaded. Nothing was saved.", "warn")
    except FORM_ERRORS as error:
        return await _cluster_page(request, values, dict([form_error(error)]), 400)
    return redirect("/settings", "Saved. The values apply to every controller from now on.")


CLUSTER: Final = [cluster, change]


_PATH: Final = "/settings/tiers"


@get("/settings/tiers", action="credits.read", include_in_schema=False)
async def tiers(request: Ask) -> Response[str]:
    return await _tiers_page(request, {}, {})


async def _tiers_page(request: Ask, values: Values, errors: dict[str, str], status: int = 200) -> Response[str]:
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
        return await _tiers_page(request, values, {error.field: str(error)}, 400)
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
        return await _tiers_page(request, {**values, "tier": tier}, {error.field: str(error)}, 400)
    done = f"New prices of {tier}: earlier usage keeps its price."
    return await _send(request, f"prices/{quote(tier, safe='')}", body, revision, {**values, "tier": tier}, done)


@post("/settings/tiers/{tier:str}/ceiling", action="tariff.write", include_in_schema=False, csrf="form")
async def ceiling(request: Ask, tier: str) -> Response[Any]:
    values = await form_values(request)
    revision = revision_in(values)
    text = str(values.get("priority_ceiling", ""))
    if text not in ("0", "1", "2", "3", "4"):
        return await _tiers_page(request, {**values, "tier": tier}, {"priority_ceiling": "Write 0 to 4."}, 400)
    vram = str(values.get("default_vram_mb", ""))
    if vram and not (vram.isascii() and vram.isdigit() and len(vram) < 12):
        return await _tiers_page(request, {**values, "tier": tier}, {"default_vram_mb": "Write an integer of MiB, or nothing."}, 400)
    body = {"priority_ceiling": int(text), "default_vram_mb": int(vram) if vram else None}
    size = f"{vram} MiB" if vram else "the cluster's default"
    done = f"New tasks of {tier} may have P{text} at best. A task that names no VRAM gets {size}."
    return await _send(request, f"tiers/{quote(tier, safe='')}", body, revision, {**values, "tier": tier}, done)


@post("/settings/tiers/member", action="tariff.write", include_in_schema=False, csrf="form")
async def member(request: Ask) -> Response[Any]:
    values = await form_values(request)
    tenant, tier = str(values.get("tenant", "")), str(values.get("tier", ""))
    if not tenant:
        return await _tiers_page(request, values, {"tenant": "Name a tenant."}, 400)
    return await _send(request, f"tenants/{quote(tenant, safe='')}/tier", {"tier": tier}, None, values, f"{tenant} is {tier} from now on.")


TIERS: Final = [tiers, price, ceiling, member]
