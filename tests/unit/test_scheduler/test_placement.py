"""Placement on small clusters: who is refused and why, who is chosen and why, and what facts do to the view."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bus_schemas.events import (
    ConfigChanged,
    Considered,
    DeviceFact,
    Event,
    KeyIssued,
    KeyRevoked,
    LoadObserved,
    NodeLost,
    NodeRecovered,
    NodeRegistered,
    SessionClosedFact,
    SessionOpenedFact,
    SessionPriorityChanged,
    TaskPlaced,
    TaskRefused,
    TaskStateChanged,
    TaskSubmitted,
    decode_events,
    encode_events,
)
from scheduler.placement import ClusterView, Measured, capacity, decide, explain, queue_due_ns, sessions_to_end, why_waiting
from scheduler.placement.reasons import NODE_WIDE
from scheduler.placement.states import REASON_NEVER_STARTED, REASON_RESTARTED
from tests.support.recorded_decisions import check_recorded
from tests.support.replayed import ReplayMismatch

GIB = 1 << 30


def node(name: str, *gib: int, groups: tuple[str, ...] = (), epoch: int = 1) -> NodeRegistered:
    devices = tuple(DeviceFact(index, "gpu", "host", 8, size * GIB) for index, size in enumerate(gib))
    return NodeRegistered(1, name, name, "", epoch, devices, groups)


def task(name: str, gib: int = 1, *, gpus: int = 1, groups: tuple[str, ...] = (), **flags: Any) -> TaskSubmitted:
    """``flags``: priority, exclusive, noswap, queue."""
    return TaskSubmitted(1, name, "acme", flags.pop("priority", 0), gib * GIB, gpus, groups=groups, **flags)


def session(name: str, on: str, *, of: str = "", gib: int = 1, gpu: int = 0, swap: bool = True) -> SessionOpenedFact:
    return SessionOpenedFact(1, name, "acme", of, on, gpu, 0, gib * GIB, swap)


def closed(name: str, on: str, *, failed: bool = False) -> SessionClosedFact:
    return SessionClosedFact(1, name, on, "reason", 0, 0, 0, 0, "", failed)


def view_of(*events: Event) -> ClusterView:
    view = ClusterView()
    for position, event in enumerate(events, start=1):
        view.apply(position, event)
    return view


def observe(view: ClusterView, measured: dict[tuple[str, int], Measured]) -> None:
    """Put what was measured into the log."""
    devices = [(name, gpu, m.utilization_percent, m.starvation_percent, m.vram_used_bytes) for (name, gpu), m in measured.items()]
    view.apply(view.position + 1, LoadObserved(1, tuple(devices)))


def place(view: ClusterView, wanted: TaskSubmitted, measured: dict[tuple[str, int], Measured] | None = None) -> TaskPlaced | TaskRefused:
    """Submit, decide, and put both facts into the view."""
    observe(view, measured or {})
    view.apply(view.position + 1, wanted)
    event = decide(view, wanted, 2).event()
    view.apply(view.position + 1, event)
    return event


def reasons(
    view: ClusterView, wanted: TaskSubmitted, measured: dict[tuple[str, int], Measured] | None = None
) -> dict[tuple[str, int], str]:
    observe(view, measured or {})
    return {(name, gpu): reason for name, gpu, reason, _ in decide(view, wanted, 2).refusals}


def where(event: TaskPlaced | TaskRefused) -> tuple[str, tuple[int, ...]]:
    return (event.node, event.gpus) if isinstance(event, TaskPlaced) else ("", ())


def test_every_refusal_is_named() -> None:
    """One cluster on which every reason shows."""
    view = view_of(
        node("bare"),
        node("drained", 10),
        node("gone", 10),
        node("grouped", 10, groups=("red",)),
        node("one", 10),
        node("small", 1, 1),
        node("taken", 10),
        ConfigChanged(1, "drained", "drained", 1),
        NodeLost(1, "gone", 1, "stopped"),
        task("hog", exclusive=True),
        TaskPlaced(1, "hog", "taken", (0,), (), (), 0),
    )
    assert reasons(view, task("t", 4, gpus=2)) == {
        ("bare", NODE_WIDE): "no_device",
        ("drained", NODE_WIDE): "node_drained",
        ("gone", NODE_WIDE): "node_lost",
        ("grouped", NODE_WIDE): "group_only",
        ("one", 0): "gpu_count",
        ("small", 0): "vram_short",
        ("small", 1): "vram_short",
        ("taken", 0): "device_exclusive",
    }
    assert reasons(view, task("t", 4, groups=("red",)))["one", NODE_WIDE] == "not_in_group"
    assert reasons(view, task("t", groups=("blue",))) == {("", NODE_WIDE): "unknown_group"}
    assert where(place(view, task("other", 4))) == ("one", (0,))
    assert reasons(view, task("t", 1, exclusive=True))["one", 0] == "exclusive_conflict"
    used = {("one", 0): Measured(vram_used_bytes=8 * GIB)}
    assert reasons(view, task("t", 4, noswap=True), used)["one", 0] == "vram_physical_short"
    assert reasons(ClusterView(), task("t")) == {("", NODE_WIDE): "no_nodes"}


def test_a_known_group_beside_an_unknown_one_will_do() -> None:
    assert where(place(view_of(node("a", 10, groups=("red",))), task("t", groups=("blue", "red")))) == ("a", (0,))


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        (Measured(utilization_percent=90), Measured(utilization_percent=10), "b"),
        (Measured(starvation_percent=90), Measured(starvation_percent=10), "b"),
        (Measured(80, 0), Measured(50, 60), "a"),  # busy, but never short of room to run, beats half busy with work waiting
        (Measured(50, 50), Measured(50, 50), "a"),  # a tie: by id
        (Measured(150, 0), Measured(100, 0), "a"),  # out of range counts as the limit
    ],
)
def test_the_freer_device_is_chosen(first: Measured, second: Measured, chosen: str) -> None:
    view = view_of(node("a", 10), node("b", 10))
    assert where(place(view, task("t"), {("a", 0): first, ("b", 0): second}))[0] == chosen


def test_equal_tasks_spread_and_high_priority_avoids_its_equals() -> None:
    view = view_of(node("a", 10), node("b", 10), node("c", 10))
    assert [where(place(view, task(f"t{n}")))[0] for n in range(3)] == ["a", "b", "c"]
    view = view_of(node("a", 10), node("b", 10))
    place(view, task("low", 1, priority=4))
    place(view, task("high", 1, priority=0))
    assert where(place(view, task("next", 1, priority=1)))[0] == "a"  # beside the P4 task, which must give way, not the P0 one


def test_several_devices_come_from_the_node_that_is_best_for_all_of_them() -> None:
    """b has the single best device, a the better pair."""
    view = view_of(node("a", 10, 10), node("b", 10, 10))
    measured = {("a", 0): Measured(30), ("a", 1): Measured(30), ("b", 0): Measured(0), ("b", 1): Measured(100)}
    placed = place(view, task("t", gpus=2), measured)
    assert where(placed) == ("a", (0, 1))
    assert isinstance(placed, TaskPlaced)
    assert placed.scores[0][:2] == ("b", 0)


def test_overcommit_is_for_swappable_tasks() -> None:
    view = view_of(node("a", 10), ConfigChanged(1, "global", "default_vram_overcommit_percent", 100))
    assert where(place(view, task("t1", 10)))[0] == "a"
    assert where(place(view, task("t2", 9)))[0] == "a"
    # 19 of 20 GiB are promised; a task that cannot be swapped sees physical memory, all of it in use.
    assert reasons(view, task("n", 1, noswap=True), {("a", 0): Measured(vram_used_bytes=10 * GIB)}) == {("a", 0): "vram_physical_short"}
    assert where(place(view, task("n", 1, noswap=True), {("a", 0): Measured(vram_used_bytes=9 * GIB)}))[0] == "a"
    assert reasons(view, task("t3", 1)) == {("a", 0): "vram_short"}


def test_memory_of_unswappable_tasks_is_never_promised_twice() -> None:
    view = view_of(node("a", 10), ConfigChanged(1, "a", "overcommit_vram_percent", 1000))
    assert where(place(view, task("n1", 6, noswap=True)))[0] == "a"
    assert reasons(view, task("n2", 5, noswap=True)) == {("a", 0): "vram_physical_short"}
    assert where(place(view, task("t", 90)))[0] == "a"


def test_sessions_without_a_placement_count_by_their_quota() -> None:
    view = view_of(node("a", 10), session("direct", "a", gib=7), session("pinned", "a", gib=2, swap=False))
    assert reasons(view, task("t", 2)) == {("a", 0): "vram_short"}
    view.apply(9, closed("direct", "a"))
    assert where(place(view, task("t", 2)))[0] == "a"


def test_a_task_ends_with_its_last_session() -> None:
    view = view_of(node("a", 10))
    place(view, task("t", 4))
    view.apply(11, session("s1", "a", of="t", gib=4))
    view.apply(12, session("s2", "a", of="t", gib=4))
    view.apply(13, closed("s1", "a", failed=True))
    assert view.tasks["t"].state == "started"
    view.apply(14, closed("s2", "a"))
    assert view.tasks["t"].state == "completed"
    assert reasons(view, task("u", 10)) == {}


def test_repeated_and_late_facts_change_nothing() -> None:
    view = view_of(node("a", 10, epoch=2))
    place(view, task("t", 4))
    for fact in (
        node("a", 99, epoch=1),
        NodeLost(1, "a", 1, "silent"),
        NodeRecovered(1, "a", 2),
        NodeLost(1, "nobody", 1, "silent"),
        task("t", 9),
        TaskPlaced(1, "t", "elsewhere", (0,), (), (), 0),
        TaskRefused(1, "t", (), 0),
        closed("nobody", "a"),
        TaskStateChanged(1, "nobody", "failed"),
        TaskStateChanged(1, "t", "queued"),
    ):
        view.apply(view.position + 1, fact)
    assert view.nodes["a"].registered.devices[0].vram_bytes == 10 * GIB
    assert view.tasks["t"].submitted.vram_bytes == 4 * GIB
    assert (view.tasks["t"].state, view.nodes["a"].lost, view.nodes["a"].tasks) == ("queued", None, {"t"})


def test_a_lost_node_sends_queued_tasks_back_and_fails_the_others() -> None:
    view = view_of(node("a", 10))
    place(view, task("patient", queue=True))
    place(view, task("hasty"))
    place(view, task("running", queue=True))
    view.apply(20, session("s", "a", of="running"))
    view.apply(21, NodeLost(5, "a", 1, "silent"))
    assert {name: (seen.state, seen.reason) for name, seen in view.tasks.items()} == {
        "patient": ("queued", ""),
        "hasty": ("failed", "node lost"),
        "running": ("failed", "node lost"),
    }
    assert view.tasks["patient"].waiting
    view.apply(22, NodeRecovered(6, "a", 1))
    assert view.tasks["running"].state == "started"
    assert view.tasks["hasty"].state == "failed"
    assert view.nodes["a"].tasks == {"running"}


def test_a_session_that_ends_or_begins_while_its_node_is_cut_off_is_reported_in_time() -> None:
    """The node's facts come before the controller has heard it again."""
    view = view_of(node("a", 10))
    for name in ("ends", "fails", "begins", "patient"):
        place(view, task(name, queue=name == "patient"))
    for name in ("ends", "fails"):
        view.apply(20, session(name, "a", of=name))
    for fact in (NodeLost(5, "a", 1, "silent"), closed("ends", "a"), closed("fails", "a", failed=True)):
        view.apply(21, fact)
    for name in ("begins", "patient"):
        view.apply(22, session(name, "a", of=name))
    assert {name: seen.state for name, seen in view.tasks.items()} == {
        "ends": "completed", "fails": "failed", "begins": "failed", "patient": "queued",
    }  # fmt: skip
    view.apply(23, NodeRecovered(6, "a", 1))
    assert (view.tasks["begins"].state, view.tasks["patient"].state, view.queue) == ("started", "started", set())
    view.apply(24, NodeLost(7, "a", 1, "silent"))
    assert (view.tasks["begins"].state, view.tasks["patient"].state) == ("failed", "failed")


