"""Records of the fold for each task, session, node and group. Data and what follows from one record alone; changed by ``view`` only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bus_schemas.events import DeviceFact, NodeRegistered, Outcome, SessionOpenedFact, TaskPlaced, TaskRefused, TaskSubmitted
from scheduler.placement.states import LIVE, QUEUED

__all__ = ["PAST_SESSIONS_MAX", "Shape", "shape_of", "Measured", "SessionView", "TaskView", "NodeView", "GroupView", "Reservation"]

PAST_SESSIONS_MAX: Final = 32


Shape = tuple[int, int, bool, bool, tuple[str, ...]]
"""(bytes, devices, exclusive, noswap, groups): of two tasks of one shape and rank one fits where the other does."""


def shape_of(task: TaskSubmitted) -> Shape:
    return (task.vram_bytes, task.gpu_count, task.exclusive, task.noswap, task.groups)


@dataclass(frozen=True, slots=True)
class Measured:
    """The last measurement of one device, as far as placement looks at it."""

    utilization_percent: int = 0
    starvation_percent: int = 0
    vram_used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices of one node that are kept for a waiting task since ``since_ns``: no task behind it in the queue gets memory there."""

    node: str
    gpus: tuple[int, ...]
    since_ns: int


@dataclass(slots=True)
class SessionView:
    """An open session with its current ``priority``. ``cut_off``: why it does not count now, or empty. CUT_LOST: its node is held for
    lost, and may recover; CUT_RESTARTED: its node has a new life, and has not yet said that the session lives on."""

    fact: SessionOpenedFact
    cut_off: str = ""
    priority: int = 0


@dataclass(slots=True)
class TaskView:
    """``decision``: the last placement or refusal with its position. ``sessions``: open ones; ``past_sessions``: the last closed ones,
    newest last. ``placed`` is None until placed. ``priority``: the current one; ``priority_changed``: by a fact, so its open sessions must
    follow. ``wait_from_ns``: since when it waits (again). ``revision``: the log position of the last event that changed it. ``shape``: what
    it asks for. ``outcome``: how its script ended, None: nothing was reported (yet)."""

    submitted: TaskSubmitted
    position: int
    revision: int
    state: str = QUEUED
    reason: str = ""
    updated_ns: int = 0
    placed: TaskPlaced | None = None
    decision: TaskPlaced | TaskRefused | None = None
    sessions: set[str] = field(default_factory=set)
    priority: int = 0
    wait_from_ns: int = 0
    reserved: Reservation | None = None
    past_sessions: list[str] = field(default_factory=list)
    priority_changed: bool = False
    shape: Shape = (0, 1, False, False, ())
    outcome: Outcome | None = None

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def waiting(self) -> bool:
        """Submitted, and neither placed nor over."""
        return self.state == QUEUED and self.placed is None


@dataclass(slots=True)
class NodeView:
    """``lost``: the reason it is lost, None while it is here. ``tasks`` and ``sessions``: placed or open on it, in no order.
    ``revision``: the log position of the last NodeRegistered, NodeLost or NodeRecovered that counted."""

    registered: NodeRegistered
    lost: str | None = None
    tasks: set[str] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)
    revision: int = 0

    @property
    def epoch(self) -> int:
        return self.registered.epoch

    def device(self, gpu: int) -> DeviceFact | None:
        return next((device for device in self.registered.devices if device.index == gpu), None)


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group that was made by a person. ``nodes``: its members beside those that name it themselves; not all need have joined."""

    group: str
    title: str
    nodes: frozenset[str]
    updated_ns: int
    revision: int
