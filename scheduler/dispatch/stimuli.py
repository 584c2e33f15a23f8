"""What a device's dispatcher may be told. Data types only.

They are journalled, so the rules of the wire hold: array-like, hand-written tags, new fields go last and have defaults.
Every ``at_ns`` is the node's monotonic clock and never runs backwards from one stimulus to the next.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = [
    "PRIORITIES", "OK", "FAULT", "WEIGHT_DEFAULT", "DispatchConfig", "SessionOpened", "SessionClosed", "BatchArrived", "LaunchFinished",
    "LaunchStopped", "LaunchReturned", "MemoryReady", "ConfigChanged", "Tick", "Stimulus",
]  # fmt: skip

PRIORITIES: Final = 5
"""P0 (highest) to P4."""

WEIGHT_DEFAULT: Final = 100

OK: Final = 0
FAULT: Final = 1
"""Outcomes of a launch: it ran, or it ended its session."""


class DispatchConfig(msgspec.Struct, array_like=True, frozen=True):
    """Limits of one device's dispatcher.

    ``in_flight_max``: launches handed to the executor and not finished (it runs them in order; 2 hides the way there and back).
    ``in_flight_low_max``: the same, for sessions that share the device with a session of higher priority: the longest a P0 launch waits.
    ``parked_batches_max`` and ``parked_bytes_max``: what one session may have waiting, in order or not.
    """

    in_flight_max: int = 2
    in_flight_low_max: int = 1
    parked_batches_max: int = 64
    parked_bytes_max: int = 256 << 20

    def __post_init__(self) -> None:
        if not 1 <= self.in_flight_low_max <= self.in_flight_max:
            raise ValueError(f"1 <= in_flight_low_max ({self.in_flight_low_max}) <= in_flight_max ({self.in_flight_max}) must hold")
        if self.parked_batches_max < 1 or self.parked_bytes_max < 1:
            raise ValueError("parked_batches_max and parked_bytes_max must be at least 1")


class SessionOpened(msgspec.Struct, array_like=True, frozen=True, tag="session_opened.v1"):
    """A session may run here. ``next_seq``: the first batch it will execute (after a restart: the one after the last executed).
    ``chain``: its launch digest so far (after a restart), else empty. ``weight``: its part of the core time inside its level.
    ``sla_ns``: the latency that 99 of 100 of its batches shall have, from arrival to the end of their launch; P0 only, 0: none.
    ``pace_permille``: the most of the device's core time it may take, 0: no bound."""

    at_ns: int
    session: str
    epoch: int
    priority: int
    next_seq: int = 0
    chain: bytes = b""
    weight: int = WEIGHT_DEFAULT
    sla_ns: int = 0
    pace_permille: int = 0


class SessionClosed(msgspec.Struct, array_like=True, frozen=True, tag="session_closed.v1"):
    """A session ends once batch ``last_seq`` has run (at once when it has, or for -1). What is later than ``last_seq`` is dropped."""

    at_ns: int
    session: str
    last_seq: int = -1


class BatchArrived(msgspec.Struct, array_like=True, frozen=True, tag="batch_arrived.v1"):
    """A batch that passed the edge's checks. ``content``: digest of what it will run (goes into the session's launch digest)."""

    at_ns: int
    session: str
    epoch: int
    seq: int
    nbytes: int
    content: bytes = b""


class LaunchFinished(msgspec.Struct, array_like=True, frozen=True, tag="launch_finished.v1"):
    """The executor is done with a launch. ``core_ns``: the measured cost of its last slice, which lasted ``wall_ns``. ``outcome``: OK or
    FAULT (the session is over)."""

    at_ns: int
    session: str
    seq: int
    core_ns: int
    outcome: int = OK
    wall_ns: int = 0


class LaunchStopped(msgspec.Struct, array_like=True, frozen=True, tag="launch_stopped.v1"):
    """A slice ended before its batch did: its limit was reached, or it was preempted. The batch waits to go on. ``wall_ns`` 0: it had not
    begun."""

    at_ns: int
    session: str
    seq: int
    core_ns: int
    wall_ns: int


class LaunchReturned(msgspec.Struct, array_like=True, frozen=True, tag="launch_returned.v1"):
    """The executor gave a launch back unrun. ``resend``: it lacked a body, so the batch is forgotten and the session sends it again;
    otherwise (it came behind such a one) the batch waits as before. ``memory``: the memory it needs is not free; the session's batches
    wait for a MemoryReady."""

    at_ns: int
    session: str
    seq: int
    resend: bool
    memory: bool = False


class MemoryReady(msgspec.Struct, array_like=True, frozen=True, tag="memory_ready.v1"):
    """What the session's next batch needs may be had now: it may be launched again."""

    at_ns: int
    session: str


class ConfigChanged(msgspec.Struct, array_like=True, frozen=True, tag="config_changed.v1"):
    at_ns: int
    config: DispatchConfig


class Tick(msgspec.Struct, array_like=True, frozen=True, tag="tick.v1"):
    """Nothing but time: brings the occupancy totals up to ``at_ns`` (the edge of a telemetry window)."""

    at_ns: int


Stimulus = (
    SessionOpened | SessionClosed | BatchArrived | LaunchFinished | LaunchStopped | LaunchReturned | MemoryReady | ConfigChanged | Tick
)
