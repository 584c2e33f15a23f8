"""Launches with the executor: what a launch, its end and its preemption do to tags, tokens, estimates and totals."""

from __future__ import annotations

from typing import Final

import blake3

from scheduler.dispatch import fair, limits, pacing, queues
from scheduler.dispatch.decisions import Decision, Launch, Preempt
from scheduler.dispatch.order import POLICIES
from scheduler.dispatch.state import DispatchState, Flight, SessionState, Waiting
from scheduler.dispatch.stimuli import PRIORITIES

_SLOW: Final = 8
"""An estimate follows upward at once and downward by one part of so many: a batch that takes longer than expected costs a stop."""


def chain(before: bytes, seq: int, content: bytes) -> bytes:
    """The launch digest (blake3, 32 bytes) of a session after launch ``seq`` of ``content``, given the digest ``before`` it."""
    return blake3.blake3(before + seq.to_bytes(8, "little") + content).digest()


def advance(state: DispatchState, at_ns: int) -> None:
    """Bring the totals up to ``at_ns`` with what held until now."""
    if state.flights:
        state.sessions[state.flights[0].session].run_ns += at_ns - state.occupancy.at_ns
    state.occupancy.advance(at_ns)
    state.now_ns = at_ns


def room(state: DispatchState, level: int) -> bool:
    """May the executor have one more launch of this level? What is being stopped, or would be for it, takes no room."""
    held = sum(flight.level <= level and not flight.preempted for flight in state.flights)
    return held < state.config.in_flight_max


def launch(state: DispatchState, session: SessionState, limit_ns: int, out: list[Decision], *, by_deadline: bool, reserved: bool) -> None:
    """Hand the session's next batch to the executor; lower launches that are ahead of it are stopped first."""
    config = state.config
    policy = POLICIES[config.policy]
    head = session.waiting[session.next_seq]
    level = 0 if reserved else session.level
    if policy.leveled and not reserved:
        for flight in state.flights:
            if flight.level > level:
                preempt(state, flight, out)
        if not by_deadline and not session.raised:
            state.levels[level].vtime = max(state.levels[level].vtime, session.tag)
    contended = limit_ns > 0 or not policy.leveled
    expected = limits.expected_ns(session, head)
    estimate = limits.slice_core_ns(session, head, limit_ns, config)
    flight = Flight(session.session, head.seq, level, limit_ns, low=limits.is_low(state, session), reserved=reserved)
    flight.whole = not limit_ns or not session.batch_wall_ns or 0 < expected <= limit_ns
    flight.estimate_ns = estimate
    if contended:
        flight.charged = fair.virtual(estimate, session.weight)
        flight.contended_ns = state.now_ns
        session.tag += flight.charged
    if session.pace_permille:
        pacing.spend(session, config, state.now_ns, estimate)
    _take_off(state, session, head)
    if not state.flights:
        state.head_since_ns = state.now_ns
    state.flights.append(flight)
    out.append(Launch(session.session, head.seq, limit_ns, head.slices))
    queues.requeue(state, session)
    if state.levels[level].vtime > fair.REBASE_AT:
        queues.rebase(state, level)


def preempt(state: DispatchState, flight: Flight, out: list[Decision]) -> None:
    """Stop a launch, once."""
    if flight.preempted:
        return
    flight.preempted = True
    out.append(Preempt(flight.session, flight.seq))
    queues.requeue(state, state.sessions[flight.session])


def contend(state: DispatchState, out: list[Decision]) -> None:
    """A launch without a limit was made for a session that had its level for itself. When another one comes, its time counts from then on,
    and unless its batch will be over within a quantum it is stopped, to go on in slices."""
    for flight in state.flights:
        if flight.limit_ns or flight.contended_ns >= 0:
            continue
        session = state.sessions[flight.session]
        others = state.levels[flight.level].ready - (session.entry is not None and session.level == flight.level)
        if not others:
            continue
        flight.contended_ns = state.now_ns
        batch = session.launched[flight.seq][0]
        if not 0 < limits.expected_ns(session, batch) <= state.config.quantum_ns:
            preempt(state, flight, out)


def change_level(state: DispatchState, session: SessionState, out: list[Decision]) -> None:
    """The session has another priority: it joins the shares of its new level as one that opens does, what it has in flight included, and
    levels that it had won by waiting are won again. What is in flight of it runs at the new level from now on: whatever has a higher one
    behind it is stopped, as it would have been when that was launched; also when that one is being stopped itself, for it comes back in
    its turn."""
    if not POLICIES[state.config.policy].leveled:
        return
    own = [flight for flight in state.flights if flight.session == session.session]
    session.raised = session.guest_tag = 0
    session.tag = state.levels[session.priority].vtime + sum(flight.charged for flight in own)
    for flight in own:
        flight.low = limits.is_low(state, session)
        if not flight.reserved:
            flight.level = session.priority
        if not flight.limit_ns:
            flight.contended_ns = -1  # until it has company in its new level (contend)
    queues.requeue(state, session)
    for at, flight in enumerate(state.flights):
        if any(other.level < flight.level and not other.reserved for other in state.flights[at + 1 :]):
            preempt(state, flight, out)


