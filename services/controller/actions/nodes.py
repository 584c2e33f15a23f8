"""Actions on the configuration of nodes (configure, drain, resume) and of the cluster."""

from __future__ import annotations

from scheduler.placement import NodeView
from scheduler.placement.view import DRAINED
from services.controller.configuration import Configuration, Values
from services.controller.identity import Caller
from services.controller.log_projection import LogProjection
from services.controller.lookup import check, config_revision, find_node, node_revision

__all__ = ["NodeActions", "ConfigActions"]


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