def test_a_session_name_that_is_used_again_for_another_task_ends_the_first() -> None:
    """Clients choose names. Of the first task nothing may be left that asks for a session of the second, or for one that is no more."""
    view = view_of(node("b", 10))
    assert [where(place(view, task(name)))[0] for name in ("t", "u")] == ["b", "b"]
    for fact in (session("s", "b", of="t"), node("b", 10, epoch=2), session("s", "b", of="u"), session("other", "b", of="t")):
        view.apply(20, fact)
    assert {name: seen.sessions for name, seen in view.tasks.items()} == {"t": {"other"}, "u": {"s"}}
    view.apply(21, TaskStateChanged(6, "t", "cancelled"))
    assert [open_.fact.session for open_ in sessions_to_end(view)] == ["other"]
    view.apply(22, closed("s", "b"))
    assert [open_.fact.session for open_ in sessions_to_end(view)] == ["other"]
    assert view.tasks["u"].state == "completed"


@pytest.mark.parametrize(
    ("registered", "why"), [(node("evil", 10, groups=("x" * 65,)), "group 'xxx"), (node("evil", 10, groups=("a b",)), "group 'a b'")]
)
def test_a_registration_out_of_bounds_is_refused(registered: NodeRegistered, why: str) -> None:
    """The node is shown as lost, with the reason, and gets no task; the next one counts again."""
    view = view_of(registered, NodeRecovered(1, "evil", 1))
    seen = view.nodes["evil"]
    assert seen.lost is not None and why in seen.lost and len(seen.lost) < 200
    assert (seen.registered.devices, view.groups_of("evil")) == ((), frozenset())
    assert isinstance(place(view, task("t", queue=True)), TaskRefused)
    view.apply(9, node("evil", *[10] * 64, epoch=2))
    assert seen.lost is None and len(seen.registered.devices) == 64


