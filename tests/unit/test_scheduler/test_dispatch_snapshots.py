"""What a dispatcher begins with, and that one restored from a snapshot decides as the one that wrote it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduler.dispatch import (
    Dispatch,
    DispatchConfig,
    DispatchState,
    Launch,
    LaunchFinished,
    LaunchReturned,
    LaunchStopped,
    MemoryReady,
    Reason,
    SessionOpened,
    Stimulus,
    decisions,
    explain,
    restore,
    snapshot,
)
from scheduler.dispatch.fair import virtual
from scheduler.dispatch.state import Flight, SessionState, Waiting
from tests.support.dispatch_load import after, batch, steady

MS = 10**6
ONE_PLACE = DispatchConfig(in_flight_max=1, in_flight_low_max=1)


def not_zero(record: object) -> dict[str, Any]:
    """The fields that are neither 0, False, None nor empty."""
    return {name: value for name, value in msgspec.to_builtins(record).items() if value}


@pytest.mark.parametrize(
    ("record", "fields"),
    [
        (SessionState("a", 1, 2, 0, b""), {"session": "a", "epoch": 1, "priority": 2, "weight": 100, "phase": "open"}),
        (Waiting(0, 9, b"", 0), {"nbytes": 9}),
        (Flight("a", 0, 2, 0), {"session": "a", "level": 2, "whole": True, "contended_ns": -1}),
    ],
)
def test_records_of_the_state_begin_with_nothing_used_and_nothing_learnt(record: object, fields: dict[str, Any]) -> None:
    assert not_zero(record) == fields
    assert msgspec.convert(msgspec.to_builtins(record), type(record)) == record


def test_a_new_dispatcher_has_counted_nothing() -> None:
    first = not_zero(DispatchState())
    assert not_zero(first.pop("occupancy")) == {}
    assert first.pop("open_by_priority") == [0] * 5
    assert first.pop("levels") == [{"vtime": 0, "ready": 0, "heap": [], "urgent": []}] * 5
    assert first == {"config": msgspec.to_builtins(DispatchConfig())}


def test_a_configuration_that_says_nothing_has_the_documented_limits() -> None:
    """Two launches in flight, 64 batches and 256 MiB parked, slices of 10 ms, 20 ms of low work, a second to even out the reserve."""
    mib = 1 << 20
    assert DispatchConfig() == DispatchConfig(
        in_flight_max=2, in_flight_low_max=2, parked_batches_max=64, parked_bytes_max=256 * mib, policy="strict", quantum_ns=10 * MS,
        low_slice_ns=20 * MS, low_budget_permille=250, slice_min_ns=MS, stop_ns=MS, cores=1, aging_ns=0, reserve_percent=0,
        reserve_window_ns=1000 * MS, pace_burst_ns=50 * MS, deadline_lead_ns=100 * MS,
    )  # fmt: skip


def test_names_of_reasons_are_those_that_clients_know() -> None:
    assert decisions.DROP_REASONS == {"already_run", "already_waiting", "after_last", "session_over", "epoch_stale"}
    assert decisions.REFUSE_REASONS == {
        "session_unknown", "session_exists", "session_closing", "session_faulted", "priority_invalid", "seq_invalid", "epoch_unknown",
        "parked_batches_full", "parked_bytes_full", "weight_invalid", "pace_invalid", "sla_invalid", "sla_contradictory", "sla_unreachable",
    }  # fmt: skip
    assert decisions.RULES == {
        "running", "queued", "stopping", "higher_priority", "fair_share", "deadline_order", "low_budget", "in_flight_full",
        "reserved_share", "arrival_order", "turn_order", "paced", "awaits_memory", "parked", "idle", "faulted", "not_open",
    }  # fmt: skip


def with_a_deadline(lead_ns: int) -> Dispatch:
    """P0 sessions, one launch at a time: "target" has a latency target and has used 300 ms beside "plain"; both have a batch waiting."""
    config = DispatchConfig(in_flight_max=1, in_flight_low_max=1, deadline_lead_ns=lead_ns, cores=1)
    opened = [SessionOpened(0, "plain", 1, 0), SessionOpened(0, "target", 1, 0, sla_ns=1000 * MS), SessionOpened(0, "third", 1, 0)]
    dispatch = after(*opened, batch(0, "plain"), batch(0, "target"), batch(0, "third"), config=config)
    dispatch.on(LaunchStopped(MS, "plain", 0, MS, MS))
    assert [flight.session for flight in dispatch.state.flights] == ["target"]
    dispatch.on(LaunchFinished(301 * MS, "target", 0, 300 * MS, wall_ns=300 * MS))
    return dispatch


def test_a_session_that_has_had_its_lead_waits_for_its_share_also_after_a_restart() -> None:
    """Its lead is over when its batch comes; then others run until the lead would cover it again. It waits for its share all the same."""
    dispatch = with_a_deadline(150 * MS)
    running = dispatch.state.flights[0].session
    dispatch.on(batch(301 * MS, "target", 1))
    dispatch.on(LaunchStopped(501 * MS, running, 0, 200 * MS, 200 * MS))
    target = dispatch.state.sessions["target"]
    assert (target.urgent, target.past_lead) == (None, True)
    (flight,) = dispatch.state.flights
    assert flight.session not in ("target", running)
    dispatch.on(LaunchStopped(751 * MS, flight.session, 0, 250 * MS, 250 * MS))
    (flight,) = dispatch.state.flights
    level = dispatch.state.levels[0]
    assert target.tag <= level.vtime + virtual(150 * MS, 100), "the lead would cover it"
    restored = Dispatch(restore(snapshot(dispatch.state)))
    assert (restored.state.sessions["target"].urgent, restored.state.sessions["target"].past_lead) == (None, True)
    ended = LaunchStopped(752 * MS, flight.session, 0, MS, MS)
    assert restored.on(ended) == dispatch.on(ended)


def test_a_session_that_waits_for_its_deadline_goes_by_it_after_a_restart() -> None:
    dispatch = after(
        SessionOpened(0, "plain", 1, 0), SessionOpened(0, "target", 1, 0, sla_ns=100 * MS), batch(0, "plain"), batch(1, "target"),
        config=ONE_PLACE,
    )  # fmt: skip
    restored = Dispatch(restore(snapshot(dispatch.state)))
    for core in (dispatch, restored):
        assert core.state.sessions["target"].urgent == (1 + 100 * MS, 1, "target")
        assert core.on(LaunchFinished(2, "plain", 0, 1, wall_ns=1)) == [Launch("target", 0, 0)]


@pytest.mark.parametrize("more", [{}, {"aging_ns": 15 * MS}, {"reserve_percent": 20}, {"policy": "fifo"}, {"policy": "timeslice"}])
def test_a_dispatcher_restored_at_any_time_decides_like_the_original(more: dict[str, Any]) -> None:
    """Latency targets, paces, weights and priorities under load; every third stimulus another snapshot is read."""
    dispatch = Dispatch(DispatchState(config=DispatchConfig(deadline_lead_ns=4 * MS, **more)))
    asks: list[dict[str, int]] = [{"sla_ns": 90 * MS}, {}, {"pace_permille": 200}, {"weight": 30}, {"pace_permille": 700, "weight": 400}]
    for number in range(15):
        asked = asks[number % 5]
        dispatch.on(SessionOpened(0, f"s{number}", 1, 0 if asked else number % 3, **asked))  # type: ignore[arg-type]
        dispatch.on(batch(0, f"s{number}"))
    restored, taken = Dispatch(restore(b"")), 0

    def feed(stimulus: Stimulus) -> None:
        nonlocal restored, taken
        if taken % 3 == 0:
            restored = Dispatch(restore(snapshot(dispatch.state)))
        taken += 1
        assert restored.next_wakeup_ns() == dispatch.next_wakeup_ns()
        assert restored.on(stimulus) == dispatch.on(stimulus)
        assert [explain(restored.state, name) for name in restored.state.sessions] == [
            explain(dispatch.state, name) for name in dispatch.state.sessions
        ]
        assert snapshot(restored.state) == snapshot(dispatch.state)

    steady(dispatch, 250, feed)


def test_a_session_that_has_its_memory_is_restored_as_one_that_never_waited_for_it() -> None:
    dispatch = after(SessionOpened(0, "a", 1, 0), batch(1, "a"), LaunchReturned(2, "a", 0, False, memory=True))
    assert explain(restore(snapshot(dispatch.state)), "a") == Reason("awaits_memory")
    assert Dispatch(restore(snapshot(dispatch.state))).on(MemoryReady(3, "a")) == dispatch.on(MemoryReady(3, "a")) == [Launch("a", 0)]
    assert restore(snapshot(dispatch.state)).sessions == dispatch.state.sessions
