"""The pages of one running controller: their routes, live topics, and the changes that wake those."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from bus_schemas.events import Event
from bus_schemas.telemetry import Telemetry
from services.controller.parts import Parts
from services.controller.web.access import ROUTES as ACCESS
from services.controller.web.api import ROUTES as API
from services.controller.web.context import UiContext
from services.controller.web.credits import ROUTES as CREDITS
from services.controller.web.dashboard import ROUTES as DASHBOARD
from services.controller.web.dashboard import dashboard_topic
from services.controller.web.history import History, PriceBook
from services.controller.web.live import Live, kind_of
from services.controller.web.nodes import GROUP_ROUTES as GROUPS
from services.controller.web.nodes import ROUTES as NODES
from services.controller.web.nodes import groups_topic, node_topic, nodes_topic
from services.controller.web.settings import CLUSTER, TIERS
from services.controller.web.stream import live_stream
from services.controller.web.tasks import ROUTES as TASKS
from services.controller.web.tasks import task_topic, tasks_topic
from services.controller.web.templating import serve_asset
from services.controller.web.utilization import ROUTES as UTILIZATION
from services.kit.access.access import Access
from services.kit.access.rules import Identity
from services.kit.access.web import Proof
from services.kit.bus import Bus

WEB_ROUTES: Final[list[Any]] = [
    serve_asset, live_stream, *DASHBOARD, *NODES, *API, *TASKS, *GROUPS, *CLUSTER, *TIERS, *ACCESS, *CREDITS, *UTILIZATION,
]  # fmt: skip
"""Every handler of the pages: what make_app takes as ``more_routes``."""


@dataclass(slots=True)
class Web:
    """What pages have beside the parts of the controller. ``past``: position in the telemetry stream up to which messages are not yet in
    the history."""

    parts: Parts
    access: Access
    live: Live
    context: UiContext
    history: History
    past: int = 0

    @classmethod
    def over(cls, parts: Parts, access: Access, context: UiContext) -> Web:
        projection = parts.projection
        web = cls(parts, access, Live(), context, History(lambda: projection.fold(PriceBook)))
        for topic in (
            dashboard_topic(parts, web.history),
            nodes_topic(parts),
            node_topic(parts, web.history),
            tasks_topic(parts),
            task_topic(parts),
            groups_topic(parts),
        ):
            web.live.add(topic)
        parts.gauges.on_seen(web._on_seen)
        web.past = parts.gauges.position
        projection.on_live_event(web._on_event)
        parts.runs.on_log = lambda task: web.live.wake("log", of=task)
        return web

    async def read_past(self, bus: Bus) -> None:
        """Fill the charts with what was measured before this controller followed."""
        await self.history.read_past(bus, self.past + 1)

    def is_current(self, identity: Identity, proof: Proof) -> bool:
        """Is the identity that opened a stream still valid? Checked before every message: a revoked identity gets none."""
        return self.access.is_current(identity, proof.token)

    def _on_seen(self, seen: Telemetry) -> None:
        self.history.take(seen)
        self.live.wake("telemetry")

    def _on_event(self, position: int, event: Event) -> None:
        kind = kind_of(event)
        if kind:
            self.live.wake(kind)
