"""Laws of the virtual device: whatever work, policy and costs, nothing is lost, nothing is made up, and time adds up exactly."""

from __future__ import annotations

import itertools
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.dispatch import BatchArrived, Dispatch, DispatchConfig, DispatchState, LaunchFinished, LaunchStopped, explain
from scheduler.errors import ModelError
from scheduler.model import Arrival, DeviceCosts, Outcome, Tenant, simulate
from scheduler.model.recorded import Recording
from scheduler.model.waits import Waits
from tests.support.replayed import verify

MS = 1_000_000
POLICIES = ("strict", "fifo", "timeslice")


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Tenant], list[Arrival], DispatchConfig, DeviceCosts]:
    """A few tenants with a few dozen batches: clocked, waiting for answers, or with some under way."""
    tenants, arrivals = [], []
    for number in range(draw(st.integers(1, 4))):
        name, priority = f"s{number}", draw(st.integers(0, 4))
        tenants.append(Tenant(name, priority, draw(st.sampled_from([50, 100, 300])), open_ns=draw(st.integers(0, 5 * MS))))
        bound = draw(st.sampled_from([1, 2, 5]))
        clocked = draw(st.booleans())
        at_ns = 0
        for seq in range(draw(st.integers(1, 12))):
            at_ns += draw(st.integers(0, 30 * MS)) if clocked else 0
            wall_ns = draw(st.integers(0, 40 * MS))
            after = seq - bound if not clocked or draw(st.booleans()) else -1
            think, gap = draw(st.integers(0, 3 * MS)), draw(st.integers(0, MS))
            grain = draw(st.sampled_from([0, 0, MS, wall_ns]))
            core_ns, overhead_ns = wall_ns * draw(st.integers(1, 3)), draw(st.integers(0, MS))
            arrivals.append(Arrival(name, seq, wall_ns, core_ns, at_ns, max(-1, after), think, gap, overhead_ns, 1, grain))
    config = DispatchConfig(policy=draw(st.sampled_from(POLICIES)), quantum_ns=draw(st.sampled_from([2, 10, 50])) * MS)
    way, small = st.integers(0, 300_000), st.integers(0, 100_000)
    return tenants, arrivals, config, DeviceCosts(draw(way), draw(way), draw(small), draw(small), draw(small))


def run(world: tuple[list[Tenant], list[Arrival], DispatchConfig, DeviceCosts]) -> Outcome:
    return simulate(*world)


@settings(deadline=None, max_examples=60)
@given(worlds())
def test_every_batch_finishes_once_with_its_whole_cost(world: tuple[list[Tenant], list[Arrival], DispatchConfig, DeviceCosts]) -> None:
    outcome = run(world)
    assert outcome.unfinished == 0
    for name, session in outcome.sessions.items():
        works = [arrival for arrival in world[1] if arrival.session == name]
        assert [(b.seq, b.wall_ns, b.core_ns) for b in session.batches] == [(w.seq, w.wall_ns, w.core_ns) for w in works]
        finishes = [batch.finished_ns for batch in session.batches]
        assert finishes == sorted(finishes)


@settings(deadline=None, max_examples=60)
@given(worlds())
def test_the_journal_of_a_virtual_run_is_one_of_the_real_dispatcher(
    world: tuple[list[Tenant], list[Arrival], DispatchConfig, DeviceCosts],
) -> None:
    first, second = run(world), run(world)
    assert msgspec.msgpack.encode(first.records) == msgspec.msgpack.encode(second.records)
    core = verify(first.records, world[2])
    assert (core.state.occupancy.busy_ns, core.state.occupancy.fed_ns) == (first.busy_ns, first.fed_ns)


@settings(deadline=None, max_examples=60)
@given(worlds())
def test_batches_arrive_exactly_when_their_terms_say(world: tuple[list[Tenant], list[Arrival], DispatchConfig, DeviceCosts]) -> None:
    outcome = run(world)
    opened = {tenant.session: tenant.open_ns for tenant in world[0]}
    for arrival in world[1]:
        batches = outcome.sessions[arrival.session].batches
        terms = [opened[arrival.session], arrival.at_ns]
        if arrival.seq:
            terms.append(batches[arrival.seq - 1].arrived_ns + arrival.gap_ns)
        if arrival.after_seq >= 0:
            terms.append(batches[arrival.after_seq].finished_ns + arrival.think_ns)
        assert batches[arrival.seq].arrived_ns == max(terms)


