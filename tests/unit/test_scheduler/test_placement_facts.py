"""What single facts leave in the view of the cluster: holders, times, indexes; and nothing that outlives what it stands for."""

from __future__ import annotations

import pytest

from bus_schemas.events import (
    ConfigChanged,
    DeviceFact,
    Event,
    LoadObserved,
    NodeLost,
    NodeRecovered,
    NodeRegistered,
    SessionClosedFact,
    SessionOpenedFact,
    SessionPriorityChanged,
    TaskPlaced,
    TaskPriorityChanged,
    TaskRefused,
    TaskStateChanged,
    TaskSubmitted,
)
from scheduler.placement import ClusterView, Measured, capacity, overdue_tasks, sessions_to_reprioritise

GIB = 1 << 30
SILENT, BACK = NodeLost(5, "a", 1, "silent"), NodeRecovered(6, "a", 1)


def node(name: str, *indexes: int, gib: int = 10, epoch: int = 1, at_ns: int = 1) -> NodeRegistered:
    """With devices of these indexes."""
    return NodeRegistered(at_ns, name, name, "", epoch, tuple(DeviceFact(index, "gpu", "host", 8, gib * GIB) for index in indexes))


def task(name: str, gib: int = 1, *, priority: int = 0, queue: bool = True, **more: bool) -> TaskSubmitted:
    return TaskSubmitted(1, name, "acme", priority, gib * GIB, queue=queue, **more)  # type: ignore[arg-type]


def placed(name: str, on: str, *gpus: int, at_ns: int = 2) -> TaskPlaced:
    return TaskPlaced(at_ns, name, on, gpus, (), (), 0)


def opened(name: str, on: str, of: str = "", *, gpu: int = 0, gib: int = 1, priority: int = 0, swap: bool = True) -> SessionOpenedFact:
    return SessionOpenedFact(3, name, "acme", of, on, gpu, priority, gib * GIB, swap)


def closed(name: str, on: str, at_ns: int = 4) -> SessionClosedFact:
    return SessionClosedFact(at_ns, name, on, "done", 0, 0, 0, 0, "")


def view_of(*events: Event) -> ClusterView:
    view = ClusterView()
    for position, event in enumerate(events, start=1):
        view.apply(position, event)
    return view


def promised(view: ClusterView, name: str, gpu: int = 0) -> tuple[int, int, bool, tuple[int, ...]]:
    """GiB promised, those that cannot be swapped out, whether exclusively, and the priorities of the holders."""
    device = view.nodes[name].device(gpu)
    assert device is not None
    found = capacity(view, name, device)
    return found.promised_bytes // GIB, found.promised_noswap_bytes // GIB, found.exclusive, found.priorities


# -- holders of memory -------------------------------------------------------------------------------------------------------------------


def test_tasks_and_sessions_hold_memory_with_their_priority() -> None:
    view = view_of(node("a", 0), task("t", 3, priority=2, noswap=True), placed("t", "a", 0), opened("s", "a", gib=4, swap=False))
    assert promised(view, "a") == (7, 7, False, (0, 2))
    view.apply(5, TaskPriorityChanged(5, "t", 4))
    view.apply(6, SessionPriorityChanged(6, "s", "a", 1))
    assert promised(view, "a") == (7, 7, False, (1, 4))
    view.apply(7, TaskStateChanged(7, "t", "cancelled"))
    assert promised(view, "a") == (4, 4, False, (1,))
    view.apply(8, task("alone", 5, exclusive=True))
    view.apply(9, placed("alone", "a", 0))
    view.apply(10, closed("s", "a"))
    assert promised(view, "a") == (5, 0, True, (0,))
    view.apply(11, TaskStateChanged(11, "alone", "completed"))
    assert promised(view, "a") == (0, 0, False, ())


def test_a_session_holds_nothing_beside_its_task_and_its_quota_on_another_device() -> None:
    view = view_of(node("a", 0, 1), task("t", 3), placed("t", "a", 0), opened("s", "a", "t", gib=5), opened("r", "a", "t", gpu=1, gib=2))
    assert (promised(view, "a", 0), promised(view, "a", 1)) == ((3, 0, False, (0,)), (2, 0, False, (0,)))
    view.apply(6, TaskStateChanged(6, "t", "cancelled"))
    assert (promised(view, "a", 0), promised(view, "a", 1)) == ((5, 0, False, (0,)), (2, 0, False, (0,))), "until the sessions are closed"


