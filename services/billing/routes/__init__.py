"""The routes of the billing service, by what they are about.

May live here: HTTP in, answers out. May not: decisions about money (billing/), the log (writer).
"""

from __future__ import annotations

from typing import Final

from litestar import Router

from services.billing.routes import accounts, budgets, credit, grants, statements, system, tiers

__all__ = ["ROUTES"]

_TAGGED: Final = {
    "Credits": credit.ROUTES,
    "Accounts": accounts.ROUTES,
    "Grants": grants.ROUTES,
    "Budgets": budgets.ROUTES,
    "Tiers and prices": tiers.ROUTES,
    "Statements": statements.ROUTES,
    "Service": system.ROUTES,
}
ROUTES: Final = [Router("/", route_handlers=routes, tags=[tag]) for tag, routes in _TAGGED.items()]
