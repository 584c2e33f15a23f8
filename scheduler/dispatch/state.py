"""The dispatcher's state: what one device has open, waiting and in flight, phases of sessions, and its utilization and starvation, exact,
from the times of stimuli. Data only; changed by its neighbours.

A session's state machine (``Phase``), with every legal step (``TRANSITIONS``):

    OPEN ──SessionClosed──▶ CLOSING ──its last batch has run──▶ RELEASED
     │ a launch faults       │ a launch faults                     ▲
     ▼                       ▼                                     │
    FAULTED ─SessionClosed─▶ ENDING ───nothing is in flight────────┘

- *busy*: at least one launch is in flight.
- *fed*: busy, and at least one further launch waits: in flight behind the running one, or ready and not handed over yet.

Utilization % is busy time over the window; starvation % is fed time over the window (high: the device never lacks work). Both are
kept as totals in nanoseconds: a window is the difference of two totals, so no window is ever lost or counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from scheduler.dispatch.stimuli import PRIORITIES, WEIGHT_DEFAULT, DispatchConfig

__all__ = ["TRANSITIONS", "DispatchState", "Flight", "Level", "Occupancy", "Phase", "SessionState", "Waiting", "percent"]


@dataclass(slots=True)
class Occupancy:
    """Totals up to ``at_ns``; ``busy`` and ``fed`` are what holds from then on."""

    at_ns: int = 0
    busy_ns: int = 0
    fed_ns: int = 0
    busy: bool = False
    fed: bool = False

    def advance(self, at_ns: int) -> None:
        """Count the time up to ``at_ns`` with what held until now."""
        passed_ns = at_ns - self.at_ns
        if self.busy:
            self.busy_ns += passed_ns
        if self.fed:
            self.fed_ns += passed_ns
        self.at_ns = at_ns

    def set(self, in_flight: int, ready: int) -> None:
        """What holds from ``at_ns`` on: launches in flight, and sessions with a launch ready beside them."""
        self.busy = in_flight > 0
        self.fed = self.busy and in_flight + ready > 1


def percent(part_ns: int, window_ns: int) -> int:
    """``part_ns`` of ``window_ns`` in whole percent, rounded half up, 0 for an empty window."""
    if window_ns <= 0:
        return 0
    return (200 * part_ns + window_ns) // (2 * window_ns)


Entry = tuple[int, int, str]
"""An entry of a heap: key, arrival of the batch, session."""


class Phase(StrEnum):
    """The phase of a session."""

    #: Its batches are kept and launched.
    OPEN = "open"
    #: ``last_seq`` is set: batches up to it still run, later ones are dropped.
    CLOSING = "closing"
    #: A launch of it faulted: nothing is launched any more, new batches are refused; it is not closed yet.
    FAULTED = "faulted"
    #: Faulted and closed: waits for its launches in flight.
    ENDING = "ending"
    #: Nothing of it runs or waits; the state does not hold it any more.
    RELEASED = "released"


TRANSITIONS: Final = frozenset(
    {
        (Phase.OPEN, Phase.CLOSING),
        (Phase.OPEN, Phase.FAULTED),
        (Phase.CLOSING, Phase.ENDING),
        (Phase.CLOSING, Phase.RELEASED),
        (Phase.FAULTED, Phase.ENDING),
        (Phase.ENDING, Phase.RELEASED),
    }
)
"""(from, to) of every legal step; any other raises IllegalTransition."""

_OPEN, _CLOSING, _FAULTED, _ENDING, _ = Phase  # attributes of an enumeration cost a call each


@dataclass(slots=True)
class Waiting:
    """A batch that is here and not over."""

    seq: int
    #: Bytes of the encoded batch.
    nbytes: int
    #: Digest of what it runs.
    content: bytes
    #: Its number in the device's order of arrival.
    arrival: int
    #: When it arrived.
    at_ns: int = 0
    #: How many slices of it have run.
    slices: int = 0
    #: Wall time of these slices.
    wall_ns: int = 0
    #: Core time of these slices.
    core_ns: int = 0
    #: It was launched before.
    tried: bool = False


@dataclass(slots=True)
class Flight:
    """A launch with the executor."""

    session: str
    seq: int
    #: The level at which it runs.
    level: int
    #: When it is stopped, after that much time; 0: never.
    limit_ns: int
    #: It counts against the low budget (see limits).
    low: bool = False
    #: It is a slice out of the reserve: nothing preempts it.
    reserved: bool = False
    #: It is expected to end its batch.
    whole: bool = True
    #: It was asked to stop.
    preempted: bool = False
    #: Core time expected of it.
    estimate_ns: int = 0
    #: What of ``estimate_ns`` is in the session's tag, as virtual time.
    charged: int = 0
    #: Since when another session of its level waits or runs too, -1: none did. Time before that does not count against its share.
    contended_ns: int = -1
    #: Its session is ended at once, so the rest of its batch never runs.
    ends: bool = False


@dataclass(slots=True)
class SessionState:
    """An open session. Times in ns of the node's monotonic clock."""

    session: str
    epoch: int
    priority: int
    #: The only batch of the session that may be launched.
    next_seq: int
    #: Launch digest after the last launch (blake3, 32 bytes; empty before the first).
    chain: bytes
    #: Its part of the core time inside its level, 1 to WEIGHT_MAX.
    weight: int = WEIGHT_DEFAULT
    #: Latency target, 0: none.
    sla_ns: int = 0
    #: The most of the device's core time it may take, 0: no bound.
    pace_permille: int = 0
    #: Batches that may be launched, or are parked behind a missing one, by seq; all >= ``next_seq``.
    waiting: dict[int, Waiting] = field(default_factory=dict)
    #: Sum of their ``nbytes``.
    waiting_bytes: int = 0
    #: Batches in flight in order of launch, each with the chain before it, so that a launch given back leaves no trace.
    launched: dict[int, tuple[Waiting, bytes]] = field(default_factory=dict)
    #: The last batch that runs, set once it is closed (-1: none).
    last_seq: int | None = None
    #: Changed by Dispatch._transition alone.
    phase: Phase = Phase.OPEN
    #: The steps of its state machine so far, (at_ns, from, to): at most three.
    story: list[tuple[int, Phase, Phase]] = field(default_factory=list)

    #: Its entry in the heap of ``level``, None: no batch of it may be launched now.
    entry: Entry | None = None
    #: Its entry in the heap of deadlines.
    urgent: Entry | None = None
    #: The level at which its next slice runs.
    level: int = 0
    #: It had an entry among the deadlines and lost it (see fair, rule 3).
    past_lead: bool = False
    #: It takes part in the shares of its level.
    active: bool = False
    #: It has a batch ready or in flight.
    present: bool = False

    #: Virtual time at which its next slice starts (see fair).
    tag: int = 0
    #: Levels won by waiting.
    raised: int = 0
    #: Its tag in the level that it was raised to.
    guest_tag: int = 0
    #: Since when it waits for its next slice.
    waits_since_ns: int = 0
    #: When it is raised next, 0: it is not.
    age_due_ns: int = 0
    #: Policy timeslice: its place in the line.
    turn: int = 0
    #: Policy timeslice: what is left of its turn.
    turn_left_ns: int = 0
    #: 1/1000 core-ns it may use, as of ``tokens_at_ns`` (see pacing).
    tokens: int = 0
    tokens_at_ns: int = 0
    #: When its pace lets it go, 0: it is not paced now.
    paced_until_ns: int = 0
    #: No batch of it is launched until MemoryReady.
    awaits_memory: bool = False

    #: Estimate: wall time of a batch.
    batch_wall_ns: int = 0
    #: Estimate: core time of a batch.
    batch_core_ns: int = 0
    #: Estimate: how far a slice runs beyond its limit.
    overrun_ns: int = 0

    #: Total of measured core time.
    core_ns: int = 0
    #: Total of batches that are over.
    launches: int = 0
    #: Total of batches launched.
    waits: int = 0
    #: Total of their times from arrival to first launch.
    wait_ns: int = 0
    #: The longest of these in the last window of telemetry.
    wait_max_ns: int = 0
    #: The longest of these since that window ended.
    window_wait_max_ns: int = 0
    #: Total of slices.
    slices: int = 0
    #: Total of their wall times.
    slice_ns: int = 0
    #: Total of time at the head of the executor's queue.
    run_ns: int = 0
    #: Total of time with work ready or in flight while another session was at that head, up to when it was last ``present``.
    behind_ns: int = 0
    #: The device's busy time when it became ``present``.
    mark_busy_ns: int = 0
    #: Its ``run_ns`` then.
    mark_run_ns: int = 0

    @property
    def live(self) -> bool:
        """Its batches are launched: it counts for the limits of others."""
        return self.phase is _OPEN or self.phase is _CLOSING

    @property
    def faulted(self) -> bool:
        return self.phase is _FAULTED or self.phase is _ENDING


