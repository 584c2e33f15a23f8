"""Tasks that lose their node, or are moved away from it: what their facts make of them, of their sessions and of the queue."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bus_schemas.events import (
    ConfigChanged,
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
    TaskStayed,
    TaskSubmitted,
)
from scheduler.placement import ClusterView, Decision, QueueMemory, decide, expired_waiting, queue_decisions, queue_due_ns, sessions_to_end
from scheduler.placement.feasible import refuse_node
from scheduler.placement.reconcile import overdue_tasks
from scheduler.placement.state import Leaving
from scheduler.placement.states import DISPLACED_WAIT_MS, Phase
from services.controller.reconciler import NodeRequest, node_requests
from tests.support.placement_reference import room
from tests.unit.test_scheduler.clusters import GIB, MINUTE, Cluster, node, task

WAITING, PLACED, STARTED, COMPLETED, FAILED, CANCELLED, LOST = Phase
NODES = ("a", "b", "c")
ONCE, QUEUES = task("t", queue=False), task("t")
MAIN, CHILD, GONE = Outcome(), Outcome(child=True), Outcome(lost=True)
CRASHED = Outcome(1, "ValueError")


def placed(on: str, of: str = "t") -> TaskPlaced:
    return TaskPlaced(2, of, on, (0,), (), (), 0)


def opened(name: str, on: str, of: str = "t", tenant: str = "acme") -> SessionOpenedFact:
    return SessionOpenedFact(3, name, tenant, of, on, 0, 0, GIB)


def ahead(name: str, on: str, of: str) -> SessionOpenedFact:
    return msgspec.structs.replace(opened(name, on), replaces=of)


def closed(name: str, on: str, reason: str = "done", outcome: Outcome | None = None, *, failed: bool = False) -> SessionClosedFact:
    return SessionClosedFact(5, name, on, reason, 0, 0, 0, 0, "", failed, outcome)


def left(name: str, on: str) -> SessionClosedFact:
    return closed(name, on, "displaced")


def moved(on: str, to: str = "", of: str = "t") -> TaskDisplaced:
    return TaskDisplaced(4, of, on, False, to)


def goes(on: str, to: str) -> TaskDisplaced:
    """To a node where memory is held for it."""
    return TaskDisplaced(4, "t", on, False, to, (0,))


def stays(on: str) -> TaskStayed:
    return TaskStayed(5, "t", on, "the node does not answer")


def given_up(on: str, to: str = "", of: str = "t") -> TaskDisplaced:
    return TaskDisplaced(4, of, on, True, to)


def silent(on: str, epoch: int = 1) -> NodeLost:
    return NodeLost(4, on, epoch, "silent")


def back(on: str) -> NodeRecovered:
    return NodeRecovered(5, on, 1)


def restarted(on: str) -> NodeRegistered:
    return msgspec.structs.replace(node(on, 8), epoch=2)


def after(*events: Event, wish: TaskSubmitted = ONCE) -> ClusterView:
    """Three nodes, a task that is placed on ``a``, and then these."""
    view = ClusterView()
    for position, event in enumerate([*(node(name, 8) for name in NODES), wish, placed("a"), *events], start=1):
        view.apply(position, event)
    for name in NODES:
        device = view.nodes[name].registered.devices[0]
        held = view.columns.devices[3, view.columns.row(name, 0)]
        assert held == room(view, name, device).promised_bytes, f"what is held on {name} is what a recount finds"
    return view


RUNS = (opened("s", "a"),)
AWAY = (*RUNS, silent("a"), given_up("a"))
GOES = (*RUNS, goes("a", "b"), ahead("s2", "b", "s"))


@pytest.mark.parametrize(
    ("events", "phase", "sessions", "ending"),
    [
        # its node is lost
        (AWAY, WAITING, set(), {"s"}),
        ((*AWAY, given_up("a")), WAITING, set(), {"s"}),
        ((*AWAY, back("a")), WAITING, set(), {"s"}),
        ((*AWAY, back("a"), left("s", "a")), WAITING, set(), set()),
        ((*AWAY, closed("s", "a", "done", MAIN)), WAITING, set(), set()),
        ((*AWAY, restarted("a"), opened("s", "a")), WAITING, set(), {"s"}),
        ((*AWAY, restarted("a"), opened("late", "a")), WAITING, set(), {"s", "late"}),
        ((*AWAY, placed("b")), PLACED, set(), {"s"}),
        ((*AWAY, placed("b"), opened("s2", "b")), STARTED, {"s2"}, {"s"}),
        ((*AWAY, placed("b"), opened("s2", "b"), back("a"), left("s", "a"), closed("s2", "b", "done", MAIN)), COMPLETED, set(), set()),
        ((*AWAY, placed("b"), opened("s2", "b"), closed("s2", "b", "done", MAIN), back("a")), COMPLETED, set(), {"s"}),
        ((*AWAY, placed("b"), opened("s2", "b"), silent("b")), FAILED, {"s2"}, {"s"}),
        ((*AWAY, placed("b"), opened("s2", "b"), silent("b"), back("a")), FAILED, {"s2"}, {"s"}),
        ((*AWAY, placed("b"), opened("s2", "b"), silent("b"), back("b")), STARTED, {"s2"}, {"s"}),
        ((*AWAY, placed("b"), opened("s2", "b"), silent("b"), given_up("b")), WAITING, set(), {"s", "s2"}),
        ((*AWAY, placed("b"), silent("b")), WAITING, set(), {"s"}),
        ((*AWAY, back("a"), placed("b"), TaskStateChanged(5, "t", "started"), silent("a")), STARTED, set(), {"s"}),
        ((*AWAY, back("a"), placed("a"), opened("s2", "a")), STARTED, {"s2"}, {"s"}),
        ((*AWAY, back("a"), placed("a"), restarted("a"), opened("s", "a")), PLACED, set(), {"s"}),
        ((*AWAY, back("a"), placed("b"), opened("s2", "b"), closed("s", "a", "failed", CRASHED), closed("s2", "b")),
         COMPLETED, set(), set()),
        ((*AWAY, TaskRefused(6, "t", (), 0)), WAITING, set(), {"s"}),
        ((*AWAY, TaskStateChanged(6, "t", "cancelled")), CANCELLED, set(), {"s"}),
        ((*RUNS, given_up("a")), WAITING, set(), {"s"}),  # the node came back at that moment
        ((*RUNS, opened("r", "a"), silent("a"), given_up("a")), WAITING, set(), {"r", "s"}),
        ((silent("a"), given_up("a")), WAITING, set(), set()),
        ((TaskStateChanged(3, "t", "started"), silent("a"), given_up("a")), WAITING, set(), set()),
        # it is moved to where memory is held for it
        ((*RUNS, goes("a", "b")), STARTED, {"s"}, {"s"}),
        (GOES, STARTED, {"s", "s2"}, {"s"}),
        ((*GOES, left("s", "a")), STARTED, {"s2"}, set()),
        ((*GOES, left("s", "a"), closed("s2", "b", "done", MAIN)), COMPLETED, set(), set()),
        ((*GOES, left("s", "a"), silent("b")), FAILED, {"s2"}, set()),
        ((*GOES, left("s", "a"), silent("a")), STARTED, {"s2"}, set()),
        ((*GOES, closed("s2", "b", "unused")), STARTED, {"s"}, {"s"}),
        ((*GOES, closed("s2", "b", "unused"), stays("a")), STARTED, {"s"}, set()),
        ((*GOES, stays("a")), STARTED, {"s"}, {"s2"}),
        ((*GOES, stays("b")), STARTED, {"s", "s2"}, {"s"}),
        ((*RUNS, goes("a", "b"), stays("a"), ahead("s2", "b", "s")), STARTED, {"s"}, {"s2"}),
        ((*GOES, stays("a"), closed("s2", "b", "unused"), closed("s", "a", "done", MAIN)), COMPLETED, set(), set()),
        ((*GOES, silent("b")), STARTED, {"s"}, {"s2"}),
        ((*GOES, silent("b"), closed("s", "a", "done", MAIN)), COMPLETED, set(), {"s2"}),
        ((*GOES, closed("s", "a", "lease", GONE), silent("b")), LOST, set(), {"s2"}),
        ((*GOES, closed("s", "a", "node_restarted", failed=True), silent("b")), FAILED, set(), {"s2"}),
        ((*GOES, closed("s", "a", "lease", GONE), stays("a")), LOST, set(), {"s2"}),
        ((*GOES, silent("a")), FAILED, {"s", "s2"}, set()),
        ((*GOES, silent("a"), given_up("a"), left("s2", "b")), WAITING, set(), {"s"}),
        ((*GOES, closed("s", "a", "done", MAIN)), STARTED, {"s2"}, set()),
        ((*GOES, closed("s", "a", "done", MAIN), closed("s2", "b", "unused")), COMPLETED, set(), set()),
        ((*RUNS, goes("a", "b"), left("s", "a")), WAITING, set(), set()),
        ((*RUNS, goes("a", "b"), left("s", "a"), ahead("s2", "b", "s")), STARTED, {"s2"}, set()),
        ((*RUNS, silent("b"), goes("a", "b")), STARTED, {"s"}, set()),
        ((*RUNS, goes("a", "b"), goes("a", "c")), STARTED, {"s"}, {"s"}),
        ((*GOES, goes("a", "c")), STARTED, {"s"}, {"s", "s2"}),
        ((*AWAY, placed("b"), opened("s2", "b"), back("a"), goes("b", "a"), ahead("s3", "a", "s2")),
         STARTED, {"s2", "s3"}, {"s", "s2"}),
        # it is moved
        ((*RUNS, moved("a")), STARTED, {"s"}, {"s"}),
        ((*RUNS, moved("a"), left("s", "a")), WAITING, set(), set()),
        ((*RUNS, moved("a"), left("s", "a"), placed("b"), opened("s2", "b")), STARTED, {"s2"}, set()),
        ((*RUNS, moved("a"), left("s", "a"), placed("b"), opened("s2", "b"), left("s2", "b")), COMPLETED, set(), set()),
        ((*RUNS, moved("a"), closed("s", "a", "displaced", failed=True)), WAITING, set(), set()),
        ((*RUNS, moved("a"), closed("s", "a", "done", MAIN)), COMPLETED, set(), set()),
        ((*RUNS, moved("a"), closed("s", "a", "displaced", MAIN)), COMPLETED, set(), set()),
        ((*RUNS, moved("a"), closed("s", "a", "displaced", CHILD)), COMPLETED, set(), set()),
        ((*RUNS, moved("a"), closed("s", "a", "failed", CRASHED)), FAILED, set(), set()),
        ((*RUNS, moved("a"), closed("s", "a", "lease", GONE)), LOST, set(), set()),
        ((*RUNS, moved("a"), closed("s", "a", "executor_lost", failed=True)), FAILED, set(), set()),
        ((*RUNS, moved("a"), closed("s", "a", "done")), COMPLETED, set(), set()),
        ((*RUNS, moved("a"), opened("r", "a")), STARTED, {"r", "s"}, {"r", "s"}),
        ((*RUNS, opened("r", "a"), moved("a"), left("s", "a")), STARTED, {"r"}, {"r"}),
        ((*RUNS, opened("r", "a"), moved("a"), left("s", "a"), left("r", "a")), WAITING, set(), set()),
        ((*RUNS, opened("r", "a"), closed("r", "a", "done", CHILD), moved("a"), left("s", "a")), WAITING, set(), set()),
        ((*RUNS, opened("r", "a"), moved("a"), left("s", "a"), closed("r", "a", "done", CHILD)), WAITING, set(), set()),
        ((*RUNS, opened("r", "a"), moved("a"), left("s", "a"), closed("r", "a", "lease", GONE)), WAITING, set(), set()),
        ((*RUNS, opened("r", "a"), moved("a"), left("s", "a"), closed("r", "a", "done", MAIN)), COMPLETED, set(), set()),
        ((*RUNS, opened("r", "a"), moved("a"), closed("s", "a", "done", CHILD), closed("r", "a", "done", CHILD)), COMPLETED, set(), set()),
        ((*RUNS, moved("a"), left("s", "a"), opened("late", "a")), STARTED, {"late"}, {"late"}),
        ((*RUNS, moved("a"), left("s", "a"), opened("late", "a"), left("late", "a")), WAITING, set(), set()),
        ((*RUNS, moved("a"), left("s", "a"), placed("b"), opened("s2", "b"), moved("b"), closed("s2", "b", "done", CHILD)),
         COMPLETED, set(), set()),
        ((*RUNS, moved("a"), left("s", "a"), placed("b"), opened("s2", "b"), opened("late", "a"), moved("b")),
         STARTED, {"late", "s2"}, {"s2"}),
        ((*RUNS, moved("a"), left("s", "a"), placed("b"), opened("s2", "b"), opened("late", "a"), moved("b"), left("s2", "b")),
         WAITING, {"late"}, set()),
        ((*RUNS, moved("a"), left("s", "a"), placed("b"), opened("s2", "b"), opened("late", "a"), silent("b"), given_up("b")),
         WAITING, {"late"}, {"s2"}),
        ((*RUNS, moved("a"), moved("a", "c")), STARTED, {"s"}, {"s"}),
        ((*RUNS, opened("r", "a"), moved("a"), left("r", "a"), moved("a"), closed("s", "a", "done", CHILD)), WAITING, set(), set()),
        ((*RUNS, moved("a"), silent("a")), FAILED, {"s"}, set()),
        ((*RUNS, moved("a"), silent("a"), back("a")), STARTED, {"s"}, {"s"}),
        ((*RUNS, moved("a"), silent("a"), given_up("a")), WAITING, set(), {"s"}),
        ((*RUNS, silent("a"), moved("a")), FAILED, {"s"}, set()),
        ((*RUNS, silent("a"), moved("a"), back("a")), STARTED, {"s"}, {"s"}),
        ((*RUNS, moved("a"), TaskStateChanged(6, "t", "cancelled")), CANCELLED, {"s"}, {"s"}),
        ((*RUNS, moved("a"), TaskStateChanged(6, "t", "cancelled"), left("s", "a")), CANCELLED, set(), set()),
        ((TaskStateChanged(3, "t", "started"), moved("a")), WAITING, set(), set()),
        # what says nothing of it
        ((*RUNS, moved("b")), STARTED, {"s"}, set()),
        ((*RUNS, given_up("b")), STARTED, {"s"}, set()),
        ((moved("a"),), PLACED, set(), set()),
        ((*RUNS, closed("s", "a", "done", MAIN), moved("a")), COMPLETED, set(), set()),
        ((*RUNS, closed("s", "a", "done", CRASHED), given_up("a")), FAILED, set(), set()),
        ((*RUNS, TaskStateChanged(6, "t", "cancelled"), given_up("a")), CANCELLED, {"s"}, {"s"}),
        ((*RUNS, moved("a", of="none"), given_up("a", of="none")), STARTED, {"s"}, set()),
        ((*RUNS, left("s", "a")), COMPLETED, set(), set()),
    ],
)  # fmt: skip
def test_what_becomes_of_a_task(events: tuple[Event, ...], phase: Phase, sessions: set[str], ending: set[str]) -> None:
    view = after(*events)
    seen = view.tasks["t"]
    assert (seen.phase, seen.sessions, view.to_end) == (phase, sessions, ending)
    assert ("t" in view.queue, "t" in view.live, "t" in view.untold) == (
        phase is WAITING, phase in (WAITING, PLACED, STARTED), phase is WAITING and not isinstance(seen.decision, TaskRefused)
    )  # fmt: skip
    assert seen.placed is None or phase is not WAITING
    assert {name for name in NODES if "t" in view.nodes[name].tasks} == (
        {place.node for place in (seen.placed, seen.moving) if place is not None} if phase in (PLACED, STARTED) else set()
    )
    assert seen.moving is None or phase is STARTED


def test_a_task_that_waits_again_is_as_it_was_when_it_was_submitted() -> None:
    view = after(*AWAY)
    seen = view.tasks["t"]
    assert (seen.state, seen.reason, seen.wait_from_ns, seen.turn, seen.queues) == ("queued", "", 4, 1, True)
    assert view.turns == {("acme", 0): (1, 1)} and view.recent["t"] == view.position == seen.revision


@pytest.mark.parametrize(
    ("events", "leaving", "places"),
    [
        ((), None, {"a", "b", "c"}),
        (AWAY, None, {"b", "c"}),
        ((*AWAY, back("a")), None, {"a", "b", "c"}),
        ((*RUNS, silent("a"), given_up("a", "b")), Leaving("", "b"), {"b"}),
        ((*RUNS, silent("a"), given_up("a", "b"), back("a")), Leaving("", "b"), {"b"}),
        ((*RUNS, moved("a")), Leaving("a", ""), {"b", "c"}),
        ((*RUNS, moved("a"), left("s", "a")), Leaving("a", ""), {"b", "c"}),
        ((*RUNS, moved("a", "b"), left("s", "a")), Leaving("a", "b"), {"b"}),
        ((*RUNS, moved("a"), moved("a", "c"), left("s", "a")), Leaving("a", "c"), {"c"}),
        ((*RUNS, moved("a", "b"), left("s", "a"), silent("b")), Leaving("a", "b"), {"c"}),
        ((*RUNS, moved("a", "b"), left("s", "a"), silent("b"), back("b")), Leaving("a", "b"), {"b"}),
        ((*RUNS, moved("a", "b"), left("s", "a"), ConfigChanged(5, "b", "drained", 1)), Leaving("a", "b"), {"c"}),
        ((*RUNS, moved("a", "b"), left("s", "a"), ConfigChanged(5, "c", "drained", 1)), Leaving("a", "b"), {"b"}),
        ((*RUNS, moved("a", "never"), left("s", "a")), Leaving("a", "never"), {"b", "c"}),
        ((*RUNS, moved("a"), silent("a"), given_up("a"), back("a")), None, {"a", "b", "c"}),
        ((*RUNS, moved("a"), left("s", "a"), placed("b")), None, {"a", "b", "c"}),
    ],
)
def test_where_it_may_be_placed(events: tuple[Event, ...], leaving: Leaving | None, places: set[str]) -> None:
    view = after(*events)
    assert view.tasks["t"].leaving == leaving and view.tasks["t"].shape[-1] == leaving
    fits = {name for name, _, _ in decide(view, ONCE, 10).scores}
    assert fits == places == {name for name, seen in view.nodes.items() if refuse_node(view, ONCE, name, seen) is None}
    here = {name for name, seen in view.nodes.items() if seen.lost is None and not view.drained(name)}
    for other in (task("other"), task("t", 2)):  # the second is only asked about
        assert {name for name, _, _ in decide(view, other, 10).scores} == here


def test_why_a_moved_task_is_not_placed() -> None:
    view = after(*RUNS, moved("a", "b"), left("s", "a"), task("big", 8), placed("b", "big"))
    decision = decide(view, ONCE, 10)
    assert not decision.gpus
    assert {(name, reason) for name, _, reason, _ in decision.event().refusals} == {
        ("a", "node_left"), ("b", "vram_short"), ("c", "node_left")
    }  # fmt: skip


def test_a_session_that_is_given_up_holds_memory_until_it_is_over() -> None:
    """While its node is here; beside what its task holds there, if it is placed there again."""
    histories = (
        AWAY, (*AWAY, back("a")), (*AWAY, back("a"), placed("a")), (*AWAY, back("a"), placed("a"), left("s", "a")), (*AWAY, placed("b"))
    )  # fmt: skip
    held = [(after(*events).columns.devices[3] // GIB).tolist() for events in histories]
    assert held == [[0, 0, 0], [1, 0, 0], [2, 0, 0], [1, 0, 0], [0, 1, 0]]


def test_a_task_that_moves_holds_memory_where_it_runs_and_where_it_goes() -> None:
    histories = (RUNS, (*RUNS, goes("a", "b")), GOES, (*GOES, left("s", "a")), (*GOES, stays("a")), (*GOES, stays("a"), left("s2", "b")))
    views = [after(*events) for events in histories]
    assert [(view.columns.devices[3] // GIB).tolist() for view in views] == [
        [1, 0, 0], [1, 1, 0], [1, 1, 0], [0, 1, 0], [1, 1, 0], [1, 0, 0]
    ]  # fmt: skip
    places = [(view.tasks["t"].placed, view.tasks["t"].moving, view.tasks["t"].leaving) for view in views]
    assert [(placed and placed.node, moving and moving.node, leaving and leaving.to) for placed, moving, leaving in places] == [
        ("a", None, None), ("a", "b", "b"), ("a", "b", "b"), ("b", None, None), ("a", None, None), ("a", None, None)
    ]  # fmt: skip
    assert views[4].tasks["t"].stayed == "the node does not answer" and not views[3].tasks["t"].stayed


def test_a_task_whose_node_is_lost_before_it_is_moved_holds_nothing_where_it_was_to_go() -> None:
    """The move was decided before the loss, and has its place in the log behind it."""
    view = after(*RUNS, silent("a"), goes("a", "b"))
    assert view.tasks["t"].phase is FAILED and view.tasks["t"].moving is None
    assert not any(node.tasks for node in view.nodes.values())
    view.apply(view.position + 1, left("s", "a"))
    assert (view.columns.devices[3] // GIB).tolist() == [0, 0, 0]


def test_a_session_that_is_given_up_follows_no_priority() -> None:
    view = after(*AWAY, placed("b"), opened("s2", "b"), back("a"), TaskPriorityChanged(6, "t", 3), SessionPriorityChanged(6, "s", "a", 1))
    assert view.to_reprioritise == {"s2"} and view.to_end == {"s"} and view.sessions["s"].priority == 1


def test_a_name_that_another_task_takes_is_not_given_up() -> None:
    other = task("u")
    view = after(other, placed("a", "u"), *AWAY, restarted("a"), opened("s", "a", "u"))
    assert view.tasks["u"].sessions == {"s"} and not view.sessions["s"].given_up and not view.to_end


def test_sessions_of_others_on_the_node_are_left_alone() -> None:
    strangers = (opened("o1", "a", "u"), opened("o2", "a", "t", "zeta"), opened("o3", "a", ""))
    view = after(task("u"), placed("a", "u"), *RUNS, *strangers, silent("a"), given_up("a"))
    assert view.to_end == {"s"} and not any(view.sessions[name].given_up for name in ("o1", "o2", "o3"))
    assert view.tasks["u"].phase is FAILED
    view.apply(view.position + 1, back("a"))
    assert view.tasks["u"].phase is STARTED


@pytest.mark.parametrize(
    ("events", "requests"),
    [
        (AWAY, []),  # the node is not here
        ((*AWAY, back("a")), [NodeRequest("a", "t", displaced=("s",))]),
        ((*AWAY, back("a"), TaskStateChanged(6, "t", "cancelled", "cancelled by ann")), [NodeRequest("a", "t", by="ann")]),
        ((*RUNS, moved("a")), [NodeRequest("a", "t", displaced=("s",))]),
        ((*RUNS, opened("r", "a"), moved("a")), [NodeRequest("a", "t", displaced=("r", "s"))]),
        ((*AWAY, back("a"), placed("a"), opened("s2", "a"), moved("a")),
         [NodeRequest("a", "t", displaced=("s", "s2"))]),
        ((*AWAY, back("a"), placed("a"), opened("s2", "a"), goes("a", "b")),
         [NodeRequest("a", "t", displaced=("s",)), NodeRequest("a", "t", displaced=("s2",), asks=True)]),
        ((*RUNS, goes("a", "b")), [NodeRequest("a", "t", displaced=("s",), asks=True)]),
        ((*GOES, TaskStateChanged(6, "t", "cancelled", "cancelled by ann")),
         [NodeRequest("a", "t", by="ann"), NodeRequest("b", "t", by="ann")]),
        ((*GOES, stays("a")), [NodeRequest("b", "t", displaced=("s2",))]),
        ((*GOES, left("s", "a")), []),
        ((*RUNS, moved("a"), TaskStateChanged(6, "t", "cancelled", "cancelled by ann")), [NodeRequest("a", "t", by="ann")]),
        ((*RUNS, moved("a"), TaskPriorityChanged(6, "t", 3)),
         [NodeRequest("a", "t", displaced=("s",)), NodeRequest("a", "t", 3)]),
    ],
)  # fmt: skip
def test_what_nodes_are_asked_for(events: tuple[Event, ...], requests: list[NodeRequest]) -> None:
    assert node_requests(after(*events)) == requests


def test_a_request_to_a_node_names_so_many_sessions() -> None:
    (request,) = node_requests(after(*(opened(f"s{number}", "a") for number in range(1100)), moved("a")))
    assert len(request.displaced) == 1024


@pytest.mark.parametrize(
    ("wish", "events", "due_ms"),
    [
        (ONCE, AWAY, DISPLACED_WAIT_MS),
        (QUEUES, AWAY, DISPLACED_WAIT_MS),
        (task("t", queue_timeout_ms=7), AWAY, 7),
        (QUEUES, (silent("a"),), None),
    ],
)
def test_how_long_it_waits(wish: TaskSubmitted, events: tuple[Event, ...], due_ms: int | None) -> None:
    view = after(*events, ConfigChanged(1, "global", "queue_age_ms", 0), ConfigChanged(1, "global", "queue_protect_ms", 0), wish=wish)
    assert view.tasks["t"].waiting
    due_ns = None if due_ms is None else 4 + due_ms * 10**6
    assert queue_due_ns(view, 10) == due_ns
    if due_ns is not None:
        assert expired_waiting(view, due_ns - 1) == []
        (expired,) = expired_waiting(view, due_ns)
        view.apply(view.position + 1, expired)
        assert view.tasks["t"].phase is FAILED


def test_a_place_that_no_client_takes_up_is_given_back() -> None:
    view = after(*AWAY, placed("b"))
    (overdue,) = overdue_tasks(view, 10**12, 1_000)
    view.apply(view.position + 1, overdue)
    assert view.tasks["t"].phase is FAILED and view.columns.devices[3, view.columns.row("b", 0)] == 0


def test_it_keeps_devices_for_itself_when_it_has_waited_for_long() -> None:
    """Though it was not submitted to queue."""
    cluster = Cluster(node("a", 8), node("b", 8), task("t", 6, queue=False), opened("s", "a"), task("u", 6))
    assert (cluster.where("t"), cluster.where("u")) == ("a", "b")
    cluster.add(silent("a"))
    cluster.add(given_up("a"))
    assert cluster.view.tasks["t"].waiting and not cluster.view.reservations
    cluster.go(6)
    assert cluster.view.reservations == {("b", 0): "t"}
    cluster.add(task("small", 1, minute=6), 6)
    assert cluster.where("small") == ""
    cluster.end("u", 7)
    assert cluster.where("t") == "b"


def test_it_goes_before_what_was_submitted_later() -> None:
    cluster = Cluster(node("a", 8), node("b", 8), task("t", 8), opened("s", "a"), task("u", 8), task("v", 8))
    assert cluster.waiting() == ["v"]
    cluster.add(silent("a"))
    cluster.add(given_up("a"))
    assert cluster.waiting() == ["t", "v"]
    cluster.end("u", 1)
    assert (cluster.where("t"), cluster.waiting()) == ("b", ["v"])


def _decided(view: ClusterView, memory: QueueMemory | None, at_ns: int) -> list[Decision]:
    out = []
    for decision in queue_decisions(view, at_ns, memory):
        out.append(decision)
        view.apply(view.position + 1, decision.event())
    return out


def test_the_memo_of_the_queue_knows_of_displaced_tasks() -> None:
    """The same decisions with and without it, where a shape differs by what is left alone."""
    facts: list[Any] = [
        node("a", 4),
        node("b", 4),
        task("full", 4),
        placed("b", "full"),
        task("t", 4, queue=False),
        placed("a"),
        opened("s", "a"),
    ]
    views, memory = (ClusterView(), ClusterView()), QueueMemory()
    for at, fact in enumerate([*facts, moved("a"), left("s", "a"), task("u", 4), TaskStateChanged(9, "full", "completed")], start=1):
        for view in views:
            view.apply(view.position + 1, fact)
        assert _decided(views[0], memory, at) == _decided(views[1], None, at)
    assert [seen.placed and seen.placed.node for seen in (views[0].tasks["t"], views[0].tasks["u"])] == ["b", "a"]
    assert queue_due_ns(views[0], MINUTE) is None and sessions_to_end(views[0]) == []


@pytest.mark.parametrize("events", [(opened("s", "a"), back("a")), (back("a"), opened("s", "a")), (restarted("a"), opened("s", "a"))])
def test_a_task_that_runs_where_it_was_placed_before_its_node_was_lost_has_that_place(events: tuple[Event, ...]) -> None:
    """Its client found the place before the controller took the node for lost, and the log heard of its session afterwards."""
    found = after(silent("a"), *events, wish=QUEUES).tasks["t"]
    assert found.phase is STARTED and found.placed is not None
    assert (found.placed.node, found.placed.gpus) == ("a", (0,))
