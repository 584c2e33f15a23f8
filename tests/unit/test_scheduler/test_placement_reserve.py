"""Reservations of waiting tasks: which devices, when, for how long, and what a pass over the queue remembers of them."""

from __future__ import annotations

import pytest

from bus_schemas.events import (
    ConfigChanged,
    DeviceFact,
    Event,
    GroupChanged,
    LoadObserved,
    NodeLost,
    NodeRecovered,
    NodeRegistered,
    SessionClosedFact,
    SessionOpenedFact,
    TaskPlaced,
    TaskPriorityChanged,
    TaskStateChanged,
)
from scheduler.placement import QueueMemory, expired_waiting, queue_decisions, queue_due_ns, why_waiting
from scheduler.placement.order import next_rise_ns
from scheduler.placement.survey import Freed
from tests.unit.test_scheduler.clusters import GIB, MINUTE, Cluster, node, task


def reserved(cluster: Cluster, name: str) -> tuple[str, tuple[int, ...]]:
    held = cluster.view.tasks[name].reserved
    return (held.node, held.gpus) if held is not None else ("", ())


# -- which devices -----------------------------------------------------------------------------------------------------------------------


def test_several_devices_are_reserved_where_the_fewest_bytes_are_missing_on_all_of_them_together() -> None:
    """On a one device is free and 9 GiB are missing on the other; on b 3 GiB are missing on each."""
    cluster = Cluster(node("a", 10, 10), node("b", 10, 10))
    for name, on, gpu, gib in (("a1", "a", 1, 9), ("b0", "b", 0, 3), ("b1", "b", 1, 3)):
        cluster.view.apply(cluster.view.position + 1, task(name, gib))
        cluster.view.apply(cluster.view.position + 1, TaskPlaced(1, name, on, (gpu,), (), (), 0))
    cluster.add(task("big", 10, gpus=2))
    cluster.go(5)
    assert reserved(cluster, "big") == ("b", (0, 1))


def test_a_task_that_wants_a_device_for_itself_reserves_one_that_is_nearest_to_empty() -> None:
    """It would fit on either beside the others, but both must become empty: 4 GiB are held on a, 2 on b."""
    cluster = Cluster(node("a", 10), node("b", 10), task("a1", 4), task("b1", 2))
    assert (cluster.where("a1"), cluster.where("b1")) == ("a", "b")
    cluster.add(task("alone", 1, exclusive=True))
    cluster.go(5)
    assert reserved(cluster, "alone") == ("b", (0,))


def test_a_device_held_exclusively_must_become_empty_first() -> None:
    """On a 1 GiB is held exclusively, on b 8 of 10 GiB are held: for 5 GiB 1 must be given back on a, and 3 on b."""
    cluster = Cluster(node("a", 10), node("b", 10), task("a1", 1, exclusive=True), task("b1", 8))
    assert (cluster.where("a1"), cluster.where("b1")) == ("a", "b")
    cluster.add(task("t", 5))
    cluster.go(5)
    assert reserved(cluster, "t") == ("a", (0,))


def test_a_task_that_cannot_be_swapped_out_reserves_by_what_is_measured_in_use() -> None:
    """On a 2 GiB are promised and 9 measured in use, on b 4 promised and 4 in use: 6 are free on b alone, and 8 are asked for."""
    cluster = Cluster(node("a", 10), node("b", 10), task("a1", 2), task("b1", 4))
    cluster.add(LoadObserved(1, (("a", 0, 0, 0, 9 * GIB), ("b", 0, 0, 0, 4 * GIB))))
    cluster.add(task("t", 8, noswap=True))
    cluster.go(5)
    assert reserved(cluster, "t") == ("b", (0,))


def test_no_device_is_reserved_that_is_too_small_when_empty() -> None:
    cluster = Cluster(node("a", 10, 10), node("b", 20), task("hog", 20))
    assert cluster.where("hog") == "b"
    cluster.add(task("pair", 11, gpus=2))
    cluster.add(task("single", 11))
    cluster.go(5)
    assert (reserved(cluster, "pair"), reserved(cluster, "single")) == (("", ()), ("b", (0,)))


def test_no_device_is_reserved_on_a_node_with_a_thousand_that_are_too_small() -> None:
    """What is missing is added up over the devices, in 64 bits."""
    devices = tuple(DeviceFact(index, "gpu", "host", 8, GIB) for index in range(1024))
    cluster = Cluster(NodeRegistered(1, "a", "a", "", 1, devices), task("t", 2, gpus=1024))
    cluster.go(5)
    assert reserved(cluster, "t") == ("", ())
    waiting = why_waiting(cluster.view, "t", 5 * MINUTE)
    assert waiting is not None and [remedy.kind for remedy in waiting.remedies] == ["overcommit", "join"]


