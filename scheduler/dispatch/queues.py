"""Which sessions may be launched, in the order of their level: binary heaps with lazy deletion, so that a step costs O(log sessions)."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, TypeVar

from scheduler.dispatch import fair, pacing
from scheduler.dispatch.order import POLICIES, Policy
from scheduler.dispatch.state import DispatchState, Entry, SessionState, Waiting

Item = TypeVar("Item", Entry, tuple[int, str])

_SLACK: Final = 64
"""Stale entries that a heap (lazy deletion) may hold beside as many as it has good ones."""


def requeue(state: DispatchState, session: SessionState) -> None:
    """Make the queues right for this session, after anything about it changed."""
    policy = POLICIES[state.config.policy]
    head = _launchable(state, session)
    _activate(state, session, head)
    entry = None
    level = policy.level(session)
    if head is not None:
        entry = (policy.key(session, head), head.arrival, session.session)
    if entry is not None:
        _await_age(state, session)
    if entry == session.entry and level == session.level:
        return
    if session.entry is not None:
        state.levels[session.level].ready -= 1
    session.level = level
    session.entry = entry
    session.urgent = None
    session.past_lead = False
    if head is None or entry is None:
        session.age_due_ns = 0
        return
    queue = state.levels[level]
    queue.ready += 1
    _push(queue.heap, entry, queue.ready, lambda place: _session_at(state, place[2], "entry") == place)
    if session.sla_ns and policy.leveled:
        session.urgent = (head.at_ns + session.sla_ns, head.arrival, session.session)
        _push(queue.urgent, session.urgent, queue.ready, lambda place: _session_at(state, place[2], "urgent") == place)


def best(state: DispatchState, number: int) -> tuple[SessionState | None, bool]:
    """Who goes first in a level, and whether for its deadline."""
    level = state.levels[number]
    while level.urgent:
        session = state.sessions.get(level.urgent[0][2])
        if session is not None and session.urgent == level.urgent[0] and session.level == number:
            if session.tag <= level.vtime + fair.virtual(state.config.deadline_lead_ns, session.weight):
                return session, True
            session.urgent = None  # it has had its lead: its next slice waits for its fair share
            session.past_lead = True
        heappop(level.urgent)
    while level.heap:
        session = state.sessions.get(level.heap[0][2])
        if session is not None and session.entry == level.heap[0] and session.level == number:
            return session, False  # (raised and back, it may have left an equal entry in another level)
        heappop(level.heap)
    return None, False


def wake(state: DispatchState) -> None:
    """Let go whom only a time held: paces that have come round, and sessions that have waited for another period."""
    while state.paced and state.paced[0][0] <= state.now_ns:
        at_ns, name = heappop(state.paced)
        session = state.sessions.get(name)
        if session is not None and session.paced_until_ns == at_ns:
            requeue(state, session)
    while state.ages and state.ages[0][0] <= state.now_ns:
        at_ns, name = heappop(state.ages)
        session = state.sessions.get(name)
        if session is not None and session.age_due_ns == at_ns and session.entry is not None:
            age(state, session)


def age(state: DispatchState, session: SessionState) -> None:
    """Raise a session by one level: it stands there where that level is, and its next slice is still charged to its own."""
    session.raised += 1
    session.guest_tag = state.levels[session.priority - session.raised].vtime
    requeue(state, session)


def next_wakeup_ns(state: DispatchState) -> int | None:
    """When something will be decided though nothing happens; None: never."""
    for heap, field in ((state.paced, "paced_until_ns"), (state.ages, "age_due_ns")):
        while heap:
            if _session_at(state, heap[0][1], field) == heap[0][0]:
                break
            heappop(heap)
    return min((heap[0][0] for heap in (state.paced, state.ages) if heap), default=None)


def new_turn(state: DispatchState, session: SessionState) -> None:
    """Policy timeslice: go to the end of the line, with a whole quantum."""
    session.turn = state.turns
    session.turn_left_ns = state.config.quantum_ns
    state.turns += 1


def rebuild(state: DispatchState) -> None:
    """All queues from the sessions alone: after another configuration came, or a snapshot was read."""
    for level in state.levels:
        level.heap, level.urgent, level.ready = [], [], 0
    state.paced, state.ages = [], []
    for session in state.sessions.values():
        past_lead = session.past_lead
        session.entry = session.urgent = None
        session.paced_until_ns = session.age_due_ns = 0
        requeue(state, session)
        if past_lead:
            session.urgent = None
            session.past_lead = True


def forget_shares(state: DispatchState, policy: Policy) -> None:
    """Another policy comes: what sessions have had so far under the old one counts no more, and launches in flight have its levels."""
    state.reserve_credit = 0
    for level in state.levels:
        level.vtime = 0
    for session in state.sessions.values():
        session.tag = session.raised = session.guest_tag = 0
    for flight in state.flights:
        flight.charged = 0
        flight.level = policy.level(state.sessions[flight.session])


def rebase(state: DispatchState, number: int) -> None:
    """Shift the virtual times of a level back by its own: nothing that is decided changes."""
    level = state.levels[number]
    shift = level.vtime
    level.vtime = 0
    for session in state.sessions.values():
        if session.raised and session.priority - session.raised == number:
            session.guest_tag -= shift
        if (session.priority if POLICIES[state.config.policy].leveled else 0) == number:
            session.tag = session.tag - shift if session.active else max(0, session.tag - shift)  # the idle join at 0 or above
            requeue(state, session)


def _launchable(state: DispatchState, session: SessionState) -> Waiting | None:
    """The session's next batch, if it may be launched as far as the session itself is concerned. (A faulted one holds no batch.)"""
    head = session.waiting.get(session.next_seq)
    if head is None or session.awaits_memory:
        session.paced_until_ns = 0
        return None
    if session.launched and _comes_back(state, session):
        session.paced_until_ns = 0
        return None  # what is in flight will come back unfinished, and goes first
    return head if not session.pace_permille or _has_tokens(state, session) else None


