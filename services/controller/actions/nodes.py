"""Actions on the configuration of nodes (configure, drain, resume) and of the cluster, and on groups of nodes (create, edit, delete)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from bus_schemas.events import Event, GroupChanged
from scheduler.placement import ClusterView, NodeView
from scheduler.placement.view import DRAINED
from services.controller.configuration import Configuration, Values
from services.controller.errors import Ambiguous, Invalid, NotThere, OutOfState
from services.controller.identity import Caller
from services.controller.log_projection import LogProjection
from services.controller.lookup import check, config_revision, find_node, group_revision, node_revision
from services.controller.writer import Writer


@dataclass(frozen=True, slots=True)
class GroupValues:
    """Values of a group; None: unchanged."""

    title: str | None = None
    nodes: tuple[str, ...] | None = None  #: its members beside the nodes that name it themselves


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

        def decide() -> list[Event]:
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
            return [GroupChanged(time.time_ns(), group, deleted=True), by.took("group.write", group, detail="deleted")]

        await self._projection.caught_up()
        await self._writer.change("group", group, decide)

    async def _write(self, by: Caller, group: str, values: GroupValues, revision: int | None, *, new: bool) -> None:
        by.require("group.write")

        def decide() -> list[Event]:
            view = self._projection.view
            held = view.groups.get(group)
            if new and held is not None:
                raise OutOfState(f"group {group} exists")
            if not new and group not in view.membership.known():
                raise NotThere(f"there is no group {group}")
            check(f"group {group}", group_revision(self._projection, group), revision)
            old = (held.title, tuple(sorted(held.nodes))) if held is not None else ("", ())
            title = old[0] if values.title is None else values.title
            nodes = old[1] if values.nodes is None else _members(view, values.nodes)
            if held is not None and old == (title, nodes):
                return []
            took = by.took("group.write", group, detail=f"members: {', '.join(nodes) or 'none'}")
            return [GroupChanged(time.time_ns(), group, title, nodes), took]

        await self._projection.caught_up()
        await self._writer.change("group", group, decide)


def _members(view: ClusterView, asked: Iterable[str]) -> tuple[str, ...]:
    """Nodes given by id, name or the beginning of an id, by id. Raises Invalid."""
    try:
        return tuple(sorted({find_node(view, node) for node in asked}))
    except (NotThere, Ambiguous) as error:
        raise Invalid("nodes", str(error)) from None


class NodeActions:
    """Nodes go by id, name or the beginning of their id. Each method raises Denied, NotThere, Ambiguous, Stale when ``revision`` is given
    and no longer holds, and errors of bus and store; it returns once the view shows what was done."""

    def __init__(self, projection: LogProjection, configuration: Configuration) -> None:
        self._projection = projection
        self._configuration = configuration

    async def configure(self, by: Caller, node: str, changes: Values, *, revision: int | None = None) -> NodeView:
        """Set values of one node; None unsets."""
        by.require("node.configure")
        await self._projection.caught_up()
        node = find_node(self._projection.view, node)

        def unchanged() -> None:
            check(f"node {node}", node_revision(self._projection, node), revision)

        unchanged()
        if changes:
            detail = ", ".join(f"{key}={'unset' if value is None else value}" for key, value in sorted(changes.items()))
            took = by.took("node.configure", node, detail=detail)
            await self._configuration.set_node(node, changes, took, unchanged if revision is not None else None)
        return self._projection.view.nodes[node]

    async def drain(self, by: Caller, node: str, *, revision: int | None = None) -> NodeView:
        """Take it out of service for new tasks: it finishes what it has."""
        return await self.configure(by, node, {DRAINED: 1}, revision=revision)

    async def resume(self, by: Caller, node: str, *, revision: int | None = None) -> NodeView:
        return await self.configure(by, node, {DRAINED: None}, revision=revision)


class ConfigActions:
    def __init__(self, projection: LogProjection, configuration: Configuration) -> None:
        self._projection = projection
        self._configuration = configuration

    async def change(self, by: Caller, changes: Values, *, revision: int | None = None) -> None:
        """Set global values; None unsets. Raises Denied, Stale when ``revision`` is given and no longer holds, and errors of bus and
        store; returns once the view shows it."""
        by.require("config.write")
        await self._projection.caught_up()

        def unchanged() -> None:
            check("the configuration", config_revision(self._projection), revision)

        unchanged()
        detail = ", ".join(f"{key}={'unset' if value is None else value}" for key, value in sorted(changes.items()))
        took = by.took("config.write", "global", detail=detail)
        await self._configuration.set_global(changes, took, unchanged if revision is not None else None)
