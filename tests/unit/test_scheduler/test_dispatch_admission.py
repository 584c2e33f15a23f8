"""What sessions may ask for, why their batches wait, what telemetry says of them, and how a dispatcher is saved."""

from __future__ import annotations

import msgspec
import pytest

from scheduler.dispatch import (
    FIFO,
    BatchArrived,
    ConfigChanged,
    Dispatch,
    DispatchConfig,
    DispatchState,
    Launch,
    LaunchFinished,
    LaunchReturned,
    LaunchStopped,
    Reason,
    Record,
    Refuse,
    SessionClosed,
    SessionOpened,
    Tick,
    Totals,
    explain,
    restore,
    snapshot,
    standing,
    totals,
)
from scheduler.errors import JournalError
from tests.support.dispatch_load import after

MS = 10**6


@pytest.mark.parametrize(
    ("opened", "reason"),
    [
        (SessionOpened(1, "a", 1, 0, weight=0), "weight_invalid"),
        (SessionOpened(1, "a", 1, 0, weight=10_001), "weight_invalid"),
        (SessionOpened(1, "a", 1, 0, pace_permille=-1), "pace_invalid"),
        (SessionOpened(1, "a", 1, 0, pace_permille=1_001), "pace_invalid"),
        (SessionOpened(1, "a", 1, 0, sla_ns=-1), "sla_invalid"),
        (SessionOpened(1, "a", 1, 1, sla_ns=50 * MS), "sla_invalid"),
        (SessionOpened(1, "a", 1, 0, sla_ns=50 * MS, pace_permille=500), "sla_contradictory"),
        (SessionOpened(1, "a", 1, 0, sla_ns=MS), "sla_unreachable"),
        (SessionOpened(1, "a", 1, 0, sla_ns=50 * MS), ""),
        (SessionOpened(1, "a", 1, 0, sla_ns=2 * MS), ""),
        (SessionOpened(1, "a", 1, 4, weight=10_000, pace_permille=1_000), ""),
    ],
)
def test_what_a_session_may_ask_for(opened: SessionOpened, reason: str) -> None:
    assert Dispatch().on(opened) == ([Refuse("a", -1, reason)] if reason else [])


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("in_flight_max", 2), ("in_flight_low_max", 1), ("parked_batches_max", 1), ("parked_bytes_max", 1), ("slice_min_ns", 1),
        ("low_budget_permille", 1), ("reserve_percent", 0), ("cores", 1), ("reserve_window_ns", 1), ("pace_burst_ns", 1), ("stop_ns", 0),
        ("aging_ns", 0), ("deadline_lead_ns", 0),
    ],
)  # fmt: skip
def test_the_least_that_a_configuration_may_say(name: str, least: int) -> None:
    assert getattr(DispatchConfig(**{name: least}), name) == least  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=name):
        DispatchConfig(**{name: least - 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "most"), [("low_budget_permille", 1000), ("reserve_percent", 90), ("slice_min_ns", 10_000_000)])
def test_the_most_that_a_configuration_may_say(name: str, most: int) -> None:
    assert getattr(DispatchConfig(**{name: most}), name) == most  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=name):
        DispatchConfig(**{name: most + 1})  # type: ignore[arg-type]


def test_a_target_is_weighed_against_what_the_admitted_are_known_to_take() -> None:
    """A batch of 30 ms of one session with a target leaves no room for a target of 40 ms: 10 of low work, 1 to stop, 30. One that faulted
    or ended counts no more."""
    dispatch = after(
        SessionOpened(0, "a", 1, 0, sla_ns=100 * MS),
        BatchArrived(0, "a", 1, 0, 1),
        LaunchFinished(30 * MS, "a", 0, 30 * MS, wall_ns=30 * MS),
    )
    assert dispatch.on(SessionOpened(30 * MS, "b", 1, 0, sla_ns=40 * MS)) == [Refuse("b", -1, "sla_unreachable")]
    assert dispatch.on(SessionOpened(30 * MS, "b", 1, 0, sla_ns=42 * MS)) == []
    dispatch.on(SessionClosed(30 * MS, "a", 0))
    assert dispatch.on(SessionOpened(30 * MS, "c", 1, 0, sla_ns=40 * MS)) == []


def test_why_a_batch_waits() -> None:
    opened = [SessionOpened(0, "top", 1, 0), SessionOpened(0, "a", 1, 2), SessionOpened(0, "b", 1, 2), SessionOpened(0, "low", 1, 4)]
    dispatch = after(*opened, BatchArrived(1, "top", 1, 0, 1))
    state = dispatch.state
    assert explain(state, "top") == Reason("running", (), 0)
    assert explain(state, "a") == Reason("idle")
    dispatch.on(BatchArrived(2, "a", 1, 1, 1))
    assert explain(state, "a") == Reason("parked")
    dispatch.on(BatchArrived(3, "a", 1, 0, 1))
    assert explain(state, "a") == Reason("queued", ("top",))
    dispatch.on(BatchArrived(4, "b", 1, 0, 1))
    assert explain(state, "b") == Reason("higher_priority", ("top",))
    dispatch.on(BatchArrived(5, "low", 1, 0, 1))
    assert explain(state, "low") == Reason("higher_priority", ("top", "a", "b"))
    dispatch.on(BatchArrived(6, "top", 1, 1, 1))
    assert explain(state, "a") == Reason("stopping", ("top",))
    dispatch.on(LaunchStopped(7, "a", 0, 0, 0))
    assert explain(state, "a") == Reason("higher_priority", ("top",))
    dispatch.on(LaunchFinished(8, "top", 0, 7, wall_ns=7))
    dispatch.on(LaunchReturned(8, "top", 1, False, memory=True))
    assert explain(state, "top") == Reason("awaits_memory")
    assert explain(state, "nobody") == Reason("not_open")
    dispatch.on(LaunchStopped(9 * MS, "a", 0, 8 * MS, 8 * MS))
    assert explain(state, "a") == Reason("queued", ("b",))
    dispatch.on(SessionOpened(9 * MS, "c", 1, 2))
    dispatch.on(BatchArrived(9 * MS, "c", 1, 0, 1))
    assert explain(state, "c") == Reason("in_flight_full", ("b", "a"))
    dispatch.on(SessionOpened(9 * MS, "d", 1, 2))
    dispatch.on(BatchArrived(9 * MS, "d", 1, 0, 1))
    assert explain(state, "d") == Reason("fair_share", ("b", "a", "c")), "c came first"


