"""One alarm on the event loop: set again and again, rings at the time set last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["Alarm"]


class Alarm:
    """``ring()`` is called once for the time set, not before it."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._due_ns: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due_ns: int | None) -> None:
        """Ring at ``due_ns`` (monotonic), at once when that is past; None: not at all."""
        if due_ns == self._due_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due_ns = due_ns
        if due_ns is not None:
            self._wait(due_ns)

    def _wait(self, due_ns: int) -> None:
        delay_s = max(0, due_ns - time.monotonic_ns()) / 1e9
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._over)

    def _over(self) -> None:
        self._timer = None
        due_ns = self._due_ns
        if due_ns is None:
            return
        if time.monotonic_ns() < due_ns:  # timers of the loop are coarse and may be early
            self._wait(due_ns)
            return
        self._due_ns = None
        self._ring()
