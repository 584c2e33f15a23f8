"""What a task pays for devices that it holds and does not use: from its placement on if it does not start, nothing if it starts at once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from billing.allowance import binding
from billing.holds import HELD, NEVER_STARTED, QUEUE_TIMEOUT, START_NS
from billing.ledger import CORE
from billing.projection import BillingView, verify
from billing.statement import statement
from bus_schemas.events import (
    BudgetSet,
    DeviceAccounted,
    DeviceFact,
    Event,
    NodeLost,
    NodeRecovered,
    NodeRegistered,
    SessionClosedFact,
    SessionOpenedFact,
    TariffSet,
    TaskDisplaced,
    TaskPlaced,
    TaskStateChanged,
    TaskStayed,
    TaskSubmitted,
    decode_events,
    encode_events,
)
from scheduler.placement.states import REASON_NEVER_STARTED, REASON_QUEUE_TIMEOUT

S = 10**9
CORES, PRICE = 4, 1_000_000_000


class Log:
    """A node with two devices. Times are seconds since the day before a month began."""

    def __init__(self) -> None:
        self.messages: list[list[Event]] = []
        self.serials = [0, 0]
        devices = tuple(DeviceFact(gpu, "gpu", "cuda", CORES, 1 << 30) for gpu in (0, 1))
        self.add(NodeRegistered(0, "n", "n", "", 1, devices))

    def add(self, *events: Event) -> None:
        self.messages.append(decode_events(encode_events(list(events))))

    def task(self, at_s: int, *, percent: int = 100, gpus: tuple[int, ...] = (0,), nbytes: int = 0, **more: Any) -> None:
        """``nbytes``: it shares the device."""
        self.add(TaskSubmitted(at_s * S, "t", "acme", 2, nbytes or 1, exclusive=not nbytes, hold_percent=percent, **more))
        self.add(TaskPlaced(at_s * S, "t", "n", gpus, (), (), 0))

    def opens(self, at_s: float, *, gpu: int = 0, session: str = "s", tenant: str = "acme") -> None:
        self.add(SessionOpenedFact(int(at_s * S), session, tenant, "t", "n", gpu, 2, 0))

    def closes(self, at_s: int, session: str = "s") -> None:
        self.add(SessionClosedFact(at_s * S, session, "n", "", 0, 0, 0, 0, ""))

    def over(self, at_s: int, state: str = "failed") -> None:
        self.add(TaskStateChanged(at_s * S, "t", state, ""))

    def accounts(self, from_s: int, to_s: int, *, gpu: int = 0, idle_part: int = 1) -> None:
        """An interval; ``idle_part``: of its core time one part of so many is idle, the rest the scheduler's."""
        self.serials[gpu] += 1
        whole = (to_s - from_s) * S * CORES
        idle = whole // idle_part
        self.add(DeviceAccounted("n", 1, gpu, self.serials[gpu], from_s * S, (to_s - from_s) * S, CORES, 0, whole - idle, idle, 1, 0))

    def fold(self, *, view: BillingView | None = None) -> BillingView:
        view = view or BillingView()
        for position, events in enumerate(self.messages, start=1):
            view.apply(position, events)
        return view

    def charged(self) -> float:
        """Core-seconds."""
        view = self.fold()
        assert not view.findings
        held = sum(row.core_ns for key, row in view.rows.items() if key[1:] == ("acme", "t", "n", HELD))
        assert sum(row.core_ns for row in view.rows.values()) == held and -view.ledger.balances.get(CORE, 0) == held * PRICE // S
        assert sum(view.ledger.balances.values()) == 0
        again = BillingView.decode(view.encode())
        assert again.digest() == view.digest() and verify(again, self.fold()).ok
        return held / S


def test_a_task_that_never_starts_pays_from_its_placement_on() -> None:
    log = Log()
    log.accounts(0, 60)
    log.task(100)
    log.accounts(60, 120)
    log.accounts(120, 180)
    assert log.charged() == 80 * CORES, "while it holds: a budget is used up in time"
    log.over(220)
    log.accounts(180, 240)
    log.accounts(240, 300)
    assert log.charged() == 120 * CORES


