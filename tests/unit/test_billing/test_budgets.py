"""Budgets: the states they go through, the facts about them in the log, and what grants and new periods change."""

from __future__ import annotations

import msgspec
import pytest

from billing.allowance import Leases, binding, lend
from billing.budgets import OPEN, STOPPED, WARNING
from billing.periods import DAY_NS, bounds, month_bounds, month_name
from billing.projection import BillingView
from bus_schemas.allowance import GRANTED
from bus_schemas.events import BudgetCrossed, BudgetSet, DeviceAccounted, Event, GrantRecorded, UsageRecorded, encode_events

SECOND = 10**9
CREDIT = 10**6
DAY = 20_000


def used(serial: int, micro: int, *, tenant: str = "lab", day: int = DAY, node: str = "n") -> UsageRecorded:
    """A fact that costs ``micro`` at the base price of the standard tier (1 micro-credit a core-nanosecond)."""
    at_ns = day * DAY_NS
    return UsageRecorded(node, 1, 0, serial, "s", tenant, "t", 0, at_ns, at_ns + SECOND, micro, 0, 1, 1)


def budget(period: str, limit: int, *, at_day: int = DAY, warn: int = 80, stop: int = 100) -> BudgetSet:
    return BudgetSet(at_day * DAY_NS, "lab", period, limit, warn, stop)


def fold(*messages: list[Event]) -> BillingView:
    view = BillingView()
    for position, events in enumerate(messages, start=1):
        view.apply(position, events)
    return view


def due(view: BillingView) -> list[tuple[str, str, int, int]]:
    """(period, threshold, used, position) of the crossings that the log lacks, in order."""
    return [(fact.period, fact.threshold, fact.used_micro, fact.position) for fact in view.budgets.due.values()]


def test_a_budget_warns_then_stops_and_says_so_once_each() -> None:
    view = fold([budget("day", 100)], [used(1, 79)], [used(2, 1)], [used(3, 19)], [used(4, 1)], [used(5, 50)])
    assert due(view) == [("day", WARNING, 80, 3), ("day", STOPPED, 100, 5)]


def test_one_fact_past_both_thresholds_stops_at_once() -> None:
    assert due(fold([budget("total", 100)], [used(1, 500)])) == [("total", STOPPED, 500, 2)]


def test_what_was_used_before_the_budget_counts_in_its_period() -> None:
    view = fold([used(1, 90)], [used(2, 5, day=DAY - 1)], [budget("day", 100)])
    assert view.budgets.by_tenant["lab"]["day"].used_micro == 90 and due(view) == [("day", WARNING, 90, 3)]
    assert fold([used(1, 90, day=DAY - 1)], [budget("day", 100)]).budgets.by_tenant["lab"]["day"].used_micro == 0


def test_a_higher_limit_opens_and_no_limit_ends_the_budget() -> None:
    view = fold([budget("month", 100)], [used(1, 100)], [budget("month", 1000)])
    assert [crossing[1:] for crossing in due(view)] == [(STOPPED, 100, 2), (OPEN, 100, 3)]
    view = fold([budget("month", 100)], [used(1, 100)], [budget("month", -1)])
    assert view.budgets.by_tenant["lab"] == {} and due(view)[-1] == ("month", OPEN, 100, 3)


def test_a_grant_lifts_the_total_and_no_other_budget() -> None:
    grant = GrantRecorded(DAY * DAY_NS, "g", "lab", 50)
    view = fold([budget("total", 0), budget("day", 40)], [grant], [used(1, 45)])
    assert {period: found.level for period, found in view.budgets.by_tenant["lab"].items()} == {"total": WARNING, "day": STOPPED}
    assert due(view)[:2] == [("total", STOPPED, 0, 1), ("total", OPEN, 0, 2)], "with the limit 0 nothing may be used before a grant"
    again = fold([budget("total", 0)], [grant], [grant], [used(1, 45)])
    assert again.budgets.granted == {"lab": 50}, "a grant counts once"


def test_a_new_period_opens_with_the_first_use_or_when_any_device_gets_there() -> None:
    stopped = [[budget("day", 100)], [used(1, 100)]]
    view = fold(*stopped, [used(2, 10, day=DAY + 1)])
    assert due(view)[-1] == ("day", OPEN, 10, 3) and view.budgets.by_tenant["lab"]["day"].from_ns == (DAY + 1) * DAY_NS
    account = DeviceAccounted("other", 1, 0, 1, (DAY + 1) * DAY_NS, SECOND, 1, 0, 0, SECOND, 1, 0)
    assert due(fold(*stopped, [account]))[-1] == ("day", OPEN, 0, 3)


