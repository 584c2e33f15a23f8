"""Choice of the next launch: the one place where levels, shares, deadlines, room and budgets meet."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.dispatch import fair, flights, limits, queues
from scheduler.dispatch.order import POLICIES
from scheduler.dispatch.state import DispatchState, SessionState
from scheduler.dispatch.stimuli import PRIORITIES


class Choice(NamedTuple):
    session: SessionState
    limit_ns: int
    by_deadline: bool
    reserved: bool


def choose(state: DispatchState) -> Choice | None:
    """The launch to make now, or None. Strict: when the first session of the highest level with work may not be launched, no session behind
    it is."""
    reserved = _reserved(state)
    if reserved is not None:
        return reserved
    for number in range(PRIORITIES):
        if not state.levels[number].ready:
            continue
        session, by_deadline = queues.best(state, number)
        assert session is not None, "a level with ready sessions has a first"
        if not flights.room(state, number):
            return None
        if not by_deadline and overtakes(state, session):
            return None
        limit = limits.limit_ns(state, session, session.waiting[session.next_seq])
        return None if limit == limits.HELD else Choice(session, limit, by_deadline, reserved=False)
    return None


def overtakes(state: DispatchState, session: SessionState) -> bool:
    """Would a launch of it now leave behind a session of its level that is owed more, and cannot compete only because a slice of it is in
    flight? (See fair, rule 2.)"""
    if session.raised or not POLICIES[state.config.policy].leveled:
        return False
    for flight in state.flights:
        other = state.sessions[flight.session]
        if other is session or other.priority != session.priority or flight.ends or (flight.whole and not flight.preempted):
            continue
        if session.tag > other.tag + fair.virtual(flight.estimate_ns, other.weight):
            return True
    return False


def _reserved(state: DispatchState) -> Choice | None:
    """A slice of the lowest level with work, when the reserve owes it one. Nothing preempts it, so there is one at a time."""
    if state.reserve_credit <= 0 or not state.config.reserve_percent or not POLICIES[state.config.policy].leveled:
        return None
    lowest = max((number for number in range(PRIORITIES) if state.levels[number].ready), default=0)
    above = any(state.levels[number].ready for number in range(lowest)) or any(flight.level < lowest for flight in state.flights)
    if not above or any(flight.reserved for flight in state.flights) or not flights.room(state, PRIORITIES):
        return None
    session, _ = queues.best(state, lowest)
    assert session is not None, "a level with ready sessions has a first"
    return Choice(session, limits.reserved_limit_ns(state.config, state.target_ns), by_deadline=False, reserved=True)