def test_a_quick_start_is_free_and_a_late_one_pays_from_the_placement_on() -> None:
    quick, late = Log(), Log()
    for log, start_s in ((quick, 100 + START_NS / S), (late, 100 + START_NS / S + 0.5)):
        log.task(100)
        log.opens(start_s)
        log.accounts(60, 120)
        log.closes(130)
        log.accounts(120, 180)
    assert quick.charged() == 0
    assert late.charged() == (START_NS / S + 0.5) * CORES


def test_a_task_that_is_cancelled_before_it_started_has_no_free_time() -> None:
    """Else another could be placed every few seconds, free of charge. The accounts may come before and after the end."""
    before, after = Log(), Log()
    for log, order in ((before, "account first"), (after, "end first")):
        log.task(100)
        if order == "account first":
            log.accounts(60, 104)
            assert log.charged() == 0, "it may still start"
        log.over(103, "cancelled")
        log.accounts(104 if order == "account first" else 60, 160)
    assert (before.charged(), after.charged()) == (4 * CORES, 3 * CORES)


def test_a_task_that_shares_a_device_pays_for_the_memory_it_was_promised() -> None:
    log, quick = Log(), Log()
    for one in (log, quick):
        one.task(100, nbytes=2 << 30, percent=50)
    log.accounts(60, 160, idle_part=2)
    quick.opens(101)
    quick.accounts(60, 160)
    (row,) = log.fold().rows.values()
    assert (row.core_ns, row.byte_ms, row.core_micro, row.vram_micro) == (0, (2 << 30) * 60_000, 0, 60 * PRICE)
    assert not quick.fold().rows


def test_each_device_is_held_until_a_session_opens_on_it() -> None:
    log = Log()
    log.task(100, gpus=(0, 1))
    log.opens(101, gpu=0)
    log.accounts(60, 160, gpu=0)
    log.accounts(60, 160, gpu=1)
    assert log.charged() == 60 * CORES
    log.closes(170)
    log.accounts(160, 260, gpu=1)
    assert log.charged() == 70 * CORES, "the task is over with its last session"


def test_a_reservation_holds_its_device_between_sessions() -> None:
    log = Log()
    log.task(100, reservation=True)
    log.opens(101)
    log.opens(102, session="s2")
    log.accounts(100, 200)
    log.closes(200)
    log.accounts(200, 300)
    assert log.charged() == 0, "another session is open"
    log.closes(300, "s2")
    log.accounts(300, 400)
    assert log.charged() == 100 * CORES
    log.over(450, "completed")
    log.accounts(400, 500)
    assert log.charged() == 150 * CORES


def test_no_more_is_charged_than_was_idle_and_nothing_twice() -> None:
    """A node's accounts are its own word: another interval over the same time adds nothing."""
    log = Log()
    log.task(100)
    log.accounts(100, 160, idle_part=4)
    log.accounts(100, 160)
    log.accounts(130, 190)
    assert log.charged() == 15 * CORES + 30 * CORES
    log.add(NodeLost(200 * S, "n", 1, "silent"))
    log.accounts(190, 300)
    assert log.charged() == 45 * CORES


@pytest.mark.parametrize(
    ("wall_s", "cores", "scheduler", "idle"),
    [(60, CORES, 60 * CORES * S + 10**18, -(10**18)), (60, -(10**6), 0, -60 * 10**6 * S), (-60, -CORES, 0, 60 * CORES * S)],
)
def test_accounts_of_less_than_nothing_credit_nothing(wall_s: int, cores: int, scheduler: int, idle: int) -> None:
    """They add up. What a task holds would cost less than nothing, and its tenant be given what a node chooses."""
    log = Log()
    log.task(100)
    log.add(DeviceAccounted("n", 1, 0, 1, 100 * S, wall_s * S, cores, 0, scheduler, idle, 1, 0))
    view = log.fold()
    assert not view.rows and not view.ledger.balances and view.findings == ["accounts of n/1/0 serial 1 are less than nothing"]


