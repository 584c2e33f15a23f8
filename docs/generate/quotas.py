"""The reference of quotas, from the table in bus_schemas/quotas.py."""

from __future__ import annotations

from typing import Final

from bus_schemas.quotas import QUOTAS, Quota
from docs.generate.text import table

__all__ = ["page"]

_HEAD: Final = """# Quotas

How much of what others share one tenant, key, user or address may use. What happens at a limit, and how callers learn of it:
[Authentication and authorization](../access.md#quotas).

"""


def page() -> str:
    """The page."""
    rows = [
        (f"`{quota.name}`", quota.scope, _limit(quota), f"`{quota.set_by}`" if quota.set_by else "", quota.beyond, f"`{quota.enforced}`")
        for quota in QUOTAS.values()
    ]
    return _HEAD + table(("Quota", "Scope", "Default", "Set by", "Beyond it", "Enforced by"), rows)


def _limit(quota: Quota) -> str:
    if not quota.limit:
        return "by tier"
    every = "each second" if quota.every_s == 1 else f"every {quota.every_s} s"
    return f"{quota.limit:,} {quota.unit}" + (f" at once, then {quota.regained:,} more {every}" if quota.regained else "")