def test_a_node_that_registers_with_other_devices_keeps_what_is_held_on_those_it_still_has() -> None:
    view = view_of(node("a", 0, 1), task("t", 3), placed("t", "a", 1), opened("s", "a", gib=4), LoadObserved(4, (("a", 1, 50, 60, GIB),)))
    view.apply(6, node("a", 1, 2))
    assert (promised(view, "a", 1), promised(view, "a", 2)) == ((3, 0, False, (0,)), (0, 0, False, ()))
    assert view.columns.devices[6:9, view.columns.row("a", 1)].tolist() == [50, 60, GIB]
    view.apply(7, node("a", 0, 1))
    assert (promised(view, "a", 0), promised(view, "a", 1)) == ((4, 0, False, (0,)), (3, 0, False, (0,)))
    view.apply(8, closed("s", "a"))
    view.apply(9, TaskStateChanged(9, "t", "completed"))
    assert (promised(view, "a", 0), promised(view, "a", 1)) == ((0, 0, False, ()), (0, 0, False, ()))


def test_a_node_that_registers_with_larger_devices_has_more_to_promise() -> None:
    view = view_of(node("a", 0), ConfigChanged(1, "a", "overcommit_vram_percent", 50), opened("s", "a", gib=4))
    view.apply(4, node("a", 0, gib=20))
    assert capacity(view, "a", view.nodes["a"].registered.devices[0]).free_bytes == (30 - 4) * GIB


def test_sessions_on_a_lost_node_hold_nothing_until_it_is_back() -> None:
    """Also a session that opens meanwhile, and one of a task that the log does not know."""
    view = view_of(node("a", 0), opened("s", "a", gib=4), opened("r", "a", "unknown", gib=2), SILENT)
    assert promised(view, "a")[0] == 0
    view.apply(5, opened("late", "a", gib=3))
    assert promised(view, "a")[0] == 0
    assert [view.sessions[name].cut_off for name in ("s", "r", "late")] == ["lost"] * 3
    view.apply(6, BACK)
    assert promised(view, "a")[0] == 9
    assert [view.sessions[name].cut_off for name in ("s", "r", "late")] == [""] * 3


def test_sessions_on_a_restarted_node_hold_nothing_until_they_are_announced_again() -> None:
    view = view_of(node("a", 0), opened("s", "a", gib=4), node("a", 0, epoch=2))
    assert (promised(view, "a")[0], view.sessions["s"].cut_off) == (0, "restarted")
    view.apply(4, NodeLost(5, "a", 2, "silent"))
    view.apply(5, NodeRecovered(6, "a", 2))
    assert view.sessions["s"].cut_off == "restarted", "that the node is heard again says nothing of the session"
    view.apply(6, opened("s", "a", gib=4))
    assert promised(view, "a")[0] == 4


def test_less_memory_than_none_is_never_free() -> None:
    view = view_of(node("a", 0), opened("s", "a", gib=4), node("a", 0, gib=3))
    found = capacity(view, "a", view.nodes["a"].registered.devices[0])
    assert (found.free_bytes, found.free_physical_bytes(0), found.free_physical_bytes(5 * GIB)) == (0, 0, 0)


def test_devices_are_found_by_their_index() -> None:
    """Which is not their place on the node."""
    view = view_of(node("b", 2, 7), node("a", 5, 3))
    assert [view.columns.row(name, gpu) for name, gpu in (("a", 3), ("a", 5), ("b", 2), ("b", 7))] == [0, 1, 2, 3]
    assert [view.columns.row(name, gpu) for name, gpu in (("a", 0), ("a", 4), ("b", 0), ("b", 3), ("c", 2))] == [-1] * 5


def test_devices_that_no_placement_could_name_are_left_out() -> None:
    """The first of two with one index stays, and the largest index is 2^31 - 1."""
    devices = tuple(
        DeviceFact(index, name, "host", 8, GIB) for index, name in ((0, "a"), (0, "b"), (2**31 - 1, "c"), (2**31, "d"), (-1, "e"))
    )
    view = view_of(NodeRegistered(1, "n", "n", "", 1, devices))
    assert [device.name for device in view.nodes["n"].registered.devices] == ["a", "c"]
    assert view.columns.rows == 2


# -- times, revisions, and what is left --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "at_ns", "state"),
    [
        ([], 1, "queued"),
        ([TaskRefused(2, "t", (), 0)], 2, "queued"),
        ([placed("t", "a", 0)], 2, "queued"),
        ([placed("t", "a", 0), opened("s", "a", "t")], 3, "started"),
        ([placed("t", "a", 0), opened("s", "a", "t"), closed("s", "a")], 4, "completed"),
        ([placed("t", "a", 0), opened("s", "a", "t"), opened("r", "a", "t"), closed("s", "a")], 3, "started"),
        ([placed("t", "a", 0), opened("s", "a", "t"), TaskPriorityChanged(7, "t", 3)], 7, "started"),
        ([placed("t", "a", 0), SILENT], 5, "queued"),
        ([placed("t", "a", 0), opened("s", "a", "t"), SILENT], 5, "failed"),
        ([placed("t", "a", 0), opened("s", "a", "t"), SILENT, BACK], 6, "started"),
        ([placed("t", "a", 0), opened("s", "a", "t"), SILENT, closed("s", "a", 8)], 8, "completed"),
        ([SILENT, placed("t", "a", 0, at_ns=9)], 9, "queued"),
        ([TaskStateChanged(9, "t", "cancelled")], 9, "cancelled"),
    ],
)
def test_a_task_has_the_time_and_the_position_of_the_fact_that_changed_it_last(facts: list[Event], at_ns: int, state: str) -> None:
    view = view_of(node("a", 0), task("t"), *facts)
    seen = view.tasks["t"]
    assert (seen.state, seen.updated_ns, seen.revision) == (state, at_ns, view.position)
    assert view.recent == {"t": view.position}


