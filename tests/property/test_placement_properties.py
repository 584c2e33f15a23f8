"""Placement over random histories: whatever happened, decisions are a function of the log, named, ordered, and never sell memory twice."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from bus_schemas.events import (
    ConfigChanged,
    DeviceFact,
    Event,
    NodeLost,
    NodeRecovered,
    NodeRegistered,
    SessionClosedFact,
    SessionOpenedFact,
    TaskPlaced,
    TaskRefused,
    TaskStateChanged,
    TaskSubmitted,
    decode_events,
    encode_events,
)
from scheduler.placement import SCORE_MAX, ClusterView, Measured, check_recorded, decide
from scheduler.placement.reasons import NODE_WIDE, REASONS

NODES = ("a", "b", "c")
GROUPS = ("red", "blue")
TASKS = tuple(f"t{number}" for number in range(12))
Gauges = dict[tuple[str, int], Measured]

names = st.sampled_from(NODES)
groups = st.lists(st.sampled_from(GROUPS), max_size=2, unique=True).map(tuple)
devices = st.lists(st.integers(0, 16), max_size=3).map(
    lambda sizes: tuple(DeviceFact(i, "d", "host", 8, size) for i, size in enumerate(sizes))
)
percents = st.sampled_from([None, 0, 10, 100, 1000])
submissions = st.builds(
    TaskSubmitted, st.just(1), st.sampled_from(TASKS), st.just("acme"), st.integers(0, 4), st.integers(1, 12), st.integers(1, 3),
    st.booleans(), groups, st.booleans(), st.just(""), st.booleans(),
)  # fmt: skip
facts = st.one_of(
    st.builds(NodeRegistered, st.just(1), names, names, st.just(""), st.integers(1, 3), devices, groups),
    st.builds(NodeLost, st.just(1), names, st.integers(1, 3), st.sampled_from(["silent", "stopped"])),
    st.builds(NodeRecovered, st.just(1), names, st.integers(1, 3)),
    st.builds(
        SessionOpenedFact, st.just(1), st.sampled_from("uvwxyz"), st.just("acme"), st.sampled_from(("", *TASKS)), names, st.integers(0, 2),
        st.integers(0, 4), st.integers(0, 12), st.booleans(),
    ),
    st.builds(
        SessionClosedFact, st.just(1), st.sampled_from("uvwxyz"), names, st.just("done"), st.just(0), st.just(0), st.just(0), st.just(0),
        st.just(""), st.booleans(),
    ),
    st.builds(TaskStateChanged, st.just(1), st.sampled_from(TASKS), st.sampled_from(["queued", "started", "completed", "failed"])),
    st.builds(ConfigChanged, st.just(1), st.just("global"), st.just("default_vram_overcommit_percent"), percents),
    st.builds(ConfigChanged, st.just(1), names, st.just("overcommit_vram_percent"), percents),
    st.builds(ConfigChanged, st.just(1), names, st.just("drained"), st.sampled_from([None, 1])),
)  # fmt: skip
measured = st.builds(Measured, st.integers(0, 100), st.integers(0, 100), st.integers(0, 20))
gauges = st.dictionaries(st.tuples(names, st.integers(0, 2)), measured, max_size=9)
histories = st.lists(st.one_of(facts, submissions), max_size=40)


def live(history: Sequence[Event], readings: Gauges) -> tuple[ClusterView, list[Event]]:
    """A controller's life: every submission is decided at once, decisions join the log. The view, and the log."""
    view, log = ClusterView(), list[Event]()

    def add(event: Event) -> None:
        log.append(event)
        view.apply(len(log), event)

    for event in history:
        add(event)
        if isinstance(event, TaskSubmitted) and view.tasks[event.task].waiting:
            add(decide(view, view.tasks[event.task].submitted, readings).event(2))
    return view, log


