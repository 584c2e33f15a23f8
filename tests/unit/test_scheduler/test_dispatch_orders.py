"""What an operator orders of sessions that are open: another priority, and an end at once."""

from __future__ import annotations

import pytest

from scheduler.dispatch import (
    BatchArrived,
    ConfigChanged,
    Decision,
    Dispatch,
    DispatchConfig,
    Drop,
    Launch,
    LaunchFinished,
    LaunchStopped,
    Preempt,
    PriorityChanged,
    Release,
    SessionClosed,
    SessionOpened,
)
from scheduler.dispatch.state import DispatchState
from scheduler.errors import StimulusError

MS = 1_000_000


class Device:
    """A dispatcher with sessions, with stimuli one nanosecond apart."""

    def __init__(self, config: DispatchConfig | None = None, **priorities: int) -> None:
        self.core = Dispatch(DispatchState(config=config or DispatchConfig()))
        self.now_ns = 0
        for name, priority in priorities.items():
            self.core.on(SessionOpened(self._tick(), name, 1, priority))

    def _tick(self, ns: int = 1) -> int:
        self.now_ns += ns
        return self.now_ns

    def arrive(self, session: str, seq: int = 0) -> list[Decision]:
        return self.core.on(BatchArrived(self._tick(), session, 1, seq, 1, b""))

    def prioritise(self, session: str, priority: int) -> list[Decision]:
        return self.core.on(PriorityChanged(self._tick(), session, priority))

    def end(self, session: str) -> list[Decision]:
        return self.core.on(SessionClosed(self._tick(), session, -1, stop=True))

    def stopped(self, session: str, seq: int = 0, wall_ns: int = MS) -> list[Decision]:
        return self.core.on(LaunchStopped(self._tick(wall_ns), session, seq, wall_ns, wall_ns))

    def finished(self, session: str, seq: int = 0, wall_ns: int = MS) -> list[Decision]:
        return self.core.on(LaunchFinished(self._tick(wall_ns), session, seq, wall_ns, 0, wall_ns))


def test_what_runs_of_a_lowered_session_is_stopped_for_what_waits() -> None:
    device = Device(DispatchConfig(in_flight_max=1, in_flight_low_max=1), a=1, b=2)
    assert [type(d) for d in device.arrive("a")] == [Launch]
    assert device.arrive("b") == [], "b waits: a goes first, and has the one place"
    assert device.prioritise("a", 4) == [Preempt("a", 0), Launch("b", 0, 0)]
    assert device.stopped("a") == [], "a waits for b now"
    decisions = device.finished("b")
    assert [(type(d), d.session) for d in decisions] == [(Launch, "a")]


def test_what_runs_of_a_lowered_session_is_stopped_for_what_is_in_flight_behind_it() -> None:
    device = Device(a=1, b=2)
    device.arrive("a")
    assert [type(d) for d in device.arrive("b")] == [Launch], "in flight, behind a"
    assert device.prioritise("a", 4) == [Preempt("a", 0)]


def test_a_raised_session_stops_what_is_before_it() -> None:
    device = Device(a=1, b=2)
    device.arrive("a")
    device.arrive("b")
    assert device.prioritise("b", 0) == [Preempt("a", 0)]
    assert device.prioritise("b", 0) == [], "the same again"
    assert device.prioritise("b", 3) == [], "what is being stopped is stopped once, and nothing is before it"


def test_a_raised_session_comes_back_soon_from_a_launch_that_was_being_stopped() -> None:
    """Its launch comes back in its turn: what is before it and lower now is stopped, or the session would wait for all of it."""
    device = Device(a=2, b=4, c=3)
    assert [type(d) for d in device.arrive("a") + device.arrive("b")] == [Launch, Launch]
    assert device.arrive("c")[0] == Preempt("b", 0), "b is being stopped, behind a"
    assert device.prioritise("b", 0) == [Preempt("a", 0)]


