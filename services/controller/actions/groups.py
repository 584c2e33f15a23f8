"""Actions on groups: create, edit, delete."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from bus_schemas.events import GroupChanged
from scheduler.placement import ClusterView
from services.controller.errors import Ambiguous, Invalid, NotThere, OutOfState
from services.controller.identity import Caller
from services.controller.log_projection import LogProjection
from services.controller.names import find_node
from services.controller.revisions import check, group_revision
from services.controller.writer import Writer
from services.kit.errors import Conflict

__all__ = ["GroupActions", "GroupValues"]


@dataclass(frozen=True, slots=True)
class GroupValues:
    """What a group is to be; None: as it is. ``nodes``: its members beside the nodes that name it themselves."""

    title: str | None = None
    nodes: tuple[str, ...] | None = None


class GroupActions:
    """Each method raises Denied, NotThere, Invalid (a member that is no node), OutOfState, Stale when ``revision`` is given and no longer
    holds, and kit.errors.BusUnavailable; it returns once the view shows what was done."""

    def __init__(self, projection: LogProjection, writer: Writer) -> None:
        self._projection = projection
        self._writer = writer

    async def create(self, by: Caller, group: str, values: GroupValues) -> None:
        """Raises OutOfState when there is one of this name."""
        await self._write(by, group, values, None, new=True)

    async def edit(self, by: Caller, group: str, values: GroupValues, *, revision: int | None = None) -> None:
        """A group that only nodes name becomes one of its own."""
        await self._write(by, group, values, revision, new=False)

    async def delete(self, by: Caller, group: str, *, revision: int | None = None) -> None:
        """Raises OutOfState while nodes name it themselves when they register, or live tasks target it and nothing else."""
        by.require("group.write")
        while True:
            await self._projection.caught_up()
            view = self._projection.view
            if group not in view.membership.known():
                raise NotThere(f"there is no group {group}")
            check(f"group {group}", group_revision(self._projection, group), revision)
            naming = sorted(name for name in view.membership.members(group) if group in view.membership.declared[name])
            if naming:
                raise OutOfState(f"group {group} is named by node {', '.join(naming)} itself: take it out of NODE_GROUPS there first")
            waiting = [task.submitted.task for task in view.live_tasks() if task.waiting and group in task.submitted.groups]
            if waiting:
                raise OutOfState(f"group {group} is the target of {len(waiting)} waiting task(s), e.g. {waiting[0]}: cancel them first")
            if await self._append(by, GroupChanged(time.time_ns(), group, deleted=True), "deleted"):
                return

    async def _write(self, by: Caller, group: str, values: GroupValues, revision: int | None, *, new: bool) -> None:
        by.require("group.write")
        while True:
            await self._projection.caught_up()
            view = self._projection.view
            held = view.groups.get(group)
            if new and held is not None:
                raise OutOfState(f"group {group} exists")
            if not new and group not in view.membership.known():
                raise NotThere(f"there is no group {group}")
            check(f"group {group}", group_revision(self._projection, group), revision)
            members = None if values.nodes is None else _members(view, values.nodes)
            title = values.title if values.title is not None else held.title if held is not None else ""
            nodes = members if members is not None else tuple(sorted(held.nodes)) if held is not None else ()
            if held is not None and (held.title, tuple(sorted(held.nodes))) == (title, nodes):
                return
            if await self._append(by, GroupChanged(time.time_ns(), group, title, nodes), f"members: {', '.join(nodes) or 'none'}"):
                return

    async def _append(self, by: Caller, event: GroupChanged, detail: str) -> bool:
        """Whether it was written; False: the group was changed at the same time."""
        try:
            await self._writer.append("group", event.group, [event, by.took("group.write", event.group, detail=detail)])
        except Conflict:
            return False
        return True


def _members(view: ClusterView, asked: Iterable[str]) -> tuple[str, ...]:
    """Nodes given by id, name or the beginning of an id, by id. Raises Invalid."""
    try:
        return tuple(sorted({find_node(view, node) for node in asked}))
    except (NotThere, Ambiguous) as error:
        raise Invalid("nodes", str(error)) from None
