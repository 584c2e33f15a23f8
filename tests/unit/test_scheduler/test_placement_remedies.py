"""What would let a waiting task in, the scores of devices, and recorded decisions."""

from __future__ import annotations

import msgspec
import pytest

from bus_schemas.events import (
    ConfigChanged,
    DeviceFact,
    Event,
    LoadObserved,
    NodeRegistered,
    SessionOpenedFact,
    TaskPlaced,
    TaskRefused,
    TaskSubmitted,
)
from scheduler.placement import ClusterView, Remedy, decide, explain, why_waiting
from scheduler.placement.feasible import Refusal
from tests.support.recorded_decisions import check_recorded
from tests.support.replayed import ReplayMismatch
from tests.unit.test_scheduler.clusters import GIB, MINUTE, Cluster, node, session, task


def remedies(view: ClusterView, name: str = "t", minute: int = 0) -> tuple[Remedy, ...]:
    waiting = why_waiting(view, name, minute * MINUTE)
    assert waiting is not None
    return waiting.remedies


def ends(view: ClusterView) -> list[tuple[str, tuple[int, ...], tuple[str, ...], tuple[str, ...]]]:
    return [(found.node, found.gpus, found.tasks, found.sessions) for found in remedies(view) if found.kind == "end"]


def holding(*held: tuple[str, int, int], nodes: tuple[NodeRegistered, ...], wish: TaskSubmitted) -> ClusterView:
    """Tasks of so many GiB placed on nodes: (node, gpu, GiB), named by node, gpu and number."""
    cluster = Cluster(*nodes)
    for number, (on, gpu, gib) in enumerate(held):
        name = f"{on}{gpu}-{number}"
        cluster.view.apply(cluster.view.position + 1, task(name, gib))
        cluster.view.apply(cluster.view.position + 1, TaskPlaced(1, name, on, (gpu,), (), (), 0))
    cluster.add(wish)
    assert cluster.where("t") == ""
    return cluster.view


# -- whose end -----------------------------------------------------------------------------------------------------------------------------


def test_the_largest_holders_end_first_and_none_that_need_not() -> None:
    """4 of 10 GiB are free. For 7 the end of the 3 is enough beside no other; for 9 it takes the 3 and the 2."""
    held = [("a", 0, 1), ("a", 0, 3), ("a", 0, 2)]
    assert ends(holding(*held, nodes=(node("a", 10),), wish=task("t", 7))) == [("a", (0,), ("a0-1",), ())]
    assert ends(holding(*held, nodes=(node("a", 10),), wish=task("t", 9))) == [("a", (0,), ("a0-1", "a0-2"), ())]


def test_a_task_on_several_devices_ends_on_all_of_them() -> None:
    view = Cluster(node("a", 10, 10), task("both", 8, gpus=2), task("t", 5, gpus=2)).view
    assert ends(view) == [("a", (0, 1), ("both",), ())]


def test_a_session_of_a_task_ends_with_it_and_is_not_named() -> None:
    """It holds nothing beside its task."""
    cluster = Cluster(node("a", 10), task("one", 8), session("s", "one", "a"), task("t", 5))
    assert ends(cluster.view) == [("a", (0,), ("one",), ())]


def test_holders_of_each_of_several_devices_end() -> None:
    view = holding(("a", 0, 8), ("a", 1, 9), nodes=(node("a", 10, 10),), wish=task("t", 5, gpus=2))
    assert ends(view) == [("a", (0, 1), ("a0-0", "a1-1"), ())]


def test_the_three_nearest_nodes_are_named_by_id_where_equally_much_is_missing() -> None:
    nodes = tuple(node(f"n{number:02}", 10) for number in range(40))
    view = holding(*[(f"n{number:02}", 0, 8) for number in range(40)], nodes=nodes, wish=task("t", 5))
    assert [found[0] for found in ends(view)] == ["n00", "n01", "n02"]
    nodes = (node("a", 10), node("b", 10), node("c", 10))
    view = holding(("a", 0, 8), ("b", 0, 6), ("c", 0, 7), nodes=nodes, wish=task("t", 5))
    assert [found[0] for found in ends(view)] == ["b", "c", "a"]


