"""The page /credits: usage over a period by tenant, task, model or node; balances, budgets, statements. Billing answers."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode

from litestar import Response, get, post

from services.controller.errors import Invalid
from services.controller.parts import Ask, parts_of
from services.controller.web.billing import BillingClient, Refused, Unreachable
from services.controller.web.context import context_of
from services.controller.web.formats import clock_time, credits_text
from services.controller.web.forms import form_values, redirect, revision_in
from services.controller.web.listing import Listing
from services.controller.web.settings import micro_of
from services.controller.web.templating import page, scope_of

__all__ = ["ROUTES", "GROUPINGS", "PERIODS", "Asked", "address_of", "ask_of", "chart_of", "file_of", "rows_of", "titles_of"]

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
GROUPINGS: Final = (("tenant", "Tenant"), ("task", "Task"), ("model", "Model"), ("node", "Node"))
PERIODS: Final = (("hour", "1 hour"), ("day", "24 hours"), ("week", "7 days"), ("month", "This month"), ("quarter", "90 days"))
_LENGTHS_S: Final = {"hour": 3_600, "day": 86_400, "week": 7 * 86_400, "quarter": 90 * 86_400}
_SHADES: Final = ("k1", "k2", "k3", "k4", "k5")
_TABLE_ROWS: Final = 24
_MICRO: Final = 1_000_000


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
    titles = await titles_of(request, asked.by, [line["key"] for line in report["items"]])
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
        periods=[(name, label, address_of(asked, period=name)) for name, label in PERIODS],
        groupings=[(name, label, address_of(asked, by=name)) for name, label in GROUPINGS],
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


def address_of(asked: Asked, path: str = "/credits", **changes: str) -> str:
    """The page at ``path`` for another query."""
    pairs = {"by": asked.by, **asked.pairs, **changes}
    if pairs["period"] != "custom":
        pairs = {name: value for name, value in pairs.items() if name not in ("from", "to")}
    usual = {"by": asked.usual, "period": "hour"}
    kept = {name: value for name, value in pairs.items() if usual.get(name) != value}
    return path + ("?" + urlencode(kept) if kept else "")


async def titles_of(request: Ask, by: str, keys: list[str]) -> dict[str, str]:
    """What people call tasks, nodes and their devices."""
    view = await parts_of(request).fresh_view()
    if by == "task":
        return {key: view.tasks[key].submitted.title for key in keys if key in view.tasks and view.tasks[key].submitted.title}
    if by == "node":
        return {key: view.nodes[key].registered.name for key in keys if key in view.nodes}
    if by == "device":
        apart = {key: key.rpartition("/") for key in keys}
        return {key: f"{view.nodes[node].registered.name} GPU {gpu}" for key, (node, _, gpu) in apart.items() if node in view.nodes}
    return {}


@get("/credits/export.csv", action="credits.read", include_in_schema=False)
async def export(request: Ask) -> Response[Any]:
    asked = ask_of(request.query_params, int(time.time()), scope_of(request).tenant)
    return await file_of(request, context_of(request).billing, "credits", "text/csv", f"credits-{asked.by}.csv", asked.query)


@get("/credits/statement/{tenant:str}", action="credits.read", include_in_schema=False)
async def statement(request: Ask, tenant: str) -> Response[Any]:
    """``month``: YYYY-MM; ``format``: html (to print) or csv."""
    month, form = request.query_params.get("month", ""), request.query_params.get("format", "html")
    media = "text/csv" if form == "csv" else "text/html"
    name = f"statement-{month}.csv" if form == "csv" else ""
    query = {"month": month, "format": "csv" if form == "csv" else "html"}
    return await file_of(request, context_of(request).billing, f"statements/{quote(tenant, safe='')}", media, name, query)


async def file_of(request: Ask, billing: BillingClient, path: str, media: str, name: str, query: Mapping[str, str]) -> Response[Any]:
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


@dataclass(frozen=True, slots=True)
class Asked:
    """A query of the Credits page; times in Unix seconds, whole minutes."""

    by: str
    period: str  #: a name of PERIODS, or ``custom``
    from_s: int
    to_s: int  #: exclusive
    step: str  #: of the chart
    tenant: str
    from_day: str  #: as the date fields show it: UTC, inclusive
    to_day: str  #: the same
    wrong: str = ""  #: what is not understood in the address, or empty
    usual: str = "tenant"  #: ``by`` where the address names none

    @property
    def label(self) -> str:
        known = dict(PERIODS)
        return known.get(self.period, f"{self.from_day} to {self.to_day}")

    @property
    def query(self) -> dict[str, str]:
        """For billing."""
        return {"by": self.by, "from": str(self.from_s), "to": str(self.to_s), "tenant": self.tenant}

    @property
    def pairs(self) -> dict[str, str]:
        """For an address of this site, without ``by``."""
        pairs = {"period": self.period}
        if self.period == "custom":
            pairs |= {"from": self.from_day, "to": self.to_day}
        return pairs | ({"tenant": self.tenant} if self.tenant else {})


def ask_of(query: Mapping[str, str], now_s: int, own: str = "", groupings: Sequence[tuple[str, str]] = GROUPINGS) -> Asked:
    """``own``: the caller's tenant, empty: all. An invalid period falls back to the last hour, with a message; an unknown grouping to the
    first of ``groupings``."""
    usual = groupings[0][0]
    by = query.get("by", usual)
    by = by if by in dict(groupings) else usual
    return replace(_ask(query, now_s, own, by), usual=usual)


def _ask(query: Mapping[str, str], now_s: int, own: str, by: str) -> Asked:
    tenant = own or query.get("tenant", "").strip()[:200]
    period, wrong = query.get("period", ""), ""
    end_s = (now_s // 60 + 1) * 60
    if period == "custom" or (period not in dict(PERIODS) and (query.get("from") or query.get("to"))):
        found = _days(query.get("from", ""), query.get("to", ""), now_s)
        if isinstance(found, tuple):
            return _asked(by, "custom", found[0], found[1], tenant)
        wrong, period = found, "hour"
    if period == "month":
        first = datetime.fromtimestamp(now_s, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        return _asked(by, period, int(first.timestamp()), end_s, tenant)
    if period not in _LENGTHS_S:
        period = "hour"
    return _asked(by, period, end_s - _LENGTHS_S[period], end_s, tenant, wrong)


def _asked(by: str, period: str, from_s: int, to_s: int, tenant: str, wrong: str = "") -> Asked:
    length = to_s - from_s
    step = "minute" if length <= 4 * 3_600 else "hour" if length <= 32 * 86_400 else "day"
    days = [datetime.fromtimestamp(second, UTC).date().isoformat() for second in (from_s, to_s - 1)]
    return Asked(by=by, period=period, from_s=from_s, to_s=to_s, step=step, tenant=tenant, from_day=days[0], to_day=days[1], wrong=wrong)


def _days(from_day: str, to_day: str, now_s: int) -> tuple[int, int] | str:
    """[from, to) of two dates, both inclusive; or what is wrong with them."""
    try:
        today = datetime.fromtimestamp(now_s, UTC).date().isoformat()
        start = datetime.strptime(from_day or to_day or today, "%Y-%m-%d").replace(tzinfo=UTC)
        end = datetime.strptime(to_day or today, "%Y-%m-%d").replace(tzinfo=UTC) + timedelta(days=1)
    except (ValueError, OverflowError):
        return "Write dates as 2030-01-31. The last hour is shown."
    if end <= start:
        return "The first day is after the last. The last hour is shown."
    if start.year < 1970 or end - start > timedelta(days=1100):
        return "At most three years at once. The last hour is shown."
    return int(start.timestamp()), int(end.timestamp())


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the report. ``share``: of the whole, 0 to 100."""

    key: str
    micro: int
    core_micro: int
    vram_micro: int
    core_ns: int
    byte_ms: int
    launches: int
    #: core time that repeated lost work
    recovered_ns: int
    share: float


