"""Slices: their limits, what they are charged, and what a dispatcher learns from the times that the executor reports."""

from __future__ import annotations

import blake3
import pytest

from scheduler.dispatch import (
    FIFO,
    STRICT,
    ConfigChanged,
    Decision,
    Dispatch,
    DispatchConfig,
    Launch,
    LaunchFinished,
    LaunchReturned,
    LaunchStopped,
    Preempt,
    PriorityChanged,
    Refuse,
    SessionOpened,
    Stimulus,
    totals,
)
from scheduler.dispatch.fair import virtual
from scheduler.dispatch.flights import chain
from scheduler.errors import StimulusError
from tests.support.dispatch_load import after, backlog, batch, steady

MS = 10**6


def finished(at_ns: int, session: str, seq: int, wall_ns: int) -> LaunchFinished:
    return LaunchFinished(at_ns, session, seq, wall_ns, wall_ns=wall_ns)


def limits(decisions: list[Decision]) -> dict[str, int]:
    return {decision.session: decision.limit_ns for decision in decisions if isinstance(decision, Launch)}


# -- limits ------------------------------------------------------------------------------------------------------------------------------


def beside_top(*more: Stimulus, config: DispatchConfig | None = None) -> Dispatch:
    """P0 is open and idle; a and b are P1, so their work is low. The low budget is 20 ms, for two launches."""
    opened = [SessionOpened(0, name, 1, priority) for name, priority in (("top", 0), ("a", 1), ("b", 1))]
    return after(*opened, *more, config=config)


def test_a_low_launch_alone_gets_the_whole_budget_and_the_next_what_is_left() -> None:
    dispatch = beside_top()
    assert limits(dispatch.on(batch(1, "a"))) == {"a": 20 * MS}
    assert limits(dispatch.on(batch(1, "b"))) == {}, "the budget is in flight"


def test_low_launches_that_are_ready_together_share_the_budget() -> None:
    """All wait until P0 ends its batches; there is room for two in flight, so each gets a half of the 20 ms."""
    dispatch = beside_top(SessionOpened(0, "c", 1, 1))
    for stimulus in (batch(1, "top"), batch(1, "top", 1), *[batch(2, name) for name in "abc"]):
        dispatch.on(stimulus)
    assert limits(dispatch.on(finished(MS, "top", 0, MS))) == {"a": 10 * MS}
    assert limits(dispatch.on(finished(2 * MS, "top", 1, MS))) == {"b": 10 * MS}
    assert limits(dispatch.on(LaunchStopped(12 * MS, "a", 0, 10 * MS, 10 * MS))) == {"c": 10 * MS}


def test_a_low_launch_of_a_short_batch_gets_twice_what_it_is_expected_to_take() -> None:
    dispatch = beside_top(batch(1, "a"), finished(3 * MS, "a", 0, 3 * MS))
    assert limits(dispatch.on(batch(3 * MS, "a", 1))) == {"a": 6 * MS}
    assert limits(dispatch.on(batch(3 * MS, "b"))) == {"b": 14 * MS}, "the rest of the budget"


def test_a_slice_that_ran_beyond_its_limit_makes_the_next_one_shorter_by_as_much() -> None:
    dispatch = beside_top(batch(1, "a"))
    assert limits(dispatch.on(LaunchStopped(23 * MS, "a", 0, 23 * MS, 23 * MS))) == {"a": 17 * MS}
    assert limits(dispatch.on(LaunchStopped(40 * MS, "a", 0, 17 * MS, 17 * MS))) == {"a": 20 * MS - 2_625_000}, "an eighth is forgotten"


def test_beside_a_latency_target_the_other_work_of_p0_is_low() -> None:
    """A quarter of the target of 40 ms."""
    dispatch = after(SessionOpened(0, "target", 1, 0, sla_ns=40 * MS), SessionOpened(0, "plain", 1, 0))
    assert limits(dispatch.on(batch(1, "plain"))) == {"plain": 10 * MS}
    assert limits(after(SessionOpened(0, "plain", 1, 0)).on(batch(1, "plain"))) == {"plain": 0}


