"""The pages that are mostly tables, put together: Tasks, Groups, Settings, Credits. Their routes and live topics.

May live here: wiring. May not: what any page shows.
"""

from __future__ import annotations

from typing import Any, Final

from services.controller.parts import Parts
from services.controller.web.credits.routes import ROUTES as CREDITS
from services.controller.web.desk import Desk
from services.controller.web.groups.routes import ROUTES as GROUPS
from services.controller.web.groups.routes import groups_topic
from services.controller.web.live import Live
from services.controller.web.settings.audit import ROUTES as AUDIT
from services.controller.web.settings.cluster import ROUTES as CLUSTER
from services.controller.web.settings.keys import ROUTES as KEYS
from services.controller.web.settings.people import ROUTES as PEOPLE
from services.controller.web.settings.tiers import ROUTES as TIERS
from services.controller.web.tasks.routes import ROUTES as TASKS
from services.controller.web.tasks.showing import task_topic, tasks_topic

__all__ = ["TABLE_ROUTES", "add_topics"]

TABLE_ROUTES: Final[list[Any]] = [*TASKS, *GROUPS, *CLUSTER, *TIERS, *KEYS, *PEOPLE, *AUDIT, *CREDITS]


def add_topics(live: Live, parts: Parts, desk: Desk) -> None:
    """What keeps these pages up to date."""
    live.add(tasks_topic(parts, desk))
    live.add(task_topic(parts))
    live.add(groups_topic(parts))