def issued(key: str, groups: tuple[str, ...] | None, **bounds: int) -> KeyIssued:
    return KeyIssued(1, key, "", "", "node", "hash", node="n", groups=groups, **bounds)


@pytest.mark.parametrize(
    ("keys", "refused"),
    [
        ([], False),  # a bus without keys
        ([issued("k", None)], False),  # an earlier key names any group
        ([issued("k", ("vip", "x"))], False),
        ([issued("k", ("vip",)), issued("l", ("x",))], False),
        ([issued("k", ())], True),
        ([issued("k", ("x",), device_mb=10 << 10)], True),
        ([issued("k", ("vip", "x"), device_mb=(10 << 10) - 1)], True),
        ([issued("k", ("vip", "x"), device_cores=7)], True),
        ([issued("k", ("vip", "x"), device_cores=8, device_mb=10 << 10)], False),
        ([issued("k", None), KeyRevoked(1, "k"), issued("l", ())], True),
    ],
)
def test_a_node_names_the_groups_and_devices_that_its_key_is_for(keys: list[Event], refused: bool) -> None:
    view = view_of(*keys, node("n", 10, groups=("vip", "x")), node("open", 1))
    found = place(view, task("t", groups=("vip",), queue=True))
    assert isinstance(found, TaskRefused if refused else TaskPlaced)
    assert (view.nodes["n"].lost or "").startswith("registration refused: ") == refused


