"""The dispatcher's state: what one device has open, waiting and in flight. Data only; changed by its neighbours in this folder."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.dispatch.occupancy import Occupancy
from scheduler.dispatch.stimuli import PRIORITIES, WEIGHT_DEFAULT, DispatchConfig

__all__ = ["DispatchState", "Flight", "Level", "SessionState", "Waiting"]

Entry = tuple[int, int, str]
"""A place in a heap: key, arrival of the batch, session."""


@dataclass(slots=True)
class Waiting:
    """A batch that is here and not over. ``arrival``: its place in the device's order of arrival, at ``at_ns``. ``slices``: how many
    ran, which took ``wall_ns`` and ``core_ns``. ``tried``: it was launched before."""

    seq: int
    nbytes: int
    content: bytes
    arrival: int
    at_ns: int = 0
    slices: int = 0
    wall_ns: int = 0
    core_ns: int = 0
    tried: bool = False


@dataclass(slots=True)
class Flight:
    """A launch with the executor. ``level``: at which it runs. ``low``: it counts against the low budget. ``whole``: it is expected to end
    its batch. ``estimate_ns``: the core time expected of it; ``charged``: what of that is in the session's tag. ``contended_ns``: since
    when another session of its level waits or runs too, -1: none did; only the time from then on counts against its fair share. ``ends``:
    its session is ended at once, so what is left of its batch never goes on."""

    session: str
    seq: int
    level: int
    limit_ns: int
    low: bool = False
    reserved: bool = False
    whole: bool = True
    preempted: bool = False
    estimate_ns: int = 0
    charged: int = 0
    contended_ns: int = -1
    ends: bool = False


@dataclass(slots=True)
class SessionState:
    """``next_seq`` is the only batch of the session that may be launched. ``waiting``: by seq, all >= next_seq. ``last_seq``: set once the
    session is closing. ``chain``: launch digest so far. ``launched``: every batch in flight with the chain before it, so that a launch
    given back leaves no trace.

    ``entry``: its place in the heap of its level (``level``), None: nothing of it may be launched now. ``urgent``: its place in the heap
    of deadlines; ``past_lead``: it had one and lost it (see fair, rule 3). ``active``: it takes part in the shares of its level. ``tag``:
    virtual time at which its next slice starts. ``raised``: levels won by waiting since ``waits_since_ns``; ``guest_tag``: its tag in
    that level; ``age_due_ns``: when it is raised next, 0: not. ``turn`` and ``turn_left_ns``: of policy timeslice. ``tokens`` (1/1000
    core-ns, up to ``tokens_at_ns``) and ``paced_until_ns`` (0: not paced now): see pacing. ``awaits_memory``: until MemoryReady.

    Estimates: ``batch_wall_ns`` and ``batch_core_ns`` of a whole batch, ``overrun_ns`` of a slice beyond its limit.
    Totals: ``core_ns`` measured; ``launches`` batches over; ``waits`` batches launched, their ``wait_ns`` from arrival to first launch,
    of which ``window_wait_max_ns`` was the longest since the last edge of a window and ``wait_max_ns`` in the window before that;
    ``slices`` and ``slice_ns``; ``run_ns`` at the head of the executor's queue; ``behind_ns`` with work ready or in flight (``present``)
    while another session was at that head, up to when it was last present; ``mark_*``: the totals when it became so."""

    session: str
    epoch: int
    priority: int
    next_seq: int
    chain: bytes
    weight: int = WEIGHT_DEFAULT
    sla_ns: int = 0
    pace_permille: int = 0
    waiting: dict[int, Waiting] = field(default_factory=dict)
    waiting_bytes: int = 0
    launched: dict[int, tuple[Waiting, bytes]] = field(default_factory=dict)
    last_seq: int | None = None
    faulted: bool = False
    entry: Entry | None = None
    urgent: Entry | None = None
    level: int = 0
    past_lead: bool = False
    active: bool = False
    present: bool = False
    tag: int = 0
    raised: int = 0
    guest_tag: int = 0
    waits_since_ns: int = 0
    age_due_ns: int = 0
    turn: int = 0
    turn_left_ns: int = 0
    tokens: int = 0
    tokens_at_ns: int = 0
    paced_until_ns: int = 0
    awaits_memory: bool = False
    batch_wall_ns: int = 0
    batch_core_ns: int = 0
    overrun_ns: int = 0
    core_ns: int = 0
    launches: int = 0
    waits: int = 0
    wait_ns: int = 0
    wait_max_ns: int = 0
    window_wait_max_ns: int = 0
    slices: int = 0
    slice_ns: int = 0
    run_ns: int = 0
    behind_ns: int = 0
    mark_busy_ns: int = 0
    mark_run_ns: int = 0


@dataclass(slots=True)
class Level:
    """Sessions of one level that may be launched. ``heap`` by Policy.key, ``urgent`` by deadline; an entry may be outdated, so it is
    checked when taken (it must be the session's own). ``ready``: how many sessions. ``vtime``: virtual time (see fair)."""

    vtime: int = 0
    ready: int = 0
    heap: list[Entry] = field(default_factory=list)
    urgent: list[Entry] = field(default_factory=list)


@dataclass(slots=True)
class DispatchState:
    """``flights``: launches with the executor, in the order made; ``head_since_ns``: when the first of them came first. ``targets``: open
    sessions by latency target, ``target_ns`` the smallest, 0: none. ``paced`` and ``ages``: heaps of (time, session), checked when taken
    like those of a level. ``arrivals``: batches kept so far. ``turns``: given so far. ``reserve_credit``: 1/100 core-ns owed to the lowest
    level with work."""

    config: DispatchConfig = field(default_factory=DispatchConfig)
    now_ns: int = 0
    arrivals: int = 0
    sessions: dict[str, SessionState] = field(default_factory=dict)
    flights: list[Flight] = field(default_factory=list)
    head_since_ns: int = 0
    open_by_priority: list[int] = field(default_factory=lambda: [0] * PRIORITIES)
    targets: dict[int, int] = field(default_factory=dict)
    target_ns: int = 0
    levels: list[Level] = field(default_factory=lambda: [Level() for _ in range(PRIORITIES)])
    paced: list[tuple[int, str]] = field(default_factory=list)
    ages: list[tuple[int, str]] = field(default_factory=list)
    turns: int = 0
    reserve_credit: int = 0
    occupancy: Occupancy = field(default_factory=Occupancy)

    @property
    def in_flight(self) -> int:
        return len(self.flights)

    @property
    def ready_count(self) -> int:
        """Sessions of which a batch may be launched now."""
        return sum(level.ready for level in self.levels)
