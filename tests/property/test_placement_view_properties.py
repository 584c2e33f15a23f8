"""The fold by itself: what it keeps to be quick is what a look at every task and session finds, after any facts in any order. Few names, so
that they meet: sessions opened again elsewhere or for another task, nodes that speak of others' sessions, losses, restarts, late ends."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from bus_schemas.events import (
    DeviceFact,
    Event,
    NodeLost,
    NodeRecovered,
    NodeRegistered,
    Outcome,
    SessionClosedFact,
    SessionOpenedFact,
    SessionPriorityChanged,
    TaskDisplaced,
    TaskPlaced,
    TaskPriorityChanged,
    TaskRefused,
    TaskStateChanged,
    TaskSubmitted,
)
from scheduler.placement import ClusterView, capacity, overdue_tasks, sessions_to_end, sessions_to_reprioritise
from scheduler.placement.states import REASON_DISPLACED, REASON_NEVER_STARTED, REASON_QUEUE_TIMEOUT, STATES
from tests.support.placement_reference import room

GIB = 1 << 30
NODES, TASKS, SESSIONS, TENANTS = ("a", "b"), ("t", "u"), ("r", "s"), ("acme", "beta")

node, task, session = st.sampled_from(NODES), st.sampled_from(TASKS), st.sampled_from(SESSIONS)
now, epoch, priority = st.integers(1, 9), st.integers(1, 2), st.integers(0, 4)
outcome = st.sampled_from([None, None, Outcome(), Outcome(child=True), Outcome(lost=True)])
closing = (st.sampled_from(["done", REASON_DISPLACED]), *[st.just(0)] * 4, st.just(""), st.booleans(), outcome)
facts = st.one_of(
    st.builds(NodeLost, now, node, epoch, st.sampled_from(["silent", "stopped"])),
    st.builds(NodeRecovered, now, node, epoch),
    st.builds(NodeRegistered, now, node, node, st.just(""), epoch, st.just((DeviceFact(0, "g", "host", 1, 8 * GIB),))),
    st.builds(SessionOpenedFact, now, session, st.just("acme"), task, node, st.just(0), priority, st.just(GIB), st.booleans()),
    st.builds(SessionClosedFact, now, session, node, *closing),
    st.builds(SessionPriorityChanged, now, session, node, priority),
    st.builds(TaskPlaced, now, task, node, st.just((0,)), st.just(()), st.just(()), st.just(0)),
    st.builds(TaskRefused, now, task, st.just(()), st.just(0)),
    st.builds(TaskPriorityChanged, now, task, priority),
    st.builds(TaskDisplaced, now, task, node, st.booleans(), st.sampled_from(("", *NODES))),
    st.builds(TaskStateChanged, now, task, st.sampled_from(STATES), st.sampled_from(["", REASON_QUEUE_TIMEOUT, REASON_NEVER_STARTED])),
)


def begun() -> list[Event]:
    """Two nodes, two tasks that wait."""
    devices = (DeviceFact(0, "g", "host", 1, 8 * GIB),)
    nodes = [NodeRegistered(0, name, name, "", 1, devices) for name in NODES]
    return [*nodes, *(TaskSubmitted(0, name, tenant, 2, 2 * GIB, queue=name == "t") for name, tenant in zip(TASKS, TENANTS, strict=True))]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([4, 12, 40]).flatmap(lambda size: st.lists(facts, min_size=size, max_size=size)))
def test_what_the_fold_keeps_is_what_a_look_at_everything_finds(history: list[Event]) -> None:
    view = ClusterView()
    for position, event in enumerate([*begun(), *history], start=1):
        view.apply(position, event)
        _agree(view)


def _agree(view: ClusterView) -> None:
    waiting = {name: seen for name, seen in view.tasks.items() if seen.waiting}
    assert view.queue == waiting.keys()
    assert Counter(view.live_of) == Counter(seen.submitted.tenant for seen in view.tasks.values() if seen.live)
    chains = Counter((seen.submitted.tenant, seen.submitted.priority) for seen in waiting.values())
    assert {chain: count for chain, (count, _) in view.turns.items()} == chains
    assert all(seen.turn <= view.turns[seen.submitted.tenant, seen.submitted.priority][1] for seen in waiting.values())
    assert view.turn == max([0, *(seen.turn for seen in view.tasks.values() if seen.hosts)])
    assert view.untold == {name for name, seen in waiting.items() if not isinstance(seen.decision, TaskRefused)}
    assert {name for alike in view.shapes.values() for name in alike} == view.queue
    assert all(view.tasks[name].shape == shape for shape, alike in view.shapes.items() for name in alike)
    of_task: dict[str, set[str]] = {name: set() for name in ("", *view.tasks)}
    of_node: dict[str, set[str]] = {name: set() for name in view.nodes}
    for name, open_ in view.sessions.items():
        if not open_.given_up:
            of_task[open_.fact.task].add(name)
        of_node[open_.fact.node].add(name)
    assert {"": of_task[""]} | {name: seen.sessions for name, seen in view.tasks.items()} == of_task
    assert all(view.sessions[session].fact.node in seen.hosts for seen in view.tasks.values() for session in seen.sessions)
    assert {name: seen.sessions for name, seen in view.nodes.items()} == of_node
    tasked = {name: view.tasks[open_.fact.task] for name, open_ in view.sessions.items() if open_.fact.task}
    ending = {name for name, seen in tasked.items() if seen.state == "cancelled" or view.sessions[name].given_up}
    for name, seen in tasked.items():
        if seen.state == "started" and seen.leaving is not None and seen.leaving.node == view.sessions[name].fact.node:
            ending.add(name)
    assert view.to_end == ending
    behind = {
        name
        for name, seen in tasked.items()
        if seen.live and seen.priority_changed and seen.priority != view.sessions[name].priority and not view.sessions[name].given_up
    }
    assert view.to_reprioritise == behind
    assert {session.fact.session for session in sessions_to_end(view)} <= ending
    assert {session.fact.session for session, _ in sessions_to_reprioritise(view)} <= behind
    assert {change.task for change in overdue_tasks(view, 10**15, 1)} <= view.live
    for name, here in view.nodes.items():
        for device in here.registered.devices:
            assert capacity(view, name, device) == room(view, name, device)
        placed = {task for task, seen in view.tasks.items() if seen.live and seen.placed is not None and seen.placed.node == name}
        assert here.tasks == placed
