"""The dispatcher of one device: stimuli in, decisions out, one door.

1. Only ``Dispatch.on`` changes the state. An impossible stimulus raises StimulusError and leaves the state as it was.
2. Batches of a session are launched in seq order, each once, in as many slices as it takes: lower seqs are dropped, higher ones parked,
   within bounds.
3. Who goes first is a policy (order); by default strict priority between P0 and P4 with preemption, fair share inside (fair), low work
   within a budget (limits).
4. Every decision is a function of the stimuli so far; nothing else is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from scheduler.dispatch import decisions as why
from scheduler.dispatch import flights, limits, pacing, queues, totals
from scheduler.dispatch.choice import choose
from scheduler.dispatch.decisions import Decision, Drop, Park, Refuse, Release
from scheduler.dispatch.flights import chain
from scheduler.dispatch.order import POLICIES
from scheduler.dispatch.state import TRANSITIONS, DispatchState, Phase, SessionState, Waiting
from scheduler.dispatch.stimuli import (
    FAULT,
    OK,
    PACE_FULL,
    PRIORITIES,
    WEIGHT_MAX,
    BatchArrived,
    ConfigChanged,
    DispatchConfig,
    LaunchFinished,
    LaunchReturned,
    LaunchStopped,
    MemoryReady,
    OverheadMeasured,
    PriorityChanged,
    SessionClosed,
    SessionOpened,
    Stimulus,
    Tick,
)
from scheduler.errors import IllegalTransition, StimulusError

__all__ = ["Dispatch", "chain"]


def judge_session(opened: SessionOpened, state: DispatchState) -> str | None:
    """Why this session is refused, or None."""
    if not 0 <= opened.priority < PRIORITIES:
        return why.PRIORITY_INVALID
    if opened.session in state.sessions:
        return why.SESSION_EXISTS
    if opened.next_seq < 0:
        return why.SEQ_INVALID
    if not 1 <= opened.weight <= WEIGHT_MAX:
        return why.WEIGHT_INVALID
    if not 0 <= opened.pace_permille <= PACE_FULL:
        return why.PACE_INVALID
    if opened.sla_ns < 0 or (opened.sla_ns and opened.priority):
        return why.SLA_INVALID
    if opened.sla_ns and opened.pace_permille:
        return why.SLA_CONTRADICTORY
    if opened.sla_ns and limits.blocking_ns(state, opened.sla_ns) > opened.sla_ns:
        return why.SLA_UNREACHABLE
    return None


def judge_batch(session: SessionState, batch: BatchArrived, state: DispatchState) -> Decision | None:
    """Why this batch is not kept, or None. What is stale is dropped before what is wrong is refused: a replay never hurts a session."""
    name, seq = session.session, batch.seq
    if batch.epoch < session.epoch:
        return Drop(name, seq, why.EPOCH_STALE)
    if batch.epoch > session.epoch:
        return Refuse(name, seq, why.EPOCH_UNKNOWN)
    if seq < 0 or batch.nbytes < 0:
        return Refuse(name, seq, why.SEQ_INVALID)
    if seq < session.next_seq:
        return Drop(name, seq, why.ALREADY_RUN)
    if seq in session.waiting or seq in session.launched:
        return Drop(name, seq, why.ALREADY_WAITING)
    if session.faulted:
        return Refuse(name, seq, why.SESSION_FAULTED)
    if session.last_seq is not None and seq > session.last_seq:
        return Refuse(name, seq, why.SESSION_CLOSING)
    if seq == session.next_seq:
        return None  # the one it waits for is always taken: bounds must not lock a session up
    if len(session.waiting) >= state.config.parked_batches_max:
        return Refuse(name, seq, why.PARKED_BATCHES_FULL)
    if session.waiting_bytes + batch.nbytes > state.config.parked_bytes_max:
        return Refuse(name, seq, why.PARKED_BYTES_FULL)
    return None


_BACK: Final = (LaunchFinished, LaunchReturned, LaunchStopped)


class Dispatch:
    """What one device runs next. Not thread-safe: one shell owns it."""

    __slots__ = ("state",)

    def __init__(self, state: DispatchState | None = None) -> None:
        self.state = state if state is not None else DispatchState()

    def on(self, stimulus: Stimulus) -> list[Decision]:
        """Take one stimulus; the decisions are in the order to carry them out. Raises StimulusError on what cannot have happened."""
        state = self.state
        if stimulus.at_ns < state.now_ns:
            raise StimulusError(f"{stimulus!r}: time ran backwards, the last stimulus was at {state.now_ns} ns")
        self._check(stimulus)
        flights.advance(state, stimulus.at_ns)
        queues.wake(state)
        out: list[Decision] = []
        match stimulus:
            case BatchArrived():
                self._arrived(stimulus, out)
            case LaunchFinished():
                self._finished(stimulus, out)
            case LaunchStopped():
                self._stopped(stimulus, out)
            case LaunchReturned():
                self._returned(stimulus, out)
            case OverheadMeasured():
                flights.charge_overhead(state, state.sessions[stimulus.session], stimulus.wall_ns)
            case MemoryReady():
                self._memory_ready(stimulus)
            case SessionOpened():
                self._opened(stimulus, out)
            case SessionClosed():
                self._closed(stimulus, out)
            case ConfigChanged():
                self._configured(stimulus.config)
            case PriorityChanged():
                self._reprioritised(stimulus, out)
            case Tick():
                if not stimulus.wake:
                    totals.next_window(state)
        self._launch_ready(out)
        state.occupancy.set(state.in_flight, state.ready_count)
        return out

    def next_wakeup_ns(self) -> int | None:
        """When to send a ``Tick(wake=True)`` if nothing happens before; None: no need."""
        return queues.next_wakeup_ns(self.state)

    # -- stimuli -------------------------------------------------------------------------------------------------------------------

    def _check(self, stimulus: Stimulus) -> None:
        """Raise StimulusError, before anything changes, if a launch is reported that is not in flight, or a priority that there is not."""
        if isinstance(stimulus, PriorityChanged) and not 0 <= stimulus.priority < PRIORITIES:
            raise StimulusError(f"{stimulus!r}: priorities are 0 to {PRIORITIES - 1}")
        if isinstance(stimulus, OverheadMeasured) and (stimulus.session not in self.state.sessions or stimulus.wall_ns < 0):
            raise StimulusError(f"{stimulus!r}: there is no such session, or the time is negative")
        if not isinstance(stimulus, _BACK):
            return
        session = self.state.sessions.get(stimulus.session)
        if session is None or stimulus.seq not in session.launched:
            raise StimulusError(f"{stimulus!r}: no such launch is in flight")
        if isinstance(stimulus, LaunchReturned):
            return
        if stimulus.core_ns < 0 or stimulus.wall_ns < 0 or (isinstance(stimulus, LaunchFinished) and stimulus.outcome not in (OK, FAULT)):
            raise StimulusError(f"{stimulus!r}: outcome is OK or FAULT, and a cost is not negative")
        if isinstance(stimulus, LaunchStopped) and not (stimulus.core_ns or stimulus.wall_ns):
            return
        if stimulus.seq >= session.next_seq:
            raise StimulusError(f"{stimulus!r}: it ran although an earlier launch of its session was given back")
        if stimulus.seq != next(iter(session.launched)):
            raise StimulusError(f"{stimulus!r}: launches of a session finish in order, {next(iter(session.launched))} comes first")

    def _opened(self, opened: SessionOpened, out: list[Decision]) -> None:
        state = self.state
        refused = judge_session(opened, state)
        if refused is not None:
            out.append(Refuse(opened.session, -1, refused))
            return
        session = SessionState(
            session=opened.session,
            epoch=opened.epoch,
            priority=opened.priority,
            next_seq=opened.next_seq,
            chain=opened.chain,
            weight=opened.weight,
            sla_ns=opened.sla_ns,
            pace_permille=opened.pace_permille,
            tokens_at_ns=state.now_ns,
        )
        pacing.fill(session, state.config)
        state.sessions[opened.session] = session
        self._count_open(session, 1)
        queues.requeue(state, session)

    def _arrived(self, batch: BatchArrived, out: list[Decision]) -> None:
        session = self.state.sessions.get(batch.session)
        if session is None:
            out.append(Refuse(batch.session, batch.seq, why.SESSION_UNKNOWN))
            return
        verdict = judge_batch(session, batch, self.state)
        if verdict is not None:
            out.append(verdict)
            return
        waiting = Waiting(batch.seq, batch.nbytes, batch.content, self.state.arrivals, self.state.now_ns)
        self.state.arrivals += 1
        self._hold(session, waiting)
        if any(seq not in session.waiting for seq in range(session.next_seq, batch.seq)):
            out.append(Park(batch.session, batch.seq))

    def _finished(self, finished: LaunchFinished, out: list[Decision]) -> None:
        session = self.state.sessions[finished.session]
        batch, _ = flights.land(self.state, session, finished.seq, finished.core_ns, finished.wall_ns)
        flights.learn(session, batch, over=True)
        session.launches += 1
        if finished.outcome == FAULT and not session.faulted:
            self._transition(session, Phase.FAULTED if session.phase is Phase.OPEN else Phase.ENDING)
            self._drop_waiting(session, out, lambda _: why.SESSION_OVER)
        queues.requeue(self.state, session)
        self._release_if_over(session, out)

    def _stopped(self, stopped: LaunchStopped, out: list[Decision]) -> None:
        session = self.state.sessions[stopped.session]
        batch, before = flights.land(self.state, session, stopped.seq, stopped.core_ns, stopped.wall_ns)
        flights.learn(session, batch, over=False)
        self._give_back(session, batch, before, out)

    def _returned(self, returned: LaunchReturned, out: list[Decision]) -> None:
        session = self.state.sessions[returned.session]
        batch, before = flights.land(self.state, session, returned.seq, 0, 0)
        if returned.memory:
            session.awaits_memory = True
        self._give_back(session, batch, before, out, keep=not returned.resend)

    def _memory_ready(self, ready: MemoryReady) -> None:
        session = self.state.sessions.get(ready.session)
        if session is not None and session.awaits_memory:
            session.awaits_memory = False
            queues.requeue(self.state, session)

    def _closed(self, closed: SessionClosed, out: list[Decision]) -> None:
        session = self.state.sessions.get(closed.session)
        if session is None:
            return
        if session.last_seq is None:
            self._transition(session, Phase.CLOSING if session.phase is Phase.OPEN else Phase.ENDING)
        session.last_seq = last_seq = closed.last_seq if session.last_seq is None else min(session.last_seq, closed.last_seq)
        self._drop_waiting(session, out, lambda seq: why.AFTER_LAST if seq > last_seq else None)
        queues.requeue(self.state, session)
        if closed.stop:
            for flight in [flight for flight in self.state.flights if flight.session == closed.session and flight.seq > last_seq]:
                flight.ends = True
                flights.preempt(self.state, flight, out)
        self._release_if_over(session, out)

    def _reprioritised(self, changed: PriorityChanged, out: list[Decision]) -> None:
        session = self.state.sessions.get(changed.session)
        if session is None or session.priority == changed.priority:
            return
        if session.live:
            self._count_open(session, -1)
        session.priority = changed.priority
        if changed.priority:
            session.sla_ns = 0
        if session.live:
            self._count_open(session, 1)
        flights.change_level(self.state, session, out)

    def _configured(self, config: DispatchConfig) -> None:
        state = self.state
        for session in state.sessions.values():
            if config.aging_ns != state.config.aging_ns:
                session.raised = 0  # sessions that have waited long enough by the new period are raised again
            if session.pace_permille:
                pacing.settle(session, state.config, state.now_ns)  # what was earned so far, at the old rate
        if POLICIES[state.config.policy] is not POLICIES[config.policy]:
            queues.forget_shares(state, POLICIES[config.policy])
        state.config = config
        queues.rebuild(state)

    # -- steps ---------------------------------------------------------------------------------------------------------------------

    def _launch_ready(self, out: list[Decision]) -> None:
        """Fill the device: the best ready batch, again and again, until a bound holds."""
        if not self.state.ready_count:
            return
        flights.contend(self.state, out)
        while (choice := choose(self.state)) is not None:
            flights.launch(self.state, choice.session, choice.limit_ns, out, by_deadline=choice.by_deadline, reserved=choice.reserved)

    def _give_back(self, session: SessionState, batch: Waiting, before: bytes, out: list[Decision], *, keep: bool = True) -> None:
        """A launch is back and its batch not over: it is the next one again, and the digest is as before it."""
        if batch.seq < session.next_seq:
            session.next_seq = batch.seq
            session.chain = before
        if session.faulted:
            out.append(Drop(session.session, batch.seq, why.SESSION_OVER))
        elif session.last_seq is not None and batch.seq > session.last_seq:
            out.append(Drop(session.session, batch.seq, why.AFTER_LAST))
        elif keep:
            self._hold(session, batch)
        queues.requeue(self.state, session)
        self._release_if_over(session, out)

    def _hold(self, session: SessionState, batch: Waiting) -> None:
        session.waiting[batch.seq] = batch
        session.waiting_bytes += batch.nbytes
        queues.requeue(self.state, session)

    def _drop_waiting(self, session: SessionState, out: list[Decision], reason_of: Callable[[int], str | None]) -> None:
        """Drop the waiting batches for which ``reason_of(seq)`` names a reason, in seq order."""
        for seq in sorted(session.waiting):
            reason = reason_of(seq)
            if reason is not None:
                session.waiting_bytes -= session.waiting.pop(seq).nbytes
                out.append(Drop(session.session, seq, reason))

    def _release_if_over(self, session: SessionState, out: list[Decision]) -> None:
        """A closed session with nothing in flight and nothing to come is over."""
        if session.last_seq is None or session.launched:
            return
        if session.faulted or session.next_seq > session.last_seq:
            self._transition(session, Phase.RELEASED)
            del self.state.sessions[session.session]
            out.append(Release(session.session))

    def _transition(self, session: SessionState, to: Phase) -> None:
        """A step of a session's state machine. Raises IllegalTransition, with nothing changed by it, on one that is not in TRANSITIONS."""
        before, live = session.phase, session.live
        if (before, to) not in TRANSITIONS:
            raise IllegalTransition(f"session {session.session}", before, to, session.story)
        session.story.append((self.state.now_ns, before, to))
        session.phase = to
        if live and not session.live:
            self._count_open(session, -1)

    def _count_open(self, session: SessionState, change: int) -> None:
        """A session becomes live (1), or is it no longer (-1): what the limits of others depend on."""
        state = self.state
        state.open_by_priority[session.priority] += change
        if session.sla_ns:
            state.targets[session.sla_ns] = state.targets.get(session.sla_ns, 0) + change
            if not state.targets[session.sla_ns]:
                del state.targets[session.sla_ns]
            state.target_ns = min(state.targets, default=0)