def test_the_texts_of_a_node_are_short_lines() -> None:
    device = DeviceFact(0, "d\x1b[2J" + "x" * 300, "h\n", 8, GIB)
    seen = view_of(NodeRegistered(1, "n", "n\x1b]0;" + "y" * 300, "a\r", 1, (device,), (), "v\x07")).nodes["n"].registered
    texts = [seen.name, seen.address, seen.version, seen.devices[0].name, seen.devices[0].backend]
    assert all(len(text) <= 200 and text.isprintable() for text in texts), texts


def test_a_task_has_sessions_on_its_node_and_of_its_tenant_only() -> None:
    """Not those that another node says it has, which could end the task; they hold memory on that node all the same."""
    view = view_of(node("a", 10), node("b", 10))
    placed = where(place(view, task("t")))[0]
    other = "b" if placed == "a" else "a"
    view.apply(19, msgspec.structs.replace(task("waits"), queue=True))
    stranger = msgspec.structs.replace(session("z", placed, of="t"), tenant="zebra")
    for fact in (session("x", other, of="t"), session("y", other, of="waits"), stranger):
        view.apply(20, fact)
        view.apply(21, closed(fact.session, fact.node, failed=True))
    view.apply(22, session("x", other, of="t", gib=3))
    assert [(seen.state, seen.phase, seen.sessions) for seen in view.tasks.values()] == [
        ("queued", "placed", set()),
        ("queued", "waiting", set()),
    ]
    assert capacity(view, other, view.nodes[other].registered.devices[0]).free_bytes == 7 * GIB
    view.apply(23, session("w", placed, of="t"))
    assert (view.tasks["t"].state, view.tasks["t"].sessions) == ("started", {"w"})