def test_two_tasks_that_ask_for_the_same_reserve_a_device_each() -> None:
    cluster = Cluster(node("a", 10), node("b", 10), task("a1", 10), task("b1", 10), task("first", 10), task("second", 10))
    cluster.go(5)
    assert (reserved(cluster, "first"), reserved(cluster, "second")) == (("a", (0,)), ("b", (0,)))


def test_no_more_tasks_reserve_than_are_configured_whatever_they_ask_for() -> None:
    cluster = Cluster(node("a", 10), node("b", 10), task("a1", 10), task("b1", 10), ConfigChanged(1, "global", "queue_reservations_max", 1))
    for name, gib in (("first", 9), ("second", 8)):
        cluster.add(task(name, gib))
    cluster.go(5)
    assert (reserved(cluster, "first"), reserved(cluster, "second")) == (("a", (0,)), ("", ()))


# -- when and for how long ---------------------------------------------------------------------------------------------------------------


def test_a_reservation_begins_when_the_wait_that_is_protected_is_over_and_not_before() -> None:
    cluster = Cluster(node("a", 10), node("b", 10), task("a1", 10), task("b1", 10), task("t", 10), task("u", 10))
    list(queue_decisions(cluster.view, 5 * MINUTE - 1))
    assert cluster.go(4) == [] and cluster.view.reservations == {}
    assert [event.task for event in cluster.go(5)] == ["t", "u"]


def test_a_reservation_ends_when_its_device_is_of_no_use_and_no_other_is_either() -> None:
    cluster = Cluster(node("a", 10), task("hog", 10), task("t", 10))
    cluster.go(5)
    assert reserved(cluster, "t") == ("a", (0,))
    cluster.add(ConfigChanged(1, "a", "drained", 1), 6)
    assert (reserved(cluster, "t"), cluster.view.reservations) == (("", ()), {})


def test_a_reservation_on_a_device_that_left_its_node_ends() -> None:
    """The node registers anew, with another device in place of the one that was kept."""
    cluster = Cluster(node("a", 10), task("hog", 10), task("t", 10))
    cluster.go(5)
    cluster.add(NodeRegistered(6, "a", "a", "", 1, (DeviceFact(3, "gpu", "host", 8, 5 * GIB),)), 6)
    assert (reserved(cluster, "t"), cluster.view.reservations) == (("", ()), {})


def test_a_reservation_stays_for_a_period_although_less_is_missing_elsewhere() -> None:
    cluster = Cluster(node("a", 10), node("b", 10), task("a1", 6), task("b1", 7), task("t", 10))
    cluster.go(5)
    assert reserved(cluster, "t") == ("a", (0,))
    cluster.add(TaskStateChanged(6 * MINUTE, "b1", "completed"), 6)
    assert cluster.where("t") == "b"
    cluster = Cluster(node("a", 10), node("b", 10), task("a1", 6), task("b1", 5), task("b2", 3), task("t", 10))
    assert [cluster.where(name) for name in ("a1", "b1", "b2")] == ["a", "b", "b"]
    cluster.go(5)
    cluster.end("b2", 6)
    assert reserved(cluster, "t") == ("a", (0,)), "5 are missing on b, 6 on a"
    cluster.go(10)
    assert reserved(cluster, "t") == ("b", (0,))


def test_a_reservation_of_several_devices_moves_by_what_is_missing_on_all_of_them() -> None:
    """3 and 3 GiB are missing on a, 5 and none on b."""
    cluster = Cluster(node("a", 10, 10), node("b", 10, 10))
    for name, on, gpu, gib in (("a0", "a", 0, 3), ("a1", "a", 1, 3), ("b0", "b", 0, 5), ("b1", "b", 1, 5)):
        cluster.view.apply(cluster.view.position + 1, task(name, gib))
        cluster.view.apply(cluster.view.position + 1, TaskPlaced(1, name, on, (gpu,), (), (), 0))
    cluster.add(task("t", 10, gpus=2))
    cluster.go(5)
    assert reserved(cluster, "t") == ("a", (0, 1))
    cluster.end("b1", 6)
    cluster.go(10)
    assert reserved(cluster, "t") == ("b", (0, 1))


def test_a_task_that_does_not_wait_for_room_reserves_nothing() -> None:
    """Protection can be turned off, too."""
    cluster = Cluster(node("a", 10), task("hog", 10), task("t", 10), ConfigChanged(1, "global", "queue_protect_ms", 0))
    cluster.go(500)
    assert cluster.view.reservations == {}
    waiting = why_waiting(cluster.view, "t", MINUTE)
    assert waiting is not None and waiting.protected_ns is None
    assert queue_due_ns(cluster.view, MINUTE) is None


