"""A statement as one page of HTML, to be read and printed: no script, no picture, nothing from elsewhere.

May live here: how a statement looks. May not: what is in it (billing.statement).
"""

from __future__ import annotations

from typing import Final

from jinja2 import Environment, StrictUndefined

from billing.periods import time_text
from billing.report import credits_text
from billing.statement import Statement

__all__ = ["statement_page"]

_TEMPLATE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Statement {{ s.month }}, {{ s.tenant }}</title>
<style>
:root { color-scheme: light dark; --line: #8886; --soft: #666; }
@media (prefers-color-scheme: dark) { :root { --soft: #aaa; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem; }
p { margin: .3rem 0; color: var(--soft); overflow-wrap: anywhere; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { padding: .4rem .75rem .4rem 0; text-align: left; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; padding-right: 0; padding-left: .75rem; }
tr.sum th, tr.sum td { border-bottom: 0; border-top: 2px solid currentColor; font-weight: 600; }
@media print { body { margin: 0; max-width: none; font-size: 11px; } thead { display: table-header-group; } tr { break-inside: avoid; } }
</style>
</head>
<body>
<main>
<h1>Statement {{ s.month }}</h1>
<p>Tenant <strong>{{ s.tenant }}</strong>, {{ s.from_ns|time }} to {{ s.to_ns|time }} (UTC, end exclusive). Amounts in Wooly Credits.</p>
<h2>Account</h2>
<div class="scroll"><table>
<tbody>
<tr><th scope="row">Opening balance</th><td class="n">{{ s.opening_micro|credits }}</td></tr>
<tr><th scope="row">Granted</th><td class="n">{{ s.granted_micro|credits }}</td></tr>
<tr><th scope="row">Cores used</th><td class="n">{{ (-s.core_micro)|credits }}</td></tr>
<tr><th scope="row">Memory used</th><td class="n">{{ (-s.vram_micro)|credits }}</td></tr>
<tr class="sum"><th scope="row">Closing balance</th><td class="n">{{ s.closing_micro|credits }}</td></tr>
</tbody>
</table></div>
<h2>Used</h2>
{% if s.lines %}<div class="scroll"><table>
<thead><tr><th scope="col">Task</th><th scope="col">Model</th><th scope="col">Node</th><th scope="col" class="n">Core-seconds</th>
<th scope="col" class="n">GiB-seconds</th><th scope="col" class="n">Core credits</th>
<th scope="col" class="n">VRAM credits</th></tr></thead>
<tbody>
{% for line in s.lines %}<tr><td>{{ line.task or "(none)" }}</td><td>{{ line.model or "(none)" }}</td><td>{{ line.node }}</td>
<td class="n">{{ line.core_ns|seconds }}</td><td class="n">{{ line.byte_ms|gib_seconds }}</td>
<td class="n">{{ line.core_micro|credits }}</td><td class="n">{{ line.vram_micro|credits }}</td></tr>
{% endfor %}<tr class="sum"><th scope="row" colspan="5">Total</th><td class="n">{{ s.core_micro|credits }}</td>
<td class="n">{{ s.vram_micro|credits }}</td></tr>
</tbody>
</table></div>{% else %}<p>Nothing was used in this month.</p>{% endif %}
<h2>Grants</h2>
{% if s.grants %}<div class="scroll"><table>
<thead><tr><th scope="col">Grant</th><th scope="col">Time</th><th scope="col" class="n">Credits</th></tr></thead>
<tbody>
{% for grant in s.grants %}<tr><td>{{ grant.grant }}</td><td>{{ grant.at_ns|time }}</td><td class="n">{{ grant.micro|credits }}</td></tr>
{% endfor %}</tbody>
</table></div>{% else %}<p>Nothing was granted in this month.</p>{% endif %}
<h2>Prices</h2>
<div class="scroll"><table>
<thead><tr><th scope="col">From</th><th scope="col">Tier</th><th scope="col" class="n">Core-second</th>
<th scope="col" class="n">GiB-second</th></tr></thead>
<tbody>
{% for price in s.prices %}<tr><td>{{ price.from_ns|time }}</td><td>{{ price.tier }}</td>
<td class="n">{{ price.core_second_micro|credits }}</td><td class="n">{{ price.gib_second_micro|credits }}</td></tr>
{% endfor %}</tbody>
</table></div>
<p>Drawn up from the event log at position {{ s.position }}.</p>
</main>
</body>
</html>
"""


def _fixed(numerator: int, unit: int) -> str:
    """``numerator / unit`` with three places, rounded down."""
    milli = numerator * 1_000 // unit
    return f"{milli // 1_000}.{milli % 1_000:03d}"


_environment: Final = Environment(autoescape=True, undefined=StrictUndefined)
_environment.filters.update(
    credits=credits_text,
    time=time_text,
    seconds=lambda ns: _fixed(ns, 10**9),
    gib_seconds=lambda byte_ms: _fixed(byte_ms, (1 << 30) * 1_000),
)
_page: Final = _environment.from_string(_TEMPLATE)


def statement_page(found: Statement) -> str:
    """The page. Names in it are untrusted input: all are escaped."""
    return _page.render(s=found)
