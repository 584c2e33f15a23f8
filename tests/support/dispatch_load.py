"""A dispatcher under steady load, for what measures or counts a decision's cost."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from scheduler.dispatch import BatchArrived, Dispatch, LaunchFinished, LaunchStopped, SessionOpened, Stimulus

__all__ = ["backlog", "steady"]

_MS: Final = 10**6
_STOPPED: Final = 0.3
"""Share of slices that do not end their batch."""


def backlog(sessions: int, levels: int, **more: int) -> Dispatch:
    """A dispatcher of so many sessions over so many levels, of different weights, each with one batch waiting or in flight."""
    dispatch = Dispatch()
    for i in range(sessions):
        dispatch.on(SessionOpened(0, f"s{i:04}", 1, i % levels, weight=50 + i % 300, **more))
        dispatch.on(BatchArrived(0, f"s{i:04}", 1, 0, 100, b"x" * 32))
    return dispatch


def steady(dispatch: Dispatch, steps: int, feed: Callable[[Stimulus], object]) -> None:
    """So many slices end, each 1 ms after the one before; a session whose batch is over sends the next. ``feed`` takes the stimuli."""
    draw = random.Random(1)
    for _ in range(steps):
        flight = dispatch.state.flights[0]
        at_ns = dispatch.state.now_ns + _MS
        if flight.preempted or draw.random() < _STOPPED:
            feed(LaunchStopped(at_ns, flight.session, flight.seq, _MS, _MS))
        else:
            feed(LaunchFinished(at_ns, flight.session, flight.seq, _MS, wall_ns=_MS))
            feed(BatchArrived(at_ns, flight.session, 1, flight.seq + 1, 100, b"x" * 32))
