"""The figures of the Dashboard: rows from the view and the last measurements. Pure: the time comes with the question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bus_schemas.telemetry import Telemetry
from scheduler.placement import ClusterView, queue_order
from services.controller.presenters.nodes import DeviceRow, Seen, SessionRow, device_rows, first_sessions, of_now
from services.controller.presenters.tasks import TaskRow, task_row
from services.controller.web.scope import Scope

__all__ = ["Figures", "Glance", "glance"]

_DEVICES: Final = 8
_SESSIONS: Final = 10
_QUEUE: Final = 8


@dataclass(frozen=True, slots=True)
class Figures:
    """Of now. Shares are means over the devices that are measured, bytes sums over them; tasks are those the scope sees."""

    nodes: int
    nodes_ready: int
    nodes_drained: int
    nodes_lost: int
    devices: int
    running: int
    queued: int
    waiting: int
    sessions: int
    utilization: int
    starvation: int
    used_bytes: int
    total_bytes: int
    swapped_bytes: int
    shared_bytes: int
    saved_bytes: int


@dataclass(frozen=True, slots=True)
class Glance:
    """``devices``: the busiest; ``sessions`` and ``queue``: the first. ``*_total``: how many there are."""

    figures: Figures
    devices: Sequence[DeviceRow]
    devices_total: int
    sessions: Sequence[SessionRow]
    sessions_total: int
    queue: Sequence[TaskRow]
    queue_total: int


def glance(view: ClusterView, measured: Sequence[Telemetry], scope: Scope, now_ns: int) -> Glance:
    """Everything on the page but the charts."""
    now = [seen for seen in measured if _counts(view, seen)]
    by_device: Seen = {(seen.node, seen.gpu): seen for seen in now}
    sessions, sessions_total = first_sessions(view, now, scope.sees, _SESSIONS)
    waiting = [task for task in queue_order(view, now_ns) if scope.sees(task.submitted.tenant)]
    return Glance(
        figures=_figures(view, now, scope, len(waiting), sessions_total),
        devices=_busiest(view, by_device, scope),
        devices_total=sum(len(node.registered.devices) for node in view.nodes.values() if node.lost is None),
        sessions=sessions,
        sessions_total=sessions_total,
        queue=[task_row(view, task) for task in waiting[:_QUEUE]],
        queue_total=len(waiting),
    )


def _counts(view: ClusterView, seen: Telemetry) -> bool:
    return of_now(view, seen) and view.nodes[seen.node].device(seen.gpu) is not None


def _figures(view: ClusterView, now: Sequence[Telemetry], scope: Scope, waiting: int, sessions: int) -> Figures:
    count = max(1, len(now))
    lost = sum(1 for node in view.nodes.values() if node.lost is not None)
    drained = sum(1 for name, node in view.nodes.items() if node.lost is None and view.drained(name))
    live = [view.tasks[name] for name in view.live if scope.sees(view.tasks[name].submitted.tenant)]
    running = sum(1 for task in live if task.state == "started")
    return Figures(
        nodes=len(view.nodes),
        nodes_ready=len(view.nodes) - lost - drained,
        nodes_drained=drained,
        nodes_lost=lost,
        devices=sum(len(node.registered.devices) for node in view.nodes.values() if node.lost is None),
        running=running,
        queued=len(live) - running,
        waiting=waiting,
        sessions=sessions,
        utilization=round(sum(seen.utilization_percent for seen in now) / count),
        starvation=round(sum(seen.starvation_percent for seen in now) / count),
        used_bytes=sum(seen.vram_used_bytes for seen in now),
        total_bytes=sum(seen.vram_total_bytes for seen in now),
        swapped_bytes=sum(seen.vram_swapped_bytes for seen in now),
        shared_bytes=sum(seen.vram_shared_bytes for seen in now),
        saved_bytes=sum(seen.vram_saved_bytes for seen in now),
    )


def _busiest(view: ClusterView, by_device: Seen, scope: Scope) -> list[DeviceRow]:
    """All devices in order where they fit; else the busiest."""
    keys = sorted(by_device)
    if len(keys) > _DEVICES:
        keys = sorted(keys, key=lambda key: (-by_device[key].utilization_percent, key))[:_DEVICES]
    rows = {(row.node, row.index): row for name in {node for node, _ in keys} for row in device_rows(view, by_device, scope.sees, name)}
    return [rows[key] for key in keys]
