"""The rule that holds a session's next batch, and the sessions ahead of it, under each rule."""

from __future__ import annotations

import pytest

from scheduler.dispatch import (
    FAULT,
    FIFO,
    TIMESLICE,
    ConfigChanged,
    Decision,
    Dispatch,
    DispatchConfig,
    DispatchState,
    Launch,
    LaunchFinished,
    LaunchStopped,
    Preempt,
    Reason,
    SessionClosed,
    SessionOpened,
    Tick,
    explain,
    standing,
    totals,
)
from tests.support.dispatch_load import after, batch

MS = 10**6
ONE_PLACE = DispatchConfig(in_flight_max=1, in_flight_low_max=1)


def launched(decisions: list[Decision]) -> list[str]:
    return [decision.session for decision in decisions if isinstance(decision, Launch)]


def test_a_batch_waits_for_the_slice_that_the_reserve_gives_to_the_lowest_level() -> None:
    """Half of the time is reserved. P0 ran 10 ms while P4 waited, so the next slice is P4's; it is no slice of a higher priority."""
    config = DispatchConfig(in_flight_max=1, in_flight_low_max=1, reserve_percent=50)
    opened = [SessionOpened(0, name, 1, priority) for name, priority in (("top", 0), ("mid", 2), ("low", 4))]
    dispatch = after(*opened, batch(0, "top"), batch(0, "low"), batch(0, "top", 1), config=config)
    assert launched(dispatch.on(LaunchFinished(10 * MS, "top", 0, 10 * MS, wall_ns=10 * MS))) == ["low"]
    assert explain(dispatch.state, "low") == Reason("running")
    assert explain(dispatch.state, "top") == Reason("reserved_share", ("low",))
    dispatch.on(batch(11 * MS, "mid"))
    assert explain(dispatch.state, "mid") == Reason("higher_priority", ("top",))


def reserved_behind_top() -> Dispatch:
    """In flight: a launch of "b" (P0), behind it a slice that the reserve gave to "low". "a" (P0) waits with its next batch."""
    config = DispatchConfig(reserve_percent=50)
    opened = [SessionOpened(0, name, 1, priority) for name, priority in (("a", 0), ("b", 0), ("c", 0), ("low", 4))]
    dispatch = after(*opened, config=config)
    for at, name in enumerate("ab"):  # batches of both are known to take 1 ms, so they are not cut
        dispatch.on(batch(at * MS, name))
        dispatch.on(LaunchFinished((at + 1) * MS, name, 0, MS, wall_ns=MS))
    for stimulus in (batch(2 * MS, "a", 1), batch(2 * MS, "b", 1), batch(2 * MS, "low"), batch(2 * MS, "a", 2)):
        dispatch.on(stimulus)
    assert launched(dispatch.on(LaunchFinished(3 * MS, "a", 1, MS, wall_ns=MS))) == ["low"]
    return dispatch


def test_sessions_ahead_of_a_batch_are_named_in_the_order_in_which_their_launches_run() -> None:
    assert explain(reserved_behind_top().state, "a") == Reason("reserved_share", ("b", "low"))


def test_a_slice_of_the_reserve_that_is_being_stopped_holds_no_batch() -> None:
    dispatch = reserved_behind_top()
    assert launched(dispatch.on(SessionClosed(4 * MS, "low", stop=True))) == ["a"]
    dispatch.on(batch(4 * MS, "c"))
    assert explain(dispatch.state, "c") == Reason("in_flight_full", ("b", "a"))


def test_the_reserve_has_one_slice_in_flight_at_a_time() -> None:
    """Nothing preempts it. Much is owed to two sessions of P4, and there is room for both."""
    opened = [SessionOpened(0, name, 1, priority) for name, priority in (("top", 0), ("low", 4), ("lower", 4))]
    dispatch = after(*opened, *[batch(1, "top", seq) for seq in range(6)], batch(1, "low"), batch(1, "lower"))
    dispatch.on(ConfigChanged(2, DispatchConfig(in_flight_max=4, in_flight_low_max=1, reserve_percent=90)))
    assert launched(dispatch.on(LaunchFinished(100 * MS, "top", 0, 99 * MS, wall_ns=99 * MS))) == ["low"]
    assert launched(dispatch.on(LaunchFinished(101 * MS, "top", 1, MS, wall_ns=MS))) == ["top"]
    assert [flight.session for flight in dispatch.state.flights if flight.reserved] == ["low"]


def test_a_session_whose_turn_is_used_up_to_the_last_nanosecond_goes_to_the_end_of_the_line() -> None:
    config = DispatchConfig(in_flight_max=1, in_flight_low_max=1, policy=TIMESLICE)
    dispatch = after(SessionOpened(0, "a", 1, 0), SessionOpened(0, "b", 1, 0), batch(0, "a"), batch(0, "b"), config=config)
    assert launched(dispatch.on(LaunchStopped(4 * MS, "a", 0, 4 * MS, 4 * MS))) == ["a"], "6 ms of its turn are left"
    assert launched(dispatch.on(LaunchStopped(10 * MS, "a", 0, 6 * MS, 6 * MS))) == ["b"]


