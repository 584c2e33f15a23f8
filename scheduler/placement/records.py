"""Records of the fold for each task, session, node and group. Data and what follows from one record alone; changed by ``view`` only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bus_schemas.events import DeviceFact, NodeRegistered, Outcome, SessionOpenedFact, TaskPlaced, TaskRefused, TaskSubmitted
from scheduler.placement.states import QUEUED, Phase

__all__ = ["PAST_SESSIONS_MAX", "Shape", "shape_of", "Measured", "SessionView", "TaskView", "NodeView", "GroupView", "Reservation"]

PAST_SESSIONS_MAX: Final = 32

_WAITING, _PLACED, _STARTED = Phase.WAITING, Phase.PLACED, Phase.STARTED  # attributes of an enumeration cost a call each


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
    """A task. Times are Unix times in ns, positions are those of the log."""

    submitted: TaskSubmitted
    #: Of its submission.
    position: int
    #: Of the last event that changed it.
    revision: int
    #: Changed by ClusterView._transition alone.
    phase: Phase = Phase.WAITING
    #: Why it failed, was cancelled or is lost; else empty.
    reason: str = ""
    updated_ns: int = 0
    #: Its last placement; None before the first one, and when it waits again.
    placed: TaskPlaced | None = None
    #: The last placement or refusal.
    decision: TaskPlaced | TaskRefused | None = None
    #: Ids of its open sessions.
    sessions: set[str] = field(default_factory=set)
    #: The current one, 0-4.
    priority: int = 0
    #: Since when it waits, or waits again.
    wait_from_ns: int = 0
    #: Devices that are kept for it while it waits.
    reserved: Reservation | None = None
    #: Ids of the sessions that closed last, the newest last.
    past_sessions: list[str] = field(default_factory=list)
    #: A fact changed its priority, so its open sessions must follow.
    priority_changed: bool = False
    #: What it asks for, as far as it decides where it fits.
    shape: Shape = (0, 1, False, False, ())
    #: How its script ended, None: nothing was reported (yet).
    outcome: Outcome | None = None
    #: The last steps of its life, (position, from, to).
    story: tuple[tuple[int, Phase, Phase], ...] = ()

    @property
    def state(self) -> str:
        """One of STATES."""
        return QUEUED if self.phase is _WAITING or self.phase is _PLACED else self.phase.value

    @property
    def live(self) -> bool:
        return self.phase is _STARTED or self.phase is _WAITING or self.phase is _PLACED

    @property
    def waiting(self) -> bool:
        """Submitted, and neither placed nor over."""
        return self.phase is _WAITING


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
