"""The groups of a view as rows. Pure: a view in, rows out.

May live here: choosing and sorting. May not: writes, markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scheduler.placement import ClusterView

__all__ = ["GroupRow", "Member", "SORTS", "group_rows", "members_to_choose"]


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a group. ``by_itself``: the node names the group when it registers, so a person cannot take it out here."""

    node: str
    name: str
    by_itself: bool
    state: str


@dataclass(frozen=True, slots=True)
class GroupRow:
    """``made``: by a person (others exist because a node names them). ``revision`` 0: no fact of its own. ``tasks``: live ones that target
    it, as far as the asker may know of them."""

    id: str
    title: str
    members: tuple[Member, ...]
    absent: tuple[str, ...]
    tasks: int
    waiting: int
    made: bool
    revision: int
    vram_bytes: int
    gpus: int

    @property
    def text(self) -> str:
        return "\n".join((self.id, self.title, *(f"{one.node}\n{one.name}" for one in self.members))).casefold()


SORTS: Final[dict[str, Callable[[GroupRow], Any]]] = {
    "id": lambda row: row.id,
    "title": lambda row: (row.title.casefold(), row.id),
    "nodes": lambda row: (len(row.members), row.id),
    "gpus": lambda row: (row.gpus, row.id),
    "vram": lambda row: (row.vram_bytes, row.id),
    "tasks": lambda row: (row.tasks, row.id),
}


def group_rows(view: ClusterView, tenant: str = "") -> list[GroupRow]:
    """Every group, also those without a node, by id. ``tenant`` not empty: tasks of this tenant only are counted."""
    counts: dict[str, list[int]] = {}
    for name in view.live:
        task = view.tasks[name]
        if tenant and task.submitted.tenant != tenant:
            continue
        for group in task.submitted.groups:
            seen = counts.setdefault(group, [0, 0])
            seen[0] += 1
            seen[1] += task.waiting
    return [_row(view, group, counts.get(group, [0, 0])) for group in sorted(view.membership.known())]


def _row(view: ClusterView, group: str, counts: Sequence[int]) -> GroupRow:
    made = view.groups.get(group)
    nodes = sorted(view.membership.members(group))
    devices = [device for node in nodes for device in view.nodes[node].registered.devices]
    return GroupRow(
        id=group,
        title=made.title if made is not None else "",
        members=tuple(_member(view, group, node) for node in nodes),
        absent=tuple(sorted(made.nodes - view.nodes.keys())) if made is not None else (),
        tasks=counts[0],
        waiting=counts[1],
        made=made is not None,
        revision=made.revision if made is not None else 0,
        vram_bytes=sum(device.vram_bytes for device in devices),
        gpus=len(devices),
    )


def _member(view: ClusterView, group: str, node: str) -> Member:
    known = view.nodes[node]
    state = "lost" if known.lost is not None else "drained" if view.drained(node) else "ready"
    return Member(node, known.registered.name, group in known.registered.groups, state)


def members_to_choose(view: ClusterView, group: str = "") -> list[tuple[str, str, bool, bool, str]]:
    """(node, name, chosen, by itself, other groups) of every node: what the form of a group offers."""
    made = view.groups.get(group)
    chosen = made.nodes if made is not None else frozenset()
    out = []
    for node in sorted(view.nodes):
        registered = view.nodes[node].registered
        others = ", ".join(sorted(view.groups_of(node) - {group}))
        out.append((node, registered.name, node in chosen, bool(group) and group in registered.groups, others))
    return out
