"""Shares, latency targets, paces, aging and the reserve on a virtual device: what tenants get, counted in core time and batches."""

from __future__ import annotations

from collections import Counter, deque

import pytest

from scheduler.dispatch import (
    TIMESLICE,
    BatchArrived,
    ConfigChanged,
    Dispatch,
    DispatchConfig,
    Launch,
    LaunchFinished,
    LaunchStopped,
    OverheadMeasured,
    Preempt,
    Record,
    SessionOpened,
    Stimulus,
    fairness_bound,
    queues,
    restore,
    snapshot,
)
from scheduler.dispatch.fair import REBASE_AT, virtual
from scheduler.model import Arrival, DeviceCosts, Outcome, Tenant, simulate
from tests.support.dispatch_load import backlog, steady

MS = 10**6
COSTS = DeviceCosts(launch_ns=100_000, report_ns=100_000, slice_ns=20_000, stop_ns=50_000, over_ns=50_000)
CONFIG = DispatchConfig(cores=4)


def work(name: str, batches: int, wall_ms: int, cores: int = 1, ahead: int = 2, at_ms: int = 0) -> list[Arrival]:
    """So many equal batches of a client that has at most ``ahead`` under way."""
    return [Arrival(name, i, wall_ms * MS, wall_ms * MS * cores, at_ns=at_ms * MS, after_seq=max(-1, i - ahead)) for i in range(batches)]


def served_ns(outcome: Outcome, until_ms: int, from_ms: int = 0) -> Counter[str]:
    """Core time of the slices that ended in the window."""
    served: Counter[str] = Counter()
    for record in outcome.records:
        ended = record.stimulus
        if isinstance(ended, LaunchFinished | LaunchStopped) and from_ms * MS <= ended.at_ns < until_ms * MS:
            served[ended.session] += ended.core_ns
    return served


def launches(records: list[Record] | tuple[Record, ...]) -> list[Launch]:
    return [decision for record in records for decision in record.decisions if isinstance(decision, Launch)]


@pytest.mark.parametrize(
    ("weights", "cores"), [((100, 100), (1, 1)), ((100, 300), (1, 1)), ((1, 50), (2, 2)), ((100, 100), (1, 4)), ((10_000, 2_500), (4, 1))]
)
def test_long_batches_share_by_weight_in_core_time(weights: tuple[int, int], cores: tuple[int, int]) -> None:
    """Batches of 300 ms interleave in slices; after any time the shares are apart by no more than the proved bound."""
    tenants = [Tenant("a", 2, weights[0]), Tenant("b", 2, weights[1])]
    outcome = simulate(tenants, work("a", 12, 300, cores[0]) + work("b", 12, 300, cores[1]), CONFIG, COSTS)
    largest = (CONFIG.quantum_ns + COSTS.over_ns) * max(cores) * 2
    bound = fairness_bound((largest, largest), weights, CONFIG.in_flight_max)
    for until_ms in (200, 400, 800, 1_600):
        served = served_ns(outcome, until_ms)
        apart = virtual(served["a"], weights[0]) - virtual(served["b"], weights[1])
        assert abs(apart) <= bound
        one = [virtual((CONFIG.quantum_ns + COSTS.over_ns) * cores[i], weights[i]) for i in range(2)]
        assert abs(apart) <= 2 * sum(one), "the bound is for the worst case; steady tenants are nearer"


def test_what_the_executor_does_beside_launches_is_a_part_of_the_share() -> None:
    """Allocations and transfers occupy it as launches do. Else a session with nothing else goes before all others for ever."""
    dispatch, now_ns, ahead = Dispatch(), 0, 4
    dispatch.on(ConfigChanged(0, CONFIG))
    costs = {"moves": (0, 8 * MS), "runs": (MS, 0)}
    decisions = [decision for name in costs for decision in dispatch.on(SessionOpened(0, name, 1, 2))]
    for name in costs:
        for seq in range(ahead):
            decisions += dispatch.on(BatchArrived(0, name, 1, seq, 1))
    held: Counter[str] = Counter()
    waiting = deque(decision for decision in decisions if isinstance(decision, Launch))
    while now_ns < 800 * MS:
        launch = waiting.popleft()
        wall_ns, beside_ns = costs[launch.session]
        now_ns += wall_ns + beside_ns
        held[launch.session] += wall_ns + beside_ns
        overhead = OverheadMeasured(now_ns, launch.session, beside_ns)
        ended = LaunchFinished(now_ns, launch.session, launch.seq, wall_ns * CONFIG.cores, wall_ns=wall_ns)
        for stimulus in (overhead, ended, BatchArrived(now_ns, launch.session, 1, launch.seq + ahead, 1)):
            waiting += [decision for decision in dispatch.on(stimulus) if isinstance(decision, Launch)]
    assert held["runs"] == pytest.approx(held["moves"], abs=4 * 8 * MS)


