"""Billing as its users meet it: facts in, credits out, and what does not add up is named."""

from __future__ import annotations

import msgspec
import pytest

from billing.errors import BillingRequestError, CorruptSnapshotError, LedgerImbalanceError
from billing.ledger import Ledger
from billing.projection import MINUTE_NS, BillingView, verify
from billing.report import credit_report, credits_text, report_csv
from bus_schemas.events import DeviceAccounted, Event, GrantRecorded, TariffSet, UsageRecorded

SECOND = 1_000_000_000


def usage(
    serial: int, *, tenant: str = "acme", task: str = "t1", node: str = "n1", minute: int = 0, core_ns: int = SECOND
) -> UsageRecorded:
    start = minute * MINUTE_NS
    return UsageRecorded(node, 1, 0, serial, "s", tenant, task, 0, start, start + SECOND, core_ns, (1 << 30) * 1_000, 10, 1)


def fold(*messages: list[Event]) -> BillingView:
    view = BillingView()
    for position, events in enumerate(messages, start=1):
        view.apply(position, events)
    return view


def test_one_core_second_and_one_gib_second_cost_the_base_price() -> None:
    total = credit_report(fold([usage(1)]), "tenant").total
    assert (total.core_credits_micro, total.vram_credits_micro) == (1_000_000_000, 1_000_000_000)


def test_a_repeated_fact_is_charged_once() -> None:
    """A node that restarts sends again what it does not know to be stored."""
    once, twice = fold([usage(1)]), fold([usage(1)], [usage(1)])
    assert once.ledger.balances == twice.ledger.balances
    assert twice.findings == []


def test_a_replayed_message_changes_nothing() -> None:
    view = fold([usage(1)])
    before = view.digest()
    view.apply(1, [usage(2)])
    assert view.digest() == before


def test_a_missing_fact_is_named() -> None:
    assert "jumps from serial 1 to 3" in fold([usage(1)], [usage(3)]).findings[0]


def test_the_identity_of_a_device_is_checked_against_its_usage_facts() -> None:
    good = DeviceAccounted("n1", 1, 0, 1, 0, 2 * SECOND, 2, SECOND, 5, 3 * SECOND - 5, 1, 1)
    assert fold([usage(1)], [good]).findings == []
    short = DeviceAccounted("n1", 1, 0, 1, 0, 2 * SECOND, 2, SECOND, 5, 3 * SECOND - 6, 1, 1)
    assert "wall x cores" in fold([usage(1)], [short]).findings[0]
    wrong = DeviceAccounted("n1", 1, 0, 1, 0, 2 * SECOND, 2, SECOND + 1, 5, 3 * SECOND - 6, 1, 1)
    assert "usage facts sum to" in fold([usage(1)], [wrong]).findings[0]


