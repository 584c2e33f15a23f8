"""Measurements as facts: the leader appends to the log the devices whose measurement changed enough to matter, so that every controller
decides on the same numbers, and every decision can be replayed.

May live here: how often a device is reported. May not: what matters (scheduler.placement), hearing (gauges), writing.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest
from typing import Final

from bus_schemas.events import LoadObserved
from scheduler.placement import ClusterView, Measured, load_observed

__all__ = ["LoadReporter"]

_DEVICES_MAX: Final = 4_000
"""Of one fact, so that a message stays below half a megabyte."""
_PAUSE_NS: Final = 2 * 10**9


class LoadReporter:
    """Rate limit of load facts: one in 2 s for each device, except that transitions to idle bypass the limit."""

    def __init__(self) -> None:
        self._reported_ns: dict[tuple[str, int], int] = {}

    def due(self, view: ClusterView, heard: Mapping[tuple[str, int], Measured], at_ns: int) -> LoadObserved | None:
        """The fact that is due at Unix time ``at_ns``, None when there is none."""
        candidates = {key: seen for key, seen in heard.items() if seen != view.load.get(key) and self._may(key, seen, at_ns)}
        fact = load_observed(view, candidates, at_ns)
        if fact is None:
            return None
        # Only changes that matter take a place, and the devices reported longest ago come first: no device starves.
        devices = nsmallest(_DEVICES_MAX, fact.devices, key=lambda seen: self._reported_ns.get(seen[:2], 0))
        self._reported_ns.update({(node, gpu): at_ns for node, gpu, *_ in devices})
        return LoadObserved(at_ns, tuple(sorted(devices)))

    def _may(self, key: tuple[str, int], seen: Measured, at_ns: int) -> bool:
        return seen == Measured() or at_ns - self._reported_ns.get(key, 0) >= _PAUSE_NS
