"""Those who wait: in which order, protected from whom, why and until when; cancelled, re-prioritised, put into groups."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bus_schemas.events import (
    ConfigChanged,
    DeviceFact,
    Event,
    GroupChanged,
    LoadObserved,
    NodeLost,
    NodeRegistered,
    SessionClosedFact,
    SessionOpenedFact,
    SessionPriorityChanged,
    TaskPriorityChanged,
    TaskRefused,
    TaskStateChanged,
    TaskSubmitted,
)
from scheduler.placement import (
    Measured,
    QueueMemory,
    decide,
    effective_priority,
    expired_waiting,
    explain,
    load_observed,
    queue,
    queue_decisions,
    queue_due_ns,
    sessions_to_end,
    sessions_to_reprioritise,
    why_waiting,
)
from scheduler.placement.states import REASON_NEVER_STARTED
from tests.unit.test_scheduler.clusters import GIB, MINUTE, Cluster, node, session, task


def test_by_priority_then_by_age() -> None:
    cluster = Cluster(node("a", 10), task("hog", 10))
    for name, priority in (("low", 4), ("first", 1), ("second", 1), ("high", 0)):
        cluster.add(task(name, 10, priority=priority))
    assert cluster.waiting() == ["high", "first", "second", "low"]


def of(tenant: str, name: str, minute: int, **more: Any) -> TaskSubmitted:
    return msgspec.structs.replace(task(name, minute=minute, **more), tenant=tenant)


def test_tenants_take_turns_within_a_level() -> None:
    """What one has waiting delays the others by a task for each of theirs: here nothing of it ever starts, and is given up in its turn."""
    cluster = Cluster(node("n", 10))
    for minute in range(6):
        cluster.add(of("acme", f"a{minute}", minute, exclusive=True), minute)
    for minute, (tenant, name) in enumerate((("beta", "b0"), ("zeta", "z0"), ("beta", "b1")), 6):
        cluster.add(of(tenant, name, minute), minute)
    cluster.add(of("acme", "low", 9, priority=3), 9)
    cluster.add(of("beta", "low too", 10, priority=3), 10)
    assert cluster.waiting() == ["a1", "b0", "z0", "a2", "b1", "a3", "a4", "a5", "low", "low too"]
    found = why_waiting(cluster.view, "b0", 10 * MINUTE)
    assert found is not None and found.place == 2
    for given_up in ("a0", "a1"):
        assert cluster.where(given_up) == "n" and not cluster.where("b0")
        cluster.add(TaskStateChanged(10 * MINUTE, given_up, "failed", REASON_NEVER_STARTED), 10)
    assert cluster.where("b0") == "n" and not cluster.where("a2")


def test_a_tenant_begins_where_the_queue_is_and_not_where_it_began() -> None:
    """Turns count what was placed: neither an idle tenant's past nor what another has withdrawn gives it a better one."""
    cluster = Cluster(node("n", 4), *(of("acme", f"a{minute}", minute, gib=4) for minute in range(5)))
    for minute in range(3):
        cluster.add(TaskStateChanged(minute * MINUTE, f"a{minute}", "cancelled"), minute)
    cluster.add(of("beta", "b0", 6, gib=4), 6)
    cluster.add(of("acme", "a5", 7, gib=4), 7)
    assert cluster.where("a3") == "n" and cluster.waiting() == ["a4", "b0", "a5"]
    cluster.add(TaskStateChanged(8 * MINUTE, "a4", "cancelled"), 8)
    cluster.add(TaskStateChanged(8 * MINUTE, "a5", "cancelled"), 8)
    cluster.add(of("acme", "a6", 9, gib=4), 9)
    assert cluster.waiting() == ["b0", "a6"]


def test_who_waits_rises_one_level_a_period() -> None:
    """After 20 minutes a P2 task is at level 0, where the older goes first."""
    cluster = Cluster(node("a", 10), task("hog", 10), task("old", 10, priority=2))
    cluster.add(task("young", 10, minute=15), 15)
    old = cluster.view.tasks["old"]
    assert [effective_priority(cluster.view, old, minute * MINUTE) for minute in (0, 9, 10, 19, 20, 500)] == [2, 2, 1, 1, 0, 0]
    assert cluster.waiting(19) == ["young", "old"]
    assert cluster.waiting(20) == ["old", "young"]
    cluster.add(ConfigChanged(1, "global", "queue_age_ms", 0), 20)
    assert cluster.waiting(500) == ["young", "old"]


