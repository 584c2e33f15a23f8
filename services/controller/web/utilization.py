"""The page /utilization: how long devices were in each state, over time and in sum; waste and its cost. Billing answers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from litestar import Response, get

from bus_schemas.utilization import BUSY, STATES, percent_of
from services.controller.parts import Ask
from services.controller.web.billing import Refused, Unreachable
from services.controller.web.charts import Column, stacked_columns
from services.controller.web.context import context_of
from services.controller.web.credits import PERIODS, Asked, address_of, ask_of, file_of, titles_of
from services.controller.web.formats import clock_time, duration_text
from services.controller.web.listing import Listing
from services.controller.web.templating import page, scope_of

__all__ = ["GROUPINGS", "ROUTES", "STACK", "bands_of"]

GROUPINGS: Final = (("device", "Device"), ("node", "Node"), ("tenant", "Tenant"), ("task", "Task"), ("model", "Model"))
STACK: Final = tuple((f"state-{name}", name.replace("_", " ").capitalize().replace("Cpu", "CPU"), f"{name}_ns") for name in STATES)
"""(class in the stylesheet, label, field of a line), from the bottom of a column up."""
_SORTS: Final = {"waste": "waste_core_ns", "cost": "waste_micro", "wall": "wall_ns", "percent": "waste_percent", "key": "key"}
_DEVICES: Final = "12"
_TABLE_ROWS: Final = 24
_TICKS: Final = 5
_DAY_NS: Final = 86_400_000_000_000


@get("/utilization", action="credits.read", include_in_schema=False)
async def utilization(request: Ask) -> Response[str]:
    asked = ask_of(request.query_params, int(time.time()), scope_of(request).tenant, GROUPINGS)
    billing = context_of(request).billing
    try:
        report = await billing.get("utilization", request, **asked.query)
        span = {name: value for name, value in asked.query.items() if name != "by"}
        series = await billing.get("utilization/series", request, **span, step=asked.step, top=_DEVICES)
        accounts = await billing.get("accounts", request, tenant=asked.tenant)
    except (Unreachable, Refused) as error:
        return _away(request, error)
    listing = Listing.parse(
        "/utilization", request.query_params, sorts=tuple(_SORTS), default="-waste", filters=("period", "from", "to", "tenant", "by")
    )
    field = _SORTS[listing.sort]
    lines = sorted(report["items"], key=lambda line: (line[field], line["key"]), reverse=listing.descending)
    shown, listing = listing.take(lines)
    devices = await titles_of(request, "device", [device["key"] for device in series["devices"]])
    return page(
        request,
        "utilization/page.html",
        asked=asked,
        periods=[(name, label, address_of(asked, "/utilization", period=name)) for name, label in PERIODS],
        groupings=[(name, label, address_of(asked, "/utilization", by=name)) for name, label in GROUPINGS],
        csv="/utilization/export.csv?" + urlencode({"by": asked.by, **asked.pairs}),
        tenants=[account["tenant"] for account in accounts["items"]],
        listing=listing,
        rows=shown,
        total=report["total"],
        titles=await titles_of(request, asked.by, [line["key"] for line in shown]),
        stack=STACK,
        bands=bands_of(series, devices),
        bands_more=series["devices_total"] - len(series["devices"]),
        ticks=_ticks(series),
    )


def _away(request: Ask, error: Unreachable | Refused) -> Response[str]:
    status = 503 if isinstance(error, Unreachable) else error.status
    return page(request, "credits/away.html", status=status, reason=str(error), title="Utilization")


@get("/utilization/export.csv", action="credits.read", include_in_schema=False)
async def export(request: Ask) -> Response[Any]:
    asked: Asked = ask_of(request.query_params, int(time.time()), scope_of(request).tenant, GROUPINGS)
    return await file_of(request, context_of(request).billing, "utilization", "text/csv", f"utilization-{asked.by}.csv", asked.query)


@dataclass(frozen=True, slots=True)
class Band:
    """One device over the period."""

    title: str
    node: str
    columns: tuple[Column, ...]
    slots: int
    summary: str  #: the figures in a sentence
    head: Sequence[str]
    rows: Sequence[Sequence[str]]  #: the figures as a table


def bands_of(series: Mapping[str, Any], titles: Mapping[str, str]) -> list[Band]:
    """What is drawn of billing's answer. ``titles``: of devices, by key."""
    starts, step_ns = series["times_ns"], series["step_ns"]
    whole_ns = len(starts) * step_ns
    return [_band(device, titles.get(device["key"], device["key"]), starts, step_ns, whole_ns) for device in series["devices"]]


def _band(device: Mapping[str, Any], title: str, starts: Sequence[int], step_ns: int, whole_ns: int) -> Band:
    times: Sequence[Sequence[int]] = device["times_ns"]
    sums = [sum(line) for line in times]
    wall_ns = sum(sums)
    figures = [
        f"{label.lower().replace('cpu', 'CPU')} {percent_of(part, wall_ns):.1f} %"
        for (_, label, _), part in zip(STACK, sums, strict=True)
        if part
    ]
    size = max(1, -(-len(starts) // _TABLE_ROWS))
    rows = []
    for begin in range(0, len(starts), size):
        parts = [sum(line[begin : begin + size]) for line in times]
        rows.append([_when(starts[begin], whole_ns), *(duration_text(part) if part else "–" for part in parts)])
    rows_of = {field: line for (_, _, field), line in zip(STACK, times, strict=True)}
    return Band(
        title=title,
        node=device["node"],
        columns=tuple(stacked_columns(STACK, rows_of, step_ns, lambda slot: _when(starts[slot], whole_ns))),
        slots=len(starts),
        summary=f"waste {percent_of(wall_ns - sums[BUSY], wall_ns):.1f} % of {duration_text(wall_ns)}: {', '.join(figures)}",
        head=["From (UTC)", *(label for _, label, _ in STACK)],
        rows=rows,
    )


def _when(unix_ns: int, whole_ns: int) -> str:
    """UTC; with the day where the period has several."""
    return clock_time(unix_ns)[5 if whole_ns > _DAY_NS else 11 : 16]


def _ticks(series: Mapping[str, Any]) -> list[str]:
    starts, step_ns = series["times_ns"], series["step_ns"]
    whole_ns = len(starts) * step_ns
    return [_when(starts[0] + whole_ns * at // (_TICKS - 1), whole_ns) for at in range(_TICKS)]


ROUTES: Final = [utilization, export]
