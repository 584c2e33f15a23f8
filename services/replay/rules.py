"""The rules under which a batch waits, in words: each completes "it waited because ...". Data, and where the name comes from.

The names are those of scheduler.dispatch.decisions, and of scheduler.model.waits for what is no decision of the dispatcher.
"""

from __future__ import annotations

from typing import Final

from scheduler.dispatch import DispatchState, explain
from scheduler.dispatch import decisions as why
from scheduler.model.waits import RESENT

__all__ = ["RULES", "rule_of"]

RULES: Final = {
    why.HIGHER_PRIORITY: "a task of a higher priority had work, and that goes first",
    why.FAIR_SHARE: "others of its priority had used less of the device for their weight",
    why.DEADLINE_ORDER: "a task of its priority with a latency target goes first",
    why.LOW_BUDGET: "beside a task of higher priority only so much low work may be in flight",
    why.IN_FLIGHT_FULL: "it was the next, and the device had its fill of launches",
    why.RESERVED_SHARE: "the lowest priority got the part of the device that is reserved for it",
    why.ARRIVAL_ORDER: "the policy is first come, first served, and others came before it",
    why.TURN_ORDER: "the policy is turns, and it was the turn of others",
    why.PACED: "it had used what its own pace gives it",
    why.AWAITS_MEMORY: "the memory it needs was not free",
    why.QUEUED: "it was in the queue of the device, behind a launch that had to end or stop first",
    why.STOPPING: "it had been stopped for a task of higher priority, and was coming to its end",
    why.PARKED: "an earlier batch of it had not come",
    RESENT: "the node lacked its program and had to ask for it again",
}


def rule_of(state: DispatchState, session: str) -> str:
    """Why the session's next batch is not launched now."""
    return explain(state, session).rule