def test_nothing_is_due_but_time() -> None:
    cluster = Cluster(node("a", 10), task("hog", 10), task("t", 10, priority=1, queue_timeout_ms=12 * 60_000))
    view = cluster.view
    assert queue_due_ns(view, 0) == 5 * MINUTE  # it may reserve
    cluster.go(5)
    assert queue_due_ns(view, 6 * MINUTE) == 10 * MINUTE  # it rises, and its reservation may move
    assert queue_due_ns(view, 10 * MINUTE) == 12 * MINUTE  # it gives up
    assert queue_due_ns(view, 12 * MINUTE) is None


def test_a_big_task_reserves_what_frees_up() -> None:
    """Small ones of the same priority come all the time; from the fifth minute on none gets room where the big one waits for it."""
    cluster = Cluster(node("a", 10), node("b", 10), task("a1", 5), task("b1", 5), task("a2", 5), task("b2", 5))
    assert [cluster.where(name) for name in ("a1", "b1", "a2", "b2")] == ["a", "b", "a", "b"]
    cluster.add(task("big", 10))
    cluster.end("a1", 1)
    cluster.add(task("small", 5, minute=2), 2)
    assert cluster.where("small") == "a"  # not yet: it overtakes
    cluster.end("a2", 3)
    (told,) = cluster.go(5)
    assert isinstance(told, TaskRefused)
    assert (told.reserved_node, told.reserved_gpus) == ("a", (0,))  # where the fewest bytes are missing
    cluster.add(task("late", 5, minute=6), 6)
    assert cluster.where("late") == ""
    assert {reason for _, _, reason, _ in decide(cluster.view, cluster.view.tasks["late"].submitted, 6 * MINUTE).refusals} == {
        "reserved", "vram_short",
    }  # fmt: skip
    cluster.add(task("urgent", 5, minute=6, priority=0), 6)
    assert cluster.where("urgent") == ""  # as high, and behind
    cluster.end("small", 7)
    assert cluster.where("big") == "a"
    assert cluster.view.reservations == {}
    cluster.end("b1", 8)
    assert cluster.where("late") == "b"


def test_who_is_higher_may_take_reserved_room() -> None:
    cluster = Cluster(node("a", 10), task("a1", 5), task("a2", 5), task("big", 10, priority=3))
    cluster.go(5)
    assert cluster.view.reservations == {("a", 0): "big"}
    cluster.end("a1", 6)
    cluster.add(task("equal", 5, minute=6, priority=3), 6)
    cluster.add(task("higher", 5, minute=6, priority=1), 6)
    assert (cluster.where("equal"), cluster.where("higher")) == ("", "a")


def test_a_reservation_moves_only_to_where_less_is_missing() -> None:
    cluster = Cluster(node("a", 10), node("b", 10), task("a1", 6), task("b1", 7), task("big", 10))
    cluster.go(5)
    assert cluster.view.tasks["big"].reserved is not None
    assert cluster.view.reservations == {("a", 0): "big"}
    cluster.add(NodeRegistered(1, "c", "c", "", 1, (DeviceFact(0, "gpu", "host", 8, 10 * GIB),)), 6)
    assert cluster.where("big") == "c"
    cluster.add(task("big2", 10, minute=6), 6)
    cluster.go(11)
    assert cluster.view.reservations == {("a", 0): "big2"}
    cluster.add(ConfigChanged(1, "a", "drained", 1), 12)  # no use any more: it moves at once
    assert cluster.view.reservations == {("b", 0): "big2"}
    cluster.add(ConfigChanged(1, "a", "drained", None), 13)
    assert cluster.view.reservations == {("b", 0): "big2"}  # less is missing on a; it may move after five minutes
    cluster.go(17)
    assert cluster.view.reservations == {("a", 0): "big2"}


def test_what_was_promised_before_the_overcommit_was_lowered_is_missing_too() -> None:
    """On a 18 GiB are promised, and only 10 may be from now on: 18 must be given back before 10 fit. On b it is 10."""
    cluster = Cluster(node("a", 10), node("b", 10), ConfigChanged(1, "a", "overcommit_vram_percent", 100))
    cluster.add(task("a1", 18))
    cluster.add(task("b1", 10))
    assert (cluster.where("a1"), cluster.where("b1")) == ("a", "b")
    cluster.add(ConfigChanged(1, "a", "overcommit_vram_percent", None))
    cluster.add(task("big", 10))
    (told,) = cluster.go(5)
    assert isinstance(told, TaskRefused)
    assert (told.reserved_node, told.reserved_gpus) == ("b", (0,))