def test_a_target_is_weighed_only_against_batches_of_sessions_with_targets() -> None:
    """A session without one is stopped for it, however long its batches take."""
    dispatch = after(SessionOpened(0, "a", 1, 0), batch(0, "a"), finished(500 * MS, "a", 0, 500 * MS))
    assert dispatch.on(SessionOpened(500 * MS, "b", 1, 0, sla_ns=40 * MS)) == []
    assert dispatch.on(SessionOpened(500 * MS, "c", 1, 0, sla_ns=2 * MS - 1)) == [Refuse("c", -1, "sla_unreachable")]


# -- launches without a limit ------------------------------------------------------------------------------------------------------------


def test_a_launch_without_a_limit_is_stopped_for_company_also_behind_one_that_has_a_limit() -> None:
    dispatch = after(*[SessionOpened(0, name, 1, priority) for name, priority in (("low", 4), ("top", 0), ("other", 0))])
    assert limits(dispatch.on(batch(1, "low"))) == {"low": 20 * MS}
    assert dispatch.on(batch(2, "top")) == [Preempt("low", 0), Launch("top", 0)]
    assert dispatch.on(batch(3, "other")) == [Preempt("top", 0), Launch("other", 0, 10 * MS)]


def test_a_launch_without_a_limit_is_stopped_for_company_also_behind_one_that_has_none() -> None:
    """ "first" was alone on the device, then the only one of its level, and is being stopped."""
    dispatch = after(SessionOpened(0, "first", 1, 2))
    assert dispatch.on(batch(1, "first")) == [Launch("first", 0)]
    for name in ("top", "other"):
        dispatch.on(SessionOpened(1, name, 1, 0))
    assert dispatch.on(batch(2, "top")) == [Preempt("first", 0), Launch("top", 0)]
    assert dispatch.on(batch(3, "other")) == [Preempt("top", 0), Launch("other", 0, 10 * MS)]


def test_a_launch_without_a_limit_goes_on_beside_company_when_it_is_known_to_be_short() -> None:
    dispatch = after(SessionOpened(0, "a", 1, 0), SessionOpened(0, "b", 1, 0), batch(0, "a"), finished(10 * MS, "a", 0, 10 * MS))
    dispatch.on(batch(10 * MS, "a", 1))
    assert dispatch.on(batch(11 * MS, "b")) == [Launch("b", 0, 10 * MS)], "10 ms are a quantum"


@pytest.mark.parametrize(("company_ns", "charged_ns"), [(0, 8 * MS), (2 * MS, 6 * MS), (None, 0)])
def test_a_launch_without_a_limit_is_charged_from_when_it_has_company(company_ns: int | None, charged_ns: int) -> None:
    """It runs from 0 to 8 ms; what it ran alone is no part of a share. Also from time 0 on."""
    dispatch = after(SessionOpened(0, "a", 1, 2), SessionOpened(0, "b", 1, 2), batch(0, "a"))
    if company_ns is not None:
        dispatch.on(batch(company_ns, "b"))
    dispatch.on(LaunchStopped(8 * MS, "a", 0, 8 * MS, 8 * MS))
    in_flight = sum(flight.charged for flight in dispatch.state.flights if flight.session == "a")
    assert dispatch.state.sessions["a"].tag - in_flight == virtual(charged_ns, 100)


def test_a_launch_without_a_limit_that_has_its_new_level_for_itself_is_charged_nothing_there() -> None:
    """It shared the old one for 4 of its 8 ms."""
    dispatch = after(SessionOpened(0, "a", 1, 2), SessionOpened(0, "b", 1, 2), batch(0, "a"), finished(8 * MS, "a", 0, 8 * MS))
    dispatch.on(batch(8 * MS, "a", 1))
    assert dispatch.on(batch(10 * MS, "b")) == [Launch("b", 0, 10 * MS)], "a's batch will be over within a quantum"
    dispatch.on(PriorityChanged(14 * MS, "a", 1))
    dispatch.on(finished(16 * MS, "a", 1, 8 * MS))
    assert dispatch.state.sessions["a"].tag == 0