def test_a_session_joins_the_shares_of_its_new_level_where_that_is() -> None:
    device = Device(a=2, b=2, c=3)
    for seq in range(40):  # two sessions share level 2 for a while; level 3 has had nothing
        device.arrive("a", seq)
        device.arrive("b", seq)
    for _ in range(20):
        head = device.core.state.flights[0]
        device.finished(head.session, head.seq)
    level = device.core.state.levels
    assert level[2].vtime > 0 and level[3].vtime == 0
    device.prioritise("a", 3)
    session = device.core.state.sessions["a"]
    in_flight = sum(f.charged for f in device.core.state.flights if f.session == "a")
    assert session.tag == in_flight, "it owes nothing there, and nothing is owed to it"
    device.prioritise("a", 2)
    assert session.tag == level[2].vtime + in_flight


def test_a_session_that_leaves_p0_loses_its_target() -> None:
    core = Dispatch()
    core.on(SessionOpened(1, "a", 1, 0, sla_ns=100 * MS))
    assert core.state.target_ns == 100 * MS
    core.on(PriorityChanged(2, "a", 2))
    assert (core.state.target_ns, core.state.sessions["a"].sla_ns) == (0, 0)
    core.on(PriorityChanged(3, "a", 0))
    assert core.state.target_ns == 0
    assert core.state.open_by_priority == [1, 0, 0, 0, 0]


def test_levels_won_by_waiting_are_counted_from_the_new_priority() -> None:
    device = Device(DispatchConfig(in_flight_max=1, in_flight_low_max=1, aging_ns=10 * MS), high=0, low=4)
    device.arrive("high")
    device.arrive("low")
    device.now_ns += 25 * MS
    device.arrive("high", 1)
    low = device.core.state.sessions["low"]
    assert low.raised == 2, "two periods passed"
    device.prioritise("low", 1)
    assert (low.raised, low.level) == (0, 1)
    device.arrive("high", 2)
    assert (low.raised, low.level) == (1, 0), "it has waited long enough for every level there is"


@pytest.mark.parametrize("priority", [-1, 5])
def test_a_priority_that_there_is_not_changes_nothing(priority: int) -> None:
    device = Device(a=1)
    with pytest.raises(StimulusError, match="0 to 4"):
        device.prioritise("a", priority)
    assert device.core.state.sessions["a"].priority == 1
    assert device.prioritise("nobody", 2) == []


def test_a_session_that_is_ended_at_once_is_stopped_and_released() -> None:
    device = Device(a=1, b=1)
    device.arrive("a")
    device.arrive("a", 1)
    decisions = device.end("a")
    assert Drop("a", 1, "after_last") in decisions or Preempt("a", 1) in decisions
    assert Preempt("a", 0) in decisions
    assert [type(d) for d in device.arrive("b")] == [Launch], "no session waits for what is being stopped"
    if 1 in device.core.state.sessions["a"].launched:
        device.stopped("a", 1, 0)
    assert device.stopped("a")[:2] == [Drop("a", 0, "after_last"), Release("a")]


def test_a_session_that_closes_by_itself_runs_to_its_end() -> None:
    device = Device(a=1)
    device.arrive("a")
    assert device.core.on(SessionClosed(device.now_ns + 1, "a", -1)) == []


def test_a_deadline_that_had_its_lead_has_it_no_more_after_another_configuration() -> None:
    core = Dispatch()
    core.on(ConfigChanged(0, DispatchConfig(in_flight_max=1, in_flight_low_max=1)))
    core.on(SessionOpened(0, "a", 1, 0, sla_ns=100 * MS))
    core.on(SessionOpened(0, "b", 1, 0))
    core.on(BatchArrived(0, "b", 1, 0, 1))
    session = core.state.sessions["a"]
    session.tag = 10**15
    core.on(BatchArrived(1, "a", 1, 0, 1))
    core.on(BatchArrived(1, "b", 1, 1, 1))
    core.on(LaunchFinished(2, "b", 0, 7, wall_ns=7))
    assert (session.urgent, session.past_lead) == (None, True)
    core.on(ConfigChanged(3, DispatchConfig(in_flight_max=1, in_flight_low_max=1, quantum_ns=9 * MS)))
    assert (session.urgent, session.past_lead) == (None, True)