def test_the_reserve_gives_nothing_once_its_slice_has_used_the_credit() -> None:
    """The lowest level gains half of the 10 ms that ran above it, and pays half of its own slice of 20 ms."""
    config = DispatchConfig(in_flight_max=1, in_flight_low_max=1, reserve_percent=50)
    opened = [SessionOpened(0, name, 1, priority) for name, priority in (("top", 0), ("low", 4))]
    dispatch = after(*opened, batch(0, "top"), batch(0, "low"), batch(0, "top", 1), config=config)
    dispatch.on(LaunchFinished(10 * MS, "top", 0, 10 * MS, wall_ns=10 * MS))
    assert dispatch.state.reserve_credit == 50 * 10 * MS
    assert launched(dispatch.on(LaunchStopped(30 * MS, "low", 0, 20 * MS, 20 * MS))) == ["top"]
    assert dispatch.state.reserve_credit == 50 * 10 * MS - 50 * 20 * MS
    assert explain(dispatch.state, "low") == Reason("higher_priority", ("top",))


def test_batches_with_a_target_go_by_deadline_before_those_without() -> None:
    """c came before a, and its deadline is later."""
    opened = [SessionOpened(0, "a", 1, 0, sla_ns=100 * MS), SessionOpened(0, "b", 1, 0), SessionOpened(0, "c", 1, 0, sla_ns=200 * MS)]
    dispatch = after(*opened, SessionOpened(0, "d", 1, 0), batch(1, "b"), batch(2, "d"), batch(3, "c"), batch(4, "a"), config=ONE_PLACE)
    state = dispatch.state
    assert explain(state, "a") == Reason("in_flight_full", ("b",))
    assert explain(state, "c") == Reason("deadline_order", ("b", "a"))
    assert explain(state, "d") == Reason("deadline_order", ("b", "a", "c"))
    order = [launched(dispatch.on(LaunchFinished(5, name, 0, 1, wall_ns=1))) for name in ("b", "a", "c")]
    assert order == [["a"], ["c"], ["d"]]


def test_a_session_that_used_more_waits_for_the_slice_in_flight_of_one_that_used_less() -> None:
    """b used 40 ms of core time in its slice, a 1 ms. There is room for b's next slice, but a is owed more, and its slice is in flight."""
    dispatch = after(SessionOpened(0, "a", 1, 2), SessionOpened(0, "b", 1, 2), batch(0, "a"), batch(0, "b"))
    assert launched(dispatch.on(LaunchStopped(MS, "a", 0, MS, MS))) == ["a"]
    assert launched(dispatch.on(LaunchStopped(11 * MS, "b", 0, 40 * MS, 10 * MS))) == []
    assert explain(dispatch.state, "b") == Reason("fair_share", ("a",))
    assert launched(dispatch.on(LaunchStopped(21 * MS, "a", 0, 10 * MS, 10 * MS))) == ["a"]


def test_a_stopped_launch_still_counts_as_owed_its_share() -> None:
    """The same, while a's slice is being stopped for a higher priority, which then ends first."""
    dispatch = after(SessionOpened(0, "a", 1, 2), SessionOpened(0, "b", 1, 2), SessionOpened(0, "top", 1, 0), batch(0, "a"), batch(0, "b"))
    for stimulus in (LaunchStopped(MS, "a", 0, MS, MS), LaunchStopped(11 * MS, "b", 0, 40 * MS, 10 * MS)):
        dispatch.on(stimulus)
    assert dispatch.on(batch(12 * MS, "top")) == [Preempt("a", 0), Launch("top", 0)]
    assert launched(dispatch.on(LaunchFinished(13 * MS, "top", 0, MS, wall_ns=MS))) == []
    assert explain(dispatch.state, "b") == Reason("fair_share", ("a",))


def test_turns_and_arrivals_are_named_where_they_decide() -> None:
    opened = [SessionOpened(0, name, 1, 4 - at) for at, name in enumerate("dcba")]
    arrived = [batch(at, name) for at, name in enumerate("dcba")]
    for policy, rule in ((TIMESLICE, "turn_order"), (FIFO, "arrival_order")):
        dispatch = after(*opened, *arrived, config=DispatchConfig(in_flight_max=1, in_flight_low_max=1, policy=policy))
        assert explain(dispatch.state, "a") == Reason(rule, ("d", "c", "b"))
        assert explain(dispatch.state, "c") == Reason("in_flight_full", ("d",))


