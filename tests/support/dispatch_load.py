"""Dispatchers after a story, and under steady load for what measures or counts a decision's cost."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from scheduler.dispatch import (
    BatchArrived,
    Dispatch,
    DispatchConfig,
    DispatchState,
    Journal,
    LaunchFinished,
    LaunchStopped,
    SessionOpened,
    Stimulus,
)
from scheduler.model import Arrival, DeviceCosts, Tenant, simulate

__all__ = ["after", "backlog", "batch", "preempted_journal", "steady"]

_MS: Final = 10**6
_STOPPED: Final = 0.3
"""Share of slices that do not end their batch."""


def after(*stimuli: Stimulus, config: DispatchConfig | None = None) -> Dispatch:
    dispatch = Dispatch(DispatchState(config=config or DispatchConfig()))
    for stimulus in stimuli:
        dispatch.on(stimulus)
    return dispatch


def batch(at_ns: int, session: str, seq: int = 0) -> BatchArrived:
    return BatchArrived(at_ns, session, 1, seq, 1)


def preempted_journal(folder: Path) -> Path:
    """Of a virtual device: ``low`` (P3) runs batches of 30 ms one after another, ``high`` (P0) comes every 50 ms for 10 ms and stops it."""
    tenants = [Tenant("high", 0, close_after_ns=0), Tenant("low", 3, close_after_ns=0)]
    arrivals = [Arrival("low", seq, 30 * _MS, 30 * _MS, after_seq=seq - 1) for seq in range(20)]
    arrivals += [Arrival("high", seq, 10 * _MS, 10 * _MS, at_ns=(5 + 50 * seq) * _MS) for seq in range(12)]
    path, journal = folder / "gpu0-00000001-00000000000001.journal", Journal()
    records = simulate(tenants, arrivals, DispatchConfig(), DeviceCosts()).records
    path.write_bytes(b"".join(journal.add(record.stimulus, record.decisions) for record in records))
    return path


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