def rows_of(report: Mapping[str, Any]) -> tuple[list[Line], Line]:
    """The lines of billing's answer and their total, the dearest first."""
    total = report["total"]["core_credits_micro"] + report["total"]["vram_credits_micro"]
    lines = [_line(line, total) for line in report["items"]]
    return sorted(lines, key=lambda line: (-line.micro, line.key)), _line(report["total"], total)


def _line(line: Mapping[str, Any], total: int) -> Line:
    core, vram = line["core_credits_micro"], line["vram_credits_micro"]
    meters = {name: line[name] for name in ("key", "core_ns", "byte_ms", "launches", "recovered_ns")}
    share = 100 * (core + vram) / total if total > 0 else 0.0
    return Line(micro=core + vram, core_micro=core, vram_micro=vram, share=share, **meters)


def chart_of(series: Mapping[str, Any], span_s: int, titles: Mapping[str, str]) -> tuple[dict[str, Any], tuple[list[str], list[list[str]]]]:
    """Credits of each bucket, stacked: the data that static/charts.js draws, and the same as a table. ``titles``: names by key."""
    times = [int(second) for second in series["times"]]
    lines = [
        (("others" if line["other"] else titles.get(line["key"], line["key"]) or "no name"), line["micro"]) for line in series["lines"]
    ]
    drawn = [
        {"label": label, "class": "k6" if label == "others" else _SHADES[number % len(_SHADES)], "unit": "", "values": _credits(micro)}
        for number, (label, micro) in enumerate(lines)
    ]
    if not drawn:
        drawn = [{"label": "credits", "class": "k1", "unit": "", "values": [0] * len(times)}]
    data = {"t": times, "series": drawn, "stacked": True, "max": None, "least": 1, "span": span_s}
    return data, _table(times, lines)


def _credits(micro: Sequence[int]) -> list[float]:
    return [round(value / _MICRO, 3) for value in micro]


def _table(times: Sequence[int], lines: Sequence[tuple[str, Sequence[int]]]) -> tuple[list[str], list[list[str]]]:
    """Head and rows, the newest first: sums of as many buckets as it takes for two dozen rows."""
    size = max(1, math.ceil(len(times) / _TABLE_ROWS))
    rows = []
    for end in range(len(times), 0, -size):
        start = max(0, end - size)
        rows.append([clock_time(times[start] * 10**9)[:16], *(credits_text(sum(micro[start:end]) / _MICRO) for _, micro in lines)])
    return ["From (UTC)", *(label for label, _ in lines)], rows


ROUTES: Final = [credits, export, statement, budget, grant]
