"""Virtual time: events in order of time, then of their making."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

__all__ = ["Alarm", "Clock"]


class Clock:
    """``now_ns`` moves only in ``run``."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._made = 0

    def at(self, at_ns: int, what: Callable[..., None], *arguments: Any) -> None:
        """Call ``what(*arguments)`` at that time, or now if it has passed."""
        self._made += 1
        heappush(self._events, (max(at_ns, self.now_ns), self._made, what, arguments))

    def after(self, delay_ns: int, what: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now_ns + delay_ns, what, *arguments)

    def run(self, events_max: int) -> bool:
        """Let everything happen; False when it did not end within so many events."""
        for _ in range(events_max):
            if not self._events:
                return True
            self.now_ns, _, what, arguments = heappop(self._events)
            what(*arguments)
        return not self._events


class Alarm:
    """Calls ``ring`` at the time that ``due_ns`` named last."""

    def __init__(self, clock: Clock, due_ns: Callable[[], int | None], ring: Callable[[], object]) -> None:
        self._clock, self._due_ns, self._ring = clock, due_ns, ring
        self._at_ns = -1

    def set(self) -> None:
        at_ns = self._due_ns()
        if at_ns is not None and at_ns != self._at_ns:
            self._at_ns = at_ns
            self._clock.at(at_ns, self._rung, at_ns)

    def _rung(self, at_ns: int) -> None:
        if at_ns == self._at_ns:
            self._at_ns = -1
            self._ring()
