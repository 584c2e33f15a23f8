"""The decisions of a device's dispatcher, and the names of their reasons. Data types only; journalled, so append-only (see stimuli)."""

from __future__ import annotations

from typing import Final

import msgspec

# Why a batch is dropped: nothing is wrong with the session, and the client gets no message.
ALREADY_RUN: Final = "already_run"
"""Its seq was launched before: a replay."""
ALREADY_WAITING: Final = "already_waiting"
"""The same (session, seq) waits here: a repeat."""
AFTER_LAST: Final = "after_last"
"""The session closed at an earlier seq."""
SESSION_OVER: Final = "session_over"
"""It waited when its session faulted or closed."""
EPOCH_STALE: Final = "epoch_stale"
"""Sent to an earlier epoch of this session."""

# Why a session or batch is refused: the client gets the reason.
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
WEIGHT_INVALID: Final = "weight_invalid"
"""Not in 1 to WEIGHT_MAX."""
PACE_INVALID: Final = "pace_invalid"
"""Not in 0 to 1000 permille."""
SLA_INVALID: Final = "sla_invalid"
"""A latency target that is negative, or not of a P0 session."""
SLA_CONTRADICTORY: Final = "sla_contradictory"
"""A latency target and a pace: the pace makes batches wait as long as it takes."""
SLA_UNREACHABLE: Final = "sla_unreachable"
"""What a batch may have to wait for (limits.blocking_ns) is longer than the target."""

DROP_REASONS: Final = frozenset({ALREADY_RUN, ALREADY_WAITING, AFTER_LAST, SESSION_OVER, EPOCH_STALE})
REFUSE_REASONS: Final = frozenset(
    {SESSION_UNKNOWN, SESSION_EXISTS, SESSION_CLOSING, SESSION_FAULTED, PRIORITY_INVALID, SEQ_INVALID, EPOCH_UNKNOWN, PARKED_BATCHES_FULL,
     PARKED_BYTES_FULL, WEIGHT_INVALID, PACE_INVALID, SLA_INVALID, SLA_CONTRADICTORY, SLA_UNREACHABLE}
)  # fmt: skip


# Why the next batch of a session does not run at a moment (see explain).
RUNNING: Final = "running"
"""It does run."""
QUEUED: Final = "queued"
"""It is with the executor, behind launches made before it."""
STOPPING: Final = "stopping"
"""It was preempted, and its slice has not ended yet."""
HIGHER_PRIORITY: Final = "higher_priority"
"""Sessions of a higher level (or raised to it) run or go first."""
FAIR_SHARE: Final = "fair_share"
"""Others of its level have used less core time for their weight."""
DEADLINE_ORDER: Final = "deadline_order"
"""A session of its level with a latency target goes first."""
LOW_BUDGET: Final = "low_budget"
"""The time that low work may have in flight beside a higher priority is taken."""
IN_FLIGHT_FULL: Final = "in_flight_full"
"""It is the next; the executor has its fill of launches."""
RESERVED_SHARE: Final = "reserved_share"
"""The lowest level gets the part reserved for it."""
ARRIVAL_ORDER: Final = "arrival_order"
"""Policy fifo: others arrived before it."""
TURN_ORDER: Final = "turn_order"
"""Policy timeslice: it is the turn of others."""
PACED: Final = "paced"
"""It has used what its own pace gives."""
AWAITS_MEMORY: Final = "awaits_memory"
PARKED: Final = "parked"
"""An earlier batch of its session has not come."""
IDLE: Final = "idle"
"""The session has no batch here."""
FAULTED: Final = "faulted"
NOT_OPEN: Final = "not_open"

RULES: Final = frozenset(
    {RUNNING, QUEUED, STOPPING, HIGHER_PRIORITY, FAIR_SHARE, DEADLINE_ORDER, LOW_BUDGET, IN_FLIGHT_FULL, RESERVED_SHARE, ARRIVAL_ORDER,
     TURN_ORDER, PACED, AWAITS_MEMORY, PARKED, IDLE, FAULTED, NOT_OPEN}
)  # fmt: skip


class Launch(msgspec.Struct, array_like=True, frozen=True, tag="launch.v1"):
    """Hand this batch, or what is left of it, to the executor now. ``limit_ns``: stop it after about that time, 0: let it run to its end.
    ``slice``: how many slices of this batch have run; 0: the executor has nothing of it."""

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
