"""What the controller knows of the cluster: a fold over the event log. Pure.

1. ``ClusterView.apply(position, event)`` is the only way it changes; the same events give the same view.
2. It never refuses an event: a fact happened, also when it does not fit what was known (an unknown node's session, a repeat).
3. Nothing measured is in here; telemetry is an input of a decision and recorded with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bus_schemas.events import (
    ConfigChanged,
    DeviceFact,
    Event,
    NodeLost,
    NodeRecovered,
    NodeRegistered,
    SessionClosedFact,
    SessionOpenedFact,
    TaskPlaced,
    TaskRefused,
    TaskStateChanged,
    TaskSubmitted,
)
from scheduler.vram.overcommit import effective_percent

__all__ = [
    "QUEUED", "STARTED", "COMPLETED", "FAILED", "STATES", "LIVE", "GLOBAL", "ENVIRONMENT", "OVERCOMMIT_GLOBAL", "OVERCOMMIT_NODE",
    "DRAINED", "REASON_NODE_LOST", "CUT_LOST", "CUT_RESTARTED", "SessionView", "TaskView", "NodeView", "ClusterView",
]  # fmt: skip

QUEUED: Final = "queued"
STARTED: Final = "started"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
STATES: Final = (QUEUED, STARTED, COMPLETED, FAILED)
LIVE: Final = frozenset({QUEUED, STARTED})
"""A placed task in one of these holds its VRAM."""

GLOBAL: Final = "global"
ENVIRONMENT: Final = "environment"
OVERCOMMIT_GLOBAL: Final = "default_vram_overcommit_percent"
OVERCOMMIT_NODE: Final = "overcommit_vram_percent"
DRAINED: Final = "drained"

REASON_NODE_LOST: Final = "node lost"
CUT_LOST: Final = "lost"
CUT_RESTARTED: Final = "restarted"

_MOVES: Final = frozenset(
    {
        (QUEUED, STARTED),
        (QUEUED, COMPLETED),
        (QUEUED, FAILED),
        (STARTED, COMPLETED),
        (STARTED, FAILED),
        (FAILED, STARTED),  # its node came back, or a session opened late
        (COMPLETED, STARTED),  # another session of the same task
    }
)
"""(from, to) of every legal change; a fact that asks for another one changes nothing."""


@dataclass(slots=True)
class SessionView:
    """An open session. ``cut_off``: why it does not count now, or empty. CUT_LOST: its node is held for lost, and may recover;
    CUT_RESTARTED: its node has a new life, and has not yet said that the session lives on."""

    fact: SessionOpenedFact
    cut_off: str = ""


@dataclass(slots=True)
class TaskView:
    """``decision``: the last placement or refusal with its position. ``sessions``: open ones. ``placed`` is None until placed."""

    submitted: TaskSubmitted
    position: int
    state: str = QUEUED
    reason: str = ""
    updated_ns: int = 0
    placed: TaskPlaced | None = None
    decision: TaskPlaced | TaskRefused | None = None
    sessions: set[str] = field(default_factory=set)

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def waiting(self) -> bool:
        """Submitted, and neither placed nor over."""
        return self.state == QUEUED and self.placed is None


@dataclass(slots=True)
class NodeView:
    """``lost``: the reason it is lost, None while it is here. ``tasks`` and ``sessions``: placed or open on it, in no order."""

    registered: NodeRegistered
    lost: str | None = None
    tasks: set[str] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)

    @property
    def epoch(self) -> int:
        return self.registered.epoch

    def device(self, gpu: int) -> DeviceFact | None:
        return next((device for device in self.registered.devices if device.index == gpu), None)


@dataclass(slots=True)
class ClusterView:
    """``position``: of the last event applied. ``config``: (scope, key) to value. ``live``: ids of the tasks that are not over, so that the
    many that are cost nothing."""

    position: int = 0
    nodes: dict[str, NodeView] = field(default_factory=dict)
    tasks: dict[str, TaskView] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    sessions: dict[str, SessionView] = field(default_factory=dict)
    config: dict[tuple[str, str], int | str] = field(default_factory=dict)

    # -- reading -------------------------------------------------------------------------------------------------------------------

    def overcommit_percent(self, node: str) -> int:
        """The overcommit that holds on a node (0-1000)."""
        return effective_percent(self.number(node, OVERCOMMIT_NODE), self.number(GLOBAL, OVERCOMMIT_GLOBAL), self.overcommit_default())

    def overcommit_default(self) -> int:
        """The percent of the controller's environment, 0 when it has none."""
        return self.number(ENVIRONMENT, OVERCOMMIT_GLOBAL) or 0

    def drained(self, node: str) -> bool:
        return bool(self.number(node, DRAINED))

    def number(self, scope: str, key: str) -> int | None:
        """A configured integer, None when unset."""
        value = self.config.get((scope, key))
        return value if isinstance(value, int) else None

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

    # -- folding -------------------------------------------------------------------------------------------------------------------

    def apply(self, position: int, event: Event) -> None:
        """Take the next event; several may share one position. Kinds that say nothing about placement change only the position."""
        self.position = position
        match event:
            case NodeRegistered():
                self._registered(event)
            case NodeLost():
                self._lost(event)
            case NodeRecovered():
                self._recovered(event)
            case SessionOpenedFact():
                self._session_opened(event)
            case SessionClosedFact():
                self._session_closed(event)
            case TaskSubmitted():
                if event.task not in self.tasks:
                    self.tasks[event.task] = TaskView(event, position, updated_ns=event.at_ns)
                    self.live.add(event.task)
            case TaskPlaced():
                self._placed(event)
            case TaskRefused():
                self._refused(event)
            case TaskStateChanged():
                task = self.tasks.get(event.task)
                if task is not None:
                    self._set_state(task, event.state, event.reason, event.at_ns)
            case ConfigChanged():
                if event.value is None:
                    self.config.pop((event.scope, event.key), None)
                else:
                    self.config[event.scope, event.key] = event.value
            case _:
                pass

    def _registered(self, event: NodeRegistered) -> None:
        before = self.nodes.get(event.node)
        if before is None:
            self.nodes[event.node] = NodeView(event)
            return
        if event.epoch < before.epoch:
            return  # told late; a newer life of the node is known
        if event.epoch > before.epoch:
            for name in before.sessions:
                self.sessions[name].cut_off = CUT_RESTARTED
        before.registered = event
        before.lost = None

    def _lost(self, event: NodeLost) -> None:
        node = self.nodes.get(event.node)
        if node is None or event.epoch != node.epoch or node.lost is not None:
            return
        node.lost = event.reason
        for name in node.sessions:
            session = self.sessions[name]
            session.cut_off = session.cut_off or CUT_LOST
        for name in sorted(node.tasks):
            self._displace(self.tasks[name], REASON_NODE_LOST, event.at_ns)

    def _recovered(self, event: NodeRecovered) -> None:
        node = self.nodes.get(event.node)
        if node is None or event.epoch != node.epoch or node.lost is None:
            return
        node.lost = None
        for name in sorted(node.sessions):
            session = self.sessions[name]
            if session.cut_off == CUT_LOST:
                session.cut_off = ""
                task = self.tasks.get(session.fact.task)
                if task is not None and task.state == FAILED and task.reason == REASON_NODE_LOST:
                    self._set_state(task, STARTED, "", event.at_ns)

    def _session_opened(self, event: SessionOpenedFact) -> None:
        """Opened, or announced again by a node that restarted around it."""
        known = self.sessions.get(event.session)
        if known is not None and not known.cut_off:
            return
        if known is not None and known.fact.node != event.node and known.fact.node in self.nodes:
            self.nodes[known.fact.node].sessions.discard(event.session)
        self.sessions[event.session] = SessionView(event)
        node = self.nodes.get(event.node)
        if node is not None:
            node.sessions.add(event.session)
        task = self.tasks.get(event.task)
        if task is not None:
            task.sessions.add(event.session)
            self._set_state(task, STARTED, "", event.at_ns)

    def _session_closed(self, event: SessionClosedFact) -> None:
        session = self.sessions.pop(event.session, None)
        if session is None:
            return
        node = self.nodes.get(session.fact.node)
        if node is not None:
            node.sessions.discard(event.session)
        task = self.tasks.get(session.fact.task)
        if task is None:
            return
        task.sessions.discard(event.session)
        if not task.sessions and task.state == STARTED:
            self._set_state(task, FAILED if event.failed else COMPLETED, event.reason if event.failed else "", event.at_ns)

    def _placed(self, event: TaskPlaced) -> None:
        task = self.tasks.get(event.task)
        if task is None or not task.waiting:
            return
        task.placed = task.decision = event
        task.updated_ns = event.at_ns
        node = self.nodes.get(event.node)
        if node is not None:
            node.tasks.add(event.task)
        if node is None or node.lost is not None:  # it was lost between the decision and its place in the log
            self._displace(task, REASON_NODE_LOST, event.at_ns)

    def _refused(self, event: TaskRefused) -> None:
        task = self.tasks.get(event.task)
        if task is None or not task.waiting:
            return
        task.decision = event
        if task.submitted.queue:
            task.updated_ns = event.at_ns
        else:
            self._set_state(task, FAILED, "no device fits", event.at_ns)

    def _displace(self, task: TaskView, reason: str, at_ns: int) -> None:
        """A live task loses its node: it waits again if it asked to and has not started, and fails otherwise."""
        if task.state == QUEUED and task.submitted.queue:
            if task.placed is not None and task.placed.node in self.nodes:
                self.nodes[task.placed.node].tasks.discard(task.submitted.task)
            task.placed = None
            task.updated_ns = at_ns
        else:
            self._set_state(task, FAILED, reason, at_ns)

    def _set_state(self, task: TaskView, state: str, reason: str, at_ns: int) -> None:
        """Change a task's state if that is a legal move, and with it whether it holds VRAM on its node."""
        if (task.state, state) not in _MOVES:
            return
        task.state = state
        task.reason = reason
        task.updated_ns = at_ns
        (self.live.add if task.live else self.live.discard)(task.submitted.task)
        node = self.nodes.get(task.placed.node) if task.placed is not None else None
        if node is not None:
            (node.tasks.add if state in LIVE else node.tasks.discard)(task.submitted.task)
