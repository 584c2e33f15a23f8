"""A virtual run as data: its inputs (tenants, their batches with costs, and what the device takes beside them), and the outcome of it or of
a recorded run (latencies, waits and shares of sessions, and how busy the device was). Integers, times in ns.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from scheduler.dispatch import OK, WEIGHT_DEFAULT, Record

STAYS: Final = -1
"""A tenant that does not close its session."""


@dataclass(frozen=True, slots=True)
class Reactions:
    """How long a client took from hearing of an end to its next batch: ``took_ns`` each, by ``heard_ns``, ascending.

    It goes by time and not by batch, because what slows a client is what else its machine and the way to it do just then: the bursts of
    others, which come by the clock whatever the policy."""

    heard_ns: tuple[int, ...]
    took_ns: tuple[int, ...]

    def at(self, heard_ns: int) -> int | None:
        """What it took nearest to then (of two as near the earlier); None before the first and after the last."""
        after = bisect_left(self.heard_ns, heard_ns)
        if after == len(self.heard_ns) or (not after and self.heard_ns[0] != heard_ns):
            return None
        before = max(0, after - 1)
        return self.took_ns[before if heard_ns - self.heard_ns[before] <= self.heard_ns[after] - heard_ns else after]


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
    reactions: Reactions | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """Batch ``seq`` (from 0, without gaps) of a session: it arrives at the latest of ``at_ns``, ``think_ns`` after batch ``after_seq`` has
    finished (-1: of none), and ``gap_ns`` after the arrival of the batch before it. So one form serves clients that come by the clock
    (at_ns), that wait for an answer (after_seq = seq - 1), and that have a bounded number of batches under way (after_seq = seq - bound).
    ``reacts``: how long it thinks is not its own, but what its client takes at that time (Tenant.reactions, where these know it).

    It runs for ``wall_ns`` and costs ``core_ns``; ``overhead_ns``: what the executor does for it beside that, once. ``way_ns``: what it
    takes to the executor and back, half each (-1: what DeviceCosts says). ``grain_ns``: it can be stopped only at multiples of that
    (0: anywhere). ``outcome``: OK or FAULT.
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
    reacts: bool = False
    way_ns: int = -1


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


def percentile(values: Sequence[int], percent: int) -> int:
    """The smallest value that at least ``percent`` in 100 of the values do not exceed (nearest rank); 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0


@dataclass(slots=True)
class BatchOutcome:
    """``launched_ns``: its first launch was decided; ``slices`` that ran, ``preempted`` of them cut short."""

    seq: int
    arrived_ns: int
    launched_ns: int = -1
    finished_ns: int = -1
    core_ns: int = 0
    wall_ns: int = 0
    slices: int = 0
    preempted: int = 0

    @property
    def latency_ns(self) -> int:
        return self.finished_ns - self.arrived_ns

    @property
    def wait_ns(self) -> int:
        return self.launched_ns - self.arrived_ns


@dataclass(slots=True)
class SessionOutcome:
    """``batches``: those that finished, in order."""

    session: str
    priority: int
    batches: list[BatchOutcome] = field(default_factory=list)

    def latency_ns(self, percent: int) -> int:
        """From arrival to finish; of ``percent`` in 100 of the batches it was no longer."""
        return percentile([batch.latency_ns for batch in self.batches], percent)

    def wait_ns(self, percent: int) -> int:
        """The same from arrival to first launch."""
        return percentile([batch.wait_ns for batch in self.batches], percent)

    @property
    def latencies_ns(self) -> list[int]:
        return [batch.latency_ns for batch in self.batches]

    @property
    def core_ns(self) -> int:
        return sum(batch.core_ns for batch in self.batches)

    @property
    def span_ns(self) -> int:
        """From the first arrival to the last finish."""
        return self.batches[-1].finished_ns - self.batches[0].arrived_ns if self.batches else 0

    @property
    def per_1000_s(self) -> int:
        """Throughput: batches in 1000 seconds."""
        return len(self.batches) * 10**12 // self.span_ns if self.span_ns else 0


@dataclass(slots=True)
class Outcome:
    """``busy_ns`` and ``fed_ns`` of the window [begin_ns, end_ns) as scheduler.dispatch.state defines them. ``records``: the journal of
    the run, as a node would have written it. ``unfinished``: batches that arrived (or would have) and did not finish."""

    sessions: dict[str, SessionOutcome] = field(default_factory=dict)
    begin_ns: int = 0
    end_ns: int = 0
    busy_ns: int = 0
    fed_ns: int = 0
    records: list[Record] = field(default_factory=list)
    unfinished: int = 0