# -- times -------------------------------------------------------------------------------------------------------------------------------


def test_a_task_rises_by_whole_periods_since_its_submission() -> None:
    cluster = Cluster(node("a", 10), task("hog", 10))
    cluster.add(task("t", 10, minute=7, priority=2), 7)
    waiting = cluster.view.tasks["t"]
    rises = [next_rise_ns(waiting, minute * MINUTE, 10 * MINUTE) for minute in (3, 7, 16, 17, 26, 27)]
    assert rises == [17 * MINUTE, 17 * MINUTE, 17 * MINUTE, 27 * MINUTE, 27 * MINUTE, None]
    assert next_rise_ns(waiting, 8 * MINUTE, 0) is None


@pytest.mark.parametrize(("timeout_ms", "expires_ns"), [(0, None), (1, 1_000_000), (90_000, 90 * 10**9)])
def test_a_task_gives_up_after_its_timeout_and_without_one_never(timeout_ms: int, expires_ns: int | None) -> None:
    cluster = Cluster(node("a", 10), task("hog", 10), task("t", 10, queue_timeout_ms=timeout_ms))
    waiting = why_waiting(cluster.view, "t", 0)
    assert waiting is not None and waiting.expires_ns == expires_ns
    assert len(expired_waiting(cluster.view, 10**18)) == (expires_ns is not None)
    if expires_ns is not None:
        assert expired_waiting(cluster.view, expires_ns - 1) == []
        assert len(expired_waiting(cluster.view, expires_ns)) == 1


# -- what a pass remembers ---------------------------------------------------------------------------------------------------------------


class Remembering(Cluster):
    """A controller with a memory of its last pass."""

    def __init__(self, *facts: Event) -> None:
        self.memory = QueueMemory()
        super().__init__(*facts)

    def go(self, minute: int) -> list[TaskPlaced]:  # type: ignore[override]
        placed = []
        for decision in queue_decisions(self.view, minute * MINUTE, self.memory):
            event = decision.event()
            self.view.apply(self.view.position + 1, event)
            if isinstance(event, TaskPlaced):
                placed.append(event)
        return placed


LOST = NodeLost(1, "b", 1, "silent")
DRAINED, RESUMED = ConfigChanged(1, "b", "drained", 1), ConfigChanged(2, "b", "drained", None)


@pytest.mark.parametrize(
    ("first", "then", "placed"),
    [
        pytest.param([LOST], [node("c", 10)], "t", id="a node joins"),
        pytest.param([LOST], [NodeRecovered(2, "b", 1)], "t", id="a lost node comes back"),
        pytest.param([DRAINED], [RESUMED], "t", id="a drained node is resumed"),
        pytest.param([GroupChanged(1, "red", "", ("b",))], [GroupChanged(2, "red", "", ())], "t", id="a node leaves its group"),
        pytest.param([DRAINED], [NodeLost(2, "a", 1, "silent"), RESUMED], "hog", id="one is lost and another resumed"),
        pytest.param([DRAINED], [RESUMED, TaskPriorityChanged(2, "t", 0)], "t", id="a node is resumed and a priority changed"),
    ],
)
def test_a_pass_with_a_memory_sees_every_kind_of_fact_that_makes_room(first: list[Event], then: list[Event], placed: str) -> None:
    cluster = Remembering(node("a", 10), node("b", 10), *first, task("hog", 10), task("t", 10, priority=1))
    assert (cluster.where("hog"), cluster.where("t")) == ("a", "")
    for fact in then:
        cluster.view.apply(cluster.view.position + 1, fact)
    assert [event.task for event in cluster.go(0)] == [placed]


def test_every_fact_that_may_make_room_is_counted() -> None:
    facts: list[Event] = [
        node("a", 10), node("b", 10), task("hog", 10), task("t", 10), LOST, NodeRecovered(2, "b", 1), ConfigChanged(1, "b", "drained", 1),
        GroupChanged(1, "red", "", ("b",)), TaskPriorityChanged(2, "t", 3), NodeRegistered(3, "b", "b", "", 2, ()),
    ]  # fmt: skip
    cluster = Cluster()
    counted = []
    for fact in facts:
        before = cluster.view.changes
        cluster.view.apply(cluster.view.position + 1, fact)
        counted.append(cluster.view.changes > before)
    assert counted == [True, True, False, False, True, True, True, True, True, True]


