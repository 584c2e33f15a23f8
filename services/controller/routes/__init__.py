"""The REST face of the controller, under /api/v1, a file for each kind of thing. Reads show the log; writes go through ``actions``.

Every handler names the action it is (``action="task.read"``): that is what a guard asks the table of rights about. What a tenant may not
see is left out or not found, here and in the actions.

May live here: routes. May not: decisions, what an answer looks like (answers), what a body may hold (bodies).
"""

from typing import Final

from litestar import Router

from services.controller.routes import (
    access_audit,
    access_keys,
    access_session,
    access_tenants,
    access_users,
    config,
    groups,
    nodes,
    placements,
    system,
    tasks,
)

__all__ = ["ROUTES"]

_TAGGED: Final = {
    "Nodes": nodes.ROUTES,
    "Tasks": tasks.ROUTES,
    "Groups": groups.ROUTES,
    "Placements": placements.ROUTES,
    "Configuration": config.ROUTES,
    "Service": system.ROUTES,
    "Login": access_session.ROUTES,
    "Tenants": access_tenants.ROUTES,
    "Users": access_users.ROUTES,
    "API keys": access_keys.ROUTES,
    "Audit": access_audit.ROUTES,
}
ROUTES: Final = [Router("/", route_handlers=routes, tags=[tag]) for tag, routes in _TAGGED.items()]
