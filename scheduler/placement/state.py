"""The state of the cluster for readers: tasks, sessions, nodes, groups, settings, and the same as numbers. Pure.

May not live here: how it changes (view).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus_schemas.events import SessionOpenedFact
from scheduler.placement.columns import Columns
from scheduler.placement.holdings import Holdings
from scheduler.placement.membership import Membership
from scheduler.placement.records import GroupView, Measured, NodeView, SessionView, Shape, TaskView
from scheduler.placement.states import DEFAULTS, DRAINED, ENVIRONMENT, GLOBAL, OVERCOMMIT_GLOBAL, OVERCOMMIT_NODE
from scheduler.vram.overcommit import PERCENT_MAX, effective_percent

__all__ = ["ClusterState"]


@dataclass(slots=True)
class ClusterState:
    """``position``: of the last event applied. ``live``: ids of the tasks that are not over, ``queue``: of those that wait for room,
    ``untold``: of those of them about whom the log does not say why, ``shapes``: those who wait by what they ask for. ``recent``: task id
    to the position of the last event that changed it, the newest last. ``reservations``: (node, gpu) to the task they are kept for.
    ``revisions``: config scope to the position of its last change. ``changes`` counts what may let a waiting task in, beside what becomes
    free on single nodes (``holdings.freed``). ``to_end``, ``to_reprioritise``: open sessions of cancelled tasks, and of tasks whose
    priority was changed to another one than theirs."""

    position: int = 0
    nodes: dict[str, NodeView] = field(default_factory=dict)
    tasks: dict[str, TaskView] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    queue: set[str] = field(default_factory=set)
    untold: set[str] = field(default_factory=set)
    shapes: dict[Shape, set[str]] = field(default_factory=dict)
    recent: dict[str, int] = field(default_factory=dict)
    sessions: dict[str, SessionView] = field(default_factory=dict)
    config: dict[tuple[str, str], int | str] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    load: dict[tuple[str, int], Measured] = field(default_factory=dict)
    reservations: dict[tuple[str, int], str] = field(default_factory=dict)
    to_end: set[str] = field(default_factory=set)
    to_reprioritise: set[str] = field(default_factory=set)
    changes: int = 0
    membership: Membership = field(default_factory=Membership)
    columns: Columns = field(default_factory=Columns)
    holdings: Holdings = field(init=False, compare=False)
    _of_task: dict[str, set[str]] = field(default_factory=dict)
    """Open sessions by the task they name, whether it is known or not."""

    def __post_init__(self) -> None:
        self.holdings = Holdings(self.columns)

    @property
    def groups(self) -> dict[str, GroupView]:
        """The groups that were made by a person, by id; those that only nodes name themselves are not among them."""
        return self.membership.made

    def groups_of(self, node: str) -> frozenset[str]:
        """Every group a node is in: those it names itself and those it was put into."""
        return self.membership.of(node)

    def overcommit_percent(self, node: str) -> int:
        """The overcommit that holds on a node (0-1000)."""
        own, stored = self.number(node, OVERCOMMIT_NODE), self.number(GLOBAL, OVERCOMMIT_GLOBAL)
        return effective_percent(_percent(own), _percent(stored), _percent(self.overcommit_default()) or 0)

    def overcommit_default(self) -> int:
        """The percent of the controller's environment, 0 when it has none."""
        return self.number(ENVIRONMENT, OVERCOMMIT_GLOBAL) or 0

    def setting(self, key: str) -> int:
        """A global key of ``states.DEFAULTS``: the stored value, else the environment's, else the default."""
        for scope in (GLOBAL, ENVIRONMENT):
            value = self.number(scope, key)
            if value is not None:
                return max(0, value)
        return DEFAULTS[key]

    def drained(self, node: str) -> bool:
        return bool(self.number(node, DRAINED))

    def number(self, scope: str, key: str) -> int | None:
        """A configured integer, None when unset."""
        value = self.config.get((scope, key))
        return value if isinstance(value, int) else None

    def measured(self, node: str, gpu: int) -> Measured:
        """What the log says was last measured on a device; zeros when nothing was."""
        return self.load.get((node, gpu), _NOTHING)

    def live_tasks(self) -> list[TaskView]:
        """The tasks that are not over, by id."""
        return [self.tasks[name] for name in sorted(self.live)]

    def tasks_on(self, node: str, gpu: int) -> list[TaskView]:
        """Live tasks placed on a device, by id."""
        tasks = (self.tasks[name] for name in sorted(self.nodes[node].tasks))
        return [task for task in tasks if task.placed is not None and gpu in task.placed.gpus]

    def sessions_on(self, node: str, gpu: int) -> list[SessionOpenedFact]:
        """Open sessions on a device, by id."""
        sessions = (self.sessions[name] for name in sorted(self.nodes[node].sessions))
        return [session.fact for session in sessions if session.fact.gpu == gpu and not session.cut_off]


_NOTHING = Measured()


def _percent(value: int | None) -> int | None:
    """What the log says, within what there can be."""
    return None if value is None else min(max(value, 0), PERCENT_MAX)
