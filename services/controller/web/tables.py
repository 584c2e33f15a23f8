"""The pages that are mostly tables, put together: Tasks, Groups, Settings, Credits. Their routes and live topics.

May live here: wiring. May not: what any page shows.
"""

from __future__ import annotations

from typing import Any, Final

from services.controller.parts import Parts
from services.controller.web.desk import Desk
from services.controller.web.live import Live
from services.controller.web.tasks.routes import ROUTES as TASKS
from services.controller.web.tasks.showing import tasks_topic

__all__ = ["TABLE_ROUTES", "add_topics"]

TABLE_ROUTES: Final[list[Any]] = [*TASKS]


def add_topics(live: Live, parts: Parts, desk: Desk) -> None:
    """What keeps these pages up to date."""
    live.add(tasks_topic(parts, desk))
