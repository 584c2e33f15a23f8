"""Limits of slices and of low-priority work in flight: slices sized from measured time.

*Low* is work that shares the device with a session of higher priority, or of P0 with one that has a latency target. The limits of low
launches in flight add up to at most the *low budget*, so that is what a batch of the high session waits for when nothing can be
preempted; where it can, it waits for ``stop_ns`` at most. Pure functions of the state.
"""

from __future__ import annotations

from typing import Final

from scheduler.dispatch.order import POLICIES
from scheduler.dispatch.state import DispatchState, SessionState, Waiting
from scheduler.dispatch.stimuli import PACE_FULL, DispatchConfig

HELD: Final = -1
"""No limit is small enough now."""


def low_budget_ns(config: DispatchConfig, target_ns: int) -> int:
    """The most low work in flight beside a smallest latency target of ``target_ns`` (0: none)."""
    if not target_ns:
        return config.low_slice_ns
    return min(config.low_slice_ns, max(config.slice_min_ns, target_ns * config.low_budget_permille // 1000))


def blocking_ns(state: DispatchState, target_ns: int) -> int:
    """What a batch of a session that opens with this target may have to wait for at worst: the low budget that it brings about, one slice
    that ends as late as it may, and one batch of each open session with a target, as long as theirs are known to take."""
    budget_ns = low_budget_ns(state.config, min(target_ns, state.target_ns or target_ns))
    known_ns = sum(session.batch_wall_ns for session in state.sessions.values() if session.sla_ns and session.live)
    return budget_ns + state.config.stop_ns + known_ns


def is_low(state: DispatchState, session: SessionState) -> bool:
    """Is the session's work low now?"""
    if not POLICIES[state.config.policy].leveled:
        return False
    if state.target_ns and not session.sla_ns:
        return True
    return any(state.open_by_priority[: session.priority])


def expected_ns(session: SessionState, batch: Waiting) -> int:
    """How long what is left of the batch will run, by what batches of its session took; 0: not known."""
    return max(0, session.batch_wall_ns - batch.wall_ns)


def slice_core_ns(session: SessionState, batch: Waiting, limit_ns: int, config: DispatchConfig) -> int:
    """The core time expected of a slice of ``limit_ns`` (0: none)."""
    most_ns = limit_ns or config.quantum_ns
    wall_ns = min(most_ns, expected_ns(session, batch) or most_ns)
    if not session.batch_wall_ns:
        return wall_ns
    return wall_ns * session.batch_core_ns // session.batch_wall_ns


def limit_ns(state: DispatchState, session: SessionState, batch: Waiting) -> int:
    """The limit of the session's next slice; 0: none is needed; HELD: it may not be launched now."""
    config = state.config
    policy = POLICIES[config.policy]
    if not policy.leveled:
        return max(config.slice_min_ns, session.turn_left_ns) if policy.turns else 0
    limit = 0
    if is_low(state, session):
        limit = _low_limit_ns(state, session, batch)
    elif is_contended(state, session):
        limit = config.quantum_ns
    if session.pace_permille and limit != HELD:
        paced_ns = max(config.slice_min_ns, config.quantum_ns * session.pace_permille // PACE_FULL)
        limit = min(limit or paced_ns, paced_ns)
    return limit


def low_held(state: DispatchState, level: int) -> bool:
    """Is so much low work in flight that no more of this level may be launched?"""
    count, used_ns = _low_in_flight(state, level)
    left_ns = low_budget_ns(state.config, state.target_ns) - used_ns
    return count > 0 and (count >= state.config.in_flight_low_max or left_ns < state.config.slice_min_ns)


def reserved_limit_ns(config: DispatchConfig, target_ns: int) -> int:
    """The limit of a slice out of the reserve: nothing preempts it."""
    return min(config.quantum_ns, low_budget_ns(config, target_ns))


def _low_limit_ns(state: DispatchState, session: SessionState, batch: Waiting) -> int:
    config = state.config
    if low_held(state, session.level):
        return HELD
    count, used_ns = _low_in_flight(state, session.level)
    left_ns = low_budget_ns(config, state.target_ns) - used_ns
    if state.ready_count > 1:  # a part for each that may be in flight: the executor has the next one when this one ends
        left_ns //= config.in_flight_low_max - count
    expected = expected_ns(session, batch)
    if 0 < 2 * expected < left_ns:
        return max(config.slice_min_ns, 2 * expected)  # short batches: it will end, and others fit beside it
    return max(config.slice_min_ns, left_ns - session.overrun_ns)


def _low_in_flight(state: DispatchState, level: int) -> tuple[int, int]:
    """How many low launches are in flight that are not being stopped, or would be for one of ``level``, and the sum of their limits."""
    low = [flight.limit_ns for flight in state.flights if flight.low and not flight.preempted and flight.level <= level]
    return len(low), sum(low)


def is_contended(state: DispatchState, session: SessionState) -> bool:
    """Has another session of its level something ready or in flight?"""
    others = state.levels[session.level].ready - (session.entry is not None)
    return others > 0 or any(flight.level == session.level and flight.session != session.session for flight in state.flights)
