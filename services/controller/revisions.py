"""Revisions: the log position of the last fact about a thing itself, what an answer carries and ``If-Match`` names. What its parts do (a
session that opens on a task, a task on a node) is not a change of it: a client with the revision of a running task can still cancel it.

May live here: which subjects make up a thing. May not: conditions of writes.
"""

from __future__ import annotations

from bus_schemas.subjects import event_subject
from scheduler.placement.view import GLOBAL
from services.controller.log_projection import LogProjection
from services.kit.rest import check_revision as check

__all__ = ["task_revision", "node_revision", "group_revision", "config_revision", "check"]


def task_revision(projection: LogProjection, task: str) -> int:
    return max(_last(projection, ("task", task)), projection.turns.positions.get(task, 0))


def node_revision(projection: LogProjection, node: str) -> int:
    return _last(projection, ("node", node), ("config", node))


def group_revision(projection: LogProjection, group: str) -> int:
    """0: the group is no fact of its own (nodes name it, no user has described it)."""
    made = projection.view.groups.get(group)
    return made.revision if made is not None else 0


def config_revision(projection: LogProjection) -> int:
    return _last(projection, ("config", GLOBAL))


def _last(projection: LogProjection, *areas: tuple[str, str]) -> int:
    return max(projection.subject_positions.get(event_subject(area, entity), 0) for area, entity in areas)
