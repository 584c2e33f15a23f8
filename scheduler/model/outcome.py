"""Outcome of a virtual or a recorded run: latencies, waits and shares of sessions, and how busy the device was. Integers, times in ns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.dispatch import Record

__all__ = ["BatchOutcome", "Outcome", "SessionOutcome", "percentile"]


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
    def wall_ns(self) -> int:
        return sum(batch.wall_ns for batch in self.batches)

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
