"""Dispatchers with one bug each, of the kind that is really made. The simulator must catch every one."""

from __future__ import annotations

from typing import Final

import msgspec

from scheduler.dispatch import (
    BatchArrived,
    Decision,
    Dispatch,
    LaunchReturned,
    LaunchStopped,
    MemoryReady,
    PriorityChanged,
    SessionClosed,
    Stimulus,
    queues,
)
from scheduler.dispatch.decisions import Launch, Preempt
from scheduler.dispatch.state import SessionState, Waiting

__all__ = ["CANARIES", "ChargesNothing", "KeepsItsTag"]


class RunsRepeats(Dispatch):
    """Forgets what it has launched: a repeat of the last batch runs again."""

    def _arrived(self, batch: BatchArrived, out: list[Decision]) -> None:
        session = self.state.sessions.get(batch.session)
        if session is not None and batch.seq == session.next_seq - 1 and batch.epoch == session.epoch and not session.launched:
            session.next_seq = batch.seq
        super()._arrived(batch, out)


class ForgetsTheLowBudget(Dispatch):
    """Takes no launch for a low one: background work fills the device beside P0."""

    def on(self, stimulus: Stimulus) -> list[Decision]:
        for flight in self.state.flights:
            flight.low = False
        return super().on(stimulus)


class StopsNothing(Dispatch):
    """Decides to preempt and does not say so."""

    def on(self, stimulus: Stimulus) -> list[Decision]:
        return [decision for decision in super().on(stimulus) if not isinstance(decision, Preempt)]


class StopsTwice(Dispatch):
    """Forgets that it has asked a launch to stop."""

    def on(self, stimulus: Stimulus) -> list[Decision]:
        for flight in self.state.flights[:1]:
            flight.preempted = False
        return super().on(stimulus)


class LosesStopped(Dispatch):
    """Takes a batch whose slice ended for one that is over."""

    def _stopped(self, stopped: LaunchStopped, out: list[Decision]) -> None:
        if stopped.wall_ns and stopped.seq % 5 == 4:
            super()._returned(LaunchReturned(stopped.at_ns, stopped.session, stopped.seq, True), out)
            return
        super()._stopped(stopped, out)


class CountsEverySlice(Dispatch):
    """The launch digest goes on with every slice."""

    def _stopped(self, stopped: LaunchStopped, out: list[Decision]) -> None:
        after = self.state.sessions[stopped.session].chain
        super()._stopped(stopped, out)
        if stopped.session in self.state.sessions:
            self.state.sessions[stopped.session].chain = after


class IgnoresMemory(Dispatch):
    """Launches a session again at once though its memory is not free, and never hears that it is."""

    def _memory_ready(self, ready: MemoryReady) -> None:
        pass


class RunsLowFirst(Dispatch):
    """Puts a new session of the highest priority into the lowest level."""

    def _hold(self, session: SessionState, batch: Waiting) -> None:
        super()._hold(session, batch)
        if session.priority == 0 and session.entry is not None and batch.seq % 3 == 2:
            session.raised = -4
            queues.requeue(self.state, session)


class ChargesNothing(Dispatch):
    """Forgets what slices cost: a session that sends often gets most."""

    def _stopped(self, stopped: LaunchStopped, out: list[Decision]) -> None:
        super()._stopped(LaunchStopped(stopped.at_ns, stopped.session, stopped.seq, stopped.core_ns // 64, stopped.wall_ns), out)


class NeverLimits(Dispatch):
    """Lets every launch run to its end."""

    def on(self, stimulus: Stimulus) -> list[Decision]:
        return [
            msgspec.structs.replace(decision, limit_ns=0) if isinstance(decision, Launch) else decision for decision in super().on(stimulus)
        ]


class LosesReturned(Dispatch):
    """Forgets a launch that was given back, instead of keeping it waiting."""

    def _returned(self, returned: LaunchReturned, out: list[Decision]) -> None:
        super()._returned(LaunchReturned(returned.at_ns, returned.session, returned.seq, True), out)


class SkipsHoles(Dispatch):
    """Takes a parked batch for the next one when that is late."""

    def _hold(self, session: SessionState, batch: Waiting) -> None:
        super()._hold(session, batch)
        if len(session.waiting) >= 3 and session.next_seq not in session.waiting:
            session.next_seq = min(session.waiting)
            queues.requeue(self.state, session)


class ForgetsToRelease(Dispatch):
    """Leaks sessions that close while a launch is in flight."""

    def _release_if_over(self, session: SessionState, out: list[Decision]) -> None:
        if session.launches % 2 == 0:
            super()._release_if_over(session, out)


class KeepsWhatFlies(Dispatch):
    """A changed priority counts from the next launch on: what is in flight goes on at the level it was launched at."""

    def _reprioritised(self, changed: PriorityChanged, out: list[Decision]) -> None:
        before = [(flight, flight.level) for flight in self.state.flights if flight.session == changed.session]
        said: list[Decision] = []
        super()._reprioritised(changed, said)
        for flight, level in before:
            flight.level = level
        out += [decision for decision in said if not isinstance(decision, Preempt)]


class KeepsItsTag(Dispatch):
    """A session brings the virtual time of its old level into the new one. (What it breaks is the fair share alone.)"""

    def _reprioritised(self, changed: PriorityChanged, out: list[Decision]) -> None:
        session = self.state.sessions.get(changed.session)
        tag = 0 if session is None else session.tag
        super()._reprioritised(changed, out)
        if session is not None:
            session.tag = tag
            queues.requeue(self.state, session)


class KeepsTheTarget(Dispatch):
    """The latency target of a session that left P0 goes on holding others back."""

    def _reprioritised(self, changed: PriorityChanged, out: list[Decision]) -> None:
        targets = dict(self.state.targets)
        super()._reprioritised(changed, out)
        self.state.targets, self.state.target_ns = targets, min(targets, default=0)


class WaitsForTheEnd(Dispatch):
    """A session that is ended at once runs its batch to the end."""

    def _closed(self, closed: SessionClosed, out: list[Decision]) -> None:
        super()._closed(msgspec.structs.replace(closed, stop=False), out)


CANARIES: Final = (
    RunsRepeats, ForgetsTheLowBudget, StopsNothing, StopsTwice, LosesReturned, LosesStopped, CountsEverySlice, IgnoresMemory, RunsLowFirst,
    ChargesNothing, NeverLimits, SkipsHoles, ForgetsToRelease, KeepsWhatFlies, KeepsTheTarget, WaitsForTheEnd,
)  # fmt: skip
