"""Several controllers over one log: a round of tests.controllers, and that its audit sees what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus_schemas.events import ActionTaken, DeviceFact, Event, NodeRegistered, TaskPlaced, TaskSubmitted
from scheduler.placement import ClusterView, decide
from tests.controllers.audit import audit
from tests.controllers.match import play

GIB = 1 << 30


def test_two_controllers_one_killed_midway(tmp_path: Path) -> None:
    outcome = play(7, tmp_path, tasks=120)
    found = outcome.findings
    assert not found.faults, "\n".join(found.faults)
    assert not found.waiting
    assert 12 <= outcome.killed_after < 120
    assert len(found.placed) + len(found.refused) == 120
    assert len(found.placed) > outcome.placed_before_room > 0


def log_with(*more: Event) -> list[tuple[int, list[Event]]]:
    """A node with two devices of 2 GiB, task ``a`` of 2 GiB placed on the first by a real decision, then ``more``."""
    facts: list[list[Event]] = [
        [NodeRegistered(1, "n", "n", "", 1, (DeviceFact(0, "g", "host", 1, 2 * GIB), DeviceFact(1, "g", "host", 1, 2 * GIB)))],
        [TaskSubmitted(2, "a", "t", 0, 2 * GIB), ActionTaken(2, "u", "t", "task.submit", "a")],
    ]
    view = ClusterView()
    for position, events in enumerate(facts, start=1):
        for event in events:
            view.apply(position, event)
    facts.append([decide(view, view.tasks["a"].submitted, 3).event()])
    facts += [[event] for event in more]
    return list(enumerate(facts, start=1))


def placed(task: str, *gpus: int) -> TaskPlaced:
    return TaskPlaced(5, task, "n", gpus, (), (), 0)


@pytest.mark.parametrize(
    ("more", "answered", "fault"),
    [
        ((placed("a", 1),), {}, "a was placed 2 times"),
        ((TaskSubmitted(4, "b", "t", 0, GIB), placed("b", 0)), {}, "more are promised than the device has"),
        ((TaskSubmitted(4, "b", "t", 0, GIB, exclusive=True), placed("b", 0)), {}, "the device is exclusive, and shared"),
        ((TaskSubmitted(4, "b", "t", 0, GIB, 2), placed("b", 1)), {}, "wants 2 devices"),
        ((TaskSubmitted(4, "a", "t", 0, GIB),), {}, "a was submitted again"),
        ((TaskSubmitted(4, "b", "t", 0, GIB),), {}, "no user is named for the submission of b"),
        ((placed("b", 1),), {}, "b was placed before it was submitted"),
        ((), {"z": "n"}, "z was answered and is not in the log"),
        ((), {"a": "m"}, "the client of a got the answer m"),
        ((), {"a": None}, "the client of a got the answer that nothing fits"),
        ((TaskPlaced(5, "a", "n", (0,), (), (), 2),), {}, "the decision on a cannot be made again"),
        ((TaskPlaced(5, "a", "n", (0,), (), (), 99),), {}, "a decision names position 99"),
    ],
)
def test_the_audit_sees_it(more: tuple[Event, ...], answered: dict[str, str | None], fault: str) -> None:
    found = audit(log_with(*more), answered)
    assert any(fault in one for one in found.faults), found.faults


def test_the_audit_finds_nothing_where_nothing_is() -> None:
    assert audit(log_with(), {"a": "n"}).faults == []