def test_what_a_holder_uses_is_given_back_with_it() -> None:
    """10 GiB are measured in use on a device of 10. A task that cannot be swapped out needs 6: the end of the 6 gives as much."""
    cluster = Cluster(node("a", 10), task("one", 6), task("two", 3))
    cluster.add(LoadObserved(1, (("a", 0, 0, 0, 10 * GIB),)))
    cluster.add(task("t", 6, noswap=True))
    assert ends(cluster.view) == [("a", (0,), ("one",), ())]
    cluster = Cluster(node("a", 10), task("one", 6), task("two", 3))
    cluster.add(LoadObserved(1, (("a", 0, 0, 0, 10 * GIB),)))
    cluster.add(task("t", 7, noswap=True))
    assert ends(cluster.view) == [("a", (0,), ("one", "two"), ())]


def test_memory_that_no_holder_accounts_for_is_not_given_back() -> None:
    """2 GiB are used beside what is held."""
    cluster = Cluster(node("a", 10), task("one", 6))
    cluster.add(LoadObserved(1, (("a", 0, 0, 0, 8 * GIB),)))
    cluster.add(task("t", 9, noswap=True))
    assert ends(cluster.view) == []
    cluster = Cluster(node("a", 10), task("one", 6))
    cluster.add(LoadObserved(1, (("a", 0, 0, 0, 8 * GIB),)))
    cluster.add(task("t", 8, noswap=True))
    assert ends(cluster.view) == [("a", (0,), ("one",), ())]


def test_a_holder_that_turns_out_not_to_be_needed_stays() -> None:
    """The 7 GiB are tried first, as the larger ones, but what the task needs is physical memory, which the other cannot give back."""
    cluster = Cluster(node("a", 10), ConfigChanged(1, "a", "overcommit_vram_percent", 100), task("firm", 6, noswap=True), task("soft", 7))
    cluster.add(task("t", 5, noswap=True))
    assert ends(cluster.view) == [("a", (0,), ("firm",), ())]


def test_every_holder_of_a_device_ends_where_it_must_become_empty() -> None:
    cluster = Cluster(node("a", 10), SessionOpenedFact(1, "s", "acme", "", "a", 0, 0, GIB), task("u", 2), task("t", 1, exclusive=True))
    assert ends(cluster.view) == [("a", (0,), ("u",), ("s",))]
    assert remedies(cluster.view)[0].text == "task u and session s on node a gpu 0 ending"


# -- settings and nodes --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "gib", "gpus", "expected"),
    [
        ([("a", 0, 9), ("b", 0, 8)], 3, 1, ("b", 10)),
        ([("a", 0, 10), ("b", 0, 8)], 5, 1, ("b", 30)),
        ([("a", 0, 8), ("b", 0, 8)], 5, 1, ("a", 30)),
        ([("a", 0, 9), ("b", 0, 8), ("b", 1, 9)], 3, 2, ("a", 20)),
        ([("a", 0, 9), ("a", 1, 8), ("b", 0, 8)], 3, 2, ("b", 10)),
    ],
)
def test_the_node_that_needs_the_smallest_overcommit_is_named(
    held: list[tuple[str, int, int]], gib: int, gpus: int, expected: tuple[str, int]
) -> None:
    """A device that has room needs none. Another node of the same percent comes later by id."""
    sizes = (10,) if gpus == 1 else (10, 10)
    view = holding(*held, nodes=(node("a", *sizes), node("b", *sizes)), wish=task("t", gib, gpus=gpus))
    found = [(remedy.node, remedy.value) for remedy in remedies(view) if remedy.kind == "overcommit"]
    assert found == [expected]