def _has_tokens(state: DispatchState, session: SessionState) -> bool:
    """Does its pace let the session go? If not, note when it will."""
    at_ns = pacing.ready_at_ns(session, state.config, state.now_ns)
    if at_ns <= state.now_ns:
        session.paced_until_ns = 0
        return True
    if at_ns != session.paced_until_ns:
        session.paced_until_ns = at_ns
        due = (at_ns, session.session)
        _push(state.paced, due, len(state.sessions), lambda item: _session_at(state, item[1], "paced_until_ns") == item[0])
    return False


def _session_at(state: DispatchState, name: str, field: str) -> object:
    """A field of a session; None when the session is closed."""
    session = state.sessions.get(name)
    return None if session is None else getattr(session, field)


def _comes_back(state: DispatchState, session: SessionState) -> bool:
    """Has the session something in flight that is not expected to end its batch?"""
    return any(flight.session == session.session and (flight.preempted or not flight.whole) for flight in state.flights)


def _activate(state: DispatchState, session: SessionState, head: Waiting | None) -> None:
    """Note when a session gets work or runs out of it. Shares are between those that have more to run than is in flight."""
    active = head is not None or (bool(session.launched) and _comes_back(state, session))
    if active and not session.active:
        fair.join(state.levels[session.priority if POLICIES[state.config.policy].leveled else 0], session)
    session.active = active
    present = head is not None or bool(session.launched)
    if present and not session.present:
        session.mark_busy_ns, session.mark_run_ns = state.occupancy.busy_ns, session.run_ns
        session.waits_since_ns = state.now_ns
        new_turn(state, session)
    elif session.present and not present:
        session.behind_ns += (state.occupancy.busy_ns - session.mark_busy_ns) - (session.run_ns - session.mark_run_ns)
    session.present = present


def _await_age(state: DispatchState, session: SessionState) -> None:
    """Note when the session will have waited long enough for the next level."""
    config = state.config
    if not config.aging_ns:
        return
    due_ns = 0
    if POLICIES[config.policy].leveled and session.priority > session.raised:
        due_ns = session.waits_since_ns + config.aging_ns * (session.raised + 1)
    if due_ns != session.age_due_ns:
        session.age_due_ns = due_ns
        if due_ns:
            due = (due_ns, session.session)
            _push(state.ages, due, state.ready_count, lambda item: _session_at(state, item[1], "age_due_ns") == item[0])


def _push(heap: list[Item], item: Item, good: int, current: Callable[[Item], bool]) -> None:
    """Add to a heap in which about ``good`` places are current; clear it of the outdated ones when they are too many."""
    heappush(heap, item)
    if len(heap) > 2 * good + _SLACK:
        heap[:] = filter(current, heap)
        heapify(heap)
