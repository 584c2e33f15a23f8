"""What the log or the nodes still lack, level-triggered from the view: lost nodes, placed tasks that never started, commands about sessions
that nodes must get, measurements that matter. Pure; the controller appends and sends.

Failure detection is decided from times in stimuli, so that it can be replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bus_schemas.events import LoadObserved, NodeLost, NodeRecovered, TaskDisplaced, TaskStateChanged, TaskSubmitted
from scheduler.errors import StimulusError
from scheduler.placement.decide import candidates
from scheduler.placement.state import Measured, SessionView, TaskView
from scheduler.placement.states import CANCELLED_BY, REASON_NEVER_STARTED, REASON_RESTARTED, Phase
from scheduler.placement.view import CUT_RESTARTED, FAILED, QUEUED, STARTED, ClusterView, released

__all__ = [
    "Heard", "Clock", "LivenessConfig", "Liveness", "overdue_tasks", "LOAD_STEP_PERCENT", "cancelled_by", "sessions_to_end",
    "sessions_to_reprioritise", "load_observed", "Devices", "anew", "moved", "leaving_tasks",
]  # fmt: skip

REASON_SILENT = "silent"


class Heard(msgspec.Struct, array_like=True, frozen=True, tag="heard.v1"):
    """A heartbeat (telemetry, registration) of a node in this epoch, received at ``at_ns`` of the controller's clock."""

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
    """``heard``: the last heartbeat by node, with its epoch. ``listening_ns``: since when we listen without a break."""

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
    """Placed tasks for which no session opened within ``start_lease_ms`` (or within their own), and started ones whose node restarted as
    long ago without taking their sessions up again: they fail, and give their VRAM back. By task id."""
    out: list[TaskStateChanged] = []
    for task in view.live_tasks():
        name = task.submitted.task
        limit_ns = unix_ns - (task.submitted.start_lease_ms or start_lease_ms) * 1_000_000
        if task.state == QUEUED and task.placed is not None and max(task.placed.at_ns, task.idle_from_ns) < limit_ns:
            out.append(TaskStateChanged(unix_ns, name, FAILED, REASON_NEVER_STARTED))
        elif task.state == STARTED and task.sessions and all(_given_up(view, session, limit_ns) for session in task.sessions):
            out.append(TaskStateChanged(unix_ns, name, FAILED, REASON_RESTARTED))
    return out


def _given_up(view: ClusterView, session: str, limit_ns: int) -> bool:
    """Has the session's node started a new epoch before ``limit_ns``, without it?"""
    known = view.sessions[session]
    return known.cut_off == CUT_RESTARTED and view.nodes[known.fact.node].registered.at_ns < limit_ns


Devices = Sequence[tuple[str, int, int]]
"""(node, gpu, score) of each."""


def anew(task: TaskView) -> TaskSubmitted:
    """What a task asks for, as if it were submitted now."""
    return msgspec.structs.replace(task.submitted, task="", priority=task.priority)


def moved(
    view: ClusterView, task: TaskView, at_ns: int, to: str = "", *, alike: bool = False, fits: Devices | None = None
) -> TaskDisplaced | None:
    """The fact that a task that runs is to run on node ``to`` (empty: on the best of the others), with the devices that are held for it
    there; ``alike``: only on devices of the kind that it runs on; ``fits``: the devices that would do, where they are known. None: it fits
    on no such node now."""
    assert task.placed is not None
    kinds = {_kind(view, task.placed.node, gpu) for gpu in task.placed.gpus} if alike else None
    found: dict[str, list[tuple[int, int]]] = {}
    for node, gpu, score in candidates(view, anew(task), at_ns) if fits is None else fits:
        if (node == to or (not to and node != task.placed.node)) and (kinds is None or _kind(view, node, gpu) in kinds):
            found.setdefault(node, []).append((-score, gpu))
    count = max(1, task.submitted.gpu_count)
    best = {node: sorted(devices)[:count] for node, devices in found.items() if len(devices) >= count}
    if not best:
        return None
    node = min(best, key=lambda name: (sum(score for score, _ in best[name]), name))
    return TaskDisplaced(
        at_ns, task.submitted.task, task.placed.node, lost=False, to=node, gpus=tuple(sorted(gpu for _, gpu in best[node]))
    )


def _kind(view: ClusterView, node: str, gpu: int) -> tuple[str, str, int] | None:
    """Devices of one kind compute the same bits."""
    device = view.nodes[node].device(gpu)
    return (device.backend, device.name, device.cores) if device is not None else None


_STAYED_NS: Final = 5 * 10**9
"""A task that could not leave a node that is being stopped is asked again after as long."""


def leaving_tasks(view: ClusterView, unix_ns: int) -> list[TaskDisplaced]:
    """The first task, by node and task id, that runs on a node which is being stopped, and fits elsewhere now: it is displaced."""
    for name in sorted(view.nodes):
        node = view.nodes[name]
        for task in sorted(node.tasks) if node.leaving and node.lost is None else ():
            held = view.tasks[task]
            placed = held.placed is not None and held.placed.node == name
            runs = placed and held.phase is Phase.STARTED and held.leaving is None and bool(held.sessions)
            if runs and unix_ns - held.stayed_ns > _STAYED_NS:
                displaced = moved(view, held, unix_ns)
                if displaced is not None:
                    return [displaced]  # what it holds there counts for the next one
    return []


LOAD_STEP_PERCENT: Final = 5
"""A measurement matters when a percentage, or the used bytes as a percentage of the device, has moved by as much."""


def sessions_to_end(view: ClusterView) -> list[SessionView]:
    """Open sessions of cancelled and displaced tasks, and of released reservations, on nodes that are here, by id."""
    return [view.sessions[name] for name in sorted(view.to_end) if _here(view, view.sessions[name])]


def cancelled_by(view: ClusterView, task: str) -> str:
    """Who or what ended a task; empty when the log does not say."""
    reason = view.tasks[task].reason
    if released(view.tasks[task]):
        return "the release of its reservation"
    return reason.removeprefix(CANCELLED_BY) if reason.startswith(CANCELLED_BY) else ""


def sessions_to_reprioritise(view: ClusterView) -> list[tuple[SessionView, int]]:
    """Open sessions on nodes that are here whose task was given another priority, with that priority, by id."""
    return [
        (session, view.tasks[session.fact.task].priority)
        for session in (view.sessions[name] for name in sorted(view.to_reprioritise))
        if _here(view, session)
    ]


def load_observed(view: ClusterView, heard: Mapping[tuple[str, int], Measured], at_ns: int) -> LoadObserved | None:
    """The fact about those of the measurements ``heard`` that differ enough from what the log says; None when none does.

    A change to 0 % is reported however small the step, so that an idle device is shown as idle.
    """
    changed = []
    for (node, gpu), now in sorted(heard.items()):
        if view.columns.row(node, gpu) >= 0 and _matters(view, node, gpu, now):
            changed.append((node, gpu, now.utilization_percent, now.starvation_percent, now.vram_used_bytes))
    return LoadObserved(at_ns, tuple(changed)) if changed else None


def _matters(view: ClusterView, node: str, gpu: int, now: Measured) -> bool:
    before = view.measured(node, gpu)
    if now == before:
        return False
    device = view.nodes[node].device(gpu)
    step_bytes = max(1, (device.vram_bytes if device is not None else 0) * LOAD_STEP_PERCENT // 100)
    return (
        _moved(before.utilization_percent, now.utilization_percent, LOAD_STEP_PERCENT)
        or _moved(before.starvation_percent, now.starvation_percent, LOAD_STEP_PERCENT)
        or _moved(before.vram_used_bytes, now.vram_used_bytes, step_bytes)
    )


def _moved(before: int, now: int, step: int) -> bool:
    return abs(now - before) >= step or (now == 0) != (before == 0)


def _here(view: ClusterView, session: SessionView) -> bool:
    node = view.nodes.get(session.fact.node)
    return not session.cut_off and node is not None and node.lost is None