def test_no_overcommit_helps_a_task_that_cannot_be_swapped_out() -> None:
    cluster = Cluster(node("a", 10), task("one", 8), task("t", 5, noswap=True))
    assert [remedy.kind for remedy in remedies(cluster.view)] == ["end"]


def test_the_group_that_a_node_should_join_is_the_first_by_name() -> None:
    cluster = Cluster(node("a", 10), node("b", 1, groups=("blue", "red")), task("t", 5, groups=("red", "blue")))
    found = [(remedy.node, remedy.value, remedy.text) for remedy in remedies(cluster.view) if remedy.kind == "group"]
    assert found == [("a", "blue", "node a being put into group blue")]


def test_no_overcommit_helps_more_devices_than_a_node_has() -> None:
    view = holding(("a", 0, 9), nodes=(node("a", 10),), wish=task("t", 3, gpus=2))
    assert [remedy.kind for remedy in remedies(view)] == ["join"]


def test_a_task_behind_a_reservation_is_told_who_holds_it() -> None:
    cluster = Cluster(node("a", 10), task("a1", 6), task("a2", 4), task("big", 10))
    cluster.go(5)
    cluster.end("a1", 6)
    cluster.add(task("t", 5, minute=6), 6)
    assert cluster.where("t") == ""
    assert [(remedy.kind, remedy.tasks, remedy.text) for remedy in remedies(cluster.view, minute=6)] == [
        ("first", ("big",), "task big, for which devices are kept, being placed or cancelled")
    ]


def test_a_task_that_fits_has_no_remedy_but_its_turn() -> None:
    view = Cluster(node("a", 10)).view
    view.apply(view.position + 1, task("t", 5))
    waiting = why_waiting(view, "t", MINUTE)
    assert waiting is not None and (waiting.remedies, waiting.place, waiting.waited_ns) == ((), 1, MINUTE)
    assert waiting.sentence == "there is room; it is number 1 in the queue and is placed when its turn comes"


def test_the_commonest_refusals_are_told_first() -> None:
    cluster = Cluster(
        node("a", 1), node("b", 1, 1), node("c", 9), node("d", 9, groups=("red",)), ConfigChanged(1, "c", "drained", 1), task("t", 5)
    )
    waiting = why_waiting(cluster.view, "t", 0)
    assert waiting is not None
    assert waiting.refused == (("vram_short", 3), ("group_only", 1), ("node_drained", 1))


# -- scores --------------------------------------------------------------------------------------------------------------------------------


def parts(view: ClusterView, wish: TaskSubmitted) -> dict[tuple[str, int], tuple[int, ...]]:
    return {(seen.node, seen.gpu): seen.parts for seen in explain(view, wish, 0).considered}


def test_the_parts_of_a_score_are_percents_of_what_is_left() -> None:
    cluster = Cluster(node("a", 10, 10, 10), task("x", 5, priority=1), LoadObserved(1, (("a", 1, 30, 45, 0), ("a", 2, 101, 250, 0))))
    assert parts(cluster.view, task("t", 2, priority=2)) == {
        ("a", 0): (100, 100, 30, 50),
        ("a", 1): (70, 55, 80, 100),
        ("a", 2): (0, 0, 80, 100),
    }
    assert parts(cluster.view, task("t", 2, priority=0))["a", 0] == (100, 100, 30, 100), "what is lower is no rival"
    assert [(score[1], score[2]) for score in explain(cluster.view, task("t", 2), 0).scores] == [(0, 860), (1, 735), (2, 360)]


def test_a_device_that_the_task_fills_has_no_part_left() -> None:
    devices = (DeviceFact(0, "gpu", "host", 8, 10),)
    view = Cluster(NodeRegistered(1, "a", "a", "", 1, devices)).view
    for nbytes, left in ((10, 0), (9, 10), (0, 100)):
        wish = TaskSubmitted(1, "t", "acme", 0, nbytes)
        assert parts(view, wish)["a", 0] == (100, 100, left, 100)


