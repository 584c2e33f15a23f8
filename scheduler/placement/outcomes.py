"""What a task's state follows from how its scripts ended. Pure.

A task may have several sessions: one a device, and those of processes that its script started. The main process decides; a child counts
only where the main process reports nothing, a client that stopped answering only where no other reports anything, and of equals a failure.
"""

from __future__ import annotations

from typing import Final

from bus_schemas.events import Outcome
from scheduler.placement.states import COMPLETED, FAILED, LOST, REASON_CLIENT_LOST, REASON_FAULT

__all__ = ["decisive", "state_after"]

_SIGNALS: Final = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 6: "SIGABRT", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


def decisive(one: Outcome | None, other: Outcome | None) -> Outcome | None:
    """Which of two outcomes of one task counts; None: nothing was reported."""
    if one is None or other is None:
        return one if other is None else other
    return max(one, other, key=_weight)


def _weight(outcome: Outcome) -> tuple[bool, bool, bool]:
    return not outcome.lost, not outcome.child, _failed(outcome)


def _failed(outcome: Outcome) -> bool:
    return bool(outcome.exit_code or outcome.error or outcome.signal)


def state_after(outcome: Outcome | None, failed: bool, reason: str) -> tuple[str, str]:
    """(state, reason) of a task whose last session closed. ``failed`` and ``reason``: what the node says of that session, which
    counts where no script reported."""
    if outcome is None:
        return (FAILED, reason) if failed else (COMPLETED, "")
    if outcome.lost:
        return LOST, REASON_CLIENT_LOST
    if outcome.signal:
        name = _SIGNALS.get(outcome.signal)
        return FAILED, f"killed by signal {outcome.signal}{f' ({name})' if name else ''}"
    if outcome.error:
        return FAILED, f"{outcome.error}, exit code {outcome.exit_code}"
    if outcome.exit_code:
        return FAILED, f"exit code {outcome.exit_code}"
    return (FAILED, REASON_FAULT) if failed else (COMPLETED, "")
