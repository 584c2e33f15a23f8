"""Dispatchers with one bug each, of the kind that is really made. The simulator must catch every one."""

from __future__ import annotations

from typing import Final

from scheduler.dispatch import BatchArrived, Decision, Dispatch, LaunchReturned
from scheduler.dispatch.state import SessionState, Waiting

__all__ = ["CANARIES"]


class RunsRepeats(Dispatch):
    """Forgets what it has launched: a repeat of the last batch runs again."""

    def _arrived(self, batch: BatchArrived, out: list[Decision]) -> None:
        session = self.state.sessions.get(batch.session)
        if session is not None and batch.seq == session.next_seq - 1 and batch.epoch == session.epoch and not session.launched:
            session.next_seq = batch.seq
        super()._arrived(batch, out)


class IgnoresTheLowBound(Dispatch):
    """Lets low priorities fill the device beside P0."""

    def _held_back(self, priority: int) -> bool:
        return False


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
            self._requeue(session)


class ForgetsToRelease(Dispatch):
    """Leaks sessions that close while a launch is in flight."""

    def _release_if_over(self, session: SessionState, out: list[Decision]) -> None:
        if session.launches % 2 == 0:
            super()._release_if_over(session, out)


CANARIES: Final = (RunsRepeats, IgnoresTheLowBound, LosesReturned, SkipsHoles, ForgetsToRelease)
