"""Policies for the order of ready sessions: their table, and each one's sort key.

- *strict*: strict between P0 and P4; inside a level start-time fair queueing (see fair), P0 batches with a latency target by deadline.
  A launch of a higher priority preempts lower ones.
- *fifo*: by order of arrival over all sessions, whole batches, no preemption: what sharing a device without a scheduler is like.
- *timeslice*: sessions with work take turns of a quantum, whatever their priority, like a device that switches between processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scheduler.dispatch.state import SessionState, Waiting
from scheduler.dispatch.stimuli import FIFO, STRICT, TIMESLICE


@dataclass(frozen=True, slots=True)
class Policy:
    """``leveled``: priorities are levels, else all sessions are in level 0; also: shares, preemption, low bounds, aging, reserve hold only
    with it. ``turns``: sessions are ordered by their turns."""

    name: str
    leveled: bool
    turns: bool

    def key(self, session: SessionState, head: Waiting) -> int:
        """Sort key of a ready batch inside its level; ties go by arrival, whose numbers are unique on a device: the order is total."""
        if self.leveled:
            return session.tag if not session.raised else session.guest_tag
        return session.turn if self.turns else head.arrival

    def level(self, session: SessionState) -> int:
        """The level at which the session's next slice runs."""
        return max(0, session.priority - session.raised) if self.leveled else 0


POLICIES: Final = {
    STRICT: Policy(STRICT, leveled=True, turns=False),
    FIFO: Policy(FIFO, leveled=False, turns=False),
    TIMESLICE: Policy(TIMESLICE, leveled=False, turns=True),
}
