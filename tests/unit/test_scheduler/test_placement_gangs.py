"""Gangs: tasks that are placed together or not at all."""

from __future__ import annotations

import random

import pytest

from bus_schemas.events import Event, NodeLost, TaskDisplaced, TaskPlaced, TaskRefused, TaskStateChanged, TaskSubmitted
from scheduler.placement import ClusterView, queue_decisions, why_waiting
from scheduler.placement.queue import QueueMemory
from tests.support.recorded_decisions import check_recorded
from tests.unit.test_scheduler.clusters import GIB, Cluster, node, session, task


def member(name: str, gib: int, size: int, gang: str = "g", **more: object) -> TaskSubmitted:
    return task(name, gib, gang=gang, gang_size=size, **more)


def places(cluster: Cluster, *names: str) -> list[str]:
    return [cluster.where(name) for name in names]


def test_a_gang_waits_until_all_its_tasks_are_submitted() -> None:
    cluster = Cluster(node("a", 10), node("b", 10), member("r0", 2, 3), member("r1", 2, 3))
    assert cluster.waiting() == ["r0", "r1"]
    seen = why_waiting(cluster.view, "r0", 0)
    assert seen is not None and seen.refused == (("gang_incomplete", 1),)
    assert [remedy.text for remedy in seen.remedies] == ["room for its whole gang: 2 of the 3 tasks of gang g are submitted"]
    cluster.add(member("r2", 2, 3))
    assert cluster.waiting() == [] and all(places(cluster, "r0", "r1", "r2"))


def test_no_member_is_placed_before_the_last_one_fits() -> None:
    cluster = Cluster(node("a", 10), task("other", 7), member("r0", 3, 2), member("r1", 3, 2))
    assert cluster.waiting() == ["r0", "r1"]
    seen = why_waiting(cluster.view, "r1", 0)
    assert seen is not None and seen.refused == (("gang_short", 1),)
    assert seen.examples[0][3] == "1 of the 2 tasks of gang g that wait fit now"
    cluster.add(task("small", 3))
    assert cluster.where("small") == "a", "a task behind a gang that cannot begin takes the room"
    cluster.end("other", 1)
    assert places(cluster, "r0", "r1") == ["a", "a"]


def test_nothing_is_reserved_for_a_gang_that_is_not_whole() -> None:
    """It might never be: the tasks behind it would wait for nothing."""
    cluster = Cluster(node("a", 10), task("other", 8), member("r0", 6, 2))
    cluster.go(10)
    assert not cluster.view.reservations
    cluster.add(task("small", 2), 11)
    assert cluster.where("small") == "a"
    cluster.add(member("r1", 4, 2), 20)
    assert set(cluster.view.reservations.values()) == {"r0"}, "it is whole"
    cluster.add(TaskStateChanged(21, "r1", "cancelled"), 21)
    assert not cluster.view.reservations


def test_nothing_is_reserved_for_a_gang_that_could_not_even_begin_on_empty_devices() -> None:
    cluster = Cluster(node("a", 16), member("r0", 10, 2), member("r1", 10, 2), task("small", 1))
    cluster.go(10)
    assert not cluster.view.reservations
    cluster.add(task("behind", 8), 11)
    assert cluster.where("behind") == "a"
    cluster.add(node("b", 16), 12)
    assert set(cluster.view.reservations.values()) == {"r0", "r1"}, "both nodes together could hold it"
    cluster.end("behind", 13)
    assert {cluster.where("r0"), cluster.where("r1")} == {"a", "b"}


def test_what_is_reserved_for_one_member_does_not_keep_the_others_out() -> None:
    cluster = Cluster(node("a", 16), task("other", 10), member("r0", 6, 2), member("r1", 6, 2))
    cluster.go(10)
    assert set(cluster.view.reservations.values()) == {"r0"}
    cluster.end("other", 11)
    assert places(cluster, "r0", "r1") == ["a", "a"] and not cluster.view.reservations


def test_another_tenants_task_does_not_come_between_the_members() -> None:
    """Its turn is between theirs, and it would take the room of the second one."""
    facts = [task("full", 10), member("r0", 5, 2), member("r1", 5, 2)]
    between = TaskSubmitted(0, "between", "globex", 0, 5 * GIB, queue=True)
    cluster = Cluster(node("a", 10), *facts, between)
    assert cluster.waiting() == ["r0", "between", "r1"]
    cluster.end("full", 1)
    assert places(cluster, "r0", "r1", "between") == ["a", "a", ""]


