"""API answers about groups."""

from __future__ import annotations

from scheduler.placement import ClusterView
from services.controller.answers import Json, rfc3339

__all__ = ["group_answer"]


def group_answer(view: ClusterView, group: str, tenant: str = "") -> Json:
    """``nodes``: those of it that have joined. ``own_nodes``: those a person put into it, joined or not; the others name it themselves.
    ``tenant`` not empty: the tasks that target it are counted of this tenant only."""
    made = view.groups.get(group)
    targeting = [task for task in view.live_tasks() if group in task.submitted.groups and tenant in ("", task.submitted.tenant)]
    nodes = sorted(view.membership.members(group))
    return {
        "id": group,
        "title": made.title if made is not None else "",
        "nodes": nodes,
        "own_nodes": sorted(made.nodes) if made is not None else [],
        "declared_by": [node for node in nodes if group in view.membership.declared[node]],
        "tasks": len(targeting),
        "tasks_waiting": sum(1 for task in targeting if task.waiting),
        "updated_at": rfc3339(made.updated_ns) if made is not None else None,
        "revision": made.revision if made is not None else 0,
    }