def test_a_pass_with_a_memory_looks_at_devices_of_which_less_is_in_use_now() -> None:
    """A task that cannot be swapped out waits for physical memory."""
    cluster = Remembering(node("a", 10), LoadObserved(1, (("a", 0, 0, 0, 9 * GIB),)), task("t", 5, noswap=True))
    assert cluster.where("t") == ""
    cluster.add(LoadObserved(2, (("a", 0, 0, 0, 6 * GIB),)))
    assert cluster.where("t") == ""
    cluster.add(LoadObserved(3, (("a", 0, 0, 0, 5 * GIB),)))
    assert cluster.where("t") == "a"


def test_a_pass_with_a_memory_looks_at_those_that_still_wait_of_equal_tasks() -> None:
    cluster = Remembering(node("a", 10), task("hog", 6), task("small", 4), task("first", 5), task("second", 5))
    cluster.end("hog", 1)
    assert (cluster.where("first"), cluster.where("second")) == ("a", "")
    cluster.end("small", 2)
    assert cluster.where("second") == "a"
    assert cluster.view.shapes == {}


def test_a_pass_with_a_memory_reserves_and_moves_when_it_is_time() -> None:
    cluster = Remembering(node("a", 10), node("b", 10), task("a1", 6), task("b1", 5), task("b2", 3), task("t", 10))
    cluster.go(4)
    assert cluster.view.reservations == {}
    cluster.go(5)
    assert reserved(cluster, "t") == ("a", (0,))
    cluster.end("b2", 6)
    cluster.go(9)
    assert reserved(cluster, "t") == ("a", (0,))
    cluster.go(10)
    assert reserved(cluster, "t") == ("b", (0,))


def test_a_pass_goes_no_further_than_the_task_it_is_asked_for() -> None:
    cluster = Cluster(node("a", 10), task("hog", 10))
    for name in ("first", "second", "third"):
        cluster.view.apply(cluster.view.position + 1, task(name, 10))
    assert [decision.task for decision in queue_decisions(cluster.view, 0, last="second")] == ["first", "second"]


@pytest.mark.parametrize(
    ("gib", "gpus", "more", "fits"),
    [
        (10, 1, {}, True),
        (11, 1, {}, False),
        (8, 2, {}, True),
        (9, 2, {}, False),
        (1, 3, {}, True),
        (1, 4, {}, False),
        (6, 1, {"noswap": True}, True),
        (7, 1, {"noswap": True}, False),
        (8, 1, {"exclusive": True}, True),
        (9, 1, {"exclusive": True}, False),
        (1, 2, {"exclusive": True}, False),
    ],
)
def test_what_may_fit_on_nodes_that_released_memory(gib: int, gpus: int, more: dict[str, bool], fits: bool) -> None:
    """a has 10 GiB free of 20 beside a session, of which 14 are in use; 8 on its second device, 5 of them in use; 2 beside a session on
    its third. b, with more of all, released nothing."""
    cluster = Cluster(node("a", 20, 8, 4), node("b", 80, 80, 80, 80))
    for name, gpu, quota in (("s0", 0, 10), ("s2", 2, 2)):
        cluster.add(SessionOpenedFact(1, name, "acme", "", "a", gpu, 0, quota * GIB))
    cluster.add(LoadObserved(1, (("a", 0, 0, 0, 14 * GIB), ("a", 1, 0, 0, 5 * GIB))))
    cluster.view.apply(cluster.view.position + 1, task("t", gib, gpus=gpus, **more))
    shape = cluster.view.tasks["t"].shape
    assert Freed(cluster.view, ["a", "unknown"]).may_fit(shape) == fits
    assert Freed(cluster.view, ["b"]).may_fit(shape)
    assert not Freed(cluster.view, ["unknown"]).may_fit(shape)


def test_a_device_held_exclusively_fits_no_task() -> None:
    cluster = Cluster(node("a", 10), task("alone", 1, exclusive=True), task("t", 1))
    assert not Freed(cluster.view, ["a"]).may_fit(cluster.view.tasks["t"].shape)
    cluster.end("alone", 1)
    assert Freed(cluster.view, ["a"]).may_fit(cluster.view.tasks["t"].shape)


def test_a_node_without_devices_that_released_memory_makes_room_for_no_task() -> None:
    """It registered anew without its devices while a session was open there."""
    cluster = Remembering(node("a", 10), node("b", 10), SessionOpenedFact(1, "s", "acme", "", "b", 0, 0, GIB), task("hog", 10))
    cluster.add(task("t", 10))
    cluster.add(NodeRegistered(2, "b", "b", "", 1, ()))
    frees = cluster.view.holdings.frees
    cluster.add(SessionClosedFact(3, "s", "b", "done", 0, 0, 0, 0, ""))
    assert cluster.view.holdings.freed_since(frees) == ["b"]
    assert not Freed(cluster.view, ["b"]).may_fit(cluster.view.tasks["t"].shape)
    assert cluster.where("t") == ""