def test_an_event_lists_the_eight_best_devices_and_counts_all_that_would_do() -> None:
    measured = tuple((f"n{number:02}", 0, 90 - number, 0, 0) for number in range(12))
    cluster = Cluster(*[node(f"n{number:02}", 10) for number in range(12)], LoadObserved(1, measured))
    event = decide(cluster.view, task("t", 1), 0).event()
    assert isinstance(event, TaskPlaced)
    assert (event.node, event.candidates) == ("n11", 12)
    assert [score[0] for score in event.scores] == [f"n{number:02}" for number in range(11, 3, -1)]
    assert len(explain(cluster.view, task("t", 1), 0).scores) == 12


def test_an_event_lists_three_refusals_of_each_reason_and_counts_all() -> None:
    cluster = Cluster(
        *[node(f"n{number}", 1) for number in range(5)], *[ConfigChanged(1, f"n{number}", "drained", 1) for number in range(4)]
    )
    wish = task("t", 2)
    event = decide(cluster.view, wish, 0).event()
    assert event.refused == (("node_drained", 4), ("vram_short", 1))
    assert [refusal[:3] for refusal in event.refusals] == [
        ("n0", -1, "node_drained"), ("n1", -1, "node_drained"), ("n2", -1, "node_drained"), ("n4", 0, "vram_short"),
    ]  # fmt: skip
    assert len(explain(cluster.view, wish, 0).refusals) == 5


def test_a_cluster_without_nodes_has_one_refusal_and_no_candidate() -> None:
    decision = decide(ClusterView(), task("t"), 3)
    assert (decision.candidates, decision.refused, decision.node, decision.gpus) == (0, (("no_nodes", 1),), "", ())
    assert decision.refusals == (("", -1, "no_nodes", "no node has joined; start one with NODE_NAME and CONTROLLER_NATS_URL set"),)


# -- recorded decisions --------------------------------------------------------------------------------------------------------------------


def test_a_placement_on_the_only_device_is_checked() -> None:
    """It has one candidate, and no refusal."""
    view = Cluster(node("a", 10)).view
    view.apply(view.position + 1, task("t", 5))
    recorded = decide(view, view.tasks["t"].submitted, 7).event()
    assert isinstance(recorded, TaskPlaced) and (recorded.candidates, recorded.refused) == (1, ())
    check_recorded(view, recorded)
    with pytest.raises(ReplayMismatch):
        check_recorded(view, msgspec.structs.replace(recorded, candidates=2))


@pytest.mark.parametrize(
    ("facts", "groups", "refusals"),
    [
        ([], (), (("", -1, "no_nodes", "no node has joined; start one with NODE_NAME and CONTROLLER_NATS_URL set"),)),
        ([node("a", 10)], ("blue",), (("", -1, "unknown_group", "no node is in group blue; known groups: none"),)),
        ([node("a", 10, groups=("red",))], (), (("a", -1, "group_only", "the node serves only tasks that target group red"),)),
    ],
)
def test_a_refusal_that_recorded_every_device_is_checked(
    facts: list[Event], groups: tuple[str, ...], refusals: tuple[Refusal, ...]
) -> None:
    """As controllers recorded them before the log had measurements: no device of these clusters was examined."""
    view = ClusterView()
    for fact in (*facts, task("t", 5, groups=groups)):
        view.apply(view.position + 1, fact)
    recorded = TaskRefused(7, "t", refusals, view.position)
    check_recorded(view, recorded)
    with pytest.raises(ReplayMismatch):
        check_recorded(view, msgspec.structs.replace(recorded, refusals=()))
    view.apply(view.position + 1, ConfigChanged(8, "global", "queue_age_ms", 1))
    with pytest.raises(ValueError, match="was made at position"):
        check_recorded(view, recorded)