def land(state: DispatchState, session: SessionState, seq: int, core_ns: int, wall_ns: int) -> tuple[Waiting, bytes]:
    """A launch is back from the executor after a slice of that cost (0, 0: it had not begun). The batch and the chain before it are the
    caller's to keep or forget."""
    at = next(i for i, flight in enumerate(state.flights) if flight.seq == seq and flight.session == session.session)
    flight = state.flights.pop(at)
    batch, before = session.launched.pop(seq)
    began_ns = state.head_since_ns
    if at == 0:
        state.head_since_ns = state.now_ns
    if core_ns and not wall_ns:
        wall_ns = state.now_ns - began_ns if at == 0 else 0  # a shell that does not measure it
    _charge(state, session, flight, core_ns, wall_ns)
    if wall_ns or core_ns:
        batch.slices += 1
        batch.wall_ns += wall_ns
        batch.core_ns += core_ns
        session.slices += 1
        session.slice_ns += wall_ns
        session.core_ns += core_ns
        session.raised = 0  # it had the slice that it was raised for
        session.waits_since_ns = state.now_ns
        if flight.limit_ns and not flight.preempted:
            session.overrun_ns = _follow(session.overrun_ns, max(0, wall_ns - flight.limit_ns))
    return batch, before


def charge_overhead(state: DispatchState, session: SessionState, wall_ns: int) -> None:
    """The executor worked for the session beside its launches: nothing else had the device, so it counts as time of all cores."""
    core_ns = wall_ns * state.config.cores
    leveled = POLICIES[state.config.policy].leveled
    if not leveled or limits.is_contended(state, session):
        session.tag += fair.virtual(core_ns, session.weight)
    _spend(state, session, wall_ns, core_ns)
    if session.pace_permille:
        pacing.spend(session, state.config, state.now_ns, core_ns)
    queues.requeue(state, session)


def learn(session: SessionState, batch: Waiting, *, over: bool) -> None:
    """Bring the estimates of the session's batches up to this one, which is over or has run so far."""
    if over or batch.wall_ns > session.batch_wall_ns:
        session.batch_wall_ns = _follow(session.batch_wall_ns, batch.wall_ns)
        session.batch_core_ns = _follow(session.batch_core_ns, batch.core_ns)


def _follow(estimate: int, measured: int) -> int:
    return measured if measured >= estimate else estimate - (estimate - measured) // _SLOW


def _charge(state: DispatchState, session: SessionState, flight: Flight, core_ns: int, wall_ns: int) -> None:
    """Replace the estimate by the measured cost: in the tag (what fell into time shared with others), the tokens and the reserve."""
    shared_ns = core_ns
    if not flight.limit_ns and POLICIES[state.config.policy].leveled:
        with_others_ns = state.now_ns - flight.contended_ns if flight.contended_ns >= 0 else 0
        shared_ns = core_ns * min(with_others_ns, wall_ns) // wall_ns if wall_ns else 0
    session.tag += fair.virtual(shared_ns, session.weight) - flight.charged
    _spend(state, session, wall_ns if core_ns else 0, core_ns)  # the rest is in OverheadMeasured
    if session.pace_permille:
        pacing.spend(session, state.config, state.now_ns, core_ns - flight.estimate_ns)


def _spend(state: DispatchState, session: SessionState, wall_ns: int, core_ns: int) -> None:
    """Take what the session had from its turn, and enter it in the books of the reserve."""
    session.turn_left_ns -= wall_ns
    if session.turn_left_ns <= 0:
        queues.new_turn(state, session)
    if state.config.reserve_percent and POLICIES[state.config.policy].leveled:
        _owe(state, session.priority, core_ns)


def _owe(state: DispatchState, priority: int, core_ns: int) -> None:
    """The books of the reserve: with part r of the time, the lowest level with work gains r of what those above it use and pays 1 - r of
    what it uses beside them, so that it neither gains nor pays when it gets r of all. At most a window's worth is kept."""
    percent = state.config.reserve_percent
    if _any_work(state, range(priority + 1, PRIORITIES)):
        credit = percent * core_ns
    elif _any_work(state, range(priority)):
        credit = (percent - 100) * core_ns
    else:
        return
    most = percent * state.config.reserve_window_ns * state.config.cores
    state.reserve_credit = max(-most, min(most, state.reserve_credit + credit))


def _any_work(state: DispatchState, levels: range) -> bool:
    """Has a session of these priorities something ready or in flight?"""
    return any(state.levels[level].ready for level in levels) or any(
        state.sessions[flight.session].priority in levels for flight in state.flights
    )


def _take_off(state: DispatchState, session: SessionState, head: Waiting) -> None:
    if not head.tried:
        waited_ns = state.now_ns - head.at_ns
        session.waits += 1
        session.wait_ns += waited_ns
        session.window_wait_max_ns = max(session.window_wait_max_ns, waited_ns)
    head.tried = True
    del session.waiting[head.seq]
    session.waiting_bytes -= head.nbytes
    session.launched[head.seq] = (head, session.chain)
    session.chain = chain(session.chain, head.seq, head.content)
    session.next_seq = head.seq + 1
