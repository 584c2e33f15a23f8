"""Both sides of the boundaries of billing: leases, series, reports, prices of a statement, and what a comparison of bills finds."""

from __future__ import annotations

import msgspec
import pytest

from billing.allowance import Lease, Leases, Left, lend, used_up
from billing.ledger import Ledger
from billing.periods import DAY_NS, month_bounds
from billing.projection import MINUTE_NS, BillingView, verify
from billing.report import credit_report, credit_series, credits_text, report_csv
from billing.statement import statement, statement_csv
from bus_schemas.allowance import EXHAUSTED, GRANTED, WAIT
from bus_schemas.events import Event, GrantRecorded, SessionOpenedFact, TariffSet, TierSet, UsageRecorded

SECOND = 10**9
CREDIT = 10**6


def used(
    serial: int, minute: int, micro: int, *, tenant: str = "lab", task: str = "t", node: str = "n", session: str = "s"
) -> UsageRecorded:
    """A fact that costs ``micro`` for cores and nothing for memory."""
    at_ns = minute * MINUTE_NS
    return UsageRecorded(node, 1, 0, serial, session, tenant, task, 0, at_ns, at_ns + SECOND, micro, 0, 7, 1)


def fold(*messages: list[Event]) -> BillingView:
    view = BillingView()
    for position, events in enumerate(messages, start=1):
        view.apply(position, events)
    return view


# -- leases ----------------------------------------------------------------------------------------------------------------------------


def left(micro: int, period: str = "day") -> Left:
    return Left(micro, period, 60, 100, 100, 0)


def live(ceiling: int, *, counted: int = 0, busy: bool = True, until_ms: int = 1_000) -> Lease:
    return Lease(ceiling, counted, until_ms, busy)


@pytest.mark.parametrize(
    ("others", "micro", "busy", "given", "state"),
    [
        ({}, 80, True, 80, GRANTED),
        ({}, 80, False, 80, GRANTED),  # no other node wants any
        ({}, 1, True, 1, GRANTED),
        ({}, 0, True, 0, EXHAUSTED),
        ({}, -1, True, 0, EXHAUSTED),
        ({"a": live(0)}, 80, True, 40, GRANTED),
        ({"a": live(0), "b": live(0)}, 80, True, 26, GRANTED),
        ({"a": live(0), "b": live(0, busy=False)}, 80, True, 40, GRANTED),
        ({"a": live(0)}, 80, False, 5, GRANTED),  # one eighth of its share
        ({"a": live(0)}, 15, False, 1, GRANTED),  # and never less than one
        ({"a": live(0)}, 1, True, 1, GRANTED),
        ({"a": live(79)}, 80, True, 1, GRANTED),
        ({"a": live(80)}, 80, True, 0, WAIT),
        ({"a": live(81)}, 80, True, 0, WAIT),
        ({"a": live(80, until_ms=501)}, 80, True, 0, WAIT),
        ({"a": live(80, until_ms=500)}, 80, True, 80, GRANTED),
        ({"a": live(10, counted=30)}, 80, True, 25, GRANTED),  # it used more than it was lent: that is spent
        ({"a": live(10, counted=80)}, 80, True, 0, EXHAUSTED),
    ],
)
def test_what_a_node_is_lent_of_80_or_less(others: dict[str, Lease], micro: int, busy: bool, given: int, state: str) -> None:
    leases, answer = lend(Leases(others), "n", 500, left=left(micro), billed={}, unbilled_micro=0, busy=busy, tenant="lab")
    assert (answer.micro, answer.state) == (given, state)
    assert leases.nodes["n"] == Lease(given, 0, 500 + 32_000, busy)
    assert leases.nodes.keys() == {"n"} | {name for name, lease in others.items() if lease.until_ms > 500}
    assert bool(answer.reason) == (state == EXHAUSTED)


def test_ceilings_are_absolute_and_what_is_billed_is_not_lent_twice() -> None:
    """Billing knows 100 of each node; the asking one has used 7 beyond, the other was lent up to 130 and says that it used 110."""
    leases = Leases({"a": live(130, counted=110)})
    after, answer = lend(leases, "n", 0, left=left(90), billed={"n": 100, "a": 100}, unbilled_micro=7, busy=True, tenant="lab")
    share = (90 - 7 - 10) // 2
    assert (answer.micro, answer.state) == (7 + share, GRANTED)
    assert after.nodes["n"] == Lease(107 + share, 107, 32_000, True)
    _, rest = lend(leases, "n", 0, left=left(40), billed={"n": 100, "a": 100}, unbilled_micro=7, busy=True, tenant="lab")
    assert rest.micro == 7 + 40 - 7 - 30, "never what is lent to another"


