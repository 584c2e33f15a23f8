"""Who is held for lost, decided from times alone."""

from __future__ import annotations

import pytest

from bus_schemas.events import (
    DeviceFact,
    NodeLost,
    NodeRecovered,
    NodeRegistered,
    SessionOpenedFact,
    TaskPlaced,
    TaskStateChanged,
    TaskSubmitted,
)
from scheduler.errors import StimulusError
from scheduler.placement import Clock, ClusterView, Heard, Liveness, LivenessConfig, overdue_tasks

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
