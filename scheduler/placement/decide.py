"""Which node and devices a task gets, and why not the others: one pure function of (view, task, telemetry).

    decision = decide(view, task, measured)
    event = decision.event(at_ns)          # TaskPlaced or TaskRefused, ready for the log

``check_recorded`` makes a recorded decision again from the view it was made on, and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bus_schemas.events import Considered, TaskPlaced, TaskRefused, TaskSubmitted
from scheduler.errors import ReplayMismatch
from scheduler.placement import reasons as why
from scheduler.placement.capacity import capacity
from scheduler.placement.feasible import Refusal, refuse_cluster, refuse_device, refuse_node
from scheduler.placement.rank import order, parts
from scheduler.placement.view import ClusterView

__all__ = ["Measured", "Decision", "decide", "measured_of", "check_recorded"]


@dataclass(frozen=True, slots=True)
class Measured:
    """The last telemetry of one device, as far as placement looks at it."""

    utilization_percent: int = 0
    starvation_percent: int = 0
    vram_used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """``gpus`` empty: refused everywhere. ``scores``: every candidate, best first. ``considered``: every device looked at."""

    task: str
    node: str
    gpus: tuple[int, ...]
    scores: tuple[tuple[str, int, int], ...]
    refusals: tuple[Refusal, ...]
    considered: tuple[Considered, ...]
    position: int

    def event(self, at_ns: int) -> TaskPlaced | TaskRefused:
        """The fact to append to the log."""
        if self.gpus:
            return TaskPlaced(at_ns, self.task, self.node, self.gpus, self.scores, self.refusals, self.position, self.considered)
        return TaskRefused(at_ns, self.task, self.refusals, self.position, self.considered)


_NOTHING = Measured()


def decide(view: ClusterView, task: TaskSubmitted, measured: Mapping[tuple[str, int], Measured]) -> Decision:
    """Place ``task`` on ``view``. ``measured``: by (node, gpu); a device not in it counts as idle."""
    everywhere = refuse_cluster(view, task)
    if everywhere is not None:
        return Decision(task.task, "", (), (), (everywhere,), (), view.position)
    refusals: list[Refusal] = []
    considered: list[Considered] = []
    candidates: list[tuple[str, int, int]] = []
    for name in sorted(view.nodes):
        refusal = refuse_node(view, task, name, view.nodes[name])
        if refusal is not None:
            refusals.append(refusal)
            continue
        fit, unfit, seen = _devices(view, task, name, measured)
        considered += seen
        refusals += unfit
        if 0 < len(fit) < task.gpu_count:
            detail = f"the task needs {task.gpu_count} devices of one node, {len(fit)} of this one would do"
            refusals += [(name, gpu, why.GPU_COUNT, detail) for _, gpu, _ in fit]
        else:
            candidates += fit
    candidates.sort(key=lambda candidate: order(candidate[2], candidate[0], candidate[1]))
    node, gpus = _choose(candidates, task.gpu_count)
    refusals.sort(key=lambda refusal: refusal[:3])
    return Decision(task.task, node, gpus, tuple(candidates), tuple(refusals), tuple(considered), view.position)


def _devices(
    view: ClusterView, task: TaskSubmitted, name: str, measured: Mapping[tuple[str, int], Measured]
) -> tuple[list[tuple[str, int, int]], list[Refusal], list[Considered]]:
    """The devices of one node: candidates with scores, refusals, and all of them as considered."""
    fit: list[tuple[str, int, int]] = []
    unfit: list[Refusal] = []
    seen: list[Considered] = []
    for device in sorted(view.nodes[name].registered.devices, key=lambda device: device.index):
        gpu = device.index
        now = measured.get((name, gpu), _NOTHING)
        room = capacity(view, name, device)
        refusal = refuse_device(task, name, device, room, now.vram_used_bytes)
        score_parts: tuple[int, ...] = ()
        if refusal is not None:
            unfit.append(refusal)
        else:
            made_of = parts(room, task.priority, task.vram_bytes, now.utilization_percent, now.starvation_percent)
            score_parts = (made_of.utilization, made_of.starvation, made_of.vram, made_of.priority)
            fit.append((name, gpu, made_of.score))
        seen.append(
            Considered(name, gpu, now.utilization_percent, now.starvation_percent, now.vram_used_bytes, room.free_bytes, score_parts)
        )
    return fit, unfit, seen


def _choose(candidates: list[tuple[str, int, int]], gpu_count: int) -> tuple[str, tuple[int, ...]]:
    """The node whose best ``gpu_count`` devices score highest together (ties: node id), and those devices in index order."""
    best: dict[str, list[tuple[int, int]]] = {}
    for node, gpu, score in candidates:  # best first, so the first ones of each node are its best
        if len(best.setdefault(node, [])) < gpu_count:
            best[node].append((gpu, score))
    if not best:
        return "", ()
    node = min(best, key=lambda name: (-sum(score for _, score in best[name]), name))
    return node, tuple(sorted(gpu for gpu, _ in best[node]))


def measured_of(considered: tuple[Considered, ...]) -> dict[tuple[str, int], Measured]:
    """The telemetry that a recorded decision was made with."""
    return {(c.node, c.gpu): Measured(c.utilization_percent, c.starvation_percent, c.vram_used_bytes) for c in considered}


def check_recorded(view: ClusterView, recorded: TaskPlaced | TaskRefused) -> None:
    """Make a recorded decision again on ``view``, which must stand at the decision's position. Raises ReplayMismatch when it differs."""
    if view.position != recorded.position:
        raise ValueError(f"the decision on {recorded.task} was made at position {recorded.position}, the view stands at {view.position}")
    again = decide(view, view.tasks[recorded.task].submitted, measured_of(recorded.considered)).event(recorded.at_ns)
    if again != recorded:
        raise ReplayMismatch(f"task {recorded.task} at position {recorded.position}: recorded {recorded!r}, decided again {again!r}")
