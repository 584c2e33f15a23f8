"""The dispatcher of one device: stimuli in, decisions out, one door.

1. Only ``Dispatch.on`` changes the state. An impossible stimulus raises StimulusError and leaves the state as it was.
2. Batches of a session are launched in seq order, each once: lower seqs are dropped, higher ones parked, within bounds.
3. Strict priority between P0 and P4, then order.rank. Sessions that share the device with a higher priority keep at most
   ``in_flight_low_max`` launches in flight.
4. Every decision is a function of the stimuli so far; nothing else is read.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import blake3

from scheduler.dispatch import decisions as why
from scheduler.dispatch.decisions import Decision, Drop, Launch, Park, Refuse, Release
from scheduler.dispatch.order import rank
from scheduler.dispatch.state import DispatchState, SessionState, Waiting
from scheduler.dispatch.stimuli import (
    FAULT,
    OK,
    PRIORITIES,
    BatchArrived,
    ConfigChanged,
    LaunchFinished,
    LaunchReturned,
    SessionClosed,
    SessionOpened,
    Stimulus,
    Tick,
)
from scheduler.errors import StimulusError

__all__ = ["Dispatch", "chain"]


def chain(before: bytes, seq: int, content: bytes) -> bytes:
    """The launch digest (blake3, 32 bytes) of a session after launch ``seq`` of ``content``, given the digest ``before`` it."""
    return blake3.blake3(before + seq.to_bytes(8, "little") + content).digest()


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
        state.now_ns = stimulus.at_ns
        state.occupancy.advance(stimulus.at_ns)
        out: list[Decision] = []
        match stimulus:
            case BatchArrived():
                self._arrived(stimulus, out)
            case LaunchFinished():
                self._finished(stimulus, out)
            case LaunchReturned():
                self._returned(stimulus, out)
            case SessionOpened():
                self._opened(stimulus, out)
            case SessionClosed():
                self._closed(stimulus, out)
            case ConfigChanged():
                state.config = stimulus.config
            case Tick():
                pass
        self._launch_ready(out)
        state.occupancy.set(state.in_flight, state.ready_count)
        return out

    def launch_digest(self, session: str) -> bytes:
        """Rolling blake3 over the launches of an open session so far (empty before the first)."""
        return self.state.sessions[session].chain

    # -- stimuli -------------------------------------------------------------------------------------------------------------------

    def _check(self, stimulus: Stimulus) -> None:
        """Raise StimulusError, before anything changes, if a launch is reported that is not in flight."""
        if not isinstance(stimulus, LaunchFinished | LaunchReturned):
            return
        session = self.state.sessions.get(stimulus.session)
        if session is None or stimulus.seq not in session.launched:
            raise StimulusError(f"{stimulus!r}: no such launch is in flight")
        if isinstance(stimulus, LaunchFinished):
            if stimulus.seq >= session.next_seq:
                raise StimulusError(f"{stimulus!r}: it ran although an earlier launch of its session was given back unrun")
            if stimulus.seq != next(iter(session.launched)):
                raise StimulusError(f"{stimulus!r}: launches of a session finish in order, {next(iter(session.launched))} comes first")
            if stimulus.outcome not in (OK, FAULT) or stimulus.core_ns < 0:
                raise StimulusError(f"{stimulus!r}: outcome is OK or FAULT, and a cost is not negative")

    def _opened(self, opened: SessionOpened, out: list[Decision]) -> None:
        if not 0 <= opened.priority < PRIORITIES:
            out.append(Refuse(opened.session, -1, why.PRIORITY_INVALID))
        elif opened.session in self.state.sessions:
            out.append(Refuse(opened.session, -1, why.SESSION_EXISTS))
        elif opened.next_seq < 0:
            out.append(Refuse(opened.session, -1, why.SEQ_INVALID))
        else:
            session = SessionState(opened.session, opened.epoch, opened.priority, opened.next_seq, opened.chain)
            self.state.sessions[opened.session] = session
            self.state.open_by_priority[opened.priority] += 1

    def _arrived(self, batch: BatchArrived, out: list[Decision]) -> None:
        session = self.state.sessions.get(batch.session)
        if session is None:
            out.append(Refuse(batch.session, batch.seq, why.SESSION_UNKNOWN))
            return
        verdict = _judge(session, batch, self.state)
        if verdict is not None:
            out.append(verdict)
            return
        waiting = Waiting(batch.seq, batch.nbytes, batch.content, self.state.arrivals)
        self.state.arrivals += 1
        self._hold(session, waiting)
        if any(seq not in session.waiting for seq in range(session.next_seq, batch.seq)):
            out.append(Park(batch.session, batch.seq))

    def _finished(self, finished: LaunchFinished, out: list[Decision]) -> None:
        session = self.state.sessions[finished.session]
        self._land(session, finished.seq)
        session.core_ns += finished.core_ns
        session.launches += 1
        if finished.outcome == FAULT and not session.faulted:
            session.faulted = True
            self.state.open_by_priority[session.priority] -= 1
            self._drop_waiting(session, out, lambda _: why.SESSION_OVER)
        self._release_if_over(session, out)

    def _returned(self, returned: LaunchReturned, out: list[Decision]) -> None:
        session = self.state.sessions[returned.session]
        batch, chain_before = self._land(session, returned.seq)
        if returned.seq < session.next_seq:
            session.next_seq = returned.seq
            session.chain = chain_before
        if session.faulted:
            out.append(Drop(session.session, batch.seq, why.SESSION_OVER))
        elif session.last_seq is not None and batch.seq > session.last_seq:
            out.append(Drop(session.session, batch.seq, why.AFTER_LAST))
        elif not returned.resend:
            self._hold(session, batch)
        self._requeue(session)
        self._release_if_over(session, out)

    def _closed(self, closed: SessionClosed, out: list[Decision]) -> None:
        session = self.state.sessions.get(closed.session)
        if session is None:
            return
        session.last_seq = closed.last_seq if session.last_seq is None else min(session.last_seq, closed.last_seq)
        last_seq = session.last_seq
        self._drop_waiting(session, out, lambda seq: why.AFTER_LAST if seq > last_seq else None)
        self._release_if_over(session, out)

    # -- steps ---------------------------------------------------------------------------------------------------------------------

    def _launch_ready(self, out: list[Decision]) -> None:
        """Fill the device: the best ready batch, again and again, until a bound holds."""
        state = self.state
        while state.ready and state.in_flight < state.config.in_flight_max:
            key, name, seq = state.ready[0]
            session = state.sessions.get(name)
            if session is None or session.ready_seq != seq or rank(session, session.waiting[seq]) != key:
                heappop(state.ready)  # outdated: launched, dropped or given back since
                continue
            if self._held_back(session.priority):
                return  # all others rank behind it, so the same bound holds for them
            heappop(state.ready)
            self._take_off(session, seq)
            out.append(Launch(name, seq))

    def _held_back(self, priority: int) -> bool:
        """Is a launch of this priority low (a session of a higher one is open) and the bound on low launches reached?"""
        state = self.state
        highest = next((p for p in range(PRIORITIES) if state.open_by_priority[p]), priority)
        return priority > highest and sum(state.in_flight_by_priority[highest + 1 :]) >= state.config.in_flight_low_max

    def _take_off(self, session: SessionState, seq: int) -> None:
        batch = session.waiting.pop(seq)
        session.waiting_bytes -= batch.nbytes
        session.launched[seq] = (batch, session.chain)
        session.chain = chain(session.chain, seq, batch.content)
        session.next_seq = seq + 1
        self.state.in_flight += 1
        self.state.in_flight_by_priority[session.priority] += 1
        self._requeue(session)

    def _land(self, session: SessionState, seq: int) -> tuple[Waiting, bytes]:
        self.state.in_flight -= 1
        self.state.in_flight_by_priority[session.priority] -= 1
        return session.launched.pop(seq)

    def _hold(self, session: SessionState, batch: Waiting) -> None:
        session.waiting[batch.seq] = batch
        session.waiting_bytes += batch.nbytes
        self._requeue(session)

    def _requeue(self, session: SessionState) -> None:
        """Make the heap of ready batches right for this session."""
        head = session.waiting.get(session.next_seq)
        ready_seq = None if head is None else head.seq
        if ready_seq == session.ready_seq:
            return
        self.state.ready_count += (ready_seq is not None) - (session.ready_seq is not None)
        session.ready_seq = ready_seq
        if head is not None:
            heappush(self.state.ready, (rank(session, head), session.session, head.seq))

    def _drop_waiting(self, session: SessionState, out: list[Decision], reason_of: Callable[[int], str | None]) -> None:
        """Drop the waiting batches for which ``reason_of(seq)`` names a reason, in seq order."""
        for seq in sorted(session.waiting):
            reason = reason_of(seq)
            if reason is not None:
                session.waiting_bytes -= session.waiting.pop(seq).nbytes
                out.append(Drop(session.session, seq, reason))
        self._requeue(session)

    def _release_if_over(self, session: SessionState, out: list[Decision]) -> None:
        """A closed session with nothing in flight and nothing to come is over."""
        if session.last_seq is None or session.launched:
            return
        if session.faulted or session.next_seq > session.last_seq:
            if not session.faulted:
                self.state.open_by_priority[session.priority] -= 1
            del self.state.sessions[session.session]
            out.append(Release(session.session))


def _judge(session: SessionState, batch: BatchArrived, state: DispatchState) -> Decision | None:
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
