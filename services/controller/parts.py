"""Dependencies of routes, pages and actions: the parts of one running controller, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from litestar import Request

from scheduler.placement import ClusterView
from services.controller.actions import (
    AccessLog,
    ConfigActions,
    GroupActions,
    KeyActions,
    NodeActions,
    TaskActions,
    TenantActions,
    UserActions,
)
from services.controller.configuration import Configuration
from services.controller.gauges import Gauges
from services.controller.journals import Journals
from services.controller.mirror import Mirror
from services.controller.placer import Placer
from services.controller.runs import Runs
from services.controller.sentinel import Sentinel
from services.controller.writer import Writer
from services.kit.access.access import Access

__all__ = ["Parts", "parts_of"]


@dataclass(frozen=True, slots=True)
class Parts:
    """``tasks``, ``nodes``, ``groups``, ``config``, ``tenants``, ``users``, ``keys``: what people do to
    them, the same for REST and pages. ``journals``: what became of tasks on their devices. ``runs``: scripts
    that runners execute."""

    mirror: Mirror
    gauges: Gauges
    writer: Writer
    placer: Placer
    configuration: Configuration
    sentinel: Sentinel
    tasks: TaskActions
    nodes: NodeActions
    groups: GroupActions
    config: ConfigActions
    access_log: AccessLog
    tenants: TenantActions
    users: UserActions
    keys: KeyActions
    journals: Journals
    runs: Runs

    @classmethod
    def over(
        cls,
        *,
        mirror: Mirror,
        gauges: Gauges,
        writer: Writer,
        placer: Placer,
        configuration: Configuration,
        sentinel: Sentinel,
        access: Access,
        journals: Journals,
        tasks: TaskActions,
        runs: Runs,
    ) -> Parts:
        """The parts with their actions. The mirror keeps an AccessView."""
        log = AccessLog(mirror, writer, access)
        return cls(
            mirror=mirror,
            gauges=gauges,
            writer=writer,
            placer=placer,
            configuration=configuration,
            sentinel=sentinel,
            tasks=tasks,
            nodes=NodeActions(mirror, configuration),
            groups=GroupActions(mirror, writer),
            config=ConfigActions(mirror, configuration),
            access_log=log,
            tenants=TenantActions(log),
            users=UserActions(log, access),
            keys=KeyActions(log, access),
            journals=journals,
            runs=runs,
        )

    async def fresh_view(self) -> ClusterView:
        """The view, with everything that is in the log now."""
        await self.mirror.caught_up()
        return self.mirror.view


def parts_of(request: Request[Any, Any, Any]) -> Parts:
    found: Parts = request.app.state.parts
    return found
