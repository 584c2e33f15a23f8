"""Usage of a node with a key of its own is charged as far as keys, tasks, placements and the broker's clock support it."""

from __future__ import annotations

from typing import Any

import pytest

from billing.projection import BillingView, verify
from billing.report import credit_report
from bus_schemas.events import (
    DeviceAccounted,
    DeviceFact,
    Event,
    KeyIssued,
    NodeRegistered,
    SessionClosedFact,
    SessionOpenedFact,
    TaskPlaced,
    TaskSubmitted,
    UsageRecorded,
)

SECOND = 10**9
HOUR = 3_600 * SECOND
START = 1_700_000_000 * SECOND
GIB = 1 << 30


def key(name: str, tenant: str, role: str = "member", node: str = "") -> KeyIssued:
    return KeyIssued(START, name, tenant, "", role, "hash", node=node)


KEYS = [key("kn", "", "node", "n"), key("ke", "", "node", "evil"), key("ka", "acme"), key("kb", "beta"), key("root", "", "admin")]
NODES = [NodeRegistered(START, name, name, "", 1, (DeviceFact(0, "d", "host", 8, GIB),)) for name in ("n", "evil")]
PLACED = [TaskSubmitted(START, "t", "beta", 2, GIB), TaskPlaced(START, "t", "n", (0,), (), (), 0)]


def opened(session: str, node: str = "n", tenant: str = "beta", task: str = "") -> SessionOpenedFact:
    return SessionOpenedFact(START, session, tenant, task, node, 0, 2, GIB, title=f"{session} on {node}")


def used(session: str, node: str = "n", tenant: str = "beta", task: str = "", **more: Any) -> UsageRecorded:
    terms = {"serial": 1, "from_ns": START, "to_ns": START + SECOND, "core_ns": 8 * SECOND, "byte_ms": 1_000 * GIB, "gpu": 0, "epoch": 1}
    terms |= more
    return UsageRecorded(node=node, session=session, tenant=tenant, task=task, priority=2, instructions=1, launches=1, **terms)


def fold(*events: Event, at_ns: int = START) -> BillingView:
    """The log of the cluster and ``events``, each stored at its own time of usage, else at ``at_ns``."""
    view = BillingView()
    for position, event in enumerate([*KEYS, *NODES, *PLACED, *events], start=1):
        view.apply(position, [event], getattr(event, "to_ns", at_ns))
    return view


def charged(view: BillingView) -> int:
    return sum(row.core_ns for row in view.rows.values())


@pytest.mark.parametrize(
    ("session", "tenant", "task"),
    [("kb-s", "beta", "t"), ("kb-s", "beta", ""), ("ka-s", "acme", ""), ("root-s", "beta", "t"), ("root-s", "anyone", "")],
)
def test_an_honest_node_is_believed(session: str, tenant: str, task: str) -> None:
    view = fold(
        opened(session, "n", tenant, task), used(session, "n", tenant, task), SessionClosedFact(START, session, "n", "", 0, 0, 0, 0, "")
    )
    assert charged(view) == 8 * SECOND and not view.findings


def test_compiling_is_charged_as_time_of_one_core() -> None:
    view = fold(opened("kb-s"), used("kb-s", compile_ns=3 * SECOND))
    assert charged(view) == 11 * SECOND and not view.findings
    assert -view.ledger.balance_micro("beta") == 12 * SECOND, "11 core-seconds and 1 GiB-second at 1,000 credits"


def test_a_bus_without_keys_is_believed() -> None:
    view = fold(used("s", "open", core_ns=10**15))
    assert charged(view) == 10**15 and not view.findings


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([used("unknown", "evil")], "no such session counts there"),
        ([opened("kb-s"), used("kb-s", "evil")], "no such session counts there"),
        ([opened("kb-s", "evil", task="t"), used("kb-s", "evil", task="t")], "its task was not placed on the node"),
        ([opened("kb-s", "evil", task="none"), used("kb-s", "evil", task="none")], "the tenant has no such task"),
        ([opened("ka-s", "evil"), used("ka-s", "evil")], "its name is of no key of the tenant"),
        ([opened("ke-s", "evil"), used("ke-s", "evil")], "its name is of no key of the tenant"),
        ([opened("s", "evil"), used("s", "evil")], "its name is of no key of the tenant"),
        ([opened("ka-s", "n", "acme", "t"), used("ka-s", "n", "acme", "t")], "the tenant has no such task"),
        ([opened("ka-s", "n", "acme"), used("ka-s", "n", "beta")], "its session has another tenant, task or device"),
        ([opened("kb-s"), used("kb-s", task="t")], "its session has another tenant, task or device"),
        ([opened("kb-s"), used("kb-s", gpu=1)], "its session has another tenant, task or device"),
        ([opened("kb-s"), SessionClosedFact(START, "kb-s", "n", "", 0, 0, 0, 0, ""), used("kb-s")], "no such session counts there"),
        ([opened("kb-s"), used("kb-s", core_ns=8 * SECOND + 1)], "more core time than the device has"),
        ([opened("kb-s"), used("kb-s", core_ns=10**15)], "more core time than the device has"),
        ([opened("kb-s"), used("kb-s", to_ns=START)], "more core time than the device has"),
        ([opened("kb-s"), used("kb-s", byte_ms=1_000 * GIB + 2)], "more memory than the device has"),
        ([opened("kb-s"), used("kb-s", compile_ns=2 * HOUR)], "more time than the device had sessions for"),
        ([opened("kb-s"), used("kb-s", from_ns=START - 2 * HOUR)], "it is dated before its session or in the future"),
    ],
)  # fmt: skip
def test_what_the_log_does_not_support_is_a_finding_and_not_charged(events: list[Event], why: str) -> None:
    view = fold(*events)
    assert (charged(view), view.ledger.balance_micro("beta")) == (0, 0)
    assert len(view.findings) <= 2 and why in view.findings[0]
    assert not verify(view, fold(*events)).ok and view.unbelieved == {events[-1].node: 1}  # type: ignore[union-attr]  # usage


