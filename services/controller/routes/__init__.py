"""The REST face of the controller, under /api/v1, a file for each kind of thing. Reads show the log; writes go through ``actions``.

Every handler names the action it is (``action="task.read"``): that is what a guard asks the table of rights about. What a tenant may not
see is left out or not found, here and in the actions.

May live here: routes. May not: decisions, what an answer looks like (answers), what a body may hold (bodies).
"""

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

_ACCESS = [
    *access_session.ROUTES, *access_tenants.ROUTES, *access_users.ROUTES, *access_keys.ROUTES, *access_audit.ROUTES,
]  # fmt: skip
ROUTES = [*nodes.ROUTES, *tasks.ROUTES, *groups.ROUTES, *placements.ROUTES, *config.ROUTES, *system.ROUTES, *_ACCESS]
