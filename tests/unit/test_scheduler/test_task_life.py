"""The state machine of a task in the projection of the cluster: only legal steps, and an illegal one reports the steps so far."""

from __future__ import annotations

import pytest

from bus_schemas.events import (
    DeviceFact,
    Event,
    NodeLost,
    NodeRecovered,
    NodeRegistered,
    SessionClosedFact,
    SessionOpenedFact,
    TaskDisplaced,
    TaskPlaced,
    TaskRefused,
    TaskStateChanged,
    TaskSubmitted,
)
from scheduler.errors import IllegalTransition
from scheduler.placement import ClusterView
from scheduler.placement.reconcile import cancelled_by, overdue_tasks, sessions_to_end
from scheduler.placement.states import REASON_TAKEN, STATES, STORY_MAX, TRANSITIONS, Phase
from tests.support.placement_histories import busy, live

WAITING, PLACED, STARTED, COMPLETED, FAILED, CANCELLED, LOST = Phase
NODE = NodeRegistered(1, "n", "n", "", 1, (DeviceFact(0, "d", "host", 8, 1 << 30),))
QUEUE = TaskSubmitted(2, "t", "acme", 2, 1 << 20, queue=True)
ONCE = TaskSubmitted(2, "t", "acme", 2, 1 << 20)
KEPT = TaskSubmitted(2, "t", "acme", 2, 1 << 20, queue=True, reservation=True, start_lease_ms=1)
PLACE = TaskPlaced(3, "t", "n", (0,), (), (), 0)
REFUSE = TaskRefused(3, "t", (), 0)
OPEN = SessionOpenedFact(4, "s", "acme", "t", "n", 0, 2, 0)
CLOSE = SessionClosedFact(5, "s", "n", "done", 0, 0, 0, 0, "")
SILENT = NodeLost(5, "n", 1, "silent")
TAKEN = TaskStateChanged(6, "t", "started", REASON_TAKEN)
"""A runner took its script as its node was lost."""
BACK = NodeRecovered(6, "n", 1)


def says(state: str) -> TaskStateChanged:
    return TaskStateChanged(7, "t", state, "because")


def after(*events: Event) -> ClusterView:
    view = ClusterView()
    for position, event in enumerate((NODE, *events), start=1):
        view.apply(position, event)
    return view


@pytest.mark.parametrize(
    ("events", "phases"),
    [
        ((QUEUE,), [WAITING]),
        ((QUEUE, REFUSE), [WAITING]),
        ((ONCE, REFUSE), [WAITING, FAILED]),
        ((QUEUE, PLACE, PLACE), [WAITING, PLACED]),
        ((QUEUE, PLACE, SILENT), [WAITING, PLACED, WAITING]),
        ((ONCE, PLACE, SILENT), [WAITING, PLACED, FAILED]),
        ((QUEUE, SILENT, PLACE), [WAITING, PLACED, WAITING]),
        ((QUEUE, PLACE, TAKEN), [WAITING, PLACED, STARTED]),
        ((QUEUE, PLACE, SILENT, TAKEN), [WAITING, PLACED, WAITING]),
        ((ONCE, PLACE, SILENT, TAKEN), [WAITING, PLACED, FAILED]),
        ((QUEUE, OPEN, CLOSE), [WAITING]),
        ((QUEUE, PLACE, OPEN, OPEN, CLOSE), [WAITING, PLACED, STARTED, COMPLETED]),
        ((QUEUE, PLACE, OPEN, SILENT, BACK), [WAITING, PLACED, STARTED, FAILED, STARTED]),
        ((QUEUE, PLACE, OPEN, SILENT, CLOSE), [WAITING, PLACED, STARTED, FAILED, STARTED, COMPLETED]),
        ((QUEUE, PLACE, OPEN, CLOSE, OPEN), [WAITING, PLACED, STARTED, COMPLETED, STARTED]),
        ((QUEUE, says("cancelled"), PLACE, OPEN, says("completed")), [WAITING, CANCELLED]),
        ((QUEUE, PLACE, says("queued"), says("waiting"), says("placed"), says("no word")), [WAITING, PLACED]),
        ((QUEUE, PLACE, OPEN, says("lost"), says("failed"), OPEN), [WAITING, PLACED, STARTED, LOST]),
        ((KEPT, PLACE, OPEN, CLOSE, OPEN, CLOSE), [WAITING, PLACED, STARTED, PLACED, STARTED, PLACED]),
        ((KEPT, PLACE, OPEN, CLOSE, says("completed"), OPEN), [WAITING, PLACED, STARTED, PLACED, COMPLETED]),
        ((KEPT, PLACE, OPEN, says("failed"), CLOSE), [WAITING, PLACED, STARTED, FAILED]),
        ((KEPT, PLACE, OPEN, CLOSE, SILENT), [WAITING, PLACED, STARTED, PLACED, WAITING]),
        ((KEPT, PLACE, OPEN, SILENT, says("completed"), BACK), [WAITING, PLACED, STARTED, FAILED, COMPLETED]),
        ((KEPT, PLACE, OPEN, SILENT, says("failed"), BACK), [WAITING, PLACED, STARTED, FAILED, FAILED]),
        ((QUEUE, PLACE, OPEN, SILENT, says("cancelled"), BACK), [WAITING, PLACED, STARTED, FAILED, CANCELLED]),
        ((QUEUE, PLACE, OPEN, says("failed"), says("cancelled"), says("completed")), [WAITING, PLACED, STARTED, FAILED]),
        ((KEPT, PLACE, OPEN, SILENT, CLOSE), [WAITING, PLACED, STARTED, FAILED, STARTED, PLACED, WAITING]),
        ((KEPT, PLACE, OPEN, TaskDisplaced(5, "t", "n", False), CLOSE), [WAITING, PLACED, STARTED, WAITING]),
    ],
)
def test_facts_take_a_task_through_these_phases(events: tuple[Event, ...], phases: list[Phase]) -> None:
    view = after(*events)
    task = view.tasks["t"]
    assert [WAITING, *(to for _, _, to in task.story)] == phases
    assert task.phase is phases[-1]
    assert task.state == ("queued" if phases[-1] in (WAITING, PLACED) else phases[-1])
    assert ("t" in view.queue, "t" in view.live) == (phases[-1] is WAITING, phases[-1] in (WAITING, PLACED, STARTED))
    assert ("t" in view.nodes["n"].tasks) == (task.placed is not None and phases[-1] in (PLACED, STARTED))
    assert (view.columns.devices[3, 0] > 0) == ("t" in view.nodes["n"].tasks)


