"""Why the next batch of a session does not run now: the rule that holds it, and the sessions ahead of it. For people, never on the way of a
launch.

Read after a step (Dispatch.on): then whatever could be launched has been.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler.dispatch import choice, flights, limits
from scheduler.dispatch import decisions as why
from scheduler.dispatch.order import POLICIES
from scheduler.dispatch.state import DispatchState, SessionState
from scheduler.dispatch.stimuli import PRIORITIES


class Reason(NamedTuple):
    """``rule``: of decisions.RULES. ``ahead``: the sessions it waits for, those in flight first, in the order they run or would run.
    ``until_ns``: when the rule lets go by itself, 0: not known."""

    rule: str
    ahead: tuple[str, ...] = ()
    until_ns: int = 0


def explain(state: DispatchState, session: str) -> Reason:
    """Why the head of this session waits, or that it does not."""
    s = state.sessions.get(session)
    if s is None:
        return Reason(why.NOT_OPEN)
    if s.launched:
        return _in_flight(state, s)
    if s.faulted:
        return Reason(why.FAULTED)
    if not s.waiting:
        return Reason(why.IDLE)
    if s.next_seq not in s.waiting:
        return Reason(why.PARKED)
    if s.awaits_memory:
        return Reason(why.AWAITS_MEMORY)
    if s.entry is None:
        return Reason(why.PACED, until_ns=s.paced_until_ns)
    return _ready(state, s)


def _in_flight(state: DispatchState, s: SessionState) -> Reason:
    at = next(i for i, flight in enumerate(state.flights) if flight.session == s.session)
    if state.flights[at].preempted:
        return Reason(why.STOPPING, _unique([flight.session for flight in state.flights[at + 1 :] if flight.session != s.session]))
    if at == 0:
        return Reason(why.RUNNING)
    return Reason(why.QUEUED, _unique([flight.session for flight in state.flights[:at]]))


def _ready(state: DispatchState, s: SessionState) -> Reason:
    """It could be launched as far as it is concerned, and was not."""
    policy = POLICIES[state.config.policy]
    ahead = [flight.session for flight in state.flights if not flight.preempted and flight.level <= s.level]
    if policy.leveled:
        higher = [flight.session for flight in state.flights if not flight.preempted and flight.level < s.level and not flight.reserved]
        higher += _waiting(state, range(s.level))
        if higher:
            return Reason(why.HIGHER_PRIORITY, _unique(higher))
    peers = _before(state, s)
    if peers:
        rule = why.FAIR_SHARE if policy.leveled else why.TURN_ORDER if policy.turns else why.ARRIVAL_ORDER
        if policy.leveled and s.urgent is None and any(state.sessions[name].urgent is not None for name in peers):
            rule = why.DEADLINE_ORDER
        elif policy.leveled and s.urgent is not None:
            rule = why.DEADLINE_ORDER
        return Reason(rule, _unique(ahead + peers))
    if not flights.room(state, s.level):
        reserved = any(flight.reserved and not flight.preempted for flight in state.flights)
        return Reason(why.RESERVED_SHARE if reserved else why.IN_FLIGHT_FULL, _unique(ahead))
    if choice.overtakes(state, s):
        owed = [flight.session for flight in state.flights if flight.preempted and flight.level == s.level]
        return Reason(why.FAIR_SHARE, _unique(ahead + owed))
    if limits.is_low(state, s) and limits.low_held(state, s.level):
        return Reason(why.LOW_BUDGET, _unique(ahead))
    return Reason(why.IN_FLIGHT_FULL, _unique(ahead))


def _waiting(state: DispatchState, levels: range) -> list[str]:
    """Sessions that may be launched in these levels, by order."""
    ready = [s for s in state.sessions.values() if s.entry is not None and s.level in levels]
    return [s.session for s in sorted(ready, key=_place)]


def _before(state: DispatchState, s: SessionState) -> list[str]:
    """Sessions of its level that go before it."""
    own = _place(s)
    return [other.session for other in sorted(state.sessions.values(), key=_place) if other.level == s.level and _place(other) < own]


def _place(s: SessionState) -> tuple[int, int, tuple[int, int, str]]:
    """Its place in the order of launches: by level, deadlines first."""
    if s.entry is None:
        return (PRIORITIES, 0, (0, 0, s.session))
    return (s.level, 0, s.urgent) if s.urgent is not None else (s.level, 1, s.entry)


def _unique(names: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