def test_why_a_paced_or_low_batch_waits() -> None:
    dispatch = after(
        SessionOpened(0, "slow", 1, 1, pace_permille=100),
        BatchArrived(0, "slow", 1, 0, 1),
        LaunchStopped(20 * MS, "slow", 0, 20 * MS, 20 * MS),
    )
    reason = explain(dispatch.state, "slow")
    assert reason.rule == "paced" and reason.until_ns == dispatch.next_wakeup_ns() == 160 * MS + 1
    assert standing(dispatch.state, "slow") == "paced"
    assert dispatch.on(Tick(160 * MS, wake=True)) == []
    assert dispatch.on(Tick(160 * MS + 1, wake=True)) == [Launch("slow", 0, MS, 1)]
    low = after(
        *[SessionOpened(0, name, 1, priority) for name, priority in (("top", 0), ("x", 1), ("y", 1), ("z", 1))],
        *[BatchArrived(1, name, 1, 0, 1) for name in ("x", "y", "z")],
    )
    assert explain(low.state, "y") == Reason("low_budget", ("x",))
    assert explain(low.state, "z") == Reason("fair_share", ("x", "y"))


def test_why_a_batch_waits_in_fifo() -> None:
    dispatch = after(
        SessionOpened(0, "top", 1, 0),
        SessionOpened(0, "low", 1, 4),
        *[BatchArrived(1, "low", 1, seq, 1) for seq in range(3)],
        BatchArrived(2, "top", 1, 0, 1),
        config=DispatchConfig(policy=FIFO),
    )
    assert explain(dispatch.state, "top") == Reason("arrival_order", ("low",))


def test_totals_are_exact_and_a_window_ends_with_its_tick() -> None:
    """a runs from 10 to 30; b arrives at 15, begins at 30 and ends at 40; in the next window it waits for nothing."""
    dispatch = after(
        SessionOpened(0, "a", 1, 0),
        SessionOpened(0, "b", 1, 1),
        BatchArrived(10, "a", 1, 0, 1),
        BatchArrived(12, "a", 1, 1, 1),
        BatchArrived(15, "b", 1, 0, 1),
        LaunchFinished(20, "a", 0, 40, wall_ns=10),
    )
    assert totals(dispatch.state, "b") == Totals(0, 1, 5, 0, 0, 0, 5)
    assert standing(dispatch.state, "b") == "running"
    dispatch.on(LaunchFinished(30, "a", 1, 40, wall_ns=10))
    dispatch.on(LaunchFinished(40, "b", 0, 10, wall_ns=10))
    dispatch.on(Tick(41, wake=True))
    assert totals(dispatch.state, "b") == Totals(10, 1, 5, 0, 1, 10, 15)
    dispatch.on(Tick(50))
    assert totals(dispatch.state, "b") == Totals(10, 1, 5, 5, 1, 10, 15)
    assert totals(dispatch.state, "a") == Totals(80, 2, 0, 0, 2, 20, 0)
    dispatch.on(Tick(60))
    assert totals(dispatch.state, "b").wait_max_ns == 0
    assert totals(dispatch.state, "nobody") == Totals() and standing(dispatch.state, "nobody") == ""


def test_a_snapshot_that_is_not_one_is_refused() -> None:
    dispatch = after(SessionOpened(1, "a", 1, 0), BatchArrived(2, "a", 1, 0, 1, b"x"))
    data = snapshot(dispatch.state)
    assert snapshot(restore(data)) == data
    assert restore(b"") == DispatchState()
    for damaged in (data[:-1], b"x" + data, data.replace(b"version\x02", b"version\x03")):
        with pytest.raises(JournalError):
            restore(damaged)


def test_records_of_older_journals_are_read() -> None:
    """As they were before slices: without the fields that came later."""
    raw = msgspec.msgpack.Encoder()
    for old, new in [
        (["config_changed.v1", 1, [2, 1, 64, 1000]], ConfigChanged(1, DispatchConfig(2, 1, 64, 1000))),
        (["session_opened.v1", 1, "a", 1, 0, 0, b""], SessionOpened(1, "a", 1, 0)),
        (["launch_finished.v1", 1, "a", 0, 7, 0], LaunchFinished(1, "a", 0, 7)),
        (["launch_returned.v1", 1, "a", 0, True], LaunchReturned(1, "a", 0, True)),
        (["tick.v1", 1], Tick(1)),
    ]:
        record = msgspec.msgpack.decode(raw.encode([old, [["launch.v1", "a", 0]]]), type=Record)
        assert record == Record(new, (Launch("a", 0),))