def test_virtual_time_is_shifted_back_before_it_outgrows_64_bits() -> None:
    """A dispatcher that has counted for years decides as a new one, and its numbers become small again."""
    young, old = backlog(12, 1, pace_permille=900), backlog(12, 1, pace_permille=900)
    for level in old.state.levels:
        level.vtime += REBASE_AT
    for session in old.state.sessions.values():
        session.tag += REBASE_AT
    queues.rebuild(old.state)

    def feed(stimulus: Stimulus) -> None:
        assert old.on(stimulus) == young.on(stimulus)

    steady(young, 500, feed)
    assert old.state.levels[0].vtime < REBASE_AT // 2
    assert snapshot(restore(snapshot(old.state))) == snapshot(old.state)


def test_being_idle_earns_nothing() -> None:
    """A tenant that comes late shares from then on; it does not catch up what it did not ask for, nor pay for what others had before."""
    tenants = [Tenant("early", 2), Tenant("late", 2)]
    outcome = simulate(tenants, work("early", 20, 300) + work("late", 20, 300, at_ms=2_000), CONFIG, COSTS)
    assert served_ns(outcome, 1_900)["early"] >= 1_700 * MS
    share = served_ns(outcome, 3_000, 2_020)
    assert share["early"] == pytest.approx(share["late"], abs=3 * CONFIG.quantum_ns)


def test_a_tenant_alone_is_not_cut() -> None:
    outcome = simulate([Tenant("a", 3)], work("a", 5, 500), CONFIG, COSTS)
    assert {launch.limit_ns for launch in launches(outcome.records)} == {0}


def test_low_work_fills_the_gaps_and_is_out_of_the_way_at_once() -> None:
    """P0 of 4 ms every 10 ms beside training: each of its batches begins within the stop and the way there, and training has the rest."""
    bursts = [Arrival("top", i, 4 * MS, 4 * MS, at_ns=10 * MS * i + 3 * MS) for i in range(100)]
    outcome = simulate([Tenant("top", 0), Tenant("low", 4)], bursts + work("low", 10, 700), CONFIG, COSTS)
    slowest = outcome.sessions["top"].latency_ns(100)
    assert slowest <= 4 * MS + COSTS.stop_ns + COSTS.launch_ns + COSTS.report_ns + COSTS.slice_ns
    assert served_ns(outcome, 1_000)["low"] >= 500 * MS


def test_the_low_budget_holds_where_nothing_can_be_preempted() -> None:
    """The limits of low launches in flight add up to a part of the smallest target; a stop takes the place of none of it here."""
    tenants = [Tenant("top", 0, sla_ns=40 * MS), Tenant("x", 1), Tenant("y", 2)]
    outcome = simulate(tenants, work("x", 4, 300) + work("y", 4, 300), CONFIG, COSTS)
    flying: dict[tuple[str, int], int] = {}
    most = 0
    for record in outcome.records:
        ended = record.stimulus
        if isinstance(ended, LaunchFinished | LaunchStopped):
            flying.pop((ended.session, ended.seq))
        for decision in record.decisions:
            if isinstance(decision, Launch):
                assert decision.limit_ns > 0
                flying[decision.session, decision.seq] = decision.limit_ns
            elif isinstance(decision, Preempt):
                flying[decision.session, decision.seq] = 0
        most = max(most, sum(flying.values()))
    assert 0 < most <= 10 * MS


def test_deadlines_go_first_but_not_beyond_their_lead() -> None:
    """Two P0 tenants with targets: the tighter one is never behind the other; one that asks for everything is held to its share."""
    tight = [Arrival("tight", i, 2 * MS, 2 * MS, at_ns=20 * MS * i) for i in range(100)]
    tenants = [Tenant("tight", 0, sla_ns=30 * MS), Tenant("loose", 0, sla_ns=500 * MS)]
    outcome = simulate(tenants, tight + work("loose", 400, 5), CONFIG, COSTS)
    assert outcome.sessions["tight"].latency_ns(100) <= 30 * MS
    greedy = [Tenant("greedy", 0, sla_ns=100 * MS), Tenant("plain", 0)]
    outcome = simulate(greedy, work("greedy", 900, 3, ahead=8) + work("plain", 900, 3, ahead=8), CONFIG, COSTS)
    share = served_ns(outcome, 2_000)
    assert share["greedy"] - share["plain"] <= CONFIG.deadline_lead_ns + 5 * 2 * CONFIG.quantum_ns
    assert share["plain"] >= 800 * MS


def test_virtual_time_of_raised_sessions_is_shifted_back_too() -> None:
    """They stand in a level that is not theirs, where that was when they came."""
    young, old = backlog(12, 2), backlog(12, 2)
    for core in (young, old):
        core.on(ConfigChanged(0, DispatchConfig(aging_ns=20 * MS)))
    for level in old.state.levels:
        level.vtime += REBASE_AT
    for session in old.state.sessions.values():
        session.tag += REBASE_AT
    queues.rebuild(old.state)
    raised = 0

    def feed(stimulus: Stimulus) -> None:
        nonlocal raised
        assert old.on(stimulus) == young.on(stimulus)
        raised += any(session.raised for session in old.state.sessions.values())

    steady(young, 500, feed)
    assert raised > 100 and old.state.levels[0].vtime < REBASE_AT // 2