def test_a_session_that_was_cut_off_is_taken_over_by_no_other_node() -> None:
    view = view_of(node("a", 10), node("b", 10))
    placed = where(place(view, task("t")))[0]
    other = "b" if placed == "a" else "a"
    for fact in (session("s", placed, of="t"), NodeLost(5, placed, 1, "silent"), session("s", other), NodeRecovered(6, placed, 1)):
        view.apply(20, fact)
    assert (view.tasks["t"].state, view.sessions["s"].fact.node) == ("started", placed)


def test_a_node_says_nothing_of_anothers_sessions() -> None:
    view = view_of(node("a", 10), node("b", 10))
    place(view, task("t"))
    view.apply(20, session("s", "a", of="t"))
    view.apply(21, closed("s", "b"))
    view.apply(22, SessionPriorityChanged(1, "s", "b", 4))
    assert (view.tasks["t"].state, view.sessions["s"].priority) == ("started", 0)
    view.apply(23, closed("s", "a"))
    assert view.tasks["t"].state == "completed"


@pytest.mark.parametrize("reason", [REASON_NEVER_STARTED, REASON_RESTARTED])
def test_a_stale_end_is_ignored(reason: str) -> None:
    """A controller found that a task never began, or that a restarted node has left it; before that got its place in the log, it began,
    or came back, or waits again because its node was lost."""
    view = view_of(node("a", 10))
    place(view, task("begun"))
    place(view, task("again", queue=True))
    view.apply(20, session("s", "a", of="begun"))
    view.apply(21, TaskStateChanged(5, "begun", "failed", reason))
    assert view.tasks["begun"].state == "started"
    view.apply(22, node("a", 10, epoch=2))
    view.apply(23, NodeLost(5, "a", 2, "silent"))
    view.apply(24, TaskStateChanged(6, "again", "failed", reason))
    assert view.tasks["again"].waiting
    view.apply(25, TaskStateChanged(7, "again", "failed", "crashed"))
    assert view.tasks["again"].state == "failed"


def test_a_placement_that_lands_behind_the_loss_of_its_node_fails() -> None:
    view = view_of(node("a", 10), task("t"))
    placed = decide(view, view.tasks["t"].submitted, 2).event()
    view.apply(3, NodeLost(2, "a", 1, "stopped"))
    view.apply(4, placed)
    assert (view.tasks["t"].state, view.nodes["a"].tasks) == ("failed", set())


