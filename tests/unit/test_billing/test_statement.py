"""Statements and series: they balance to the unit, and no cell or page executes a name that a user chose."""

from __future__ import annotations

import csv
import io

import pytest

from billing.errors import BillingRequestError
from billing.periods import DAY_NS, month_bounds
from billing.projection import MINUTE_NS, BillingView
from billing.report import BUCKETS_MAX, credit_report, credit_series, csv_cell
from billing.statement import statement, statement_csv
from bus_schemas.events import Event, GrantRecorded, SessionClosedFact, SessionOpenedFact, TariffSet, UsageRecorded
from services.billing.routes.statements import statement_page

SECOND = 10**9
MONTH = "2026-11"
FROM_NS, TO_NS = month_bounds(MONTH)
EVIL = '=HYPERLINK("http://evil.example")'


def used(serial: int, at_ns: int, micro: int, *, tenant: str = "lab", task: str = "t", session: str = "s") -> UsageRecorded:
    return UsageRecorded("n", 1, 0, serial, session, tenant, task, 0, at_ns, at_ns + SECOND, micro, 1 << 30, 1, 1)


def fold(*messages: list[Event]) -> BillingView:
    view = BillingView()
    for position, events in enumerate(messages, start=1):
        view.apply(position, events)
    return view


def opened(session: str, title: str) -> SessionOpenedFact:
    return SessionOpenedFact(0, session, "lab", "t", "n", 0, 0, 0, title=title)


VIEW = fold(
    [GrantRecorded(FROM_NS - 1, "before", "lab", 5_000), GrantRecorded(FROM_NS, "in", "lab", 700), GrantRecorded(TO_NS, "after", "lab", 9)],
    [opened("s", EVIL), opened("other", "train.py")],
    [used(1, FROM_NS - DAY_NS, 1_000), used(2, FROM_NS, 200), used(3, TO_NS - MINUTE_NS, 30, task="+1", session="other")],
    [used(4, TO_NS, 4), used(5, FROM_NS, 99, tenant="shop")],
    [TariffSet(FROM_NS + DAY_NS, "standard", FROM_NS + DAY_NS, 2 * SECOND, 0)],
)


def test_a_statement_balances_to_the_unit() -> None:
    found = statement(VIEW, "lab", MONTH)
    vram = sum(line.vram_micro for line in found.lines)
    before = statement(VIEW, "lab", "2026-10")
    assert (found.core_micro, found.vram_micro, found.granted_micro) == (230, vram, 700)
    assert found.opening_micro == before.closing_micro == 5_000 - 1_000 - before.vram_micro
    assert found.opening_micro + found.granted_micro - found.core_micro - found.vram_micro == found.closing_micro
    last = statement(VIEW, "lab", "2026-12")
    assert last.opening_micro == found.closing_micro and last.closing_micro == VIEW.ledger.balance_micro("lab")
    assert sum(line.core_micro for line in found.lines) == found.core_micro


def test_the_prices_of_a_month_have_no_hole() -> None:
    found = statement(VIEW, "lab", MONTH).prices
    assert [(price.from_ns, price.to_ns) for price in found] == [(FROM_NS, FROM_NS + DAY_NS), (FROM_NS + DAY_NS, TO_NS)]
    assert found[1].core_second_micro == 2 * SECOND


def test_no_cell_of_a_statement_is_a_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(statement_csv(statement(VIEW, "lab", MONTH)))))
    names = [row[column] for row in rows for column in ("task", "model", "node")]
    assert f"'{EVIL}" in names and "'+1" in names
    assert not any(name.startswith(("=", "+", "-", "@", "\t", "\r")) for name in names)
    assert sum(float(row["credits"]) for row in rows if row["kind"] == "use") == pytest.approx(float(rows[-2]["credits"]))


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@x", "\tx", "\rx", "\nx", " =1", "|x", "%x", "\uff1d1"])
def test_what_a_spreadsheet_would_run_becomes_text(text: str) -> None:
    assert csv_cell(text) == "'" + text
    assert csv_cell("a" + text) == "a" + text


def test_a_page_shows_names_as_text() -> None:
    view = fold([opened("s", "<script>alert(1)</script>")], [used(1, FROM_NS, 5, tenant='"><img src=x>', task="<b>")])
    page = statement_page(statement(view, '"><img src=x>', MONTH))
    assert "<script" not in page and "<img" not in page and "<b>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "0.000005" in page


def test_a_page_is_readable() -> None:
    """Thousands apart, names before ids, ids in short."""
    task, grant = "ab" * 16, "0af3d45ffdc254146b1eddc619780283"
    view = fold([opened("s", "train.py")], [used(1, FROM_NS, 1_234_567, task=task)], [GrantRecorded(FROM_NS, grant, "lab", 700)])
    page = statement_page(statement(view, "lab", MONTH))
    assert "<span>train.py<small>abababab…</small>" in page and "0af3d45f…" in page and task not in page and grant not in page
    page = statement_page(statement(fold([used(1, FROM_NS, 1_234_567_000_001, task="")]), "lab", MONTH))
    assert "-1,234,567.000001" in page and "(no task)" in page


@pytest.mark.parametrize("month", ["2026-13", "2026-00", "26-11", "2026-11-01", "", "2026_11", "٢٠٢٦-١١"])
def test_a_month_that_is_none_is_refused(month: str) -> None:
    with pytest.raises(BillingRequestError) as raised:
        statement(VIEW, "lab", month)
    assert raised.value.field == "month"


def test_models_are_the_titles_of_sessions() -> None:
    lines = {line.key: line.core_credits_micro for line in credit_report(VIEW, "model", tenant="lab").items}
    assert lines == {EVIL: 1_204, "train.py": 30}
    closed = SessionClosedFact(0, "s", "n", "done", 0, 0, 0, 0, "")
    view = fold([opened("s", "a")], [used(1, 0, 1)], [closed], [opened("s2", "b")], [used(2, 0, 2, session="s2")])
    assert {line.key: line.core_credits_micro for line in credit_report(view, "model").items} == {"a": 1, "b": 2}
    assert {name: open_.title for name, open_ in view.evidence.sessions["n"].items()} == {"s2": "b"}


@pytest.mark.parametrize("step", ["hour", "day"])
def test_a_series_sums_to_the_report(step: str) -> None:
    found = credit_series(VIEW, "task", FROM_NS, TO_NS, step, top=1)
    total = credit_report(VIEW, "task", FROM_NS, TO_NS).total
    assert sum(sum(line.micro) for line in found.lines) == total.core_credits_micro + total.vram_credits_micro
    assert [line.other for line in found.lines] == [False, True] and len(found.times_ns) == len(found.lines[0].micro)
    assert found.times_ns[0] == FROM_NS and found.times_ns[-1] + found.step_ns == TO_NS


@pytest.mark.parametrize(
    ("by", "from_ns", "to_ns", "step", "field"),
    [
        ("week", 0, 1, "day", "by"),
        ("task", 0, 1, "week", "step"),
        ("task", 5, 5, "day", "to"),
        ("task", 0, (BUCKETS_MAX + 1) * MINUTE_NS, "minute", "step"),
    ],
)
def test_a_bad_series_request_names_the_field(by: str, from_ns: int, to_ns: int, step: str, field: str) -> None:
    with pytest.raises(BillingRequestError) as raised:
        credit_series(VIEW, by, from_ns, to_ns, step)
    assert raised.value.field == field
