"""Who is held for lost, decided from times alone."""

from __future__ import annotations

import pytest

from bus_schemas.events import (
    DeviceFact,
    LoadObserved,
    NodeLost,
    NodeRecovered,
    NodeRegistered,
    SessionOpenedFact,
    TaskPlaced,
    TaskStateChanged,
    TaskSubmitted,
)
from scheduler.errors import StimulusError
from scheduler.placement import Clock, ClusterView, Heard, Liveness, LivenessConfig, Measured, load_observed, overdue_tasks
from scheduler.placement.reconcile import cancelled_by

SECOND = 10**9


def cluster(*names: str) -> ClusterView:
    view = ClusterView()
    for position, name in enumerate(names, start=1):
        view.apply(position, NodeRegistered(0, name, name, "", 1, (DeviceFact(0, "gpu", "host", 1, 1),)))
    return view


def run(view: ClusterView, liveness: Liveness, until_s: int, heard: dict[str, int], step: int = 1) -> list[NodeLost | NodeRecovered]:
    """A clock tick every ``step`` seconds from where it stands; ``heard``: nodes that send every second, with their epoch."""
    facts: list[NodeLost | NodeRecovered] = []
    for second in range(liveness.now_ns // SECOND + step, until_s + 1, step):
        for name, epoch in heard.items():
            liveness.on(Heard(second * SECOND, name, epoch), view)
        for fact in liveness.on(Clock(second * SECOND, second), view):
            view.apply(view.position + 1, fact)
            facts.append(fact)
    return facts


def test_a_silent_node_is_lost_once_and_recovers_when_heard() -> None:
    view, liveness = cluster("a", "b"), Liveness(LivenessConfig(5_000))
    assert run(view, liveness, 10, {"a": 1, "b": 1}) == []
    assert run(view, liveness, 20, {"a": 1}) == [NodeLost(16, "b", 1, "silent")]
    assert run(view, liveness, 30, {"a": 1, "b": 1}) == [NodeRecovered(21, "b", 1)]


def test_a_controller_that_just_started_gives_everybody_a_lease() -> None:
    view, liveness = cluster("a"), Liveness(LivenessConfig(5_000), now_ns=100 * SECOND)
    assert run(view, liveness, 106, {}) == []
    assert run(view, liveness, 107, {}) == [NodeLost(107, "a", 1, "silent")]


def test_a_controller_that_was_suspended_does_not_blame_the_nodes() -> None:
    view, liveness = cluster("a"), Liveness(LivenessConfig(5_000))
    run(view, liveness, 10, {"a": 1})
    assert liveness.on(Clock(500 * SECOND, 500), view) == []
    assert run(view, liveness, 510, {"a": 1}) == []


def test_only_the_life_that_was_lost_recovers() -> None:
    """A stopped node does not come back by telemetry that was still on its way; a new epoch must register first."""
    view, liveness = cluster("a", "b"), Liveness(LivenessConfig(5_000))
    run(view, liveness, 3, {"a": 1, "b": 1})
    view.apply(9, NodeLost(3, "a", 1, "stopped"))
    view.apply(10, NodeLost(3, "b", 1, "silent"))
    assert run(view, liveness, 10, {"a": 1, "b": 2}) == []


def test_time_does_not_run_backwards() -> None:
    liveness = Liveness()
    liveness.on(Clock(10, 0), ClusterView())
    with pytest.raises(StimulusError):
        liveness.on(Heard(9, "a", 1), ClusterView())


def test_a_placed_task_without_a_session_is_overdue() -> None:
    view = cluster("a")
    for name, at_ns in (("old", 1 * SECOND), ("new", 9 * SECOND)):
        view.apply(view.position + 1, TaskSubmitted(at_ns, name, "acme", 0, 1))
        view.apply(view.position + 1, TaskPlaced(at_ns, name, "a", (0,), (), (), 0))
    view.apply(view.position + 1, TaskSubmitted(0, "waiting", "acme", 0, 1))
    assert overdue_tasks(view, 10 * SECOND, 5_000) == [TaskStateChanged(10 * SECOND, "old", "failed", "no session opened in time")]


def test_a_task_whose_sessions_did_not_survive_a_restart_is_overdue() -> None:
    view = cluster("a")
    for name in ("lives", "gone"):
        view.apply(view.position + 1, TaskSubmitted(0, name, "acme", 0, 1))
        view.apply(view.position + 1, TaskPlaced(0, name, "a", (0,), (), (), 0))
        view.apply(view.position + 1, SessionOpenedFact(0, name, "acme", name, "a", 0, 0, 1))
    view.apply(view.position + 1, NodeRegistered(5 * SECOND, "a", "a", "", 2, (DeviceFact(0, "gpu", "host", 1, 1),)))
    view.apply(view.position + 1, SessionOpenedFact(5 * SECOND, "lives", "acme", "lives", "a", 0, 0, 1))
    assert overdue_tasks(view, 9 * SECOND, 5_000) == []
    assert [(change.task, change.state) for change in overdue_tasks(view, 11 * SECOND, 5_000)] == [("gone", "failed")]


def lease_of_a_second(view: ClusterView, *, heard_ns: int | None, until_ns: int) -> list[NodeLost | NodeRecovered]:
    """The facts of a clock that ticks every 0.4 s from time 0 on; "a" is heard once, in epoch 1."""
    liveness = Liveness(LivenessConfig(1_000))
    facts: list[NodeLost | NodeRecovered] = []
    for at_ns in (*range(0, until_ns, 400_000_000), until_ns):
        if heard_ns is not None and heard_ns <= at_ns and "a" not in liveness.heard:
            liveness.on(Heard(heard_ns, "a", 1), view)
        for fact in liveness.on(Clock(at_ns, at_ns), view):
            view.apply(view.position + 1, fact)
            facts.append(fact)
    return facts


@pytest.mark.parametrize("heard_ns", [None, 0, 1, 400_000_000])
def test_a_node_is_lost_one_nanosecond_after_its_lease(heard_ns: int | None) -> None:
    """Counted from when it was heard, or from when the controller began to listen."""
    last_ns = (heard_ns or 0) + SECOND
    assert lease_of_a_second(cluster("a"), heard_ns=heard_ns, until_ns=last_ns) == []
    assert lease_of_a_second(cluster("a"), heard_ns=heard_ns, until_ns=last_ns + 1) == [NodeLost(last_ns + 1, "a", 1, "silent")]


@pytest.mark.parametrize(("judged_ns", "recovers"), [(SECOND + 100, True), (SECOND + 101, False)])
def test_a_lost_node_recovers_if_it_was_heard_within_its_lease(judged_ns: int, recovers: bool) -> None:
    view, liveness = cluster("a"), Liveness(LivenessConfig(1_000))
    view.apply(2, NodeLost(0, "a", 1, "silent"))
    liveness.on(Heard(100, "a", 1), view)
    assert liveness.on(Clock(judged_ns, 7), view) == ([NodeRecovered(7, "a", 1)] if recovers else [])


@pytest.mark.parametrize(("pause_ns", "lost"), [(SECOND // 2, True), (SECOND // 2 + 1, False)])
def test_a_controller_that_paused_for_more_than_half_a_lease_begins_to_listen_anew(pause_ns: int, lost: bool) -> None:
    view, liveness = cluster("a"), Liveness(LivenessConfig(1_000))
    for at_ns in (0, SECOND // 2, SECOND // 2 + pause_ns):
        liveness.on(Clock(at_ns, 0), view)
    assert bool(liveness.on(Clock(SECOND + 2, 0), view)) == lost


def test_a_node_in_its_first_epoch_of_number_zero_is_heard() -> None:
    view, liveness = ClusterView(), Liveness(LivenessConfig(5_000))
    view.apply(1, NodeRegistered(0, "a", "a", "", 0, (DeviceFact(0, "gpu", "host", 1, 1),)))
    assert run(view, liveness, 10, {"a": 0}) == []
    assert run(view, liveness, 20, {}) == [NodeLost(16, "a", 0, "silent")]


def test_a_heartbeat_of_an_earlier_epoch_does_not_count() -> None:
    view, liveness = cluster("a"), Liveness(LivenessConfig(5_000))
    liveness.on(Heard(1, "a", 2), view)
    liveness.on(Heard(2, "a", 1), view)
    assert liveness.heard == {"a": (1, 2)}
    liveness.on(Heard(3, "a", 2), view)
    assert liveness.heard == {"a": (3, 2)}


@pytest.mark.parametrize(
    ("size", "before", "now", "matters"), [(100, 50, 55, True), (100, 50, 54, False), (10, 5, 6, True), (10, 5, 5, False), (10, 0, 1, True)]
)
def test_used_bytes_matter_when_they_moved_by_a_twentieth_of_the_device(size: int, before: int, now: int, matters: bool) -> None:
    """But by a byte at least."""
    view = ClusterView()
    view.apply(1, NodeRegistered(0, "a", "a", "", 1, (DeviceFact(0, "gpu", "host", 1, size),)))
    view.apply(2, LoadObserved(0, (("a", 0, 0, 0, before),)))
    observed = load_observed(view, {("a", 0): Measured(0, 0, now)}, 9)
    assert observed == (LoadObserved(9, (("a", 0, 0, 0, now),)) if matters else None)


def test_measurements_that_matter_are_reported_by_device() -> None:
    view = cluster("b", "a")
    heard = {("b", 0): Measured(50, 0, 0), ("a", 1): Measured(50, 0, 0), ("a", 0): Measured(0, 50, 0)}
    assert load_observed(view, heard, 9) == LoadObserved(9, (("a", 0, 0, 50, 0), ("b", 0, 50, 0, 0)))


@pytest.mark.parametrize(("reason", "who"), [("cancelled by anna", "anna"), ("cancelled by ", ""), ("by anna", ""), ("", "")])
def test_who_cancelled_a_task_is_in_its_reason(reason: str, who: str) -> None:
    view = cluster("a")
    view.apply(2, TaskSubmitted(0, "t", "acme", 0, 1))
    view.apply(3, TaskStateChanged(1, "t", "cancelled", reason))
    assert cancelled_by(view, "t") == who
