"""The page /credits: who used how much, over a period, by tenant, task, model or node; balances, budgets, statements. Billing answers.

May live here: routes. May not: sums (billing), what a period is (asking).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from litestar import Response, get, post

from services.controller.errors import Invalid
from services.controller.parts import parts_of
from services.controller.web.context import context_of
from services.controller.web.credits.asking import GROUPINGS, PERIODS, Asked, ask_of, chart_of, rows_of
from services.controller.web.credits.client import BillingClient, Refused, Unreachable
from services.controller.web.forms import form_values, redirect, revision_in
from services.controller.web.listing import Listing
from services.controller.web.settings.shared import Ask, micro_of
from services.controller.web.templating import page, scope_of

__all__ = ["ROUTES"]

_SORTS: Final = ("credits", "key", "core", "vram", "time", "memory", "launches")
_KEYS: Final = {
    "credits": "micro",
    "core": "core_micro",
    "vram": "vram_micro",
    "time": "core_ns",
    "memory": "byte_ms",
    "launches": "launches",
}
_TOP: Final = "5"
_STALE: Final = "This budget was changed since the page was loaded. Nothing was saved: check the current values."


@get("/credits", action="credits.read", include_in_schema=False)
async def credits(request: Ask) -> Response[str]:
    scope = scope_of(request)
    asked = ask_of(request.query_params, int(time.time()), scope.tenant)
    billing = context_of(request).billing
    try:
        report = await billing.get("credits", request, **asked.query)
        series = await billing.get("series", request, **asked.query, step=asked.step, top=_TOP)
        accounts = await billing.get("accounts", request, tenant=asked.tenant)
    except (Unreachable, Refused) as error:
        status = 503 if isinstance(error, Unreachable) else error.status
        return page(request, "credits/away.html", status=status, reason=str(error), asked=asked)
    titles = await _titles(request, asked, [line["key"] for line in report["items"]])
    lines, total = rows_of(report)
    listing = Listing.parse(
        "/credits", request.query_params, sorts=_SORTS, default="-credits", filters=("period", "from", "to", "tenant", "by")
    )
    needle = listing.search.casefold()
    lines = [line for line in lines if needle in f"{line.key}\n{titles.get(line.key, '')}".casefold()]
    if listing.order != "-credits":
        name = _KEYS.get(listing.sort, "key")
        lines.sort(key=lambda line: (getattr(line, name), line.key), reverse=listing.descending)
    shown, listing = listing.take(lines)
    data, table = chart_of(series, asked.to_s - asked.from_s, titles)
    return page(
        request,
        "credits/page.html",
        asked=asked,
        periods=[(name, label, _address(asked, period=name)) for name, label in PERIODS],
        groupings=[(name, label, _address(asked, by=name)) for name, label in GROUPINGS],
        csv="/credits/export.csv?" + urlencode({"by": asked.by, **asked.pairs}),
        listing=listing,
        rows=shown,
        total=total,
        titles=titles,
        data=data,
        table=table,
        accounts=accounts["items"],
        grant_id=lambda: f"web-{uuid.uuid4().hex}",
        month=time.strftime("%Y-%m", time.gmtime()),
    )


def _address(asked: Asked, **changes: str) -> str:
    pairs = {"by": asked.by, **asked.pairs, **changes}
    if pairs["period"] != "custom":
        pairs = {name: value for name, value in pairs.items() if name not in ("from", "to")}
    usual = {"by": "tenant", "period": "hour"}
    kept = {name: value for name, value in pairs.items() if usual.get(name) != value}
    return "/credits" + ("?" + urlencode(kept) if kept else "")


async def _titles(request: Ask, asked: Asked, keys: list[str]) -> dict[str, str]:
    """What people call tasks and nodes."""
    view = await parts_of(request).fresh_view()
    if asked.by == "task":
        return {key: view.tasks[key].submitted.title for key in keys if key in view.tasks and view.tasks[key].submitted.title}
    if asked.by == "node":
        return {key: view.nodes[key].registered.name for key in keys if key in view.nodes}
    return {}


@get("/credits/export.csv", action="credits.read", include_in_schema=False)
async def export(request: Ask) -> Response[Any]:
    asked = ask_of(request.query_params, int(time.time()), scope_of(request).tenant)
    return await _file(request, context_of(request).billing, "credits", "text/csv", f"credits-{asked.by}.csv", asked.query)


@get("/credits/statement/{tenant:str}", action="credits.read", include_in_schema=False)
async def statement(request: Ask, tenant: str) -> Response[Any]:
    """``month``: YYYY-MM; ``format``: html (to print) or csv."""
    month, form = request.query_params.get("month", ""), request.query_params.get("format", "html")
    media = "text/csv" if form == "csv" else "text/html"
    name = f"statement-{month}.csv" if form == "csv" else ""
    query = {"month": month, "format": "csv" if form == "csv" else "html"}
    return await _file(request, context_of(request).billing, f"statements/{quote(tenant, safe='')}", media, name, query)


async def _file(request: Ask, billing: BillingClient, path: str, media: str, name: str, query: Mapping[str, str]) -> Response[Any]:
    """Hand on what billing answers; ``name`` not empty: as a file to keep."""
    try:
        answer = await billing.download(path, request, media, **query)
    except Unreachable as error:
        return page(request, "credits/away.html", status=503, reason=str(error), asked=ask_of({}, int(time.time())))
    except Refused as error:
        return page(request, "credits/away.html", status=error.status, reason=str(error), asked=ask_of({}, int(time.time())))
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    if name:
        safe = "".join(letter for letter in name if letter.isalnum() or letter in "-._")
        headers["content-disposition"] = f'attachment; filename="{safe}"'
    policy = answer.headers.get("content-security-policy")
    if policy:
        headers["content-security-policy"] = policy
    return Response(answer.content, media_type=media, headers=headers)


@post("/credits/budget", action="budget.write", include_in_schema=False, csrf="form")
async def budget(request: Ask) -> Response[Any]:
    """An empty limit: no budget. The form names the revision of the budget of each period, 0 where there is none."""
    values = await form_values(request)
    tenant, period = str(values.get("tenant", "")), str(values.get("period", ""))
    revision = revision_in({"revision": values.get(f"revision_{period}", "")})
    back = "/credits?" + urlencode({"tenant": tenant}) + "#budgets" if tenant else "/credits"
    try:
        limit = str(values.get("limit", ""))
        body = {
            "limit_micro": micro_of("limit", limit) if limit else None,
            "warn_percent": _percent("warn", str(values.get("warn", "80"))),
            "stop_percent": _percent("stop", str(values.get("stop", "100"))),
        }
        await context_of(request).billing.send("PUT", f"budgets/{quote(tenant, safe='')}/{quote(period, safe='')}", request, body, revision)
    except Invalid as error:
        return redirect(back, f"The budget stays as it was: {error.field}: {error}.", "bad")
    except Unreachable as error:
        return redirect(back, str(error), "bad")
    except Refused as error:
        return redirect(back, _STALE if error.status == 409 else f"The budget stays as it was: {error}.", "warn")
    return redirect(back, f"The budget of {tenant} a {period} is set." if limit else f"{tenant} has no budget a {period} any more.")


@post("/credits/grant", action="credits.grant", include_in_schema=False, csrf="form")
async def grant(request: Ask) -> Response[Any]:
    """``id`` is made when the page is: a form that is sent twice grants once."""
    values = await form_values(request)
    tenant = str(values.get("tenant", ""))
    back = "/credits?" + urlencode({"tenant": tenant}) if tenant else "/credits"
    try:
        body = {"tenant": tenant, "micro": micro_of("credits", str(values.get("credits", ""))), "note": str(values.get("note", ""))}
        if values.get("id"):
            body["id"] = str(values["id"])
        await context_of(request).billing.send("POST", "grants", request, body)
    except Invalid as error:
        return redirect(back, f"Nothing was granted: {error}.", "bad")
    except Unreachable as error:
        return redirect(back, str(error), "bad")
    except Refused as error:
        return redirect(back, f"Nothing was granted: {error}.", "warn")
    return redirect(back, f"Granted to {tenant}.")


def _percent(field: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 5):
        raise Invalid(field, "write a percentage, 0 for never")
    return int(text)


ROUTES: Final = [credits, export, statement, budget, grant]
