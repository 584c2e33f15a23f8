"""Monthly statement of a tenant: opening balance, grants, charges by line, closing balance. Pure.

It balances to the unit: opening + grants - charges = closing, and the lines sum to the charges. A fact of the month that reaches the log
later changes the statement, which therefore names the log position it was drawn up at.
"""

from __future__ import annotations

import csv
import io

import msgspec

from billing.periods import month_bounds, time_text
from billing.projection import MINUTE_NS, BillingView
from billing.report import credits_text, csv_cell
from bus_schemas.statement import Statement, StatementGrant, StatementLine, StatementPrice


def statement(view: BillingView, tenant: str, month: str) -> Statement:
    """The statement of ``tenant`` for ``month`` (``YYYY-MM``). Raises BillingRequestError."""
    from_ns, to_ns = month_bounds(month)
    first, last = from_ns // MINUTE_NS, to_ns // MINUTE_NS
    lines: dict[tuple[str, str, str], list[int]] = {}
    for (minute, owner, task, node, model), row in view.rows.items():
        if owner == tenant and first <= minute < last:
            line = lines.setdefault((task, model, node), [0] * 5)
            for at, value in enumerate((row.core_micro, row.vram_micro, row.core_ns, row.byte_ms, row.launches)):
                line[at] += value
    grants = [
        StatementGrant(name, g.at_ns, g.micro) for name, g in view.grants.items() if g.tenant == tenant and from_ns <= g.at_ns < to_ns
    ]
    before = sum(g.micro for g in view.grants.values() if g.tenant == tenant and g.at_ns < from_ns)
    opening = before - (view.budgets.used_micro(tenant, 0, from_ns) if from_ns else 0)
    core, vram = sum(line[0] for line in lines.values()), sum(line[1] for line in lines.values())
    granted = sum(grant.micro for grant in grants)
    return Statement(
        tenant=tenant,
        month=month,
        from_ns=from_ns,
        to_ns=to_ns,
        position=view.position,
        opening_micro=opening,
        granted_micro=granted,
        core_micro=core,
        vram_micro=vram,
        closing_micro=opening + granted - core - vram,
        lines=tuple(StatementLine(*key, *lines[key]) for key in sorted(lines)),
        grants=tuple(sorted(grants, key=lambda grant: (grant.at_ns, grant.grant))),
        prices=_prices(view, tenant, from_ns, to_ns),
    )


def _prices(view: BillingView, tenant: str, from_ns: int, to_ns: int) -> tuple[StatementPrice, ...]:
    """What the tenant paid over [from, to), in order and without a hole."""
    members = view.tiers.members.get(tenant, [])
    cuts = {from_ns, *(membership.from_ns for membership in members)}
    for known in view.tariff.prices.values():
        cuts |= {price.from_ns for price in known}
    starts = sorted(cut for cut in cuts if from_ns <= cut < to_ns)
    out: list[StatementPrice] = []
    for start, end in zip(starts, [*starts[1:], to_ns], strict=True):
        tier = view.tiers.tier_of(tenant, start)
        price = view.tariff.at(tier, start)
        new = StatementPrice(tier, start, end, price.core_second_micro, price.gib_second_micro)
        if out and msgspec.structs.replace(out[-1], from_ns=0, to_ns=0) == msgspec.structs.replace(new, from_ns=0, to_ns=0):
            out[-1] = msgspec.structs.replace(out[-1], to_ns=end)
        else:
            out.append(new)
    return tuple(out)


def statement_csv(found: Statement) -> str:
    """The statement as CSV: one line a task and node, the grants, then the balances. Credits are decimal with six places, exact; no cell
    is one that a spreadsheet runs."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["kind", "task", "model", "node", "time", "core_credits", "vram_credits", "credits", "core_ns", "byte_ms", "launches"])
    writer.writerow(["opening balance", "", "", "", time_text(found.from_ns), "", "", credits_text(found.opening_micro), "", "", ""])
    for grant in found.grants:
        writer.writerow(["grant", csv_cell(grant.grant), "", "", time_text(grant.at_ns), "", "", credits_text(grant.micro), "", "", ""])
    for line in found.lines:
        names = [csv_cell(line.task), csv_cell(line.model), csv_cell(line.node)]
        amounts = [credits_text(micro) for micro in (line.core_micro, line.vram_micro, -(line.core_micro + line.vram_micro))]
        writer.writerow(["use", *names, "", *amounts, line.core_ns, line.byte_ms, line.launches])
    total = [credits_text(micro) for micro in (found.core_micro, found.vram_micro, -(found.core_micro + found.vram_micro))]
    writer.writerow(["total use", "", "", "", "", *total, "", "", ""])
    writer.writerow(["closing balance", "", "", "", time_text(found.to_ns), "", "", credits_text(found.closing_micro), "", "", ""])
    return out.getvalue()
