"""The REST API of the controller, under /api/v1. Reads show the log; writes go through ``actions``.

Every handler names its action (``action="task.read"``), which the guard looks up in the table of rights. What a tenant may not see is
left out or not found, here and in the actions.
"""

from typing import Final

from litestar import Router

from services.controller.routes import access, access_session, groups, nodes, system, tasks

__all__ = ["ROUTES"]

_TAGGED: Final = {
    "Nodes": nodes.ROUTES,
    "Tasks": tasks.TASKS,
    "Runs": tasks.RUNS,
    "Groups": groups.ROUTES,
    "Placements": tasks.PLACEMENTS,
    "Configuration": system.CONFIG,
    "Service": system.SERVICE,
    "Login": access_session.ROUTES,
    "Tenants": access.TENANTS,
    "Users": access.USERS,
    "API keys": access.KEYS,
    "Audit": access.AUDIT,
}
ROUTES: Final = [Router("/", route_handlers=routes, tags=[tag]) for tag, routes in _TAGGED.items()]
