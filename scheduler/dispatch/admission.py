"""Admission control of sessions that open and of batches that arrive. Pure functions of the state."""

from __future__ import annotations

from scheduler.dispatch import decisions as why
from scheduler.dispatch import limits
from scheduler.dispatch.decisions import Decision, Drop, Refuse
from scheduler.dispatch.state import DispatchState, SessionState
from scheduler.dispatch.stimuli import PACE_FULL, PRIORITIES, WEIGHT_MAX, BatchArrived, SessionOpened

__all__ = ["judge_batch", "judge_session"]


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