def test_only_so_many_reserve_and_the_first_in_order_do() -> None:
    cluster = Cluster(node("a", 10), node("b", 10), task("a1", 10), task("b1", 10), ConfigChanged(1, "global", "queue_reservations_max", 1))
    for name, priority in (("low", 3), ("high", 0)):
        cluster.add(task(name, 10, priority=priority))
    cluster.go(5)
    assert set(cluster.view.reservations.values()) == {"high"}
    cluster.add(TaskStateChanged(1, "high", "cancelled"), 6)
    assert set(cluster.view.reservations.values()) == {"low"}


def test_a_queue_timeout_is_a_named_failure() -> None:
    cluster = Cluster(node("a", 10), task("hog", 10), task("t", 10, queue_timeout_ms=90_000))
    assert expired_waiting(cluster.view, 89 * 10**9) == []
    (fact,) = expired_waiting(cluster.view, 90 * 10**9)
    cluster.add(fact)
    assert (cluster.view.tasks["t"].state, cluster.view.tasks["t"].reason) == (
        "failed", "no room came within the task's queue timeout (90 s)",
    )  # fmt: skip


def test_a_timeout_that_lands_behind_the_placement_says_nothing() -> None:
    """Two controllers: one found that the task gives up, the other placed it first."""
    cluster = Cluster(node("a", 10), task("hog", 10), task("t", 10, queue_timeout_ms=90_000))
    (fact,) = expired_waiting(cluster.view, 90 * 10**9)
    cluster.end("hog", 1)
    cluster.add(fact)
    assert (cluster.view.tasks["t"].state, cluster.where("t")) == ("queued", "a")


def test_why_it_waits_and_what_would_let_it_in() -> None:
    cluster = Cluster(
        node("a", 10), node("b", 10, groups=("red",)), node("c", 10), ConfigChanged(1, "c", "drained", 1), task("one", 6), task("two", 4)
    )
    cluster.add(task("ahead", 9))
    cluster.add(task("t", 8, priority=1, queue_timeout_ms=600_000))
    waiting = why_waiting(cluster.view, "t", MINUTE)
    assert waiting is not None
    assert (waiting.place, waiting.queue_length, waiting.level, waiting.priority) == (2, 2, 1, 1)
    assert (waiting.rises_ns, waiting.protected_ns, waiting.expires_ns) == (10 * MINUTE, 5 * MINUTE, 10 * MINUTE)
    assert dict(waiting.refused) == {"group_only": 1, "node_drained": 1, "vram_short": 1}
    assert [(remedy.kind, remedy.node, remedy.tasks, remedy.value) for remedy in waiting.remedies] == [
        ("end", "a", ("one", "two"), ""),
        ("overcommit", "a", (), 80),
        ("resume", "c", (), ""),
        ("group", "b", (), ""),
    ]
    assert waiting.sentence == (
        "number 2 in the queue; nothing fits: group_only (1x), node_drained (1x), vram_short (1x); what would let it in: "
        "tasks one, two on node a gpu 0 ending; or overcommit_vram_percent of node a at 80 or more (it is 0); or node c, which is drained, "
        "being resumed; or node b leaving group red, or the task targeting one of them"
    )
    assert why_waiting(cluster.view, "one", 0) is None
    assert why_waiting(cluster.view, "nobody", 0) is None


@pytest.mark.parametrize(
    ("facts", "wish", "kinds"),
    [
        ([], task("t"), ["join"]),
        ([node("a", 10)], task("t", groups=("blue",)), ["group"]),
        ([node("a", 10), GroupChanged(1, "blue")], task("t", groups=("blue",)), ["group"]),
        ([node("a", 10), NodeLost(1, "a", 1, "silent")], task("t"), ["recover"]),
        ([node("a", 10)], task("t", 5, gpus=2), ["join"]),
        ([node("a", 10)], task("t", 120, noswap=True), ["join"]),
        ([node("a", 10), task("alone", exclusive=True)], task("t"), ["end"]),
        ([node("a", 10), task("other")], task("t", exclusive=True), ["end"]),
    ],
)
def test_every_wait_has_a_remedy(facts: list[Event], wish: TaskSubmitted, kinds: list[str]) -> None:
    cluster = Cluster(*facts, wish)
    waiting = why_waiting(cluster.view, "t", 0)
    assert waiting is not None
    assert [remedy.kind for remedy in waiting.remedies] == kinds, waiting