@settings(deadline=None, max_examples=60)
@given(worlds())
def test_littles_law_holds_to_the_nanosecond(world: tuple[list[Tenant], list[Arrival], DispatchConfig, DeviceCosts]) -> None:
    """The sum of all latencies is the integral of the number of batches in the system."""
    outcome = run(world)
    inside = last_ns = area = 0
    for record in outcome.records:
        stimulus = record.stimulus
        area += inside * (stimulus.at_ns - last_ns)
        last_ns = stimulus.at_ns
        inside += isinstance(stimulus, BatchArrived) - isinstance(stimulus, LaunchFinished)
    assert inside == 0
    assert area == sum(batch.latency_ns for session in outcome.sessions.values() for batch in session.batches)


@settings(deadline=None, max_examples=60)
@given(worlds())
def test_the_device_does_one_thing_at_a_time(world: tuple[list[Tenant], list[Arrival], DispatchConfig, DeviceCosts]) -> None:
    """Runs, in the order of their reports, do not overlap; and busy time holds them all."""
    outcome = run(world)
    report_ns, ends = world[3].report_ns, 0
    for record in outcome.records:
        if isinstance(record.stimulus, LaunchFinished | LaunchStopped):
            end_ns = record.stimulus.at_ns - report_ns
            assert end_ns - record.stimulus.wall_ns >= ends
            ends = end_ns
    assert sum(arrival.wall_ns for arrival in world[1]) <= outcome.busy_ns <= outcome.end_ns - outcome.begin_ns
    assert outcome.fed_ns <= outcome.busy_ns


@settings(deadline=None, max_examples=60)
@given(worlds())
def test_the_stretches_of_a_batch_add_up_to_its_latency(world: tuple[list[Tenant], list[Arrival], DispatchConfig, DeviceCosts]) -> None:
    outcome = run(world)
    waits = Waits(set(outcome.sessions), lambda state, session: explain(state, session).rule)
    core = Dispatch(DispatchState(config=world[2]))
    for record in outcome.records:
        core.on(record.stimulus)
        waits.take(record.stimulus, record.decisions, core.state)
    told = {(story.session, story.seq): story for story in waits.stories}
    assert len(told) == len(world[1])
    for name, session in outcome.sessions.items():
        for batch in session.batches:
            story = told[(name, batch.seq)]
            assert story.end_ns == batch.finished_ns
            assert sum(stretch.ns for stretch in story.stretches) == batch.latency_ns
            edges = [(stretch.begin_ns, stretch.end_ns) for stretch in story.stretches]
            assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))


@settings(deadline=None, max_examples=60)
@given(worlds())
def test_a_recording_of_a_virtual_run_says_what_happened(world: tuple[list[Tenant], list[Arrival], DispatchConfig, DeviceCosts]) -> None:
    outcome = run(world)
    recording = Recording()
    for record in outcome.records:
        recording.take(record.stimulus, record.decisions)
    recorded = recording.outcome(outcome.busy_ns, outcome.fed_ns)
    for name, session in outcome.sessions.items():
        again = recorded.sessions[name]
        assert [(b.seq, b.arrived_ns, b.launched_ns, b.finished_ns, b.core_ns, b.wall_ns) for b in again.batches] == [
            (b.seq, b.arrived_ns, b.launched_ns, b.finished_ns, b.core_ns, b.wall_ns) for b in session.batches
        ]
    tenants, arrivals, _ = recording.inputs()
    assert sorted((a.session, a.seq, a.wall_ns, a.core_ns) for a in arrivals) == sorted(
        (a.session, a.seq, a.wall_ns, a.core_ns) for a in world[1]
    )
    assert {(t.session, t.priority, t.weight) for t in tenants} == {(t.session, t.priority, t.weight) for t in world[0]}


def test_what_cannot_happen_is_refused() -> None:
    good = Arrival("a", 0, 1, 1)
    for bad in (replace(good, session="b"), replace(good, seq=1), replace(good, after_seq=0), replace(good, wall_ns=-1)):
        with pytest.raises(ModelError):
            simulate([Tenant("a", 0)], [bad], DispatchConfig(), DeviceCosts())