def test_a_slice_of_the_shortest_limit_is_charged() -> None:
    """1 ns is a limit; 0 stands for none."""
    config = DispatchConfig(quantum_ns=1, slice_min_ns=1, in_flight_max=1, in_flight_low_max=1)
    dispatch = after(SessionOpened(0, "a", 1, 0), SessionOpened(0, "b", 1, 0), batch(0, "a"), batch(0, "b"), config=config)
    dispatch.on(LaunchStopped(5, "a", 0, 5, 5))
    assert [flight.limit_ns for flight in dispatch.state.flights] == [1]
    assert [flight.charged for flight in dispatch.state.flights] == [virtual(1, 100)]


def test_a_session_that_stays_active_keeps_what_it_has_too_little() -> None:
    """b's launch moved the virtual time of the level beyond a's tag; a's slice in flight then comes back before it began."""
    dispatch = after(SessionOpened(0, "a", 1, 2), SessionOpened(0, "b", 1, 2), batch(0, "a"), batch(0, "b"))
    dispatch.on(LaunchStopped(MS, "a", 0, MS, MS))
    dispatch.on(LaunchStopped(11 * MS, "b", 0, 10 * MS, 10 * MS))
    a, b = (dispatch.state.sessions[name] for name in "ab")
    assert [flight.session for flight in dispatch.state.flights] == ["a", "b"]
    assert dispatch.state.levels[2].vtime == virtual(10 * MS, 100)
    dispatch.on(LaunchStopped(12 * MS, "a", 0, 0, 0))
    charged = {flight.session: flight.charged for flight in dispatch.state.flights}
    assert a.tag - charged["a"] == virtual(MS, 100)
    assert b.tag - charged["b"] == virtual(10 * MS, 100)


# -- what is measured and learnt -----------------------------------------------------------------------------------------------------------


def test_an_estimate_follows_upward_at_once_and_downward_by_an_eighth() -> None:
    dispatch = after(SessionOpened(0, "a", 1, 0))
    session = dispatch.state.sessions["a"]
    known = []
    for seq, wall_ns in enumerate((800, 400, 750, 900)):
        dispatch.on(batch(dispatch.state.now_ns, "a", seq))
        dispatch.on(LaunchFinished(dispatch.state.now_ns + wall_ns, "a", seq, 2 * wall_ns, wall_ns=wall_ns))
        known.append((session.batch_wall_ns, session.batch_core_ns))
    assert known == [(800, 1600), (750, 1500), (750, 1500), (900, 1800)]


def test_a_batch_that_has_run_longer_than_expected_raises_the_estimate_before_it_is_over() -> None:
    dispatch = after(SessionOpened(0, "a", 1, 0), batch(0, "a"), finished(100, "a", 0, 100), batch(100, "a", 1))
    session = dispatch.state.sessions["a"]
    dispatch.on(LaunchStopped(150, "a", 1, 50, 50))
    assert session.batch_wall_ns == 100, "it may still take as long as the one before"
    dispatch.on(LaunchStopped(250, "a", 1, 100, 100))
    assert session.batch_wall_ns == 150


def test_wall_times_that_a_shell_does_not_measure_are_those_at_the_head_of_the_executors_queue() -> None:
    """Batch 0 runs from 10 to 20, batch 1 behind it to 35; batch 2 comes after a pause, and runs from 50 to 55."""
    dispatch = after(SessionOpened(0, "a", 1, 0), batch(10, "a"), batch(12, "a", 1))
    walls = []
    for stimulus in (LaunchFinished(20, "a", 0, 7), LaunchFinished(35, "a", 1, 7), batch(50, "a", 2), LaunchFinished(55, "a", 2, 7)):
        before = totals(dispatch.state, "a").slice_ns
        dispatch.on(stimulus)
        walls.append(totals(dispatch.state, "a").slice_ns - before)
    assert walls == [10, 15, 0, 5]


def test_a_launch_that_ends_before_the_one_ahead_of_it_was_never_at_the_head() -> None:
    dispatch = after(SessionOpened(0, "a", 1, 0), SessionOpened(0, "b", 1, 0), batch(10, "a"), batch(12, "b"))
    dispatch.on(LaunchFinished(20, "b", 0, 7))
    assert totals(dispatch.state, "b")[4:6] == (1, 0)
    dispatch.on(LaunchFinished(30, "a", 0, 7))
    assert totals(dispatch.state, "a")[4:6] == (1, 20)


