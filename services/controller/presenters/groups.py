"""Groups of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from scheduler.placement import ClusterView
from services.controller.presenters.common import Json, rfc3339
from services.controller.presenters.nodes import node_state

__all__ = ["GroupRow", "Member", "group_answer", "group_rows"]


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a group."""

    node: str
    name: str
    by_itself: bool  #: the node names the group when it registers, so it cannot be taken out by an action
    state: str


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group, described by a user or only named by nodes."""

    id: str
    title: str
    members: tuple[Member, ...]
    own_nodes: tuple[str, ...]  #: members that a user put into it, joined or not
    absent: tuple[str, ...]  #: those of them that have not joined
    tasks: int  #: live tasks that target it, as far as the caller may know of them
    waiting: int
    made: bool  #: a user described it
    revision: int  #: 0: it has no fact of its own
    updated_ns: int
    vram_bytes: int
    gpus: int

    @property
    def text(self) -> str:
        return "\n".join((self.id, self.title, *(f"{one.node}\n{one.name}" for one in self.members))).casefold()


def group_rows(view: ClusterView, tenant: str = "", groups: Collection[str] | None = None) -> list[GroupRow]:
    """``groups`` (None: every group, also those without a node) by id. ``tenant`` not empty: only tasks of this tenant are counted."""
    live = [view.tasks[name] for name in view.live if tenant in ("", view.tasks[name].submitted.tenant)]
    tasks = Counter(group for task in live for group in task.submitted.groups)
    waiting = Counter(group for task in live if task.waiting for group in task.submitted.groups)
    return [_row(view, group, tasks[group], waiting[group]) for group in sorted(view.membership.known() if groups is None else groups)]


def _row(view: ClusterView, group: str, tasks: int, waiting: int) -> GroupRow:
    made = view.groups.get(group)
    nodes = sorted(view.membership.members(group))
    devices = [device for node in nodes for device in view.nodes[node].registered.devices]
    return GroupRow(
        id=group,
        title=made.title if made is not None else "",
        members=tuple(_member(view, group, node) for node in nodes),
        own_nodes=tuple(sorted(made.nodes)) if made is not None else (),
        absent=tuple(sorted(made.nodes - view.nodes.keys())) if made is not None else (),
        tasks=tasks,
        waiting=waiting,
        made=made is not None,
        revision=made.revision if made is not None else 0,
        updated_ns=made.updated_ns if made is not None else 0,
        vram_bytes=sum(device.vram_bytes for device in devices),
        gpus=len(devices),
    )


def _member(view: ClusterView, group: str, node: str) -> Member:
    known = view.nodes[node]
    return Member(node, known.registered.name, group in view.membership.declared[node], node_state(view, node, known))


def group_answer(view: ClusterView, group: str, tenant: str = "") -> Json:
    """``nodes``: those of it that have joined; ``declared_by``: those that name it themselves. ``tenant``: as of ``group_rows``."""
    (row,) = group_rows(view, tenant, [group])
    return {
        "id": row.id,
        "title": row.title,
        "nodes": [member.node for member in row.members],
        "own_nodes": list(row.own_nodes),
        "declared_by": [member.node for member in row.members if member.by_itself],
        "tasks": row.tasks,
        "tasks_waiting": row.waiting,
        "updated_at": rfc3339(row.updated_ns) if row.made else None,
        "revision": row.revision,
    }
