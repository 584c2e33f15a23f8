"""The pages of one running controller, put together: routes, live topics, what wakes them.

May live here: wiring. May not: what any page shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from litestar import Request

from bus_schemas.events import Event
from bus_schemas.telemetry import Telemetry
from services.controller.parts import Parts
from services.controller.web.api import ROUTES as API
from services.controller.web.assets import serve_asset
from services.controller.web.dashboard.page import ROUTES as DASHBOARD
from services.controller.web.dashboard.page import dashboard_topic
from services.controller.web.desk import Desk
from services.controller.web.history import History
from services.controller.web.live import Live, kind_of
from services.controller.web.login.page import ROUTES as LOGIN
from services.controller.web.nodes.pages import ROUTES as NODES
from services.controller.web.nodes.pages import node_topic, nodes_topic
from services.controller.web.rates import PriceBook
from services.controller.web.stream import live_stream
from services.controller.web.tables import TABLE_ROUTES, add_topics
from services.kit.access.access import Access
from services.kit.access.requests import Proof
from services.kit.access.rules import Identity
from services.kit.bus import Bus

__all__ = ["Web", "WEB_ROUTES", "web_of"]

WEB_ROUTES: Final[list[Any]] = [serve_asset, live_stream, *DASHBOARD, *NODES, *LOGIN, *API, *TABLE_ROUTES]
"""Every handler of the pages: what make_app takes as ``more_routes``."""


@dataclass(slots=True)
class Web:
    """What pages have beside the parts of the controller. ``past``: position in the telemetry stream up to which messages are not yet in
    the history."""

    parts: Parts
    access: Access
    live: Live
    desk: Desk
    history: History
    past: int = 0

    @classmethod
    def over(cls, parts: Parts, access: Access, desk: Desk) -> Web:
        mirror = parts.mirror
        web = cls(parts, access, Live(), desk, History(lambda: mirror.fold(PriceBook)))
        for topic in (dashboard_topic(parts, web.history), nodes_topic(parts), node_topic(parts, web.history)):
            web.live.add(topic)
        add_topics(web.live, parts, desk)
        parts.gauges.on_seen(web._on_seen)
        web.past = parts.gauges.position
        mirror.on_live_event(web._on_event)
        parts.runs.on_log = lambda task: web.live.wake("log", of=task)
        return web

    async def read_past(self, bus: Bus) -> None:
        """Fill the charts with what was measured before this controller followed."""
        await self.history.read_past(bus, self.past + 1)

    def still(self, identity: Identity, proof: Proof) -> bool:
        """Is the identity that opened a stream still valid? Checked before every message: a revoked identity gets none."""
        return self.access.still(identity, proof.token)

    def _on_seen(self, seen: Telemetry) -> None:
        self.history.take(seen)
        self.live.wake("telemetry")

    def _on_event(self, position: int, event: Event) -> None:
        kind = kind_of(event)
        if kind:
            self.live.wake(kind)


def web_of(request: Request[Any, Any, Any]) -> Web:
    found: Web = request.app.state.web
    return found
