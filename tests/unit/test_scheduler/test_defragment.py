"""Defragmentation: which running task is moved so that a waiting one fits."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from bus_schemas.events import ConfigChanged, DeviceFact, Event, NodeRegistered, SessionClosedFact, TaskPriorityChanged, TaskStayed
from scheduler.placement import decide
from scheduler.placement.defragment import MakesRoom, making_room
from tests.unit.test_scheduler.clusters import GIB, MINUTE, Cluster, node, session, task

ON = ConfigChanged(1, "global", "defragment_after_ms", 60_000)
NOT_PROTECTED = ConfigChanged(1, "global", "queue_protect_ms", 0)


def cluster(*nodes: NodeRegistered, runs: tuple[tuple[str, int, str], ...], on: bool = True) -> Cluster:
    """Nodes, and tasks that run where they are wanted: (task, GiB, node)."""
    found = Cluster(*nodes, NOT_PROTECTED, *([ON] if on else []))
    others = {one.node for one in nodes}
    for name, gib, where in runs:
        for other in others - {where}:
            found.add(ConfigChanged(1, other, "drained", 1))
        found.add(task(name, gib, priority=2))
        found.add(session(f"s-{name}", name, where, 2))
        assert found.where(name) == where
        for other in others - {where}:
            found.add(ConfigChanged(1, other, "drained", 0))
    return found


def found_for(where: Cluster, minute: int = 2) -> tuple[str, str, tuple[int, ...], str] | None:
    """(task that moves, where it goes, its devices there, task that then fits)."""
    found = making_room(where.view, minute * MINUTE)
    return (found.displaced.task, found.displaced.to, found.displaced.gpus, found.waiting) if found is not None else None


def facts_of(where: Cluster, found: MakesRoom) -> list[Event]:
    """The move happens: the client opens a session where the task goes, and leaves."""
    move = found.displaced
    (before,) = where.view.tasks[move.task].sessions
    opened = replace(session(f"t-{move.task}", move.task, move.to, 2), replaces=before)
    return [move, opened, SessionClosedFact(1, before, move.node, "displaced", 0, 0, 0, 0, "", False, None)]


SPREAD = (("small", 3, "a"), ("mid", 4, "b"))


def test_the_smallest_task_that_leaves_room_is_moved_and_the_waiting_one_is_placed() -> None:
    where = cluster(node("a", 10), node("b", 10), runs=SPREAD)
    where.add(task("big", 10))
    assert where.waiting() == ["big"]
    assert found_for(where, minute=0) is None, "it has not waited long enough"
    found = making_room(where.view, 2 * MINUTE)
    assert found is not None and found_for(where) == ("small", "b", (0,), "big")
    for fact in facts_of(where, found):
        where.add(fact, 2)
    assert where.where("big") == "a" and where.where("small") == "b" and not where.waiting()
    assert making_room(where.view, 9 * MINUTE) is None


def test_off_unless_it_is_configured() -> None:
    where = cluster(node("a", 10), node("b", 10), runs=SPREAD, on=False)
    where.add(task("big", 10))
    assert making_room(where.view, 100 * MINUTE) is None


@pytest.mark.parametrize(
    ("nodes", "runs", "waits"),
    [
        ((node("a", 10), node("b", 10)), (("x", 6, "a"), ("y", 6, "b")), task("big", 10)),  # neither fits beside the other
        ((node("a", 10), node("b", 10)), SPREAD, task("big", 11)),  # larger than a device
        ((node("a", 10), node("b", 10, groups=("g",))), SPREAD[:1], task("big", 10)),  # the other node takes only its group
        ((node("a", 10), node("b", 2)), SPREAD[:1], task("big", 10)),  # the other device is too small for what runs
        (
            (node("a", 10), node("b", 10)),
            (("x", 4, "a"), ("z", 1, "a"), ("y", 4, "b"), ("w", 1, "b")),
            task("big", 10),
        ),  # one move is not enough
    ],
)
def test_nothing_is_moved_in_vain(nodes: tuple[NodeRegistered, ...], runs: tuple[tuple[str, int, str], ...], waits: Event) -> None:
    where = cluster(*nodes, runs=runs)
    where.add(waits)
    assert where.waiting() == ["big"] and found_for(where) is None


def test_a_task_goes_only_to_a_device_of_its_kind() -> None:
    """There it computes the same bits."""
    other = NodeRegistered(1, "b", "b", "", 1, (DeviceFact(0, "gpu", "opencl", 8, 10 * GIB),))
    where = cluster(node("a", 10), other, node("c", 5), runs=(("small", 3, "a"), ("mid", 1, "b")))
    where.add(task("big", 10))
    assert found_for(where) == ("small", "c", (0,), "big")
    where = cluster(node("a", 10), other, runs=(("small", 3, "a"), ("mid", 1, "b")))
    where.add(task("big", 10))
    assert found_for(where) is None


@pytest.mark.parametrize(
    "fact",
    [
        TaskPriorityChanged(1, "small", 0),  # a pause is too long for it
        TaskStayed(MINUTE, "small", "a", "the script reads a host buffer"),
    ],
)
def test_some_tasks_are_left_where_they_are(fact: Event) -> None:
    """The next larger one is moved instead."""
    where = cluster(node("a", 10), node("b", 10), runs=SPREAD)
    where.add(task("big", 10))
    if isinstance(fact, TaskStayed):
        found = making_room(where.view, 2 * MINUTE)
        assert found is not None
        where.add(found.displaced, 2)
    where.add(fact)
    assert found_for(where, 3) == ("mid", "a", (0,), "big")


def test_one_move_at_a_time() -> None:
    where = cluster(node("a", 10), node("b", 10), node("c", 10), runs=(*SPREAD, ("other", 5, "c")))
    where.add(task("big", 10))
    found = making_room(where.view, 2 * MINUTE)
    assert found is not None
    where.add(found.displaced, 2)
    where.add(task("bigger", 10, minute=2), 2)
    assert found_for(where, 4) is None
    assert found_for(where, 60) is not None, "a move that hangs does not keep others from theirs"


def test_an_exclusive_task_gets_a_device_from_which_its_only_holder_is_moved() -> None:
    where = cluster(node("a", 10), node("b", 10), runs=(("x", 1, "a"), ("y", 1, "a"), ("z", 2, "b")))
    where.add(task("alone", 1, exclusive=True))
    assert where.waiting() == ["alone"] and found_for(where) == ("z", "a", (0,), "alone")


def test_several_devices_of_one_node_are_made_free() -> None:
    where = cluster(node("a", 10, 10), node("b", 10), runs=(("x", 4, "a"), ("y", 2, "b")))
    where.add(task("pair", 10, gpus=2))
    assert where.waiting() == ["pair"] and found_for(where) == ("x", "b", (0,), "pair")


def crowded(seed: int) -> Cluster:
    """A few nodes, and tasks of all kinds, of which many run, some have ended and some wait."""
    draw = Random(seed)
    names = ("a", "b", "c")[: draw.randint(2, 3)]
    nodes = [node(name, *draw.choices((4, 8, 12), k=draw.randint(1, 2)), groups=draw.choice([(), (), (), ("red",)])) for name in names]
    where = Cluster(*nodes, replace(ON, value=1), ConfigChanged(1, "global", "queue_protect_ms", draw.choice([0, 0, MINUTE // 10**6])))
    for number in range(draw.randint(6, 24)):
        name, gpus = f"t{number}", draw.choice([1, 1, 1, 2])
        options = {"exclusive": draw.random() < 0.15, "noswap": draw.random() < 0.3, "groups": draw.choice([(), (), (), ("red",)])}
        where.add(task(name, draw.randint(1, 10), minute=number, gpus=gpus, priority=draw.randint(0, 4), **options), number)
        for seen in [seen for seen in where.view.live_tasks() if seen.placed is not None and not seen.sessions]:
            where.add(session(f"s-{seen.submitted.task}", seen.submitted.task, where.where(seen.submitted.task), seen.priority), number)
        if draw.random() < 0.3:
            where.end(f"t{draw.randrange(number + 1)}", number)
    return where


def test_a_move_that_is_said_to_make_room_makes_it() -> None:
    """The waiting task is placed where and when the moved one has left, whatever else is on the devices."""
    moves = 0
    for seed in range(120):
        where = crowded(seed)
        found = making_room(where.view, 60 * MINUTE)
        if found is None:
            continue
        moves += 1
        before = {seen.submitted.task for seen in where.view.live_tasks() if seen.waiting}
        assert found.waiting in before and not decide(where.view, where.view.tasks[found.waiting].submitted, 60 * MINUTE).gpus
        for number, fact in enumerate(facts_of(where, found)):
            where.view.apply(where.view.position + 1, fact)
            assert number or where.view.tasks[found.displaced.task].moving is not None
        decision = decide(where.view, where.view.tasks[found.waiting].submitted, 60 * MINUTE)
        assert decision.gpus, (seed, found)
    assert moves > 5, moves
