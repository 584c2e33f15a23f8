"""Messages of refusals: the dispatch core's reasons in words. Data only."""

from __future__ import annotations

from typing import Final

from bus_schemas import faults
from bus_schemas.batch import Fault
from scheduler.dispatch import decisions as why

__all__ = ["EXECUTOR_LOST", "REFUSALS", "OpenRefused", "not_taken", "refusal"]

EXECUTOR_LOST: Final = Fault(faults.NODE_LOST, "the process that held this session's device memory ended; start the script again")

REFUSALS: Final = {
    why.SESSION_UNKNOWN: Fault(faults.SESSION_LOST, "this node does not know the session: its lease ran out, or the node started anew"),
    why.SESSION_CLOSING: Fault(faults.SESSION_LOST, "the session is closed"),
    why.SESSION_FAULTED: Fault(faults.SESSION_LOST, "the session ended with an earlier fault"),
    why.EPOCH_UNKNOWN: Fault(faults.OUT_OF_ORDER, "the batch names an epoch that this node has not had"),
    why.PARKED_BATCHES_FULL: Fault(faults.OUT_OF_ORDER, "too many batches wait for an earlier one that has not come", fatal=False),
    why.PARKED_BYTES_FULL: Fault(faults.OUT_OF_ORDER, "too many bytes wait for an earlier batch that has not come", fatal=False),
}


_SESSION_REFUSALS: Final = {
    why.PRIORITY_INVALID: "priority: it is an integer from 0 (highest) to 4",
    why.SESSION_EXISTS: "session: it exists already",
    why.WEIGHT_INVALID: "weight: it is out of range",
    why.PACE_INVALID: "pace_percent: it is out of range",
    why.SLA_INVALID: "sla_ms_p99: a latency target is positive and needs priority 0",
    why.SLA_CONTRADICTORY: "sla_ms_p99: a latency target contradicts pace_percent, a paced session waits by its own wish",
    why.SLA_UNREACHABLE: "sla_ms_p99: what a batch may have to wait for on this device is longer than that; ask for a longer one",
}


def refusal(reason: str) -> Fault:
    """Of a batch."""
    return REFUSALS.get(reason) or Fault(faults.OUT_OF_ORDER, reason)


def not_taken(reason: str) -> Fault:
    """Of a session."""
    text = _SESSION_REFUSALS.get(reason, f"session: the device does not take it ({reason})")
    return Fault(faults.MALFORMED, text, (f"{reason} @ {text.partition(':')[0]}",))


class OpenRefused(Exception):
    """The dispatch core does not take the session; ``fault`` says why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault
