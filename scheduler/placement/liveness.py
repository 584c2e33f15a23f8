"""Failure detection: lost nodes, and placed tasks that never started. Decided from times in stimuli, so that it can be replayed. Pure.

The controller passes in heartbeats and the time; the answers become facts in the log (NodeLost, NodeRecovered, TaskStateChanged).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from bus_schemas.events import NodeLost, NodeRecovered, TaskStateChanged
from scheduler.errors import StimulusError
from scheduler.placement.states import REASON_NEVER_STARTED, REASON_RESTARTED
from scheduler.placement.view import CUT_RESTARTED, FAILED, QUEUED, STARTED, ClusterView

__all__ = ["Heard", "Clock", "LivenessConfig", "Liveness", "overdue_tasks"]

REASON_SILENT = "silent"


class Heard(msgspec.Struct, array_like=True, frozen=True, tag="heard.v1"):
    """A sign of life (telemetry, registration) of a node in this epoch, received at ``at_ns`` of the controller's clock."""

    at_ns: int
    node: str
    epoch: int


class Clock(msgspec.Struct, array_like=True, frozen=True, tag="clock.v1"):
    """It is ``at_ns``; ``unix_ns`` is what the facts are dated with."""

    at_ns: int
    unix_ns: int


@dataclass(frozen=True, slots=True)
class LivenessConfig:
    """A node is lost that was silent for ``lease_ms``. A controller that has just started, or that was itself stopped for longer than
    half of it (a suspended machine), gives every node one lease to be heard."""

    lease_ms: int = 5_000


@dataclass(slots=True)
class Liveness:
    """``heard``: the last sign of life by node, with its epoch. ``listening_ns``: since when we listen without a break."""

    config: LivenessConfig = field(default_factory=LivenessConfig)
    listening_ns: int | None = None
    now_ns: int = 0
    heard: dict[str, tuple[int, int]] = field(default_factory=dict)

    def on(self, stimulus: Heard | Clock, view: ClusterView) -> list[NodeLost | NodeRecovered]:
        """The facts that follow, by node id. Raises StimulusError when time runs backwards."""
        if stimulus.at_ns < self.now_ns:
            raise StimulusError(f"{stimulus!r}: time ran backwards, the last stimulus was at {self.now_ns} ns")
        lease_ns = self.config.lease_ms * 1_000_000
        if self.listening_ns is None or stimulus.at_ns - self.now_ns > lease_ns // 2:
            self.listening_ns = stimulus.at_ns
        self.now_ns = stimulus.at_ns
        if isinstance(stimulus, Heard):
            if stimulus.epoch >= self.heard.get(stimulus.node, (0, -1))[1]:
                self.heard[stimulus.node] = (stimulus.at_ns, stimulus.epoch)
            return []
        return self._judge(stimulus.unix_ns, view, self.listening_ns, lease_ns)

    def _judge(self, unix_ns: int, view: ClusterView, listening_ns: int, lease_ns: int) -> list[NodeLost | NodeRecovered]:
        out: list[NodeLost | NodeRecovered] = []
        for name in sorted(view.nodes):
            node = view.nodes[name]
            heard_ns, epoch = self.heard.get(name, (-1, -1))
            if node.lost is None and self.now_ns - max(heard_ns, listening_ns) > lease_ns:
                out.append(NodeLost(unix_ns, name, node.epoch, REASON_SILENT))
            elif node.lost == REASON_SILENT and epoch == node.epoch and self.now_ns - heard_ns <= lease_ns:
                out.append(NodeRecovered(unix_ns, name, node.epoch))
        return out


def overdue_tasks(view: ClusterView, unix_ns: int, start_lease_ms: int) -> list[TaskStateChanged]:
    """Placed tasks for which no session opened within ``start_lease_ms``, and started ones whose node restarted as long ago without taking
    their sessions up again: they fail, and give their VRAM back. By task id."""
    limit_ns = unix_ns - start_lease_ms * 1_000_000
    out: list[TaskStateChanged] = []
    for task in view.live_tasks():
        name = task.submitted.task
        if task.state == QUEUED and task.placed is not None and task.placed.at_ns < limit_ns:
            out.append(TaskStateChanged(unix_ns, name, FAILED, REASON_NEVER_STARTED))
        elif task.state == STARTED and task.sessions and all(_given_up(view, session, limit_ns) for session in task.sessions):
            out.append(TaskStateChanged(unix_ns, name, FAILED, REASON_RESTARTED))
    return out


def _given_up(view: ClusterView, session: str, limit_ns: int) -> bool:
    """Has the session's node had a new life since before ``limit_ns``, without it?"""
    known = view.sessions[session]
    return known.cut_off == CUT_RESTARTED and view.nodes[known.fact.node].registered.at_ns < limit_ns
