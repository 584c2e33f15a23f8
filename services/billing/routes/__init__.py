"""The application of billing: its REST API under /api/v1/billing, with the routes by what they are about.

May live here: HTTP in, answers out. May not: decisions about money (billing/), the log (writer).
"""

from __future__ import annotations

from typing import Any, Final

from litestar import Litestar, Request, Response, Router

from billing.errors import BillingRequestError
from services.billing.parts import Parts
from services.billing.routes import accounts, reports, statements, system, tiers
from services.kit.problems import HANDLERS, problem, unknown_parameters
from services.kit.rest import make_rest_app

__all__ = ["ROUTES", "make_app"]

_TAGGED: Final = {
    "Credits": reports.CREDITS,
    "Utilization": reports.UTILIZATION,
    "Accounts": accounts.ROUTES,
    "Grants": accounts.GRANTS,
    "Budgets": accounts.BUDGETS,
    "Tiers and prices": tiers.ROUTES,
    "Statements": statements.ROUTES,
    "Service": system.ROUTES,
}
ROUTES: Final = [Router("/", route_handlers=routes, tags=[tag]) for tag, routes in _TAGGED.items()]


_BODY_BYTES_MAX: Final = 64 << 10


def make_app(parts: Parts) -> Litestar:
    """The application over running parts."""
    return make_rest_app(
        "Wooly billing",
        ROUTES,
        parts.access,
        parts=parts,
        before=unknown_parameters,
        handlers={**HANDLERS, BillingRequestError: _bad_query},
        body_bytes_max=_BODY_BYTES_MAX,
    )


def _bad_query(_: Request[Any, Any, Any], error: BillingRequestError) -> Response[Any]:
    return problem(400, "invalid-query", "The query is not valid", str(error), [(error.field, str(error))])
