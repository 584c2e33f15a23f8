"""What a task's state follows from how the scripts behind its sessions ended."""

from __future__ import annotations

import itertools

import pytest

from bus_schemas.events import NodeRegistered, Outcome, SessionClosedFact, SessionOpenedFact, TaskPlaced, TaskStateChanged, TaskSubmitted
from scheduler.placement import ClusterView
from scheduler.placement.states import decisive

GOOD, BAD, LOST = Outcome(), Outcome(3), Outcome(lost=True)
CHILD_GOOD, CHILD_BAD = Outcome(child=True), Outcome(1, "ValueError", child=True)


def view_after(*closings: tuple[bool, str, Outcome | None]) -> ClusterView:
    """A task whose sessions, all open at once, closed in this order: (failed, reason, outcome)."""
    view = ClusterView()
    node, placed = NodeRegistered(1, "n", "n", "", 1, ()), TaskPlaced(1, "t", "n", (0,), (), (), 0)
    facts: list[object] = [node, TaskSubmitted(1, "t", "acme", 2, 1 << 20), placed]
    facts += [SessionOpenedFact(2, f"s{at}", "acme", "t", "n", 0, 2, 1 << 20) for at in range(len(closings))]
    facts += [
        SessionClosedFact(3, f"s{at}", "n", reason, 1, 1, 1, 1, "", failed, outcome)
        for at, (failed, reason, outcome) in enumerate(closings)
    ]
    for position, fact in enumerate(facts, start=1):
        view.apply(position, fact)  # type: ignore[arg-type]  # a row of facts
    return view


def state(*closings: tuple[bool, str, Outcome | None]) -> tuple[str, str]:
    task = view_after(*closings).tasks["t"]
    return task.state, task.reason


@pytest.mark.parametrize(
    ("closing", "expected"),
    [
        ((False, "done", GOOD), ("completed", "")),
        ((False, "done", BAD), ("failed", "exit code 3")),
        ((False, "done", Outcome(1, "KeyError")), ("failed", "KeyError, exit code 1")),
        ((False, "killed", Outcome(143, "", 15)), ("failed", "killed by signal 15 (SIGTERM)")),
        *[
            ((False, "killed", Outcome(128 + number, "", number)), ("failed", f"killed by signal {number} (SIG{name})"))
            for number, name in ((1, "HUP"), (2, "INT"), (3, "QUIT"), (6, "ABRT"), (9, "KILL"), (11, "SEGV"))
        ],
        ((False, "killed", Outcome(192, "", 64)), ("failed", "killed by signal 64")),
        ((False, "lease", LOST), ("lost", "the client stopped answering")),
        ((True, "failed", GOOD), ("failed", "a fault ended its session on the node; the script ended with exit code 0")),
        ((False, "done", None), ("completed", "")),
        ((False, "lease", None), ("completed", "")),
        ((True, "executor_lost", None), ("failed", "executor_lost")),
    ],
)
def test_one_session(closing: tuple[bool, str, Outcome | None], expected: tuple[str, str]) -> None:
    """Facts of earlier versions, without an outcome, fold as they did."""
    assert state(closing) == expected


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ((GOOD, GOOD), "completed"),
        ((GOOD, BAD), "failed"),
        ((GOOD, CHILD_BAD), "completed"),
        ((BAD, CHILD_GOOD), "failed"),
        ((GOOD, LOST), "completed"),
        ((CHILD_GOOD, LOST), "completed"),
        ((CHILD_GOOD, CHILD_BAD), "failed"),
        ((GOOD, None), "completed"),
        ((BAD, None), "failed"),
        ((LOST, None), "lost"),
    ],
)
def test_several_sessions_in_any_order(outcomes: tuple[Outcome | None, ...], expected: str) -> None:
    for order in itertools.permutations(outcomes):
        assert state(*[(False, "done", outcome) for outcome in order])[0] == expected


def test_the_choice_between_outcomes_is_independent_of_grouping() -> None:
    every = (None, GOOD, BAD, LOST, CHILD_GOOD, CHILD_BAD)
    for one, two, three in itertools.product(every, repeat=3):
        assert decisive(decisive(one, two), three) == decisive(one, decisive(two, three))


def test_a_session_opened_after_the_end_begins_anew() -> None:
    view = view_after((False, "lease", LOST))
    view.apply(12, SessionOpenedFact(4, "again", "acme", "t", "n", 0, 2, 1 << 20))
    assert (view.tasks["t"].state, view.tasks["t"].outcome) == ("started", None)
    view.apply(13, SessionClosedFact(5, "again", "n", "done", 1, 1, 1, 1, "", False, GOOD))
    assert view.tasks["t"].state == "completed"


def test_a_cancelled_task_stays_cancelled_whatever_its_script_reports() -> None:
    view = view_after()
    view.apply(12, SessionOpenedFact(2, "s", "acme", "t", "n", 0, 2, 1 << 20))
    view.apply(13, TaskStateChanged(3, "t", "cancelled", "cancelled by anna"))
    view.apply(14, SessionClosedFact(4, "s", "n", "cancelled", 1, 1, 1, 1, "", True, BAD))
    assert (view.tasks["t"].state, view.tasks["t"].reason) == ("cancelled", "cancelled by anna")