@dataclass(slots=True)
class Level:
    """Sessions of one level that may be launched. The heaps delete lazily: an entry is current only if it is its session's own."""

    #: Virtual time (see fair).
    vtime: int = 0
    #: How many sessions may be launched.
    ready: int = 0
    #: Entries by Policy.key.
    heap: list[Entry] = field(default_factory=list)
    #: Entries by deadline.
    urgent: list[Entry] = field(default_factory=list)


@dataclass(slots=True)
class DispatchState:
    """One device."""

    config: DispatchConfig = field(default_factory=DispatchConfig)
    #: Time of the last stimulus.
    now_ns: int = 0
    #: Batches kept so far.
    arrivals: int = 0
    sessions: dict[str, SessionState] = field(default_factory=dict)
    #: Launches with the executor, in the order made.
    flights: list[Flight] = field(default_factory=list)
    #: When the first of ``flights`` became the first.
    head_since_ns: int = 0
    #: How many live sessions each priority has.
    open_by_priority: list[int] = field(default_factory=lambda: [0] * PRIORITIES)
    #: How many live sessions each latency target has.
    targets: dict[int, int] = field(default_factory=dict)
    #: The smallest of ``targets``, 0: none.
    target_ns: int = 0
    levels: list[Level] = field(default_factory=lambda: [Level() for _ in range(PRIORITIES)])
    #: Heap of (time, session) that waits for its pace; deletes lazily.
    paced: list[tuple[int, str]] = field(default_factory=list)
    #: Heap of (time, session) that is raised then; deletes lazily.
    ages: list[tuple[int, str]] = field(default_factory=list)
    #: Turns given so far (policy timeslice).
    turns: int = 0
    #: 1/100 core-ns owed to the lowest level with work.
    reserve_credit: int = 0
    occupancy: Occupancy = field(default_factory=Occupancy)

    @property
    def in_flight(self) -> int:
        return len(self.flights)

    @property
    def ready_count(self) -> int:
        """Sessions of which a batch may be launched now."""
        return sum(level.ready for level in self.levels)
