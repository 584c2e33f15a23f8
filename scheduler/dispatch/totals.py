"""Totals of a session for telemetry: running totals, exact up to the last stimulus, and the word for its state."""

from __future__ import annotations

from typing import Final, NamedTuple

from scheduler.dispatch.state import DispatchState, Phase

RUNNING: Final = "running"
READY: Final = "ready"
IDLE: Final = "idle"
PACED: Final = "paced"
AWAITS_MEMORY: Final = "awaits memory"
CLOSING: Final = "closing"
"""As people read them (bus_schemas.telemetry.RunningSession.state)."""


class Totals(NamedTuple):
    """Since the session opened; the names of bus_schemas.telemetry.RunningSession. ``wait_max_ns``: of the window that ended with the last
    Tick. Differences of two of the others are exact for the time between."""

    core_ns: int = 0
    waits: int = 0
    wait_ns: int = 0
    wait_max_ns: int = 0
    slices: int = 0
    slice_ns: int = 0
    behind_ns: int = 0


def totals(state: DispatchState, session: str) -> Totals:
    """The totals of a session; all 0 for one that is not open."""
    s = state.sessions.get(session)
    if s is None:
        return Totals()
    behind_ns = s.behind_ns
    if s.present:
        behind_ns += (state.occupancy.busy_ns - s.mark_busy_ns) - (s.run_ns - s.mark_run_ns)
    return Totals(
        core_ns=s.core_ns,
        waits=s.waits,
        wait_ns=s.wait_ns,
        wait_max_ns=s.wait_max_ns,
        slices=s.slices,
        slice_ns=s.slice_ns,
        behind_ns=behind_ns,
    )


def standing(state: DispatchState, session: str) -> str:
    """The word for what the session does now; empty for one that is not open."""
    s = state.sessions.get(session)
    if s is None:
        return ""
    if s.launched:
        return RUNNING
    if s.entry is not None:
        return READY
    if s.awaits_memory:
        return AWAITS_MEMORY
    if s.next_seq in s.waiting and s.paced_until_ns > state.now_ns:
        return PACED
    return CLOSING if s.phase in (Phase.CLOSING, Phase.ENDING) else IDLE


def next_window(state: DispatchState) -> None:
    """A window of telemetry ends: the longest waits of the next one start from 0."""
    for session in state.sessions.values():
        session.wait_max_ns = session.window_wait_max_ns
        session.window_wait_max_ns = 0