def test_a_node_that_was_billed_beyond_its_ceiling_leaves_nothing_for_others() -> None:
    """One node was lent up to 10 and billed 50; another holds 60 of the 80 that are left. The first gives nothing back to be lent."""
    leases = Leases({"a": live(10, counted=10), "b": live(60)})
    _, answer = lend(leases, "n", 0, left=left(80), billed={"a": 50}, unbilled_micro=0, busy=True, tenant="lab")
    assert answer.micro == 20


@pytest.mark.parametrize(
    ("period", "percent", "renews_ns", "text"),
    [
        ("day", 100, DAY_NS, "the daily budget of tenant 'lab' is used up: 0.000065 of 0.000100 credits; it begins anew at "),
        ("month", 100, DAY_NS, "the monthly budget of tenant 'lab' is used up: 0.000065 of 0.000100 credits; it begins anew at "),
        ("total", 100, 0, "the total budget of tenant 'lab' is used up: 0.000065 of 0.000100 credits; ask for a grant or a higher limit"),
        ("total", 90, 0, "the total budget of tenant 'lab' is used up: 0.000065 of 0.000100 credits (it stops at 90 %); ask for a grant"),
    ],
)
def test_the_refusal_names_the_budget(period: str, percent: int, renews_ns: int, text: str) -> None:
    said = used_up("lab", Left(0, period, 60, 100, percent, renews_ns), 5)
    assert said.startswith(text) and said.endswith(" a higher limit")


# -- reports ---------------------------------------------------------------------------------------------------------------------------

ROWS = [
    used(1, 0, 1), used(2, 59, 2), used(3, 60, 4, tenant="shop"), used(4, 61, 8, task="u"), used(5, 119, 16, session="m"),
    used(6, 120, 32), used(7, 1439, 64, tenant="shop"), used(8, 1440, 128), used(9, 2880, 256, task="u"),
]  # fmt: skip
VIEW = fold([SessionOpenedFact(0, "m", "lab", "t", "n", 0, 0, 0, title="model")], ROWS, [used(1, 61, 512, node="other")])


@pytest.mark.parametrize("tenant", [None, "lab", "shop", "none"])
@pytest.mark.parametrize(("step", "minutes"), [("minute", 1), ("hour", 60), ("day", 1440)])
@pytest.mark.parametrize("window", [(0, 1441), (59, 121), (60, 120), (61, 119), (1439, 1440)])
def test_a_series_sums_the_rows_of_each_bucket(window: tuple[int, int], step: str, minutes: int, tenant: str | None) -> None:
    first, last = window[0] // minutes, -(-window[1] // minutes)
    want: dict[str, list[int]] = {}
    for fact in [*ROWS, used(1, 61, 512, node="other")]:
        bucket = fact.from_ns // MINUTE_NS // minutes
        if first <= bucket < last and tenant in (None, fact.tenant):
            want.setdefault(fact.task, [0] * (last - first))[bucket - first] += fact.core_ns
    found = credit_series(VIEW, "task", window[0] * MINUTE_NS, window[1] * MINUTE_NS, step, tenant=tenant)
    assert {line.key: list(line.micro) for line in found.lines} == want
    assert found.times_ns == tuple(bucket * minutes * MINUTE_NS for bucket in range(first, last)) and found.step_ns == minutes * MINUTE_NS
    assert not any(line.other for line in found.lines) and found.position == 3


def test_a_series_ranks_keys_and_sums_the_others() -> None:
    view = fold([used(i, i, micro, task=name) for i, (name, micro) in enumerate([("a", 5), ("b", 9), ("c", 5), ("d", 1), ("e", 2)], 1)])
    for top, keys in ((5, ["b", "a", "c", "e", "d"]), (4, ["b", "a", "c", "e", ""]), (2, ["b", "a", ""]), (0, [""])):
        found = credit_series(view, "task", 0, 10 * MINUTE_NS, "minute", top=top)
        assert [line.key for line in found.lines] == keys
        assert [line.other for line in found.lines] == [key == "" for key in keys]
        assert sum(sum(line.micro) for line in found.lines) == 22