def test_sessions_of_a_device_share_what_it_has_in_an_interval() -> None:
    two = [opened("kb-s"), opened("ka-s", tenant="acme")]
    view = fold(*two, used("kb-s", core_ns=6 * SECOND), used("ka-s", tenant="acme", serial=2, core_ns=3 * SECOND, byte_ms=0))
    assert charged(view) == 6 * SECOND and view.unbelieved == {"n": 1}


def test_a_device_is_paid_for_the_time_in_which_it_had_sessions() -> None:
    """Nothing is earned by intervals that overlap, by dates to come, by opening again and again, or while nothing is open."""
    view = BillingView()
    closing = SessionClosedFact(START, "kb-s", "evil", "", 0, 0, 0, 0, "")
    serials = iter(range(1, 10**6))
    for position in range(1, 400):
        at_ns = START + position * SECOND
        half = [
            used(
                "kb-s",
                "evil",
                serial=next(serials),
                core_ns=8 * 60 * SECOND,
                byte_ms=0,
                from_ns=at_ns + shift,
                to_ns=at_ns + shift + 60 * SECOND,
            )
            for shift in range(-20, 20)
        ]
        more: list[Event] = [*KEYS, *NODES] if position == 1 else []
        view.apply(position, [*more, opened("kb-s", "evil"), *half, *([closing] if position % 2 else [])], at_ns)
    assert charged(view) <= 8 * (400 * SECOND + 60 * SECOND + HOUR)
    assert view.unbelieved["evil"] > 15_000
    future = fold(opened("kb-s"), used("kb-s"))
    future.apply(10**6, [used("kb-s", serial=2, from_ns=START + 2 * HOUR, to_ns=START + 2 * HOUR + SECOND)], START + SECOND)
    assert charged(future) == 8 * SECOND and "in the future" in future.findings[0]


def test_a_node_cannot_fill_the_findings() -> None:
    """Whatever it writes and however often, what is found about another node is found."""
    wrong: list[Event] = []
    for serial in range(1, 3_000, 2):
        wrong.append(DeviceAccounted("evil", 1, 0, serial, START, 1, 1, 5, 0, 0, 1, 0))
        wrong.append(DeviceAccounted("evil", 2, 0, serial, START, -1, 1, 0, 0, -1, 1, 0))
        wrong.append(used("unknown", "evil", serial=serial, core_ns=-1))
    view = fold(*wrong, used("unknown"))
    assert len(view.findings) < 10 and view.findings[-1] == "node n, usage of beta, not charged: no such session counts there"


def test_titles_are_those_of_the_node_that_has_the_session() -> None:
    """Another node can not name a tenant's model."""
    for order in ((opened("kb-s"), opened("kb-s", "open")), (opened("kb-s", "open"), opened("kb-s"))):
        lines = credit_report(
            fold(*order, used("kb-s"), SessionClosedFact(1, "kb-s", "open", "", 0, 0, 0, 0, ""), used("kb-s", serial=2)), "model"
        ).items
        assert [line.key for line in lines] == ["kb-s on n"]


def test_a_node_does_not_open_used_up_budgets_by_a_date_to_come() -> None:
    view = fold(opened("kb-s"))
    view.apply(10**6, [DeviceAccounted("n", 1, 0, 1, START + 1_000 * HOUR, SECOND, 8, 0, 0, 8 * SECOND, 1, 0)], START)
    assert view.budgets.reached_ns == START + HOUR


def test_a_saved_view_goes_on_as_the_whole_log_does() -> None:
    first, rest = [opened("kb-s", task="t"), used("kb-s", task="t")], [used("kb-s", task="t", serial=2), used("kb-s", "evil", serial=3)]
    whole, half = fold(*first, *rest), BillingView.decode(fold(*first).encode())
    for position, event in enumerate(rest, start=half.position + 1):
        half.apply(position, [event], event.to_ns)
    assert half.digest() == whole.digest()


def test_a_node_that_gets_its_first_key_while_sessions_are_open_is_charged_as_before() -> None:
    """One of them ends later: that must not count as if another had."""
    view = BillingView()
    events: list[Event] = [NODES[0], key("kb", "beta"), opened("old"), KEYS[0], SessionClosedFact(START, "old", "n", "", 0, 0, 0, 0, "")]
    for position, event in enumerate(events, start=1):
        view.apply(position, [event], START)
    view.apply(10, [opened("kb-s")], START)
    for minute in range(300):
        from_ns = START + minute * 60 * SECOND
        usage = used("kb-s", serial=minute + 1, from_ns=from_ns, to_ns=from_ns + 60 * SECOND, core_ns=SECOND, byte_ms=0)
        view.apply(11 + minute, [usage], usage.to_ns)
    assert charged(view) == 300 * SECOND and not view.findings
