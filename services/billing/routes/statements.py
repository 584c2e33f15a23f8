"""The monthly statement of a tenant, for programs, spreadsheets and paper: the page to be read and printed has no script, no picture,
nothing from elsewhere.
"""

from __future__ import annotations

import re
import time
from typing import Annotated, Any, Final, Literal

import msgspec
from jinja2 import Environment, StrictUndefined
from litestar import MediaType, Response, get
from litestar.params import Parameter

from billing.periods import month_name, time_text
from billing.report import credits_text
from billing.statement import statement, statement_csv
from bus_schemas.statement import Statement
from services.billing.parts import Ask, also_as, fresh_view, tenant_must_be
from services.kit.problems import problems

__all__ = ["ROUTES", "statement_page"]

_TEMPLATE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Statement {{ s.month }}, {{ s.tenant }}</title>
<style>
:root { color-scheme: light dark; --line: #8886; --soft: #595959; }
@media (prefers-color-scheme: dark) { :root { --soft: #b0b0b0; } }
body { background: Canvas; color: CanvasText; font: 15px/1.5 system-ui, sans-serif;
  max-width: 62rem; margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .4rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem; }
p, small { color: var(--soft); overflow-wrap: anywhere; } p { margin: .3rem 0; max-width: 46rem; } small { display: block; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: .4rem .75rem .4rem 0; text-align: left; vertical-align: top; overflow-wrap: anywhere;
  border-bottom: 1px solid var(--line); }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; padding-right: 0; padding-left: .75rem; }
tr.sum th, tr.sum td { border-bottom: 0; border-top: 2px solid currentColor; font-weight: 600; }
@media screen and (max-width: 40rem) {
  body { margin-top: 1.25rem; }
  .wide thead { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; white-space: nowrap; }
  .wide tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line); }
  .wide tr > * { display: flex; justify-content: space-between; gap: 1rem; border: 0 !important; padding: .1rem 0; text-align: right; }
  .wide tr > *::before { content: attr(data-label); color: var(--soft); font-weight: 400; white-space: nowrap; text-align: left; }
}
@media print {
  :root { color-scheme: light; --soft: #444; }
  @page { margin: 16mm; }
  body { margin: 0; max-width: none; padding: 0; font-size: 10.5px; }
  thead { display: table-header-group; } tr { break-inside: avoid; } h2 { break-after: avoid; }
}
</style>
</head>
<body>
<main>
<h1>Statement for {{ s.tenant }}, {{ s.month }}</h1>
<p>{{ s.from_ns|day }} 00:00 to {{ s.to_ns|day }} 00:00 (UTC, end exclusive). All amounts are in Wooly Credits.</p>
<h2>Account</h2>
<table>
<tbody>
<tr><th scope="row">Opening balance</th><td class="n">{{ s.opening_micro|credits }}</td></tr>
<tr><th scope="row">Granted</th><td class="n">{{ s.granted_micro|credits }}</td></tr>
<tr><th scope="row">Core time</th><td class="n">{{ (-s.core_micro)|credits }}</td></tr>
<tr><th scope="row">Device memory (VRAM)</th><td class="n">{{ (-s.vram_micro)|credits }}</td></tr>
<tr class="sum"><th scope="row">Closing balance</th><td class="n">{{ s.closing_micro|credits }}</td></tr>
</tbody>
</table>
<h2>Usage</h2>
{% if s.lines %}<p>A core-second is one core of a device, used for one second. A GiB-second is one GiB of device
memory, held for one second. Ids are shortened; the statement as CSV or JSON has them whole.</p>
<table class="wide">
<thead><tr><th scope="col">Task</th><th scope="col">Node</th><th scope="col" class="n">Core-seconds</th>
<th scope="col" class="n">GiB-seconds</th><th scope="col" class="n">Core credits</th>
<th scope="col" class="n">VRAM credits</th></tr></thead>
<tbody>
{% for line in s.lines %}<tr><td data-label="Task"><span>{{ line.model or line.task|short or "(no task)" }}\
{% if line.model and line.task %}<small>{{ line.task|short }}</small>{% endif %}</span></td>
<td data-label="Node">{{ line.node|short }}</td>
<td class="n" data-label="Core-seconds">{{ line.core_ns|seconds }}</td>
<td class="n" data-label="GiB-seconds">{{ line.byte_ms|gib_seconds }}</td>
<td class="n" data-label="Core credits">{{ line.core_micro|credits }}</td>
<td class="n" data-label="VRAM credits">{{ line.vram_micro|credits }}</td></tr>
{% endfor %}<tr class="sum"><th scope="row" colspan="4">Total</th><td class="n" data-label="Core credits">{{ s.core_micro|credits }}</td>
<td class="n" data-label="VRAM credits">{{ s.vram_micro|credits }}</td></tr>
</tbody>
</table>{% else %}<p>Nothing was used in this month.</p>{% endif %}
<h2>Grants</h2>
{% if s.grants %}<table class="wide">
<thead><tr><th scope="col">Grant</th><th scope="col">Time (UTC)</th><th scope="col" class="n">Credits</th></tr></thead>
<tbody>
{% for grant in s.grants %}<tr><td data-label="Grant">{{ grant.grant|short }}</td>
<td data-label="Time (UTC)">{{ grant.at_ns|moment }}</td><td class="n" data-label="Credits">{{ grant.micro|credits }}</td></tr>
{% endfor %}</tbody>
</table>{% else %}<p>Nothing was granted in this month.</p>{% endif %}
<h2>Prices</h2>
<table class="wide">
<thead><tr><th scope="col">Valid from (UTC)</th><th scope="col">Tier</th><th scope="col" class="n">Credits per core-second</th>
<th scope="col" class="n">Credits per GiB-second</th></tr></thead>
<tbody>
{% for price in s.prices %}<tr><td data-label="Valid from (UTC)">{{ price.from_ns|moment }}</td><td data-label="Tier">{{ price.tier }}</td>
<td class="n" data-label="Credits per core-second">{{ price.core_second_micro|credits }}</td>
<td class="n" data-label="Credits per GiB-second">{{ price.gib_second_micro|credits }}</td></tr>
{% endfor %}</tbody>
</table>
<p>Made from the event log at position {{ "{:,}".format(s.position) }}. An event of this month that reaches the log later changes the
statement.</p>
</main>
</body>
</html>
"""


def _fixed(numerator: int, unit: int) -> str:
    """``numerator / unit`` with three places, rounded down, thousands apart."""
    milli = numerator * 1_000 // unit
    return f"{milli // 1_000:,}.{milli % 1_000:03d}"


def _credits(micro: int) -> str:
    """Exact, thousands apart: ``-1,234.500000``."""
    whole, _, part = credits_text(abs(micro)).partition(".")
    return f"{'-' if micro < 0 else ''}{int(whole):,}.{part}"


def _short(name: str) -> str:
    """An id that ends in 32 hexadecimal digits, with the first eight of them; other names as they are."""
    return _MADE.sub(r"\1…", name)


def _moment(at_ns: int) -> str:
    """``2030-01-31 12:00``; 0: the beginning."""
    return time_text(at_ns)[:16].replace("T", " ") if at_ns > 0 else "always"


_MADE: Final = re.compile(r"(?<![0-9a-f])([0-9a-f]{8})[0-9a-f]{24}\Z")
_environment: Final = Environment(autoescape=True, undefined=StrictUndefined)
_environment.filters.update(
    credits=_credits,
    day=lambda at_ns: time_text(at_ns)[:10],
    moment=_moment,
    short=_short,
    seconds=lambda ns: _fixed(ns, 10**9),
    gib_seconds=lambda byte_ms: _fixed(byte_ms, (1 << 30) * 1_000),
)
_page: Final = _environment.from_string(_TEMPLATE)


def statement_page(found: Statement) -> str:
    """The page. Names in it are untrusted input: all are escaped."""
    return _page.render(s=found)


_MEDIA: Final = {"json": "application/json", "csv": "text/csv", "html": "text/html"}
_PAGE_HEADERS: Final = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"}


@get(
    "/api/v1/billing/statements/{tenant:str}",
    summary="Get a tenant's monthly statement as JSON, CSV or a printable page",
    media_type=MediaType.JSON,
    action="credits.read",
    responses=problems(404),
    operation_class=also_as("text/csv", "text/html"),
)
async def get_statement(
    request: Ask,
    tenant: str,
    month: Annotated[str, Parameter(max_length=10, description="YYYY-MM in UTC; empty: this month so far")] = "",
    form: Annotated[Literal["json", "csv", "html"] | None, Parameter(query="format", description="left out: by the Accept header")] = None,
) -> Response[Any]:
    """Opening balance + grants - charges = closing balance, exactly. The statement names the log position that it was computed at: an event
    of the month that reaches the log later changes it."""
    view = await fresh_view(request)
    tenant_must_be(request, view, "credits.read", tenant)
    found = statement(view, tenant, month or month_name(time.time_ns()))
    best = request.accept.best_match(list(_MEDIA.values()), default="application/json")
    chosen: str = form or next((name for name, media in _MEDIA.items() if media == best), "json")
    if chosen == "csv":
        headers = {"content-disposition": f'attachment; filename="statement-{found.month}.csv"'}
        return Response(statement_csv(found), media_type="text/csv", headers=headers)
    if chosen == "html":
        return Response(statement_page(found), media_type="text/html", headers=_PAGE_HEADERS)
    return Response(msgspec.to_builtins(found))


ROUTES: Final = (get_statement,)