def test_a_task_that_waits_again_waits_from_then_on() -> None:
    view = view_of(node("a", 0), task("t"), placed("t", "a", 0), SILENT)
    assert (view.tasks["t"].wait_from_ns, view.tasks["t"].placed, view.queue, view.untold) == (5, None, {"t"}, {"t"})


@pytest.mark.parametrize("of", ["", "unknown", "t"])
def test_a_session_that_closed_leaves_nothing_behind(of: str) -> None:
    """But for what its task says of it."""
    facts = [node("a", 0), task("t"), TaskStateChanged(2, "t", "cancelled")]
    view, untouched = view_of(*facts, opened("s", "a", of), closed("s", "a")), view_of(*facts)
    untouched.position = view.position
    for seen in (view, untouched):
        seen.tasks["t"].past_sessions, seen.tasks["t"].revision, seen.recent = [], 0, {}
    assert view == untouched


def test_a_name_of_a_session_is_of_the_node_that_opened_it() -> None:
    """Also while that node is lost: a session of another node that takes the name neither counts nor ends the first."""
    view = view_of(node("a", 0), node("b", 0), opened("s", "a", "first", gib=4), SILENT, opened("s", "b", "second", gib=3))
    view.apply(6, BACK)
    assert (promised(view, "a")[0], promised(view, "b")[0]) == (4, 0)
    view.apply(7, closed("s", "b"))
    assert (promised(view, "a")[0], list(view.sessions)) == (4, ["s"])


def test_a_cancelled_task_stays_so_when_the_node_of_its_session_is_back() -> None:
    view = view_of(node("a", 0), task("t"), placed("t", "a", 0), opened("s", "a", "t"), TaskStateChanged(4, "t", "cancelled"), SILENT, BACK)
    assert (view.tasks["t"].state, view.sessions["s"].cut_off) == ("cancelled", "")


def test_a_session_is_told_of_a_priority_only_while_its_task_is_live() -> None:
    view = view_of(node("a", 0), task("t", priority=3), placed("t", "a", 0), opened("s", "a", "t", priority=3))
    view.apply(5, TaskPriorityChanged(5, "t", 1))
    assert [(seen.fact.session, priority) for seen, priority in sessions_to_reprioritise(view)] == [("s", 1)]
    view.apply(6, SILENT)
    assert sessions_to_reprioritise(view) == []
    view.apply(7, BACK)
    view.apply(7, opened("r", "a", "t", priority=3))
    assert [seen.fact.session for seen, _ in sessions_to_reprioritise(view)] == ["r", "s"]
    view.apply(7, closed("r", "a"))
    assert [seen.fact.session for seen, _ in sessions_to_reprioritise(view)] == ["s"]
    view.apply(8, TaskStateChanged(8, "t", "completed"))
    assert sessions_to_reprioritise(view) == []


def test_what_is_measured_stays_until_it_is_measured_again() -> None:
    view = view_of(LoadObserved(1, (("a", 0, 10, 20, GIB),)), node("a", 0, 1), LoadObserved(2, (("a", 1, 5, 6, 7),)))
    assert (view.measured("a", 0), view.measured("a", 1), view.measured("b", 0)) == (
        Measured(10, 20, GIB),
        Measured(5, 6, 7),
        Measured(0, 0, 0),
    )
    assert view.columns.devices[6:9].T.tolist() == [[10, 20, GIB], [5, 6, 7]]


# -- tasks that are overdue --------------------------------------------------------------------------------------------------------------


def test_a_task_is_overdue_only_after_the_whole_time() -> None:
    """A second, counted from its placement, and from the restart of its node."""
    second = 10**9
    view = view_of(node("a", 0), task("t"), placed("t", "a", 0, at_ns=5), task("u"), placed("u", "a", 0), opened("s", "a", "u"))
    assert overdue_tasks(view, 5 + second, 1_000) == []
    assert [fact.task for fact in overdue_tasks(view, 6 + second, 1_000)] == ["t"]
    view.apply(7, TaskStateChanged(7, "t", "cancelled"))
    view.apply(8, node("a", 0, epoch=2, at_ns=70))
    assert overdue_tasks(view, 70 + second, 1_000) == []
    assert [fact.task for fact in overdue_tasks(view, 71 + second, 1_000)] == ["u"]
