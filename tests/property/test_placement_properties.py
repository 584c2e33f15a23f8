"""Placement over random histories: whatever happened, decisions are a function of the log, named, ordered, equal to the slow obvious way,
and never sell memory twice."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

from hypothesis import given, settings
from hypothesis import strategies as st

from bus_schemas.events import (
    ConfigChanged,
    Considered,
    Event,
    GroupChanged,
    LoadObserved,
    NodeRecovered,
    SessionClosedFact,
    TaskPlaced,
    TaskRefused,
    TaskStateChanged,
    TaskSubmitted,
    decode_events,
    encode_events,
)
from scheduler.placement import (
    SCORE_MAX,
    ClusterView,
    Decision,
    QueueMemory,
    capacity,
    decide,
    expired_waiting,
    explain,
    queue_decisions,
    queue_due_ns,
    queue_order,
    why_waiting,
)
from scheduler.placement.decide import BEST, EXAMPLES
from scheduler.placement.reasons import GANG, NODE_WIDE, REASONS
from scheduler.placement.remedies import END, GROUP, OVERCOMMIT, RECOVER, RESUME, Remedy
from tests.support.placement_histories import MS, busy, histories, live, readings, submissions
from tests.support.placement_reference import groups_of, rank, reference, room
from tests.support.recorded_decisions import check_recorded

Reading = tuple[str, int, int, int, int]
times = st.integers(0, 80).map(lambda tick: tick * MS)


@settings(max_examples=40, deadline=None)
@given(histories)
def test_rebuilding_gives_the_same_view_and_decisions(history: list[Event]) -> None:
    """Through the wire format; and each decision can be made again from the log alone."""
    view, log = live(history)
    again, packed = ClusterView(), decode_events(encode_events(log))
    for position, event in enumerate(packed, start=1):
        if isinstance(event, TaskPlaced | TaskRefused):
            check_recorded(again, event)
        again.apply(position, event)
    assert again == view


@settings(max_examples=60, deadline=None)
@given(histories, submissions, times)
def test_columns_decide_as_the_slow_obvious_way_does(history: list[Event], wish: TaskSubmitted, at_ns: int) -> None:
    """For every task that waits, and for one that is only asked about: candidates, parts, refusals with their sentences, the choice, and
    what is reserved. The event in the log is the top and examples of exactly that."""
    view, _ = live(history)
    for task in [wish, *(view.tasks[name].submitted for name in sorted(view.queue))]:
        expected, every, told = reference(view, task, at_ns), explain(view, task, at_ns), decide(view, task, at_ns)
        assert (every.node, every.gpus, every.scores, every.refusals) == (
            expected.node, expected.gpus, expected.scores, expected.refusals,
        )  # fmt: skip
        assert {(seen.node, seen.gpu): seen.parts for seen in every.considered} == {
            (node, gpu): expected.parts[node, gpu] for node, gpu, _ in expected.scores
        }
        assert (every.reserved_node, every.reserved_gpus) == expected.reserved
        _check_reported(told, every)


def _check_reported(told: Decision, every: Decision) -> None:
    """``told`` is ``every``, shortened."""
    counts: dict[str, int] = {}
    for _, _, reason, _ in every.refusals:
        counts[reason] = counts.get(reason, 0) + 1
    assert told.refused == every.refused == tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    assert (told.node, told.gpus, told.position, told.candidates) == (every.node, every.gpus, every.position, len(every.scores))
    assert (told.reserved_node, told.reserved_gpus) == (every.reserved_node, every.reserved_gpus)
    chosen = {(told.node, gpu) for gpu in told.gpus}
    assert told.scores == tuple(item for at, item in enumerate(every.scores) if at < BEST or item[:2] in chosen)
    by_place = {(seen.node, seen.gpu): seen for seen in every.considered}
    assert told.considered == tuple(by_place[node, gpu] for node, gpu, _ in told.scores)
    for reason in counts:
        of_reason = [refusal for refusal in every.refusals if refusal[2] == reason]
        shown = [refusal for refusal in told.refusals if refusal[2] == reason]
        assert len(shown) == min(EXAMPLES, len(of_reason))
        assert set(shown) <= set(of_reason)


@settings(max_examples=40, deadline=None)
@given(histories)
def test_what_a_pass_remembers_changes_no_decision(history: list[Event]) -> None:
    assert live(history, memory=QueueMemory())[1] == live(history)[1]


@settings(max_examples=40, deadline=None)
@given(histories)
def test_the_sums_are_those_of_a_recount_after_every_fact(history: list[Event]) -> None:
    _, log = live(history)
    view = ClusterView()
    for position, event in enumerate(log, start=1):
        view.apply(position, event)
        for name, node in view.nodes.items():
            assert view.groups_of(name) == groups_of(view, name)
            for device in node.registered.devices:
                assert capacity(view, name, device) == room(view, name, device)
        assert view.queue == {name for name, task in view.tasks.items() if task.waiting}
        assert view.live == {name for name, task in view.tasks.items() if task.live}
        holders = {(t.reserved.node, gpu): name for name, t in view.tasks.items() if t.reserved is not None for gpu in t.reserved.gpus}
        assert view.reservations == holders
        assert holders.keys() <= {(t.reserved.node, g) for n in view.queue if (t := view.tasks[n]).reserved for g in t.reserved.gpus}
        assert sorted(view.recent.values()) == list(view.recent.values())
        assert {name: task.revision for name, task in view.tasks.items()} == view.recent


@settings(max_examples=40, deadline=None)
@given(histories, submissions, times)
def test_every_device_is_a_candidate_or_refused_by_name(history: list[Event], task: TaskSubmitted, at_ns: int) -> None:
    view, _ = live(history)
    decision = explain(view, task, at_ns)
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
    keys = [(-score, node, gpu) for node, gpu, score in decision.scores]
    assert keys == sorted(set(keys))
    assert all(0 <= score <= SCORE_MAX for _, _, score in decision.scores)


@settings(max_examples=40, deadline=None)
@given(histories)
def test_no_task_is_placed_before_one_ahead_that_fits(history: list[Event]) -> None:
    """By exhaustive search. And after a full pass over the queue, no task in it fits."""
    now_ns = 0

    def placed(view: ClusterView, decision: Decision) -> None:
        nonlocal now_ns
        now_ns = decision.at_ns
        if decision.gpus:
            mine = rank(view, view.tasks[decision.task].submitted, now_ns)
            for name in view.queue:
                other = view.tasks[name].submitted
                assert rank(view, other, now_ns) >= mine or not reference(view, other, now_ns).gpus

    view, _ = live(history, placed)
    now_ns = len(history) * MS
    order = [task.submitted for task in queue_order(view, now_ns)]
    assert order == sorted(order, key=lambda task: rank(view, task, now_ns))
    assert {task.task for task in order} == view.queue
    for task in order:
        assert not reference(view, task, now_ns).gpus, task


@settings(max_examples=40, deadline=None)
@given(histories)
def test_no_placement_sells_memory_twice(history: list[Event]) -> None:
    """After each placement, what is promised on its devices fits: all of it the schedulable memory, what cannot be swapped the physical;
    an exclusive task is alone, in a group it targets; and all are of one trust domain where the node serves one at a time. Counted from
    the view's tasks and sessions, not by the scheduler's own sum."""
    _, log = live(history)
    view = ClusterView()
    for position, event in enumerate(log, start=1):
        view.apply(position, event)
        if not isinstance(event, TaskPlaced) or view.tasks[event.task].placed is not event:
            continue
        task = view.tasks[event.task].submitted
        assert len(event.gpus) == task.gpu_count
        assert groups_of(view, event.node) & set(task.groups) or not (task.groups or groups_of(view, event.node))
        for gpu in event.gpus:
            device = view.nodes[event.node].device(gpu)
            assert device is not None
            here = room(view, event.node, device)
            assert here.promised_bytes <= here.schedulable_bytes
            if task.noswap:
                assert here.promised_noswap_bytes <= here.physical_bytes
            if here.exclusive:
                assert len(here.priorities) == 1
            domains = view.nodes[event.node].registered.domains
            tenants = {other.submitted.tenant for other in view.tasks_on(event.node, gpu)}
            tenants |= {fact.tenant for fact in view.sessions_on(event.node, gpu)}
            assert domains is None or len(tenants) == 1 or any(tenants <= set(members) for members in domains)


@settings(max_examples=40, deadline=None)
@given(histories)
def test_each_remedy_lets_the_task_in(history: list[Event]) -> None:
    """Make the change that is proposed, and the task fits on the node it names, were it alone in the queue."""
    view, log = live(history)
    at_ns = len(history) * MS
    for name in sorted(view.queue):
        waiting = why_waiting(view, name, at_ns)
        assert waiting is not None
        assert waiting.place == 1 + [task.submitted.task for task in queue_order(view, at_ns)].index(name)
        assert waiting.remedies, waiting
        for remedy in waiting.remedies:
            changes = _change(view, view.tasks[name].submitted, remedy, at_ns)
            if changes is None:
                continue
            after = ClusterView()
            for position, event in enumerate([*log, *changes], start=1):
                after.apply(position, event)
            fits = {node for node, _, _ in explain(after, view.tasks[name].submitted, at_ns).scores}
            assert remedy.node in fits, (remedy, waiting)


def _change(view: ClusterView, wish: TaskSubmitted, remedy: Remedy, at_ns: int) -> list[Event] | None:
    """The facts that a remedy asks for; None where it asks for what a test cannot know (a new node)."""
    out: list[Event] = []
    if remedy.kind == END:
        out += [TaskStateChanged(1, task, "cancelled") for task in remedy.tasks]
        out += [SessionClosedFact(1, session, remedy.node, "done", 0, 0, 0, 0, "") for session in remedy.sessions]
        open_ = [session for task in remedy.tasks for session in view.tasks[task].sessions]
        out += [SessionClosedFact(1, session, remedy.node, "cancelled", 0, 0, 0, 0, "") for session in open_]
        zero = [(remedy.node, gpu, 0, 0, 0) for gpu in remedy.gpus] if wish.noswap else []
        return [*out, LoadObserved(1, tuple(zero))]
    if remedy.kind == OVERCOMMIT:
        assert isinstance(remedy.value, int)
        assert 0 <= remedy.value <= 1000
        if remedy.value > view.overcommit_percent(remedy.node):
            less = ConfigChanged(1, remedy.node, "overcommit_vram_percent", remedy.value - 1)
            trial = _then(view, less)
            assert remedy.node not in {node for node, _, _ in explain(trial, wish, at_ns).scores}, "a smaller percent would do"
        return [ConfigChanged(1, remedy.node, "overcommit_vram_percent", remedy.value)]
    if remedy.kind == RESUME:
        return [ConfigChanged(1, remedy.node, "drained", None)]
    if remedy.kind == RECOVER:
        return [NodeRecovered(1, remedy.node, view.nodes[remedy.node].epoch)]
    if remedy.kind == GROUP and remedy.value and remedy.node:
        known = view.groups.get(str(remedy.value))
        return [GroupChanged(1, str(remedy.value), "", tuple({*(known.nodes if known else ()), remedy.node}))]
    return None


def _then(view: ClusterView, event: Event) -> ClusterView:
    """The view with one more fact."""
    after = deepcopy(view)
    after.apply(view.position + 1, event)
    return after


@settings(max_examples=40, deadline=None)
@given(histories, submissions, st.lists(readings, max_size=9))
def test_decisions_recorded_with_all_devices_stay_checkable(history: list[Event], wish: TaskSubmitted, measured: list[Reading]) -> None:
    """Controllers used to record what was measured of every device with each decision, instead of in the log."""
    plain = [event for event in history if not isinstance(event, LoadObserved | GroupChanged)]
    view, log = live(plain)
    if view.reservations:
        return  # there were none then
    wish = TaskSubmitted(1, "old", *[getattr(wish, field) for field in wish.__struct_fields__[2:]])
    then = ClusterView()
    position = len(log) + 1
    for number, event in enumerate([*log, wish], start=1):
        then.apply(number, event)
    view.apply(position, wish)
    then.apply(position, LoadObserved(1, tuple(measured)))
    old = reference(then, wish, 0)
    considered = []
    for name in sorted(then.nodes):
        whole = any(node == name and gpu == NODE_WIDE for node, gpu, _, _ in old.refusals)
        for device in () if whole or (old.refusals[:1] and old.refusals[0][0] == "") else then.nodes[name].registered.devices:
            seen = then.measured(name, device.index)
            free = capacity(then, name, device).free_bytes
            numbers = (seen.utilization_percent, seen.starvation_percent, seen.vram_used_bytes)
            considered.append(Considered(name, device.index, *numbers, free, old.parts.get((name, device.index), ())))
    recorded: TaskPlaced | TaskRefused
    if old.gpus:
        recorded = TaskPlaced(5, "old", old.node, old.gpus, old.scores, old.refusals, position, tuple(considered))
    else:
        recorded = TaskRefused(5, "old", old.refusals, position, tuple(considered))
    check_recorded(view, recorded)


@settings(max_examples=40, deadline=None)
@given(histories)
def test_between_due_times_nothing_changes_by_itself(history: list[Event]) -> None:
    """Just before the time that queue_due_ns names, the queue has the order it has now, no task gives up, and no reservation may change
    that may not now."""
    view, _ = live(history)
    now_ns = len(history) * MS
    due_ns = queue_due_ns(view, now_ns)
    just_before = due_ns - 1 if due_ns is not None else now_ns + 10**15
    assert [t.submitted.task for t in queue_order(view, now_ns)] == [t.submitted.task for t in queue_order(view, just_before)]
    assert expired_waiting(view, just_before) == []
    assert list(queue_decisions(view, just_before)) == []


def test_the_histories_reach_what_they_should() -> None:
    """The properties above would hold of empty histories too: count what the crowded ones bring about."""
    seen: Counter[str] = Counter()
    for seed in range(120):
        view, log = live(busy(seed))
        for event in log:
            if isinstance(event, TaskPlaced | TaskRefused):
                seen.update(reason for reason, _ in event.refused)
            if isinstance(event, TaskRefused) and event.reserved_gpus:
                seen["reservation"] += 1
        seen["waiting"] += len(view.queue)
    assert REASONS - GANG - {"no_nodes"} | {"waiting", "reservation"} <= seen.keys(), seen