def test_the_rest_of_a_begun_gang_goes_first_in_a_new_pass() -> None:
    """A controller stopped between two members, or had no more time."""
    cluster = Cluster(node("a", 10), task("full", 10), member("r0", 5, 2), member("r1", 5, 2))
    cluster.view.apply(20, TaskSubmitted(0, "between", "globex", 0, 5 * GIB, queue=True))
    cluster.view.apply(21, TaskStateChanged(1, "full", "completed"))
    first = next(queue_decisions(cluster.view, 1))
    assert first.task == "r0"
    cluster.view.apply(22, first.event())
    cluster.go(1)
    assert places(cluster, "r0", "r1", "between") == ["a", "a", ""]


def test_two_gangs_of_half_the_room_each_do_not_block_each_other() -> None:
    cluster = Cluster(node("a", 10), task("full", 10))
    for rank in range(2):
        for gang in ("g", "h"):
            cluster.add(member(f"{gang}{rank}", 5, 2, gang))
    cluster.end("full", 1)
    assert [bool(cluster.where(name)) for name in ("g0", "g1", "h0", "h1")] == [True, True, False, False]


def test_a_displaced_member_is_placed_alone() -> None:
    cluster = Cluster(node("a", 5), node("b", 5), member("r0", 5, 2), member("r1", 5, 2))
    cluster.add(session("s", "r0", cluster.where("r0")))
    on = cluster.where("r0")
    cluster.add(node("c", 5))
    cluster.add(NodeLost(2, on, 1, "silent"))
    cluster.add(TaskStateChanged(2, "r1", "completed"))
    cluster.add(TaskDisplaced(3, "r0", on, lost=True))
    assert cluster.where("r0") not in ("", on)


def test_a_new_gang_of_the_same_name_counts_only_its_own() -> None:
    cluster = Cluster(node("a", 10), member("r0", 2, 2), member("r1", 2, 2))
    for name in ("r0", "r1"):
        cluster.end(name, 1)
    cluster.add(member("s0", 2, 2))
    assert cluster.waiting() == ["s0"]
    other = TaskSubmitted(0, "theirs", "globex", 0, 2 * GIB, queue=True, gang="g", gang_size=2)
    cluster.add(other)
    assert set(cluster.waiting()) == {"s0", "theirs"}, "a gang is of one tenant"


def _fact(draw: random.Random, number: int) -> list[Event]:
    kind = draw.random()
    if kind < 0.35:
        size = draw.randint(2, 4)
        return [member(f"g{number}.{rank}", draw.randint(1, 6), size, f"g{number}", priority=draw.randint(0, 2)) for rank in range(size)]
    if kind < 0.6:
        return [TaskSubmitted(0, f"t{number}", draw.choice(("acme", "globex")), draw.randint(0, 2), draw.randint(1, 8) * GIB, queue=True)]
    return []


@pytest.mark.parametrize("seed", range(25))
def test_gangs_are_whole_at_all_times_and_the_memory_of_the_queue_changes_nothing(seed: int) -> None:
    """Random arrivals, mixed, and ends. Every decision can be made again from the log."""
    draw = random.Random(seed)
    views, memory = (ClusterView(), ClusterView()), QueueMemory()
    log: list[Event] = []

    def add(fact: Event, at_ns: int) -> None:
        log.append(fact)
        for view in views:
            view.apply(len(log), fact)
        fast, slow = queue_decisions(views[0], at_ns, memory), queue_decisions(views[1], at_ns)
        while True:
            events = [next((decision.event() for decision in found), None) for found in (fast, slow)]
            assert events[0] == events[1]
            if events[0] is None:
                return
            check_recorded(views[0], events[0])
            log.append(events[0])
            for view in views:
                view.apply(len(log), events[0])

    for name in ("a", "b"):
        add(node(name, 10, 10), 0)
    pending: list[Event] = []
    for number in range(60):
        pending += _fact(draw, number)
        draw.shuffle(pending)
        if pending:
            add(pending.pop(), number)
        running = sorted(name for name in views[0].live if views[0].tasks[name].placed is not None)
        if running and draw.random() < 0.4:
            add(TaskStateChanged(number, draw.choice(running), "completed"), number)
        for (_, gang), members in views[0].gangs.items():
            placed = [bool(views[0].tasks[name].hosts) for name in members]
            assert all(placed) or not any(placed), (gang, members)
    kinds = {type(event) for event in log}
    assert {TaskPlaced, TaskRefused} <= kinds
    assert any(event.task.startswith("g") for event in log if isinstance(event, TaskPlaced))