def test_recovered_core_time_is_not_charged() -> None:
    view = fold([msgspec.structs.replace(usage(1), recovered_ns=SECOND // 4)])
    assert view.findings == []
    whole = fold([usage(1)])
    (some,), (all_of_it,) = view.rows.values(), whole.rows.values()
    assert some.core_ns == all_of_it.core_ns - SECOND // 4 and some.core_micro < all_of_it.core_micro
    assert (some.byte_ms, some.launches) == (all_of_it.byte_ms, all_of_it.launches)


@pytest.mark.parametrize(
    "changed", [{"recovered_ns": SECOND + 1}, {"recovered_ns": -1}, {"core_ns": -SECOND}, {"byte_ms": -(1 << 30)}, {"compile_ns": -SECOND}]
)
def test_use_of_less_than_nothing_is_a_finding_and_no_credit(changed: dict[str, int]) -> None:
    view = fold([usage(1)], [msgspec.structs.replace(usage(2), **changed)], [usage(3)])
    assert credit_report(view, "tenant").total == credit_report(fold([usage(1)], [usage(2)]), "tenant").total
    assert view.findings == ["usage of n1/1/0 serial 2 is less than nothing"]


def test_accounts_that_name_more_facts_than_there_can_be_are_a_finding_at_once() -> None:
    """A node writes what it likes about itself; it must not stop the bills of others."""
    far = 1 << 62
    vast = DeviceAccounted("n1", 1, 0, 1, 0, SECOND, 1, 5, 0, SECOND - 5, -far, far)
    assert "usage facts sum to 1000000000" in fold([usage(far)], [vast]).findings[1]


def test_a_new_tariff_has_no_effect_backwards() -> None:
    dearer = TariffSet(0, "standard", MINUTE_NS, 2_000_000_000, 0)
    view = fold([usage(1, minute=0)], [dearer], [usage(2, minute=0)], [usage(3, minute=1)])
    cores = {key[0]: row.core_micro for key, row in view.rows.items()}
    assert cores == {0: 2_000_000_000, 1: 2_000_000_000}


def test_a_tier_comes_with_a_grant_and_the_grant_counts_once() -> None:
    grant = GrantRecorded(0, "g1", "acme", 5_000_000, "premium")
    view = fold([grant], [grant], [usage(1)])
    assert credit_report(view, "tenant").total.core_credits_micro == 1_500_000_000
    assert view.ledger.balance_micro("acme") == 5_000_000 - 1_500_000_000 - 1_500_000_000


def test_ledger_refuses_an_imbalance_and_stays_as_it_was() -> None:
    ledger = Ledger()
    with pytest.raises(LedgerImbalanceError):
        ledger.post({"a": 1, "b": -2})
    assert ledger.balances == {} and ledger.transactions == 0


def test_report_groups_and_cuts_to_the_period() -> None:
    view = fold([usage(1, task="a"), usage(2, task="b", minute=1)], [usage(3, task="a", minute=2)])
    assert [line.key for line in credit_report(view, "task").items] == ["a", "b"]
    cut = credit_report(view, "task", MINUTE_NS, 2 * MINUTE_NS)
    assert [line.key for line in cut.items] == ["b"] and cut.total.launches == 1


@pytest.mark.parametrize(("by", "start", "end", "field"), [("colour", 0, 0, "by"), ("task", -1, 0, "from"), ("task", 5, 5, "to")])
def test_a_bad_report_request_names_the_field(by: str, start: int, end: int, field: str) -> None:
    with pytest.raises(BillingRequestError) as raised:
        credit_report(BillingView(), by, start, end)
    assert raised.value.field == field


def test_csv_is_exact_and_harmless_to_spreadsheets() -> None:
    lines = report_csv(credit_report(fold([usage(1, tenant="=1+1")]), "tenant")).splitlines()
    assert lines[1].startswith("'=1+1,1000.000000,1000.000000,")
    assert lines[2].startswith("total,1000.000000,")


@pytest.mark.parametrize(("micro", "text"), [(0, "0.000000"), (1, "0.000001"), (-1_500_000, "-1.500000")])
def test_credits_text(micro: int, text: str) -> None:
    assert credits_text(micro) == text


def test_verify_names_the_first_difference() -> None:
    view, log = fold([usage(1)]), fold([usage(1)])
    assert verify(view, log).ok
    view.rows[(0, "acme", "t1", "n1", "")].core_micro += 1
    result = verify(view, log)
    assert not result.ok and result.first_difference.startswith("row minute=0 tenant=acme task=t1 node=n1")


def test_a_snapshot_round_trips_and_a_torn_one_says_what_to_do() -> None:
    view = fold([usage(1), usage(2, tenant="b")], [GrantRecorded(0, "g", "b", 5)])
    assert BillingView.decode(view.encode()).digest() == view.digest()
    with pytest.raises(CorruptSnapshotError, match="delete it"):
        BillingView.decode(view.encode()[:-3])


@pytest.mark.parametrize("late", [1, 2, 3])
def test_a_late_duplicate_of_an_older_fact_is_charged_once(late: int) -> None:
    """Three facts arrived; any of them comes again in a new message, not only the last one."""
    messages: list[list[Event]] = [[usage(serial, core_ns=serial * SECOND)] for serial in (1, 2, 3)]
    once, again = fold(*messages), fold(*messages, [usage(late, core_ns=late * SECOND)])
    assert again.ledger.balances == once.ledger.balances
    assert again.rows == once.rows and again.devices == once.devices and again.findings == []


@pytest.mark.parametrize("late", [1, 2])
def test_a_late_duplicate_of_older_accounts_is_counted_once(late: int) -> None:
    def account(serial: int) -> DeviceAccounted:
        return DeviceAccounted("n1", 1, 0, serial, 0, 2 * SECOND, 1, SECOND, 0, SECOND, serial, serial)

    messages: list[list[Event]] = [[usage(1)], [usage(2)], [account(1)], [account(2)]]
    once, again = fold(*messages), fold(*messages, [account(late)])
    assert once.findings == again.findings == []
    assert again.devices == once.devices and again.devices["n1", 1, 0].wall_core_ns == 4 * SECOND