@pytest.mark.parametrize("by", ["tenant", "task", "node", "model"])
@pytest.mark.parametrize("window", [(0, 0), (0, 1), (60, 61), (60, 62), (61, 62), (61, 0), (120, 1440)])
def test_a_report_counts_whole_minutes_from_the_first_to_before_the_last(window: tuple[int, int], by: str) -> None:
    rows = [(fact, "other" if fact.core_ns == 512 else "n") for fact in [*ROWS, used(1, 61, 512, node="other")]]
    want: dict[str, int] = {}
    for fact, node in rows:
        minute = fact.from_ns // MINUTE_NS
        if window[0] <= minute and (not window[1] or minute < window[1]):
            model = "model" if fact.session == "m" else ""
            key = {"tenant": fact.tenant, "task": fact.task, "node": node, "model": model}[by]
            want[key] = want.get(key, 0) + fact.core_ns
    found = credit_report(VIEW, by, window[0] * MINUTE_NS, window[1] * MINUTE_NS)
    assert {line.key: line.core_credits_micro for line in found.items} == want
    assert found.total.core_credits_micro == sum(want.values()) and found.total.launches == found.total.instructions // 7
    assert [line.key for line in found.items] == sorted(want)
    assert (found.by, found.from_ns, found.to_ns) == (by, window[0] * MINUTE_NS, window[1] * MINUTE_NS)


@pytest.mark.parametrize(("from_ns", "to_ns", "minutes"), [(1, 2, (0, 1)), (MINUTE_NS - 1, MINUTE_NS, (0, 1)), (0, MINUTE_NS + 1, (0, 2))])
def test_the_period_of_a_report_is_widened_to_whole_minutes(from_ns: int, to_ns: int, minutes: tuple[int, int]) -> None:
    found = credit_report(VIEW, "tenant", from_ns, to_ns)
    assert (found.from_ns, found.to_ns) == (minutes[0] * MINUTE_NS, minutes[1] * MINUTE_NS)


def test_a_report_as_csv() -> None:
    view = fold([used(1, 0, 1_250_000), used(2, 1, 7, tenant="=shop")])
    assert report_csv(credit_report(view, "tenant")).splitlines() == [
        "tenant,core_credits,vram_credits,core_ns,byte_ms,instructions,launches,recovered_ns",
        "'=shop,0.000007,0.000000,7,0,7,1,0",
        "lab,1.250000,0.000000,1250000,0,7,1,0",
        "total,1.250007,0.000000,1250007,0,14,2,0",
    ]


@pytest.mark.parametrize(
    ("micro", "text"),
    [(0, "0.000000"), (1, "0.000001"), (-1, "-0.000001"), (999_999, "0.999999"), (1_000_000, "1.000000"), (-1_250_000, "-1.250000")],
)
def test_credits_are_exact_decimals(micro: int, text: str) -> None:
    assert credits_text(micro) == text


# -- statements ------------------------------------------------------------------------------------------------------------------------

MONTH = "2026-11"
FROM_NS, TO_NS = month_bounds(MONTH)


