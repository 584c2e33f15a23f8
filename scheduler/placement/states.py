"""Task phases with their legal steps, and the state that follows from how its scripts ended; configuration keys with
limits and defaults, and why things ended. Pure; words are appended, never renamed.

A task may have several sessions: one a device, and those of processes that its script started. The main process decides; a child counts
only where the main process reports nothing, a client that stopped answering only where no other reports anything, and of equals a failure.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from bus_schemas.events import Outcome
from scheduler.vram.overcommit import PERCENT_MAX

PRIORITY_MAX: Final = 4
"""The lowest priority; 0 is the highest."""

QUEUED: Final = "queued"
STARTED: Final = "started"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
LOST: Final = "lost"
"""The client stopped answering, so how the script ended is not known."""
STATES: Final = (QUEUED, STARTED, COMPLETED, FAILED, CANCELLED, LOST)
LIVE: Final = frozenset({QUEUED, STARTED})
"""A placed task in one of these holds its VRAM."""


class Phase(StrEnum):
    """The phase of a task; ``state`` of a TaskView is the word of REST and log for it (both of the first two are queued)."""

    #: Submitted, and not placed, or not any more.
    WAITING = "waiting"
    #: Placed: it holds its VRAM there; no session of it has opened, or, of a reservation, is open.
    PLACED = "placed"
    #: A session of it opened.
    STARTED = "started"
    COMPLETED = "completed"
    FAILED = "failed"
    #: For ever.
    CANCELLED = "cancelled"
    #: Its client stopped answering.
    LOST = "lost"


TRANSITIONS: Final = frozenset(
    {
        (Phase.WAITING, Phase.PLACED),
        (Phase.WAITING, Phase.STARTED),
        (Phase.WAITING, Phase.COMPLETED),
        (Phase.WAITING, Phase.FAILED),
        (Phase.WAITING, Phase.CANCELLED),
        (Phase.PLACED, Phase.WAITING),  # its node was lost before it started
        (Phase.PLACED, Phase.STARTED),
        (Phase.PLACED, Phase.COMPLETED),
        (Phase.PLACED, Phase.FAILED),
        (Phase.PLACED, Phase.CANCELLED),
        (Phase.STARTED, Phase.COMPLETED),
        (Phase.STARTED, Phase.FAILED),
        (Phase.STARTED, Phase.CANCELLED),
        (Phase.STARTED, Phase.LOST),
        (Phase.STARTED, Phase.WAITING),  # it was displaced: it is to run elsewhere
        (Phase.STARTED, Phase.PLACED),  # a reservation between two sessions
        (Phase.FAILED, Phase.WAITING),  # the same, after its node was lost
        (Phase.FAILED, Phase.COMPLETED),  # a reservation is released while its node is lost: it does not come back with the node
        (Phase.FAILED, Phase.FAILED),  # the same, of a job that failed
        (Phase.FAILED, Phase.CANCELLED),  # its node was lost as it was cancelled
        (Phase.LOST, Phase.STARTED),  # another session of the same task
        (Phase.FAILED, Phase.STARTED),  # its node came back, or a session opened late
        (Phase.COMPLETED, Phase.STARTED),  # another session of the same task
    }
)
"""(from, to) of every legal step. A fact that asks for another one changes nothing; the fold itself taking one is IllegalTransition."""

REPORTED: Final = {str(phase): phase for phase in (Phase.STARTED, Phase.COMPLETED, Phase.FAILED, Phase.CANCELLED, Phase.LOST)}
"""The phases that a TaskStateChanged may ask for, by its word."""

STORY_MAX: Final = 16
"""Steps of a task's state machine that are kept for error messages."""

GLOBAL: Final = "global"
ENVIRONMENT: Final = "environment"
OVERCOMMIT_GLOBAL: Final = "default_vram_overcommit_percent"
OVERCOMMIT_NODE: Final = "overcommit_vram_percent"
DRAINED: Final = "drained"
QUEUE_AGE_MS: Final = "queue_age_ms"
"""Global: a waiting task rises one level for each of these; 0: never."""
QUEUE_PROTECT_MS: Final = "queue_protect_ms"
"""Global: after this wait a task reserves the devices on which it needs least to end; 0: never."""
QUEUE_RESERVATIONS: Final = "queue_reservations_max"
"""Global: how many tasks may have reserved devices at a time."""
DEFAULT_VRAM_MB: Final = "default_vram_mb"
"""Global: the VRAM in MiB by which a task is placed that names none, a quarter of the largest device at most; 0: tasks must name it."""

PACK: Final = "pack"
"""Global: 1: prefer devices that hold more (best fit); 0: those that hold less."""
DEFRAGMENT_AFTER_MS: Final = "defragment_after_ms"
"""Global: after this wait of a task that fits nowhere a running one is moved, if that makes room; 0: never."""

_DAY_MS: Final = 86_400_000
GLOBAL_LIMITS: Final = {
    OVERCOMMIT_GLOBAL: PERCENT_MAX,
    QUEUE_AGE_MS: 7 * _DAY_MS,
    QUEUE_PROTECT_MS: 7 * _DAY_MS,
    QUEUE_RESERVATIONS: 10_000,
    DEFAULT_VRAM_MB: 1 << 26,
    PACK: 1,
    DEFRAGMENT_AFTER_MS: 7 * _DAY_MS,
}
"""The largest value of each global key; the smallest is 0."""
NODE_LIMITS: Final = {OVERCOMMIT_NODE: PERCENT_MAX, DRAINED: 1}
DEFAULTS: Final = {
    OVERCOMMIT_GLOBAL: 0,
    QUEUE_AGE_MS: 600_000,
    QUEUE_PROTECT_MS: 300_000,
    QUEUE_RESERVATIONS: 32,
    DEFAULT_VRAM_MB: 4096,
    PACK: 0,
    DEFRAGMENT_AFTER_MS: 0,
}
"""What holds where neither the log's global value nor the environment says otherwise."""

DISPLACED_WAIT_MS: Final = _DAY_MS
"""How long a displaced task waits for a place whose submission names no limit: no client waits longer (WOOLY_RECOVERY_WAIT_S)."""

REASON_NODE_LOST: Final = "node lost"
REASON_CLIENT_LOST: Final = "the client stopped answering"
REASON_FAULT: Final = "a fault ended its session on the node; the script ended with exit code 0"
REASON_NO_FIT: Final = "no device fits"
REASON_QUEUE_TIMEOUT: Final = "no room came within the task's queue timeout"
REASON_NEVER_STARTED: Final = "no session opened in time"
REASON_TAKEN: Final = "a runner took its script"
"""Of the fact that a task has started, by a controller that knew it as placed."""
REASON_RESTARTED: Final = "node restarted without the task's sessions"
REASON_DISPLACED: Final = "displaced"
"""Of a session that its node ended because the task is to run elsewhere."""
REASON_SESSION_REUSED: Final = "its session was cut off, and another task took the session's name"
CANCELLED_BY: Final = "cancelled by "
"""What the reason of a cancelled task begins with; then the name of who cancelled it."""
OWN_REASONS: Final = (REASON_NODE_LOST, REASON_QUEUE_TIMEOUT, REASON_NEVER_STARTED, REASON_TAKEN, REASON_RESTARTED)
"""What the projection knows a fact of a controller by; reasons that people give do not begin with one."""
CUT_LOST: Final = "lost"
CUT_RESTARTED: Final = "restarted"


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
