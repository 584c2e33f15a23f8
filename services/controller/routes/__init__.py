"""The REST face of the controller, under /api/v1, a file for each kind of thing. Reads show the log; writes go through ``actions``.

Every handler names the action it is (``action="task.read"``): that is what a guard asks the table of rights about. What a tenant may not
see is left out or not found, here and in the actions.

May live here: routes. May not: decisions, what an answer looks like (answers), what a body may hold (bodies).
"""

from typing import Final

from litestar import Router

from services.controller.routes import access, access_session, config, groups, nodes, system, tasks

__all__ = ["ROUTES"]

_TAGGED: Final = {
    "Nodes": nodes.ROUTES,
    "Tasks": tasks.TASKS,
    "Runs": tasks.RUNS,
    "Groups": groups.ROUTES,
    "Placements": tasks.PLACEMENTS,
    "Configuration": config.ROUTES,
    "Service": system.ROUTES,
    "Login": access_session.ROUTES,
    "Tenants": access.TENANTS,
    "Users": access.USERS,
    "API keys": access.KEYS,
    "Audit": access.AUDIT,
}
ROUTES: Final = [Router("/", route_handlers=routes, tags=[tag]) for tag, routes in _TAGGED.items()]