def test_an_interval_ends_no_later_than_it_was_stored_whatever_the_clock_of_the_node() -> None:
    def charged(log: Log, stored_s: list[int]) -> float:
        view = BillingView()
        for position, (events, at_s) in enumerate(zip(log.messages, stored_s, strict=True), start=1):
            view.apply(position, events, at_s * S)
        return sum(row.core_ns for row in view.rows.values()) / S

    false, ahead, quick = Log(), Log(), Log()
    false.task(100)
    false.accounts(100, 100_000)
    assert charged(false, [1, 100, 100, 150]) == 50 * CORES
    ahead.task(100)
    for end_s in (130, 145, 160):
        ahead.accounts(end_s - 15 + 1000, end_s + 1000)
    assert charged(ahead, [1, 100, 100, 130, 145, 160]) == 45 * CORES
    quick.task(100)
    quick.accounts(1080, 1104)
    quick.opens(1104)
    assert charged(quick, [1, 100, 100, 104, 104]) == 0


@pytest.mark.parametrize(("percent", "credits"), [(100, 100 * CORES), (25, 25 * CORES), (0, 0)])
def test_the_percentage_is_the_tasks_own(percent: int, credits: int) -> None:
    log = Log()
    log.task(100, percent=percent)
    log.accounts(100, 200)
    view = log.fold()
    assert -view.ledger.balances.get(CORE, 0) == credits * PRICE


def test_what_is_held_is_a_line_of_the_statement_and_uses_the_budget() -> None:
    log = Log()
    log.add(BudgetSet(0, "acme", "total", 50 * CORES * PRICE))
    log.task(100)
    log.accounts(100, 150)
    view = log.fold()
    assert view.budgets.by_tenant["acme"]["total"].used_micro == 50 * CORES * PRICE
    assert [crossing.threshold for crossing in view.budgets.due.values()] == ["stopped"]
    assert set(view.budgets.spent["acme"]) == {HELD}, "no node's lease is less for it"
    drawn = statement(view, "acme", "1970-01")
    (line,) = drawn.lines
    assert (line.task, line.model, line.node, line.core_micro) == ("t", HELD, "n", 50 * CORES * PRICE)
    assert drawn.closing_micro == drawn.opening_micro + drawn.granted_micro - line.core_micro


def test_what_is_held_is_dated_by_the_broker_where_the_clock_of_the_node_is_ahead() -> None:
    """By 40 days: the charge counts against the current daily budget, at the current price, in the current statement."""
    log = Log()
    log.add(BudgetSet(0, "acme", "day", 50 * CORES * PRICE))
    log.add(TariffSet(0, "standard", 30 * 86_400 * S, 7 * PRICE, 0))
    log.task(100)
    log.accounts(40 * 86_400 + 100, 40 * 86_400 + 150)
    view = BillingView()
    for position, events in enumerate(log.messages, start=1):
        view.apply(position, events, 150 * S)
    assert view.budgets.used_micro("acme", 0, 86_400 * S) == statement(view, "acme", "1970-01").core_micro == 50 * CORES * PRICE
    left = binding(view.budgets, "acme", 150 * S)
    assert left is not None and left.micro == 0


def test_a_session_of_another_tenant_is_no_start() -> None:
    log = Log()
    log.task(100)
    log.opens(101, tenant="other")
    log.accounts(100, 200)
    assert log.charged() == 100 * CORES


def test_a_log_without_percentages_charges_nothing() -> None:
    """As all logs of earlier versions: old bills do not change."""
    old = msgspec.structs.asdict(TaskSubmitted(0, "t", "acme", 2, 1, exclusive=True))
    assert old["hold_percent"] == 0


def test_a_reservation_that_moves_holds_devices_where_it_went() -> None:
    """And a view that is saved and read in between is the same afterwards."""
    log = Log()
    log.add(NodeRegistered(0, "m", "m", "", 1, (DeviceFact(0, "gpu", "cuda", CORES, 1 << 30),)))
    log.task(100, reservation=True)
    log.opens(101)
    log.add(TaskDisplaced(110 * S, "t", "n", False, "m", (0,)))
    log.add(SessionOpenedFact(111 * S, "s2", "acme", "t", "m", 0, 2, 0, replaces="s"))
    log.closes(112)
    view, n_read = BillingView.decode(log.fold().encode()), len(log.messages)
    log.add(SessionOpenedFact(113 * S, "s3", "acme", "t", "m", 0, 2, 0))
    for at_s, session in ((120, "s2"), (130, "s3")):
        log.add(SessionClosedFact(at_s * S, session, "m", "", 0, 0, 0, 0, ""))
    for position, events in enumerate(log.messages[n_read:], start=n_read + 1):
        view.apply(position, events)
    whole = log.fold()
    assert verify(view, whole).ok
    open_holds = {(node, gpu): hold.from_ns for node, held in whole.holds.devices.items() for gpu, holds in held.items() for hold in holds
                  if not hold.to_ns}  # fmt: skip
    assert open_holds == {("m", 0): 130 * S}


