"""What a device's dispatcher decides, and the names of its reasons. Data types only; journalled, so append-only (see stimuli)."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = [
    "ALREADY_RUN", "ALREADY_WAITING", "AFTER_LAST", "SESSION_OVER", "EPOCH_STALE", "DROP_REASONS",
    "SESSION_UNKNOWN", "SESSION_EXISTS", "SESSION_CLOSING", "SESSION_FAULTED", "PRIORITY_INVALID", "SEQ_INVALID", "EPOCH_UNKNOWN",
    "PARKED_BATCHES_FULL", "PARKED_BYTES_FULL", "REFUSE_REASONS",
    "Launch", "Preempt", "Park", "Drop", "Refuse", "Release", "Decision",
]  # fmt: skip

# Why a batch is dropped: nothing is wrong with the session, nobody needs to hear of it.
ALREADY_RUN: Final = "already_run"
"""Its seq was launched before: a replay."""
ALREADY_WAITING: Final = "already_waiting"
"""The same (session, seq) waits here: a repeat."""
AFTER_LAST: Final = "after_last"
"""The session closed at an earlier seq."""
SESSION_OVER: Final = "session_over"
"""It waited when its session faulted or closed."""
EPOCH_STALE: Final = "epoch_stale"
"""Sent to an earlier life of this session."""

# Why a session or batch is refused: the session must be told.
SESSION_UNKNOWN: Final = "session_unknown"
SESSION_EXISTS: Final = "session_exists"
SESSION_CLOSING: Final = "session_closing"
SESSION_FAULTED: Final = "session_faulted"
PRIORITY_INVALID: Final = "priority_invalid"
SEQ_INVALID: Final = "seq_invalid"
"""Negative seq or size."""
EPOCH_UNKNOWN: Final = "epoch_unknown"
"""A newer epoch than was opened here."""
PARKED_BATCHES_FULL: Final = "parked_batches_full"
PARKED_BYTES_FULL: Final = "parked_bytes_full"

DROP_REASONS: Final = frozenset({ALREADY_RUN, ALREADY_WAITING, AFTER_LAST, SESSION_OVER, EPOCH_STALE})
REFUSE_REASONS: Final = frozenset(
    {SESSION_UNKNOWN, SESSION_EXISTS, SESSION_CLOSING, SESSION_FAULTED, PRIORITY_INVALID, SEQ_INVALID, EPOCH_UNKNOWN, PARKED_BATCHES_FULL,
     PARKED_BYTES_FULL}
)  # fmt: skip


class Launch(msgspec.Struct, array_like=True, frozen=True, tag="launch.v1"):
    """Hand this batch, or what is left of it, to the executor now. ``limit_ns``: stop it after about that time, 0: let it run to its end.
    ``slice``: counts the launches of this batch from 0."""

    session: str
    seq: int
    limit_ns: int = 0
    slice: int = 0


class Preempt(msgspec.Struct, array_like=True, frozen=True, tag="preempt.v1"):
    """Stop this launch as soon as it can be; it answers with LaunchStopped, or LaunchFinished when it was quicker."""

    session: str
    seq: int


class Park(msgspec.Struct, array_like=True, frozen=True, tag="park.v1"):
    """Keep this batch: an earlier one of its session has not come yet."""

    session: str
    seq: int


class Drop(msgspec.Struct, array_like=True, frozen=True, tag="drop.v1"):
    """Forget this batch silently."""

    session: str
    seq: int
    reason: str


class Refuse(msgspec.Struct, array_like=True, frozen=True, tag="refuse.v1"):
    """Tell the session no. ``seq`` -1: the session itself is refused."""

    session: str
    seq: int
    reason: str


class Release(msgspec.Struct, array_like=True, frozen=True, tag="release.v1"):
    """Nothing of this session runs or waits any more: its memory may go. The last word about a session."""

    session: str


Decision = Launch | Preempt | Park | Drop | Refuse | Release