@pytest.mark.parametrize("before", Phase)
@pytest.mark.parametrize("to", Phase)
def test_a_fact_never_takes_an_illegal_step_and_the_fold_says_so(before: Phase, to: Phase) -> None:
    """A fact that asks for one changes nothing; the fold itself asking for one is an error that tells the story."""
    view = after(QUEUE)
    task = view.tasks["t"]
    task.phase, task.story = before, ((9, WAITING, before),)
    if (before, to) in TRANSITIONS:
        view._transition(task, to, 8)
        assert task.story[1:] == ((2, before, to),)
        return
    with pytest.raises(IllegalTransition, match=f"task t: no step leads from {before} to {to}; .*: at 9 from waiting to {before}$"):
        view._transition(task, to, 8)
    if to in STATES:
        view.apply(3, says(to))
    assert (task.phase, task.story) == (before, ((9, WAITING, before),))


def test_the_story_is_bounded_and_made_of_legal_steps() -> None:
    again = [event for _ in range(20) for event in (OPEN, CLOSE)]
    story = after(QUEUE, PLACE, *again).tasks["t"].story
    assert len(story) == STORY_MAX and story[-1] == (43, STARTED, COMPLETED)
    taken = {(old, new) for seed in range(60) for task in live(busy(seed))[0].tasks.values() for _, old, new in task.story}
    assert taken <= TRANSITIONS
    assert len(taken) > 9, taken


def test_a_reservation_is_overdue_after_its_own_term_without_a_session() -> None:
    """The term runs from its placement, then from the end of its last session, and not while one is open."""
    for events, from_ns in (((KEPT, PLACE), 3), ((KEPT, PLACE, OPEN, CLOSE), 5)):
        view = after(*events)
        assert overdue_tasks(view, from_ns + 1_000_000, 10_000) == []
        (late,) = overdue_tasks(view, from_ns + 1_000_001, 10_000)
        view.apply(9, late)
        assert (view.tasks["t"].state, view.tasks["t"].reason) == ("failed", "no session opened in time")
    assert overdue_tasks(after(KEPT, PLACE, OPEN), 1 << 60, 10_000) == []
    assert overdue_tasks(after(QUEUE, PLACE), 3 + 1_000_001, 10_000) == []


def test_sessions_of_a_released_reservation_are_ended() -> None:
    view = after(KEPT, PLACE, OPEN)
    assert sessions_to_end(view) == []
    view.apply(9, says("completed"))
    assert [session.fact.session for session in sessions_to_end(view)] == ["s"]
    assert cancelled_by(view, "t") == "the release of its reservation"
    view.apply(10, CLOSE)
    assert sessions_to_end(view) == [] and view.tasks["t"].state == "completed"
    late = after(KEPT, PLACE, says("completed"), OPEN)
    assert [session.fact.session for session in sessions_to_end(late)] == ["s"]
    lost = after(KEPT, PLACE, OPEN, SILENT, says("completed"), BACK)
    assert [session.fact.session for session in sessions_to_end(lost)] == ["s"], "it was released while its node was away"