def test_a_recorded_decision_is_checked_against_the_log() -> None:
    view = view_of(node("a", 10), node("b", 10), task("t"), LoadObserved(1, (("a", 0, 90, 5, 1),)))
    recorded = decide(view, view.tasks["t"].submitted, 7).event()
    check_recorded(view, recorded)
    assert isinstance(recorded, TaskPlaced)
    with pytest.raises(ReplayMismatch, match="task t at position 4"):
        check_recorded(view, msgspec.structs.replace(recorded, node="a"))
    with pytest.raises(ReplayMismatch):
        check_recorded(view, msgspec.structs.replace(recorded, refused=(("vram_short", 1),)))
    view.apply(5, node("c", 1))
    with pytest.raises(ValueError, match="stands at 5"):
        check_recorded(view, recorded)


def test_a_decision_that_recorded_every_device_is_checked_with_what_it_recorded() -> None:
    """As controllers recorded decisions before measurements were in the log: what was measured since then does not matter."""
    late = LoadObserved(2, (("b", 0, 90, 5, 1),))
    view = view_of(node("a", 10), node("b", 10), node("c", 1), task("t", 2), late)
    a, b = Considered("a", 0, 50, 0, 0, 10 * GIB, (50, 100, 80, 100)), Considered("b", 0, 0, 0, 0, 10 * GIB, (100, 100, 80, 100))
    c = Considered("c", 0, 0, 0, 0, GIB)
    refusals = (("c", 0, "vram_short", "needs 2048 MiB, 1024 of 1024 MiB schedulable are free"),)
    recorded = TaskPlaced(7, "t", "b", (0,), (("b", 0, 960), ("a", 0, 810)), refusals, 5, (a, b, c))
    check_recorded(view, recorded)
    with pytest.raises(ReplayMismatch, match="task t at position 5"):
        check_recorded(view, msgspec.structs.replace(recorded, considered=(a, b)))


@pytest.mark.parametrize("huge", [2**31, 2**62, 2**63, 2**64 - 1, -(2**63)])
def test_numbers_beyond_reason_neither_raise_nor_sell_memory(huge: int) -> None:
    """The fold refuses no fact, and what the wire can carry is more than a column holds."""
    view = view_of(
        node("a", 10),
        NodeRegistered(1, "odd", "odd", "", 1, (DeviceFact(huge, "gpu", "host", 8, GIB), DeviceFact(0, "gpu", "host", 8, huge))),
        LoadObserved(huge, (("a", 0, huge, huge, huge), ("a", huge, 1, 1, 1), ("odd", huge, huge, 1, 1))),
        ConfigChanged(huge, "a", "overcommit_vram_percent", huge),
        ConfigChanged(huge, "a", "overcommit_vram_percent", 0),
        ConfigChanged(huge, "global", "default_vram_overcommit_percent", huge),
        SessionOpenedFact(huge, "s", "acme", "", "a", huge, huge, huge),
        SessionOpenedFact(huge, "r", "acme", "", "a", 0, huge, 9 * GIB),
        TaskSubmitted(huge, "t", "acme", huge, huge, queue=True, queue_timeout_ms=abs(huge)),
        TaskSubmitted(1, "many", "acme", 0, GIB, max(2, huge), queue=True),
        TaskSubmitted(1, "u", "acme", 0, 2 * GIB),
        ConfigChanged(huge, "odd", "drained", 1),
    )
    assert {name: gpu for name, gpu, _, _ in explain(view, view.tasks["u"].submitted, 5).refusals} == {"a": 0, "odd": NODE_WIDE}
    for name in ("t", "many", "u"):
        event = decide(view, view.tasks[name].submitted, 5).event()
        assert decode_events(encode_events([event])) == [event]
        assert why_waiting(view, name, 5) is not None
    assert isinstance(decide(view, view.tasks["many"].submitted, 5).event(), TaskRefused)
    assert queue_due_ns(view, 5) is not None
    assert [task.state for task in view.tasks.values()] == ["queued"] * 3
