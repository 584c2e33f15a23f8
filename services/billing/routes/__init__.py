"""The routes of the billing service, by what they are about.

May live here: HTTP in, answers out. May not: decisions about money (billing/), the log (writer).
"""

from __future__ import annotations

from typing import Any, Final

from services.billing.routes import accounts, budgets, credit, grants, statements, system, tiers

__all__ = ["ROUTES"]

ROUTES: Final[list[Any]] = [
    *credit.ROUTES,
    *accounts.ROUTES,
    *grants.ROUTES,
    *budgets.ROUTES,
    *tiers.ROUTES,
    *statements.ROUTES,
    *system.ROUTES,
]