def test_groups_are_made_changed_and_deleted() -> None:
    """A node in a group serves only tasks that target it, however it was put there."""
    cluster = Cluster(node("a", 10, groups=("own",)), node("b", 10), GroupChanged(1, "made", "by hand", ("b", "later")))
    view = cluster.view
    assert (view.groups_of("a"), view.groups_of("b")) == ({"own"}, {"made"})
    assert (view.groups["made"].title, view.groups["made"].nodes) == ("by hand", {"b", "later"})
    assert view.membership.known() == ["made", "own"]
    reasons = {(name, reason) for name, _, reason, _ in explain(view, task("t"), 0).refusals}
    assert reasons == {("a", "group_only"), ("b", "group_only")}
    assert decide(view, task("t", groups=("made",)), 0).node == "b"
    cluster.add(node("later", 10))
    assert view.groups_of("later") == {"made"}
    cluster.add(GroupChanged(2, "made", "by hand", ()))
    assert [refusal[2] for refusal in decide(view, task("t", groups=("made",)), 0).refusals] == ["group_empty"]
    assert decide(view, task("t"), 0).node == "b"
    cluster.add(GroupChanged(3, "made", deleted=True))
    assert [refusal[2] for refusal in decide(view, task("t", groups=("made",)), 0).refusals] == ["unknown_group"]


def test_a_cancelled_task_is_over_for_ever_and_its_sessions_must_end() -> None:
    cluster = Cluster(node("a", 10), task("t"))
    cluster.add(session("s", "t", "a"))
    cluster.add(TaskStateChanged(2, "t", "cancelled", "by anna"))
    view = cluster.view
    assert (view.tasks["t"].state, view.tasks["t"].reason, view.nodes["a"].tasks) == ("cancelled", "by anna", set())
    assert [seen.fact.session for seen in sessions_to_end(view)] == ["s"]
    assert decide(view, task("x", 10), 0).gpus == ()  # the session holds its quota until it is closed
    cluster.add(session("late", "t", "a"))
    assert (view.tasks["t"].state, [seen.fact.session for seen in sessions_to_end(view)]) == ("cancelled", ["late", "s"])
    for name in ("s", "late"):
        cluster.add(SessionClosedFact(3, name, "a", "cancelled", 0, 0, 0, 0, "", True))
    assert (view.tasks["t"].state, sessions_to_end(view), view.tasks["t"].past_sessions) == ("cancelled", [], ["s", "late"])
    cluster.add(TaskStateChanged(4, "t", "started"))
    assert view.tasks["t"].state == "cancelled"


def test_a_new_priority_holds_at_once_and_sessions_must_follow() -> None:
    cluster = Cluster(node("a", 10), task("t", priority=3), session("s", "t", "a", priority=3))
    view = cluster.view
    assert sessions_to_reprioritise(view) == []
    cluster.add(TaskPriorityChanged(2, "t", 1))
    assert view.tasks["t"].priority == 1
    assert [(seen.fact.session, priority) for seen, priority in sessions_to_reprioritise(view)] == [("s", 1)]
    rivals = {seen.gpu: seen.parts[3] for seen in explain(view, task("x", priority=1), 0).considered}
    assert rivals == {0: 50}  # it counts as an equal now
    cluster.add(SessionPriorityChanged(3, "s", "a", 1))
    assert sessions_to_reprioritise(view) == []
    cluster.add(NodeLost(4, "a", 1, "silent"))
    cluster.add(TaskPriorityChanged(5, "t", 4))
    assert view.tasks["t"].priority == 1  # it is over


def test_only_measurements_that_matter_are_reported() -> None:
    view = Cluster(node("a", 100), LoadObserved(1, (("a", 0, 40, 0, 10 * GIB),))).view

    def told(utilization: int, starvation: int, used_gib: int) -> bool:
        return load_observed(view, {("a", 0): Measured(utilization, starvation, used_gib * GIB)}, 5) is not None

    assert not told(44, 0, 14)
    assert told(45, 0, 10)
    assert told(40, 1, 10)  # it becomes active
    assert told(0, 0, 10)
    assert told(40, 0, 15)
    assert load_observed(view, {("nobody", 0): Measured(90)}, 5) is None