def prices(*events: Event) -> list[tuple[str, int, int, int]]:
    """(tier, first and last day of the month, price) of each part."""
    found = statement(fold(list(events)), "lab", MONTH).prices
    return [(p.tier, (p.from_ns - FROM_NS) // DAY_NS, (p.to_ns - FROM_NS) // DAY_NS, p.core_second_micro) for p in found]


def tariff(day: int, price: int, tier: str = "standard") -> TariffSet:
    return TariffSet(FROM_NS, tier, FROM_NS + day * DAY_NS, price, 3)


def test_prices_of_a_month_follow_each_other_without_a_hole() -> None:
    base = SECOND
    assert prices() == [("standard", 0, 30, base)]
    assert prices(tariff(10, 5), tariff(20, 6)) == [("standard", 0, 10, base), ("standard", 10, 20, 5), ("standard", 20, 30, 6)]
    assert prices(tariff(0, 5), tariff(30, 6)) == [("standard", 0, 30, 5)], "at the first moment, and after the last"


def test_equal_prices_are_one_part() -> None:
    """Prices of another tier, and one that is set again as it is, do not cut what the tenant pays."""
    assert prices(tariff(5, 4), tariff(10, 4), tariff(15, 4)) == [("standard", 0, 5, SECOND), ("standard", 5, 30, 4)]
    assert prices(tariff(7, 9, "basic")) == [("standard", 0, 30, SECOND)]
    assert prices(tariff(2, 4), TierSet(0, "basic", 0, "lab", FROM_NS + 10 * DAY_NS), tariff(0, 4, "basic"))[-1][:3] == ("basic", 10, 30)


def test_a_statement_as_csv() -> None:
    events: list[Event] = [
        GrantRecorded(FROM_NS - 1, "old", "lab", 5 * CREDIT), GrantRecorded(FROM_NS + 1, "b", "lab", CREDIT),
        GrantRecorded(FROM_NS, "a", "lab", 2 * CREDIT), GrantRecorded(TO_NS, "next", "lab", CREDIT), GrantRecorded(FROM_NS, "x", "shop", 9),
    ]  # fmt: skip
    minute, last = FROM_NS // MINUTE_NS, TO_NS // MINUTE_NS
    uses: list[Event] = [
        used(1, minute - 1, CREDIT), used(2, minute, 250_000), used(3, last - 1, 500_000, task="u"), used(4, last, 7),
        used(5, minute, 9, tenant="shop"), used(6, minute + 1, 1),
    ]  # fmt: skip
    rows = statement_csv(statement(fold(events, uses), "lab", MONTH)).splitlines()
    assert rows == [
        "kind,task,model,node,time,core_credits,vram_credits,credits,core_ns,byte_ms,launches",
        "opening balance,,,,2026-11-01T00:00:00Z,,,4.000000,,,",
        "grant,a,,,2026-11-01T00:00:00Z,,,2.000000,,,",
        "grant,b,,,2026-11-01T00:00:00Z,,,1.000000,,,",
        "use,t,,n,,0.250001,0.000000,-0.250001,250001,0,2",
        "use,u,,n,,0.500000,0.000000,-0.500000,500000,0,1",
        "total use,,,,,0.750001,0.000000,-0.750001,,,",
        "closing balance,,,,2026-12-01T00:00:00Z,,,6.249999,,,",
    ]


def test_the_opening_balance_counts_from_the_first_day_there_is() -> None:
    view = fold([used(1, 0, 5), used(2, 1440, 7)])
    assert statement(view, "lab", "1970-01").opening_micro == 0
    assert statement(view, "lab", "1970-01").closing_micro == statement(view, "lab", "1970-02").opening_micro == -12


# -- two bills -------------------------------------------------------------------------------------------------------------------------


def test_equal_bills_have_no_difference() -> None:
    found = verify(VIEW, fold([SessionOpenedFact(0, "m", "lab", "t", "n", 0, 0, 0, title="model")], ROWS, [used(1, 61, 512, node="other")]))
    assert found.ok and found.first_difference is None and found.view_digest == found.log_digest
    assert (found.position, found.rows, found.core_credits_micro, found.vram_credits_micro) == (3, len(VIEW.rows), 1023, 0)


def test_the_first_difference_is_named() -> None:
    log = fold([used(1, 0, 5)], [used(2, 1, 7)])
    behind, other, same = fold([used(1, 0, 5)]), fold([used(1, 0, 5)], [used(2, 1, 8)]), fold([used(1, 0, 5)], [used(2, 1, 7)])
    assert verify(behind, log).first_difference == "position: the view stands at 1, the log at 2"
    assert verify(other, log).first_difference.startswith("row minute=1 tenant=lab task=t node=n model=: the view has Row(core_ns=8")
    short = msgspec.structs.replace(same, rows={})
    assert verify(short, log).first_difference.startswith("row minute=0 tenant=lab task=t node=n model=: the view has None")
    same.ledger.balances["tenant:lab"] += 1
    said = verify(same, log).first_difference
    assert said == "account tenant:lab: the view has 13 micro-credits, the log gives 12"
    odd = fold([used(1, 0, 5)], [used(2, 1, 7)])
    odd.unbelieved["n"] = 1
    assert (
        verify(odd, log).first_difference
        == "the views differ outside rows and balances (tariff, tiers, budgets, devices, utilization, holds or findings)"
    )
    assert not any(verify(view, log).ok for view in (behind, other, short, same, odd))


def test_findings_of_the_log_make_a_bill_doubtful() -> None:
    gap = fold([used(2, 0, 5)])
    found = verify(gap, fold([used(2, 0, 5)]))
    assert found.first_difference is None and found.findings == ("usage of n/1/0 jumps from serial 0 to 2",) and not found.ok


def test_the_turnover_of_a_ledger_is_the_sum_of_its_postings() -> None:
    ledger = Ledger()
    for micro in (5, 7):
        ledger.grant("lab", micro)
    assert (ledger.debits_micro, ledger.credits_micro, ledger.transactions) == (12, 12, 2)
