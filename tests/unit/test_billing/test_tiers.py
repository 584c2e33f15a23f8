"""Tiers and prices: from when they hold, that they never work backwards, and the ceiling of priority."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from billing.projection import BillingView
from billing.tariff import BASE_PRICES, Tariff
from billing.tiers import BASE_CEILINGS, TierBook, priority_refusal, task_excess, task_refusal
from bus_schemas.events import Event, GrantRecorded, TariffSet, TaskSubmitted, TierSet, UsageRecorded

SECOND = 10**9


def used(serial: int, at_ns: int) -> UsageRecorded:
    """One core-nanosecond from ``at_ns`` on: one micro-credit at the base price of the standard tier."""
    return UsageRecorded("n", 1, 0, serial, "s", "lab", "t", 0, at_ns, at_ns + 1, 1, 0, 1, 1)


def charged(*messages: list[Event]) -> int:
    view = BillingView()
    for position, events in enumerate(messages, start=1):
        view.apply(position, events)
    return -view.ledger.balance_micro("lab")


def dear(at_ns: int, from_ns: int, times: int = 10) -> TariffSet:
    return TariffSet(at_ns, "standard", from_ns, times * SECOND, times * SECOND)


def test_base_prices_and_ceilings_are_frozen() -> None:
    """Old bills are recomputed with them, for ever."""
    assert {tier: (p.from_ns, p.core_second_micro, p.gib_second_micro) for tier, p in BASE_PRICES.items()} == {
        "premium": (0, 1_500_000_000, 1_500_000_000),
        "standard": (0, 1_000_000_000, 1_000_000_000),
        "basic": (0, 700_000_000, 700_000_000),
    }
    assert BASE_CEILINGS == {"premium": 0, "standard": 0, "basic": 2}


def test_a_price_holds_from_its_moment_on() -> None:
    assert charged([dear(5, 100)], [used(1, 99)], [used(2, 100)]) == 11


def test_a_price_of_the_past_changes_nothing_that_was_used_before_it_was_set() -> None:
    """Not even what reaches the log later: a node that was cut off has its facts charged as they were used."""
    assert charged([used(1, 10)], [dear(50, 0)], [used(2, 49)], [used(3, 50)]) == 12


def test_windows_tell_what_holds_when() -> None:
    tariff = Tariff()
    tariff.record(dear(0, 100, 2))
    tariff.record(dear(0, 300, 3))
    tariff.record(dear(0, 200, 5))  # set last: from 200 on it replaces what was set before it
    windows = tariff.windows("standard")
    assert [(w.from_ns, w.to_ns, w.price.core_second_micro // SECOND) for w in windows] == [(0, 100, 1), (100, 200, 2), (200, 0, 5)]
    for window in windows:
        assert tariff.at("standard", window.from_ns) == window.price


def test_a_tenants_tier_holds_from_its_moment_on() -> None:
    basic = TierSet(5, "basic", 0, "lab", 100)
    assert charged([basic], [used(1, 99)], [used(2, 100)]) == 1, "0.7 micro-credits, rounded down"
    granted = GrantRecorded(50, "g", "lab", 0, "basic")
    assert charged([granted], [used(1, 49)], [used(2, 50)]) == 1


@pytest.mark.parametrize(("priority", "refused"), [(0, True), (1, True), (2, False), (4, False)])
def test_a_priority_above_the_ceiling_is_refused_by_name(priority: int, refused: bool) -> None:
    book = TierBook()
    book.apply(1, TierSet(0, "basic", 0, "lab"))
    text = priority_refusal(book, "lab", priority, 10)
    assert (text is not None) == refused
    if text is not None:
        assert "'lab'" in text and "tier basic" in text and "PRIO=2" in text


def test_ceilings_have_windows_and_others_are_free() -> None:
    book = TierBook()
    book.apply(1, TierSet(10, "standard", 3, "", 100))
    assert [book.ceiling_of("anyone", at_ns) for at_ns in (0, 99, 100)] == [0, 0, 3]
    assert priority_refusal(book, "anyone", 0, 99) is None and priority_refusal(book, "anyone", 2, 100) is not None
    book.apply(2, TierSet(110, "standard", 0, "", 0))
    assert [book.ceiling_of("anyone", at_ns) for at_ns in (105, 110)] == [3, 0], "no effect backwards"


def test_the_default_vram_of_a_tier_has_windows_too() -> None:
    book = TierBook()
    book.apply(1, TierSet(10, "premium", 1, "", 100, 8192))
    assert [book.default_vram_mb("premium", at_ns) for at_ns in (0, 99, 100)] == [0, 0, 8192]
    book.apply(2, TierSet(110, "premium", 2))
    assert [book.default_vram_mb("premium", at_ns) for at_ns in (109, 110)] == [8192, 0], "0: the cluster's default"
    assert book.default_vram_mb("standard", 120) == 0


@pytest.mark.parametrize(
    ("terms", "live", "queued", "quota"),
    [
        (None, 999, 499, None),
        (None, 1_000, 0, "live_tasks"),
        (None, 999, 500, "queued_tasks"),
        (TierSet(0, "standard", 0, live_tasks=2), 1, 1, None),
        (TierSet(0, "standard", 0, live_tasks=2), 2, 1, "live_tasks"),
        (TierSet(0, "standard", 0, live_tasks=1_001), 1_000, 0, None),
        (TierSet(0, "standard", 0, queued_tasks=3), 3, 2, None),
        (TierSet(0, "standard", 0, queued_tasks=3), 3, 3, "queued_tasks"),
        (TierSet(0, "basic", 0, queued_tasks=3), 3, 3, None),
    ],
)
def test_a_tier_limits_the_tasks_of_a_tenant(terms: TierSet | None, live: int, queued: int, quota: str | None) -> None:
    book = TierBook()
    if terms is not None:
        book.apply(1, terms)
    task = TaskSubmitted(9, "t", "lab", 0, 1, queue=True)
    excess = task_excess(book, task, live, queued, 10)
    assert (excess.quota if excess is not None else None) == quota
    if excess is not None:
        assert excess.used >= excess.limit and excess.retry_after_ms > 0
    if quota == "queued_tasks":
        assert task_excess(book, replace(task, queue=False), live, queued, 10) is None, "it would not wait"


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        (None, None),
        (TierSet(0, "standard", 0, exclusive=False), "gpu_mode"),
        (TierSet(0, "standard", 1), "priority"),
        (TierSet(0, "basic", 0, "lab"), "priority"),
    ],
)
def test_a_tier_gives_rights_to_tasks(terms: TierSet | None, field: str | None) -> None:
    book = TierBook()
    if terms is not None:
        book.apply(1, terms)
    refusal = task_refusal(book, TaskSubmitted(9, "t", "lab", 0, 1, exclusive=True), 10)
    assert (refusal[0] if refusal is not None else None) == field
    if refusal is not None:
        assert "tier " in refusal[1] and "use " in refusal[1]


def test_exclusive_devices_are_a_right_of_a_tier() -> None:
    book = TierBook()
    assert [book.exclusive(tier, 1) for tier in ("premium", "standard", "basic")] == [True, True, False]
    book.apply(1, TierSet(0, "basic", 2, exclusive=True))
    assert book.exclusive("basic", 1) and book.live_tasks("basic", 1) == 1_000