@pytest.mark.parametrize("permille", [10, 250, 900])
def test_a_pace_holds_over_every_window(permille: int) -> None:
    """On a device of 4 cores; also: it is used, not only not passed."""
    outcome = simulate([Tenant("a", 2, pace_permille=permille)], work("a", 10, 500, 4), CONFIG, COSTS)
    ends = [(record.stimulus.at_ns, record.stimulus.core_ns) for record in outcome.records if isinstance(record.stimulus, LaunchStopped)]
    largest = max(core_ns for _, core_ns in ends)
    burst_ns = permille * CONFIG.cores * CONFIG.pace_burst_ns // 1000
    for i in range(0, len(ends), 7):
        used = 0
        for at_ns, core_ns in ends[i:]:
            used += core_ns
            assert used <= permille * CONFIG.cores * (at_ns - ends[i][0]) // 1000 + burst_ns + 2 * largest
    total_ns = ends[-1][0]
    assert sum(core_ns for _, core_ns in ends) >= 0.85 * permille * CONFIG.cores * total_ns / 1000


def starving(config: DispatchConfig) -> Counter[str]:
    """P0 that always has work, P4 that would like some: core time of a second."""
    tenants = [Tenant("top", 0), Tenant("low", 4)]
    return served_ns(simulate(tenants, work("top", 600, 5, ahead=4) + work("low", 5, 400), config, COSTS), 1_000)


def test_strict_by_default_and_not_for_ever_where_wanted() -> None:
    assert starving(CONFIG)["low"] == 0
    aging = starving(DispatchConfig(cores=4, aging_ns=20 * MS))
    assert 50 * MS <= aging["low"] <= 300 * MS
    reserve = starving(DispatchConfig(cores=4, reserve_percent=25))
    assert reserve["low"] == pytest.approx(250 * MS, rel=0.2)


def test_timeslice_takes_turns_whatever_the_priority() -> None:
    config = DispatchConfig(policy=TIMESLICE, cores=4)
    outcome = simulate([Tenant("top", 0), Tenant("low", 4)], work("top", 5, 300) + work("low", 5, 300), config, COSTS)
    for until_ms in range(50, 1_000, 50):
        share = served_ns(outcome, until_ms)
        assert abs(share["top"] - share["low"]) <= 2 * (config.quantum_ns + COSTS.over_ns)
    assert max(launch.limit_ns for launch in launches(outcome.records)) <= config.quantum_ns


def test_a_slice_without_core_time_takes_its_time_from_a_turn_once() -> None:
    """Answers are read in slices whose time counts as overhead."""
    dispatch = Dispatch()
    dispatch.on(ConfigChanged(0, DispatchConfig(policy=TIMESLICE)))
    dispatch.on(SessionOpened(0, "a", 1, 0))
    dispatch.on(BatchArrived(0, "a", 1, 0, 1))
    session = dispatch.state.sessions["a"]
    before_ns = session.turn_left_ns
    dispatch.on(OverheadMeasured(MS, "a", MS))
    dispatch.on(LaunchStopped(MS, "a", 0, 0, MS))
    assert session.turn_left_ns == before_ns - MS


def test_a_launch_that_is_stopped_before_it_began_costs_no_share() -> None:
    """Two tenants of one level have learnt that a batch takes 10 ms. The next launch is charged so much in advance, and is stopped for a
    higher tenant before it began: its tag is what it was. A slice that ran 1 ms is charged 1 ms."""
    for core_ns in (0, MS):
        dispatch = Dispatch()
        dispatch.on(ConfigChanged(0, DispatchConfig(in_flight_max=1, in_flight_low_max=1)))
        for name, priority in (("a", 2), ("b", 2), ("top", 0)):
            dispatch.on(SessionOpened(0, name, 1, priority))
        now_ns = 0
        for name in ("a", "b", "a", "b"):  # batches 0 and 1 of each
            seq = dispatch.state.sessions[name].next_seq
            dispatch.on(BatchArrived(now_ns, name, 1, seq, 10, b""))
            now_ns += 10 * MS
            dispatch.on(LaunchFinished(now_ns, name, seq, 10 * MS, wall_ns=10 * MS))
        before = {name: session.tag for name, session in dispatch.state.sessions.items()}
        dispatch.on(BatchArrived(now_ns, "b", 1, 2, 10, b""))
        dispatch.on(BatchArrived(now_ns, "a", 1, 2, 10, b""))
        (flight,) = dispatch.state.flights
        stopped = flight.session
        decisions = dispatch.on(BatchArrived(now_ns, "top", 1, 0, 10, b""))
        assert [type(decision) for decision in decisions] == [Preempt, Launch]
        dispatch.on(LaunchStopped(now_ns + core_ns, stopped, 2, core_ns, core_ns))
        assert dispatch.state.sessions[stopped].tag == before[stopped] + virtual(core_ns, 100)