def test_a_long_queue_of_few_shapes_costs_few_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: 400 wait in four shapes. Something ends, and four decisions find that no task fits; none with a memory of the last pass, as
    it is too small for all of them; one for a newcomer; and one for the shape that fits what ends next."""
    cluster = Cluster(node("a", 10), task("hog", 6), task("small", 3), task("tiny", 1))
    for number in range(400):
        cluster.view.apply(cluster.view.position + 1, task(f"t{number}", 4 + number % 4))
    memory = QueueMemory()
    cluster.go(0)
    assert list(queue_decisions(cluster.view, 0, memory)) == []
    made: list[object] = []
    monkeypatch.setattr(queue, "decide", lambda *asked: made.append(asked) or decide(*asked))

    def decisions(fact: Event, memory: QueueMemory | None) -> int:
        made.clear()
        cluster.view.apply(cluster.view.position + 1, fact)
        for decision in queue_decisions(cluster.view, 1, memory):
            cluster.view.apply(cluster.view.position + 1, decision.event())
        return len(made)

    assert decisions(TaskStateChanged(1, "tiny", "completed"), None) == 4
    assert decisions(LoadObserved(1, (("a", 0, 9, 9, 9),)), memory) == 0
    assert decisions(task("newcomer", 4), memory) == 1
    assert decisions(TaskStateChanged(1, "small", "completed"), memory) == 2  # one is placed, the next of its shape no longer fits
    assert cluster.where("t0") == "a"


def remedies(wish: TaskSubmitted, *facts: Event) -> list[tuple[str, str]]:
    """(kind, text) of what would let a wish in, after these facts."""
    cluster = Cluster(*facts, wish)
    waiting = why_waiting(cluster.view, wish.task, MINUTE)
    assert waiting is not None
    return [(remedy.kind, remedy.text) for remedy in waiting.remedies]


def test_remedies_say_what_would_help() -> None:
    assert remedies(task("t", 4)) == [("join", "a node with a device of 4096 MiB or more joining")]
    assert remedies(task("t", 4, gpus=2)) == [("join", "a node with 2 devices of 4096 MiB or more joining")]
    assert remedies(task("t", 4, groups=("b", "a")), node("n", 8)) == [("group", "a node being put into groups a, b")]


def test_a_session_without_a_task_is_named_as_what_would_have_to_end() -> None:
    cluster = Cluster(node("n", 10), SessionOpenedFact(1, "s", "acme", "", "n", 0, 0, 9 * GIB), task("t", 5))
    waiting = why_waiting(cluster.view, "t", MINUTE)
    assert waiting is not None
    ends = [remedy for remedy in waiting.remedies if remedy.kind == "end"]
    assert [(remedy.tasks, remedy.sessions, remedy.node, remedy.gpus) for remedy in ends] == [((), ("s",), "n", (0,))]


def test_every_change_of_a_task_and_of_a_node_has_the_position_of_its_fact() -> None:
    cluster = Cluster(node("n", 10), task("t", 20))
    view = cluster.view
    cluster.add(TaskPriorityChanged(2, "t", 1))
    assert view.tasks["t"].revision == view.position
    cluster.add(task("u", 5, queue=True))
    assert view.tasks["u"].state == "queued" and view.tasks["u"].placed is not None
    view.apply(view.position + 1, NodeLost(3, "n", 1, "silent"))
    assert view.nodes["n"].revision == view.tasks["u"].revision == view.position, "it waits again"
    view.apply(view.position + 1, NodeRegistered(4, "n", "n", "", 2, (), ()))
    assert view.nodes["n"].revision == view.position


def test_a_device_that_is_not_there_has_no_row() -> None:
    columns = Cluster(node("a", 10, 20), node("b", 30)).view.columns
    assert [columns.row("a", 0), columns.row("a", 1), columns.row("b", 0)] == [0, 1, 2]
    assert [columns.row("a", 2), columns.row("b", 1), columns.row("c", 0)] == [-1, -1, -1]


@pytest.mark.parametrize(("gib", "kinds"), [(1, ["end", "overcommit"]), (2, [])])
def test_an_overcommit_beyond_the_largest_is_no_remedy(gib: int, kinds: list[str]) -> None:
    """10 GiB are promised on a device of 1 GiB: with one more that is 1000 percent beyond what it has."""
    percent = ConfigChanged(1, "n", "overcommit_vram_percent", 1000)
    promised = [task(f"t{i}", 1) for i in range(10)]
    facts = (node("n", 1), percent, *promised, ConfigChanged(2, "n", "overcommit_vram_percent", None))
    found = remedies(task("wish", gib), *facts)
    assert [kind for kind, _ in found if kind != "join"] == kinds
    assert [text for kind, text in found if kind == "overcommit"] == (
        ["overcommit_vram_percent of node n at 1000 or more (it is 0)"] if gib == 1 else []
    )
