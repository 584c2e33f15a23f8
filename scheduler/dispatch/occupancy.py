"""Utilization and starvation of one device, exact, from the times of stimuli.

- *busy*: at least one launch is in flight.
- *fed*: busy, and at least one further launch waits: in flight behind the running one, or ready and not handed over yet.

Utilization % is busy time over the window; starvation % is fed time over the window (high: the device never lacks work). Both are
kept as totals in nanoseconds: a window is the difference of two totals, so no window is ever lost or counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Occupancy", "percent"]


@dataclass(slots=True)
class Occupancy:
    """Totals up to ``at_ns``; ``busy`` and ``fed`` are what holds from then on."""

    at_ns: int = 0
    busy_ns: int = 0
    fed_ns: int = 0
    busy: bool = False
    fed: bool = False

    def advance(self, at_ns: int) -> None:
        """Count the time up to ``at_ns`` with what held until now."""
        passed_ns = at_ns - self.at_ns
        if self.busy:
            self.busy_ns += passed_ns
        if self.fed:
            self.fed_ns += passed_ns
        self.at_ns = at_ns

    def set(self, in_flight: int, ready: int) -> None:
        """What holds from ``at_ns`` on: launches in flight, and sessions with a launch ready beside them."""
        self.busy = in_flight > 0
        self.fed = self.busy and in_flight + ready > 1


def percent(part_ns: int, window_ns: int) -> int:
    """``part_ns`` of ``window_ns`` in whole percent, rounded half up, 0 for an empty window."""
    if window_ns <= 0:
        return 0
    return (200 * part_ns + window_ns) // (2 * window_ns)