def test_the_digest_of_a_launch_covers_the_digest_before_it_its_number_and_its_content() -> None:
    assert chain(b"before", 258, b"content") == blake3.blake3(b"before" + b"\x02\x01" + bytes(6) + b"content").digest()


# -- what cannot have happened -------------------------------------------------------------------------------------------------------------


def three_launches() -> Dispatch:
    config = DispatchConfig(in_flight_max=3, in_flight_low_max=3)
    return after(SessionOpened(0, "a", 1, 0), *[batch(1, "a", seq) for seq in range(3)], config=config)


def test_a_launch_behind_one_that_was_given_back_cannot_have_run() -> None:
    """Batch 1 was given back and launched again, behind batch 2: batch 2 comes back unrun."""
    dispatch = three_launches()
    assert dispatch.on(LaunchReturned(2, "a", 1, False)) == [Launch("a", 1)]
    dispatch.on(LaunchFinished(3, "a", 0, 1))
    with pytest.raises(StimulusError, match="was given back"):
        dispatch.on(LaunchFinished(4, "a", 2, 1))
    dispatch.on(LaunchReturned(4, "a", 2, False))
    dispatch.on(LaunchFinished(5, "a", 1, 1))


@pytest.mark.parametrize(("core_ns", "wall_ns"), [(1, 0), (0, 1), (1, 1)])
def test_a_slice_that_took_time_ends_in_the_order_of_its_session(core_ns: int, wall_ns: int) -> None:
    with pytest.raises(StimulusError, match="in order"):
        three_launches().on(LaunchStopped(9, "a", 1, core_ns, wall_ns))


def test_a_launch_that_had_not_begun_may_be_stopped_before_the_one_ahead_of_it() -> None:
    assert three_launches().on(LaunchStopped(9, "a", 2, 0, 0)) == [Launch("a", 2)]


# -- another policy, many sessions ---------------------------------------------------------------------------------------------------------


def test_another_policy_forgets_shares_and_the_credit_of_the_reserve() -> None:
    config = DispatchConfig(in_flight_max=1, in_flight_low_max=1, reserve_percent=50)
    opened = [SessionOpened(0, name, 1, priority) for name, priority in (("a", 0), ("b", 0), ("low", 4))]
    dispatch = after(*opened, batch(0, "a"), batch(0, "b"), batch(0, "low"), config=config)
    dispatch.on(LaunchStopped(10 * MS, "a", 0, 10 * MS, 10 * MS))
    state = dispatch.state
    assert state.reserve_credit > 0 and state.sessions["a"].tag > 0
    (flight,) = state.flights
    dispatch.on(ConfigChanged(11 * MS, DispatchConfig(in_flight_max=1, in_flight_low_max=1, reserve_percent=50, policy=FIFO)))
    assert (state.reserve_credit, flight.charged, flight.level) == (0, 0, 0)
    assert {session.tag for session in state.sessions.values()} == {0}
    assert {level.vtime for level in state.levels} == {0}
    dispatch.on(ConfigChanged(12 * MS, DispatchConfig(in_flight_max=1, in_flight_low_max=1, reserve_percent=50, policy=STRICT)))
    assert [level.ready for level in state.levels] == [1, 0, 0, 0, 1], "one of P0 is in flight"


def test_times_at_which_sessions_would_have_been_raised_do_not_pile_up() -> None:
    """Every slice puts off when its session is raised; the times before are removed before they outnumber the others by much."""
    dispatch = backlog(50, 1)
    dispatch.on(ConfigChanged(0, DispatchConfig(aging_ns=10**12)))
    for name in dispatch.state.sessions:
        dispatch.on(PriorityChanged(0, name, 2))
    most = 0

    def feed(stimulus: Stimulus) -> None:
        nonlocal most
        dispatch.on(stimulus)
        most = max(most, len(dispatch.state.ages))

    steady(dispatch, 2_000, feed)
    assert 65 < most <= 2 * 50 + 65
    waiting = [session for session in dispatch.state.sessions.values() if session.entry is not None]
    assert len(waiting) > 40
    assert dispatch.next_wakeup_ns() == min(session.age_due_ns for session in waiting) == min(s.waits_since_ns for s in waiting) + 10**12
