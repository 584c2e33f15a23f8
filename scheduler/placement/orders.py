"""Commands about sessions that nodes still need, and measurements that the log still lacks: level-triggered, from the view. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bus_schemas.events import LoadObserved
from scheduler.placement.records import Measured, SessionView
from scheduler.placement.states import CANCELLED_BY
from scheduler.placement.view import ClusterView

__all__ = ["LOAD_STEP_PERCENT", "cancelled_by", "sessions_to_end", "sessions_to_reprioritise", "load_observed"]

LOAD_STEP_PERCENT: Final = 5
"""A measurement matters when a percentage, or the used bytes as a percentage of the device, has moved by as much."""


def sessions_to_end(view: ClusterView) -> list[SessionView]:
    """Open sessions of cancelled tasks on nodes that are here, by id."""
    return [view.sessions[name] for name in sorted(view.to_end) if _here(view, view.sessions[name])]


def cancelled_by(view: ClusterView, task: str) -> str:
    """Who cancelled a task; empty when the log does not say."""
    reason = view.tasks[task].reason
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
