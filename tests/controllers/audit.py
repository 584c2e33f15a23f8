"""What must hold of a log and of the answers clients got, whatever was killed. Reads facts only: none of the controller's code decides
here, but for making recorded decisions again. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bus_schemas.events import ActionTaken, Event, NodeRegistered, TaskPlaced, TaskRefused, TaskStateChanged, TaskSubmitted
from scheduler.placement import ClusterView
from tests.support.recorded_decisions import check_recorded
from tests.support.replayed import ReplayMismatch

__all__ = ["Findings", "audit"]

Message = tuple[int, list[Event]]


@dataclass
class Findings:
    """``faults``: what does not hold, empty when all does. ``placed``: task to node; ``waiting``: submitted, neither placed nor over."""

    faults: list[str] = field(default_factory=list)
    placed: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    peak_percent: int = 0


def audit(messages: Iterable[Message], answered: Mapping[str, str | None]) -> Findings:
    """``answered``: the last answer that clients got for each task they submitted: its node, or None (it waits, or nothing fits)."""
    found = Findings()
    faults = found.faults
    room: dict[tuple[str, int], int] = {}
    free: dict[tuple[str, int], int] = {}
    alone: dict[tuple[str, int], str] = {}
    on: Counter[tuple[str, int]] = Counter()
    tasks: dict[str, TaskSubmitted] = {}
    placements: Counter[str] = Counter()
    view = ClusterView()
    views: dict[int, list[TaskPlaced | TaskRefused]] = {}
    log = list(messages)
    for _, events in log:
        for event in events:
            if isinstance(event, TaskPlaced | TaskRefused):
                views.setdefault(event.position, []).append(event)
    for position, events in log:
        for event in events:
            view.apply(position, event)
            match event:
                case NodeRegistered():
                    for device in event.devices:
                        room[event.node, device.index] = free[event.node, device.index] = device.vram_bytes
                case TaskSubmitted():
                    if event.task in tasks:
                        faults.append(f"{event.task} was submitted again at position {position}")
                    if not any(isinstance(other, ActionTaken) and other.target == event.task for other in events):
                        faults.append(f"no user is named for the submission of {event.task}")
                    tasks[event.task] = event
                case TaskPlaced():
                    placements[event.task] += 1
                    _take(event, tasks, free, on, alone, faults)
                    found.placed[event.task] = event.node
                case TaskStateChanged():
                    faults.append(f"{event.task} became {event.state} though no client ended it: {event.reason}")
        for decision in views.pop(position, []):
            try:
                check_recorded(view, decision)
            except (ReplayMismatch, KeyError) as error:
                faults.append(f"the decision on {decision.task} cannot be made again: {error}")
    faults += [f"{task} was placed {times} times" for task, times in placements.items() if times > 1]
    faults += [f"a decision names position {position}, which is not in the log" for position in views if position]
    found.waiting = {name for name, task in view.tasks.items() if task.waiting}
    found.refused = {name for name, task in view.tasks.items() if task.state == "failed"}
    faults += [f"{task} was answered and is not in the log" for task in answered if task not in tasks]
    for task, node in answered.items():
        held = found.placed.get(task)
        if node is not None and held != node:
            faults.append(f"the client of {task} got the answer {node}, the log says {held}")
        if node is None and held is not None and not tasks[task].queue:
            faults.append(f"the client of {task} got the answer that nothing fits, the log says {held}")
    faults += [
        f"{task} was submitted, and nothing became of it" for task in tasks.keys() - placements.keys() - found.waiting - found.refused
    ]
    found.peak_percent = max((100 * (room[key] - free[key]) // room[key] for key in room if room[key]), default=0)
    return found


def _take(
    event: TaskPlaced,
    tasks: Mapping[str, TaskSubmitted],
    free: dict[tuple[str, int], int],
    on: Counter[tuple[str, int]],
    alone: dict[tuple[str, int], str],
    faults: list[str],
) -> None:
    """The promise of one placement; nothing is ever given back in these rounds."""
    task = tasks.get(event.task)
    if task is None:
        faults.append(f"{event.task} was placed before it was submitted")
        return
    if len(set(event.gpus)) != task.gpu_count:
        faults.append(f"{event.task} wants {task.gpu_count} devices and got {event.gpus}")
    for gpu in event.gpus:
        key = (event.node, gpu)
        free[key] -= task.vram_bytes
        if free[key] < 0:
            faults.append(f"{event.task} at {event.node} gpu {gpu}: {-free[key]} bytes more are promised than the device has")
        if key in alone or (task.exclusive and on[key]):
            faults.append(f"{event.task} at {event.node} gpu {gpu}: the device is exclusive, and shared")
        on[key] += 1
        if task.exclusive:
            alone[key] = event.task