def test_a_faulted_session_is_named_so_until_it_is_closed() -> None:
    dispatch = after(SessionOpened(0, "a", 1, 0), batch(1, "a"), batch(1, "a", 1))
    dispatch.on(LaunchFinished(2, "a", 0, 1, FAULT))
    assert explain(dispatch.state, "a") == Reason("running"), "its second launch is still in flight"
    dispatch.on(LaunchStopped(3, "a", 1, 0, 0))
    assert (explain(dispatch.state, "a"), standing(dispatch.state, "a")) == (Reason("faulted"), "idle")
    dispatch.on(SessionClosed(4, "a"))
    assert explain(dispatch.state, "a") == Reason("not_open")


def test_a_session_that_waits_for_its_last_batches_is_closing() -> None:
    dispatch = after(SessionOpened(0, "a", 1, 0), SessionClosed(1, "a", 3))
    assert (explain(dispatch.state, "a"), standing(dispatch.state, "a")) == (Reason("idle"), "closing")


def test_a_session_that_is_not_open_has_used_nothing() -> None:
    assert totals(DispatchState(), "a") == (0, 0, 0, 0, 0, 0, 0)


def test_waits_add_up_and_the_longest_is_kept() -> None:
    """b waits 9 ns, then 4, each time for a launch of the higher a."""
    dispatch = after(SessionOpened(0, "a", 1, 0), SessionOpened(0, "b", 1, 1), config=ONE_PLACE)
    for seq, (arrives_ns, ends_ns) in enumerate(((1, 10), (16, 20))):
        for stimulus in (batch(10 * seq, "a", seq), batch(arrives_ns, "b", seq), LaunchFinished(ends_ns, "a", seq, 1, wall_ns=1)):
            dispatch.on(stimulus)
        dispatch.on(LaunchFinished(ends_ns, "b", seq, 1, wall_ns=1))
    dispatch.on(Tick(21))
    assert totals(dispatch.state, "b")[1:4] == (2, 13, 9)


def test_the_reserve_gives_nothing_before_it_owes() -> None:
    """It is configured while both wait, and there is room for one more launch."""
    dispatch = after(SessionOpened(0, "top", 1, 0), SessionOpened(0, "low", 1, 4), *[batch(1, "top", seq) for seq in range(3)])
    dispatch.on(batch(1, "low"))
    config = DispatchConfig(in_flight_max=3, in_flight_low_max=3, reserve_percent=50)
    assert launched(dispatch.on(ConfigChanged(2, config))) == ["top"]


@pytest.mark.parametrize(("low", "credit"), [(1, 50), (4, 50), (0, 0)])
def test_the_reserve_is_for_any_lower_priority(low: int, credit: int) -> None:
    """A launch above it took 10 ms, half of which is owed to it; nothing is owed to a session of the same priority."""
    config = DispatchConfig(in_flight_max=1, in_flight_low_max=1, reserve_percent=50)
    dispatch = after(SessionOpened(0, "top", 1, 0), SessionOpened(0, "low", 1, low), batch(0, "top"), config=config)
    dispatch.on(batch(0, "low"))
    at = next(flight for flight in dispatch.state.flights if flight.session == "top")
    dispatch.on(LaunchStopped(10 * MS, "top", at.seq, 10 * MS, 10 * MS))
    assert dispatch.state.reserve_credit == credit * 10 * MS


def test_time_behind_others_is_that_since_the_session_has_work_again() -> None:
    """b runs for 5 ns and is idle; then its next batch waits from 20 on, behind a launch of a that began at 10."""
    dispatch = after(SessionOpened(0, "a", 1, 0), SessionOpened(0, "b", 1, 1), batch(0, "b"), LaunchFinished(5, "b", 0, 5, wall_ns=5))
    for stimulus in (batch(10, "a"), batch(12, "a", 1), batch(20, "b", 1), Tick(27)):
        dispatch.on(stimulus)
    assert totals(dispatch.state, "b").behind_ns == 7
    assert totals(dispatch.state, "a").behind_ns == 0


def test_a_device_is_fed_while_a_batch_waits_that_could_run() -> None:
    """One launch at a time: from 10 to 20 another batch waits for it."""
    dispatch = after(SessionOpened(0, "a", 1, 0), SessionOpened(0, "b", 1, 1), batch(0, "a"), batch(10, "b"), config=ONE_PLACE)
    dispatch.on(LaunchFinished(20, "a", 0, 20, wall_ns=20))
    dispatch.on(Tick(25))
    assert (dispatch.state.occupancy.busy_ns, dispatch.state.occupancy.fed_ns) == (25, 10)


def test_a_session_whose_batch_may_be_launched_is_ready() -> None:
    dispatch = after(SessionOpened(0, "a", 1, 0), SessionOpened(0, "b", 1, 1), batch(0, "a"), batch(0, "b"), config=ONE_PLACE)
    assert [standing(dispatch.state, name) for name in "abc"] == ["running", "ready", ""]