def test_a_reservation_that_stays_holds_nothing_where_it_was_to_go() -> None:
    log = Log()
    log.task(100, reservation=True)
    log.opens(101)
    log.add(TaskDisplaced(110 * S, "t", "n", False, "m", (0,)), TaskStayed(115 * S, "t", "n", "no"))
    log.closes(120)
    view = log.fold()
    assert {node: [(hold.from_ns, hold.to_ns) for hold in holds[0]] for node, holds in view.holds.devices.items()} == {
        "n": [(100 * S, 101 * S), (120 * S, 0)]
    }


def test_what_is_placed_on_a_lost_node_holds_nothing() -> None:
    """The loss came into the log between the decision and its fact; placement gives the memory back."""
    log = Log()
    log.add(TaskSubmitted(100 * S, "t", "acme", 2, 1, exclusive=True, hold_percent=100))
    log.add(NodeLost(100 * S, "n", 1, "silent"), TaskPlaced(100 * S, "t", "n", (0,), (), (), 0), NodeRecovered(103 * S, "n", 1))
    log.accounts(100, 160)
    log.accounts(160, 220)
    assert log.charged() == 0


@pytest.mark.parametrize(
    "between",
    [
        (NodeLost(110 * S, "n", 1, "silent"),),
        (TaskDisplaced(110 * S, "t", "n", False, ""),),
        (TaskDisplaced(110 * S, "t", "n", False, "m", (0,)),),
    ],
    ids=["lost", "leaves", "moves"],
)
def test_a_reservation_keeps_nothing_where_it_was_lost_or_is_to_leave(between: tuple[Event, ...]) -> None:
    log = Log()
    log.task(100, reservation=True)
    log.opens(101)
    log.add(*between)
    log.closes(115)
    log.add(NodeRecovered(116 * S, "n", 1))
    log.accounts(100, 160)
    log.accounts(160, 220)
    assert log.charged() == 0


def test_a_reservation_keeps_its_place_when_the_node_it_was_to_go_to_is_lost() -> None:
    log = Log()
    log.task(100, reservation=True)
    log.opens(101)
    log.add(TaskDisplaced(110 * S, "t", "n", False, "m", (0,)), NodeLost(111 * S, "m", 1, "silent"))
    log.closes(120)
    log.accounts(100, 160)
    assert log.charged() == 40 * CORES


@pytest.mark.parametrize("reason", [f"{REASON_QUEUE_TIMEOUT} (60 s)", REASON_NEVER_STARTED])
def test_an_end_that_comes_too_late_ends_no_hold(reason: str) -> None:
    """A task that waited too long has room by then; one that did not start has started. Placement does not follow such a fact."""
    log = Log()
    log.task(100)
    if reason == REASON_NEVER_STARTED:
        log.opens(101)
        log.closes(102)
        log.add(TaskPlaced(102 * S, "t", "n", (0,), (), (), 0))
        log.opens(103, session="again")
    log.add(TaskStateChanged(104 * S, "t", "failed", reason))
    if reason == REASON_NEVER_STARTED:
        log.closes(105, session="again")
        log.add(TaskPlaced(105 * S, "t", "n", (0,), (), (), 0))
    log.accounts(100, 160)
    assert log.charged() == (60 if reason != REASON_NEVER_STARTED else 55) * CORES


def test_the_reasons_are_those_of_placement() -> None:
    assert (QUEUE_TIMEOUT, NEVER_STARTED) == (REASON_QUEUE_TIMEOUT, REASON_NEVER_STARTED)