def test_a_late_fact_of_an_earlier_period_is_charged_there() -> None:
    view = fold([budget("day", 100, at_day=DAY)], [used(1, 60, day=DAY + 1)], [used(2, 70, day=DAY)])
    assert view.budgets.by_tenant["lab"]["day"].used_micro == 60
    assert view.budgets.used_micro("lab", DAY * DAY_NS, (DAY + 1) * DAY_NS) == 70


def test_sums_beyond_64_bits_are_clamped_in_facts_and_whole_in_the_view() -> None:
    """A tenant that used a thousand devices for years, then got a budget; and one that was granted as much."""
    much = 10**18
    view = fold(*([used(serial, much)] for serial in range(1, 31)), [budget("total", much)])
    ((_, threshold, told, _),) = due(view)
    assert threshold == STOPPED and told == (1 << 63) - 1 and view.budgets.used_micro("lab", 0, 0) == 30 * much
    encode_events(list(view.budgets.due.values()))
    grants: list[list[Event]] = [[GrantRecorded(0, str(number), "lab", much)] for number in range(30)]
    left = binding(fold([budget("total", 0)], *grants).budgets, "lab", DAY * DAY_NS)
    assert left is not None and left.micro == 30 * much
    leases, answer = lend(Leases(), "n", 0, left=left, billed={}, unbilled_micro=0, busy=True, tenant="lab")
    assert answer.state == GRANTED and answer.micro == leases.nodes["n"].ceiling_micro
    msgspec.msgpack.encode(answer)


def test_thresholds_of_zero_percent_never_hold() -> None:
    assert due(fold([budget("day", 100, warn=0, stop=0)], [used(1, 10**9)])) == []
    assert due(fold([budget("day", 100, warn=0, stop=150)], [used(1, 149)], [used(2, 1)])) == [("day", STOPPED, 150, 3)]


def test_the_log_holding_a_crossing_settles_it_and_one_that_does_not_follow_is_found() -> None:
    view = fold([budget("day", 100)], [used(1, 100)])
    (fact,) = view.budgets.due.values()
    view.apply(3, [fact])
    view.apply(4, [fact])
    assert not view.budgets.due and not view.findings, "a repeat says nothing new"
    view.apply(5, [BudgetCrossed(0, "lab", STOPPED, 0, 1, 1, 4, "day")])
    assert "does not follow from the log" in view.findings[0]


def test_an_unknown_period_is_a_finding_and_no_budget() -> None:
    view = fold([budget("week", 100)])
    assert not view.budgets.by_tenant and "'week'" in view.findings[0]


@pytest.mark.parametrize(
    ("month", "days"), [("2028-02", 29), ("2026-02", 28), ("2026-12", 31), ("2100-02", 28), ("1970-01", 31), ("2000-02", 29)]
)
def test_months_are_the_calendars(month: str, days: int) -> None:
    from_ns, to_ns = month_bounds(month)
    assert (to_ns - from_ns) // DAY_NS == days
    for at_ns in (from_ns, to_ns - 1):
        assert bounds("month", at_ns) == (from_ns, to_ns) and month_name(at_ns) == month
    assert bounds("day", from_ns)[0] == from_ns and bounds("total", from_ns) == (0, 0)


@pytest.mark.parametrize(("after_ms", "answer"), [(0, 0), (30_000, 0), (31_000, 0), (31_999, 0), (32_000, 100), (60_000, 100)])
def test_a_lease_binds_billing_two_seconds_longer_than_the_node(after_ms: int, answer: int) -> None:
    """The node counts its 30 s from when the answer arrived, by its own clock. What it was lent is given to no other before."""
    left = binding(fold([budget("total", 100)]).budgets, "lab", DAY * DAY_NS)
    assert left is not None
    leases, first = lend(Leases(), "n1", 0, left=left, billed={}, unbilled_micro=0, busy=True, tenant="lab")
    assert (first.micro, first.valid_ms) == (100, 30_000)
    _, second = lend(leases, "n2", after_ms, left=left, billed={}, unbilled_micro=0, busy=True, tenant="lab")
    assert second.micro == answer


def test_names_of_thresholds_are_those_of_the_log() -> None:
    """They stand in facts for ever: another name would be a threshold that no reader knows."""
    assert (OPEN, WARNING, STOPPED) == ("open", "warning", "stopped")
