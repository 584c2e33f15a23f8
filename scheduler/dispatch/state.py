"""The dispatcher's state: what one device has open, waiting and in flight. Data only; changed by core.py and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.dispatch.occupancy import Occupancy
from scheduler.dispatch.stimuli import PRIORITIES, DispatchConfig

__all__ = ["Waiting", "SessionState", "DispatchState"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A batch that is here and not launched. ``arrival``: its place in the device's order of arrival."""

    seq: int
    nbytes: int
    content: bytes
    arrival: int


@dataclass(slots=True)
class SessionState:
    """``next_seq`` is the only batch of the session that may be launched. ``waiting``: by seq, all >= next_seq.
    ``last_seq``: set once the session is closing. ``core_ns``: measured use so far (what fair share weighs). ``chain``: launch digest
    so far. ``launched``: every batch in flight with the chain before it, so that a launch given back unrun leaves no trace.
    ``ready_seq``: the batch that stands in the device's heap of ready ones."""

    session: str
    epoch: int
    priority: int
    next_seq: int
    chain: bytes
    waiting: dict[int, Waiting] = field(default_factory=dict)
    waiting_bytes: int = 0
    launched: dict[int, tuple[Waiting, bytes]] = field(default_factory=dict)
    ready_seq: int | None = None
    last_seq: int | None = None
    faulted: bool = False
    core_ns: int = 0
    launches: int = 0


@dataclass(slots=True)
class DispatchState:
    """``ready``: a heap of (rank, session, seq), an entry for each session whose next batch is here; an entry may be outdated, so it is
    checked when taken. ``ready_count``: how many are not. ``arrivals``: batches kept so far."""

    config: DispatchConfig = field(default_factory=DispatchConfig)
    now_ns: int = 0
    arrivals: int = 0
    sessions: dict[str, SessionState] = field(default_factory=dict)
    in_flight: int = 0
    open_by_priority: list[int] = field(default_factory=lambda: [0] * PRIORITIES)
    in_flight_by_priority: list[int] = field(default_factory=lambda: [0] * PRIORITIES)
    ready: list[tuple[tuple[int, ...], str, int]] = field(default_factory=list)
    ready_count: int = 0
    occupancy: Occupancy = field(default_factory=Occupancy)
