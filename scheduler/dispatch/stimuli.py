"""The stimuli of a device's dispatcher. Data types only.

They are journalled, so the rules of the wire hold: array-like, hand-written tags, new fields go last and have defaults.
Every ``at_ns`` is the node's monotonic clock and never runs backwards from one stimulus to the next.
"""

from __future__ import annotations

from typing import Final

import msgspec

PRIORITIES: Final = 5
"""P0 (highest) to P4."""

WEIGHT_DEFAULT: Final = 100
WEIGHT_MAX: Final = 10_000
PACE_FULL: Final = 1000

STRICT: Final = "strict"
FIFO: Final = "fifo"
TIMESLICE: Final = "timeslice"
POLICY_NAMES: Final = (STRICT, FIFO, TIMESLICE)
"""See order.POLICIES."""

OK: Final = 0
FAULT: Final = 1
"""Outcomes of a launch: it ran, or it ended its session."""


class DispatchConfig(msgspec.Struct, array_like=True, frozen=True):
    """Limits and policy of one device's dispatcher. Times are device time in ns."""

    #: Launches handed to the executor and not finished; it runs them in order, and 2 hide the way there and back.
    in_flight_max: int = 2
    #: The same for *low* sessions: beside a session of higher priority, or of P0 with a latency target.
    in_flight_low_max: int = 2
    #: Batches that one session may have waiting, in order or not.
    parked_batches_max: int = 64
    #: Their bytes.
    parked_bytes_max: int = 256 << 20
    #: A name of order.POLICIES.
    policy: str = "strict"
    #: The longest slice of a session beside others of its level.
    quantum_ns: int = 10_000_000
    #: The most low work in flight (sum of limits).
    low_slice_ns: int = 20_000_000
    #: The same beside a session with a latency target, as a part of the smallest target.
    low_budget_permille: int = 250
    #: No limit is shorter.
    slice_min_ns: int = 1_000_000
    #: How late after its limit, or after a Preempt, a slice may still be running.
    stop_ns: int = 1_000_000
    #: Of the device, for paces and the reserve.
    cores: int = 1
    #: A session that waited so long is raised by one level, and by one more after each further period, until a slice of it ran; 0: never.
    aging_ns: int = 0
    #: The part of the core time that goes to the lowest level with work; 0: none.
    reserve_percent: int = 0
    #: Over which that part is evened out.
    reserve_window_ns: int = 1_000_000_000
    #: A paced session may make up for that much time in which it did not run.
    pace_burst_ns: int = 50_000_000
    #: Core time (over weight) by which a session with a latency target may run ahead of its fair share.
    deadline_lead_ns: int = 100_000_000

    def __post_init__(self) -> None:
        if not 1 <= self.in_flight_low_max <= self.in_flight_max:
            raise ValueError(f"1 <= in_flight_low_max ({self.in_flight_low_max}) <= in_flight_max ({self.in_flight_max}) must hold")
        if self.parked_batches_max < 1 or self.parked_bytes_max < 1:
            raise ValueError("parked_batches_max and parked_bytes_max must be at least 1")
        if self.policy not in POLICY_NAMES:
            raise ValueError(f"policy {self.policy!r} is not one of {', '.join(POLICY_NAMES)}")
        if not 1 <= self.slice_min_ns <= min(self.quantum_ns, self.low_slice_ns):
            raise ValueError(f"slice_min_ns ({self.slice_min_ns}) must be at least 1, and not above quantum_ns and low_slice_ns")
        if not (1 <= self.low_budget_permille <= 1000 and 0 <= self.reserve_percent <= 90):
            raise ValueError("low_budget_permille must be in 1-1000 and reserve_percent in 0-90")
        if self.cores < 1 or self.reserve_window_ns < 1 or self.pace_burst_ns < 1:
            raise ValueError("cores, reserve_window_ns and pace_burst_ns must be at least 1")
        if self.stop_ns < 0 or self.aging_ns < 0 or self.deadline_lead_ns < 0:
            raise ValueError("stop_ns, aging_ns and deadline_lead_ns must not be negative")


class SessionOpened(msgspec.Struct, array_like=True, frozen=True, tag="session_opened.v1"):
    """A session may run here."""

    at_ns: int
    session: str
    epoch: int
    priority: int
    #: The first batch it will execute (after a restart: the one after the last executed).
    next_seq: int = 0
    #: Its launch digest so far (after a restart), else empty.
    chain: bytes = b""
    #: Its part of the core time inside its level.
    weight: int = WEIGHT_DEFAULT
    #: Latency that 99 of 100 of its batches shall have, from arrival to the end of their launch; P0 only, 0: none.
    sla_ns: int = 0
    #: The most of the device's core time it may take, 0: no bound.
    pace_permille: int = 0


class SessionClosed(msgspec.Struct, array_like=True, frozen=True, tag="session_closed.v1"):
    """A session ends once batch ``last_seq`` has run (at once when it has, or for -1). What is later than ``last_seq`` is dropped; what of
    that is in flight is waited for, or stopped (``stop``)."""

    at_ns: int
    session: str
    last_seq: int = -1
    stop: bool = False


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
    begun, and nothing of it is with the executor."""

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


class OverheadMeasured(msgspec.Struct, array_like=True, frozen=True, tag="overhead_measured.v1"):
    """The executor worked for the session beside its launches (memory, transfers, answers) for ``wall_ns`` since the last one of these:
    nothing else could run meanwhile. What is in flight of the session is not over yet."""

    at_ns: int
    session: str
    wall_ns: int


class MemoryReady(msgspec.Struct, array_like=True, frozen=True, tag="memory_ready.v1"):
    """What the session's next batch needs may be had now: it may be launched again."""

    at_ns: int
    session: str


class ConfigChanged(msgspec.Struct, array_like=True, frozen=True, tag="config_changed.v1"):
    at_ns: int
    config: DispatchConfig


class PriorityChanged(msgspec.Struct, array_like=True, frozen=True, tag="priority_changed.v1"):
    """An open session has another priority from now on. One that leaves P0 loses its latency target."""

    at_ns: int
    session: str
    priority: int


class Tick(msgspec.Struct, array_like=True, frozen=True, tag="tick.v1"):
    """Nothing but time: brings the totals up to ``at_ns``. It is the edge of a telemetry window, unless it only wakes what waits for a
    time (``wake``; see Dispatch.next_wakeup_ns)."""

    at_ns: int
    wake: bool = False


Stimulus = (
    SessionOpened | SessionClosed | BatchArrived | LaunchFinished | LaunchStopped | LaunchReturned | MemoryReady | ConfigChanged | Tick
    | PriorityChanged | OverheadMeasured
)  # fmt: skip
