"""What a virtual run is given: tenants, their batches with costs, and what the device takes beside them. Data types only, times in ns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scheduler.dispatch import OK, WEIGHT_DEFAULT

__all__ = ["Arrival", "DeviceCosts", "Tenant", "STAYS"]

STAYS: Final = -1
"""A tenant that does not close its session."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A session that opens at ``open_ns`` and closes ``close_after_ns`` after its last batch has finished (STAYS: never)."""

    session: str
    priority: int
    weight: int = WEIGHT_DEFAULT
    sla_ns: int = 0
    pace_permille: int = 0
    open_ns: int = 0
    close_after_ns: int = STAYS


@dataclass(frozen=True, slots=True)
class Arrival:
    """Batch ``seq`` (from 0, without gaps) of a session: it arrives at the latest of ``at_ns``, ``think_ns`` after batch ``after_seq`` has
    finished (-1: of none), and ``gap_ns`` after the arrival of the batch before it. So one form serves clients that come by the clock
    (at_ns), that wait for an answer (after_seq = seq - 1), and that have a bounded number of batches under way (after_seq = seq - bound).

    It runs for ``wall_ns`` and costs ``core_ns``; ``overhead_ns``: what the executor does for it beside that, once. ``grain_ns``: it can
    be stopped only at multiples of that (0: anywhere). ``outcome``: OK or FAULT.
    """

    session: str
    seq: int
    wall_ns: int
    core_ns: int
    at_ns: int = 0
    after_seq: int = -1
    think_ns: int = 0
    gap_ns: int = 0
    overhead_ns: int = 0
    nbytes: int = 0
    grain_ns: int = 0
    outcome: int = OK


@dataclass(frozen=True, slots=True)
class DeviceCosts:
    """``launch_ns``: from a decision until the executor can begin with it, hidden while it works on another; ``report_ns``: from the end
    of a launch until the dispatcher hears of it; ``slice_ns``: what every launch of a batch after its first takes beside its run;
    ``stop_ns``: from a preemption until the run stops; ``over_ns``: how far a slice runs beyond its limit."""

    launch_ns: int = 0
    report_ns: int = 0
    slice_ns: int = 0
    stop_ns: int = 0
    over_ns: int = 0