@settings(max_examples=150, deadline=None)
@given(histories, gauges)
def test_rebuilding_gives_the_same_view_and_decisions(history: list[Event], readings: Gauges) -> None:
    """Through the wire format, in one go or packed; and each decision can be made again from what the log says."""
    view, log = live(history, readings)
    again, packed = ClusterView(), decode_events(encode_events(log))
    for position, event in enumerate(packed, start=1):
        if isinstance(event, TaskPlaced | TaskRefused):
            check_recorded(again, event)
        again.apply(position, event)
    assert again == view


@settings(max_examples=150, deadline=None)
@given(histories, submissions, gauges)
def test_every_device_is_a_candidate_or_refused_by_name(history: list[Event], task: TaskSubmitted, readings: Gauges) -> None:
    view, _ = live(history, readings)
    decision = decide(view, task, readings)
    assert decision == decide(view, task, dict(reversed(readings.items())))
    assert all(reason in REASONS and detail for _, _, reason, detail in decision.refusals)
    if any(node == "" for node, _, _, _ in decision.refusals):
        assert (len(decision.refusals), decision.gpus) == (1, ())
        return
    refused = {(node, gpu) for node, gpu, _, _ in decision.refusals}
    candidates = {(node, gpu) for node, gpu, _ in decision.scores}
    for name, node in view.nodes.items():
        for device in node.registered.devices:
            fates = [(name, NODE_WIDE) in refused, (name, device.index) in refused, (name, device.index) in candidates]
            assert fates.count(True) == 1, (name, device.index, fates)
    assert bool(decision.gpus) == bool(candidates)


@settings(max_examples=150, deadline=None)
@given(histories, submissions, gauges)
def test_scores_are_a_total_order_and_the_choice_is_from_its_top(history: list[Event], task: TaskSubmitted, readings: Gauges) -> None:
    view, _ = live(history, readings)
    decision = decide(view, task, readings)
    keys = [(-score, node, gpu) for node, gpu, score in decision.scores]
    assert keys == sorted(set(keys))
    assert all(0 <= score <= SCORE_MAX for _, _, score in decision.scores)
    if decision.gpus:
        assert len(decision.gpus) == task.gpu_count
        chosen = {(decision.node, gpu) for gpu in decision.gpus}
        assert chosen <= {(node, gpu) for node, gpu, _ in decision.scores}
        if task.gpu_count == 1:
            assert chosen == {decision.scores[0][:2]}


@settings(max_examples=200, deadline=None)
@given(histories, gauges)
def test_no_placement_sells_memory_twice(history: list[Event], readings: Gauges) -> None:
    """After each placement, what is promised on its devices fits: all of it the schedulable memory, what cannot be swapped the physical,
    and an exclusive task is alone. Counted here from the view's tasks and sessions, not by the scheduler's own sum."""
    _, log = live(history, readings)
    view = ClusterView()
    for position, event in enumerate(log, start=1):
        view.apply(position, event)
        if not isinstance(event, TaskPlaced) or view.tasks[event.task].placed is not event:
            continue
        for gpu in event.gpus:
            device = view.nodes[event.node].device(gpu)
            assert device is not None
            tasks = [t for t in view.tasks.values() if t.live and t.placed and t.placed.node == event.node and gpu in t.placed.gpus]
            ids = {t.submitted.task for t in tasks}
            sessions = [s.fact for s in view.sessions.values() if not s.cut_off and (s.fact.node, s.fact.gpu) == (event.node, gpu)]
            direct = [
                s for s in sessions if s.task not in ids and event.node in view.nodes and s.session in view.nodes[event.node].sessions
            ]
            promised = sum(t.submitted.vram_bytes for t in tasks) + sum(s.quota_bytes for s in direct)
            pinned = sum(t.submitted.vram_bytes for t in tasks if t.submitted.noswap) + sum(s.quota_bytes for s in direct if not s.swap)
            assert promised <= device.vram_bytes * (100 + view.overcommit_percent(event.node)) // 100
            if view.tasks[event.task].submitted.noswap:
                assert pinned <= device.vram_bytes
            if any(t.submitted.exclusive for t in tasks):
                assert (len(tasks), direct) == (1, [])
