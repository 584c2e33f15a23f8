"""Quotas by tenant: what is used, and the limit; the same for REST, pages and metrics.

What nodes count (messages, opens, open sessions) is from their telemetry, of the node where the tenant has used the greatest part.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from billing.tiers import TierBook
from bus_schemas.quotas import QUOTAS, Quota
from bus_schemas.telemetry import Telemetry
from scheduler.placement import ClusterView
from services.controller.parts import Parts
from services.controller.presenters import Json
from services.kit.access import AccessView


@dataclass(frozen=True, slots=True)
class Use:
    """A quota of a tenant."""

    tenant: str
    quota: Quota
    #: None: it is not reported
    used: int | None
    #: of ``priority`` the best one that its tasks may have, of ``exclusive`` 1 or 0
    limit: int
    #: id of the node that reports the use; empty: it is counted in the log, or nowhere
    node: str = ""

    @property
    def percent(self) -> int:
        """The part of the limit that is used, rounded down; 0 where it is not reported."""
        return 100 * (self.used or 0) // self.limit if self.limit else 0


_TENANTS: Final = [quota for quota in QUOTAS.values() if quota.scope.startswith(("tenant", "key"))]
"""Rows of the table that are about a tenant or its keys."""


def quota_uses(parts: Parts, sees: Callable[[str], bool]) -> list[Use]:
    """Of every tenant that ``sees`` admits, by tenant and in the order of the table."""
    projection, now_ns = parts.projection, time.time_ns()
    view, tiers, access = projection.view, projection.fold(TierBook), projection.fold(AccessView)
    reported = _reported(view, parts.gauges.last())
    connections: Counter[str] = Counter()
    for key, count in (parts.guard.connections if parts.guard is not None else {}).items():
        if key in access.keys:
            tenant = access.keys[key].fact.tenant
            connections[tenant] = max(connections[tenant], count)
    names = {*access.tenants, *(name for name, live in view.live_of.items() if live)}
    if not parts.access.on:  # tenants need not exist, and no node has a reason to invent one
        names |= {tenant for tenant, _ in reported}
    queued, pending = view.queued(), parts.runs.book.pending()
    uses = []
    for tenant in sorted(name for name in names if name and sees(name)):
        tier = tiers.tier_of(tenant, now_ns)
        counted: dict[str, tuple[int | None, int]] = {
            "live_tasks": (view.live_of.get(tenant, 0), tiers.live_tasks(tier, now_ns)),
            "queued_tasks": (queued[tenant], tiers.queued_tasks(tier, now_ns)),
            "runs": (pending[tenant], QUOTAS["runs"].limit),
            "priority": (None, tiers.ceiling(tier, now_ns)),
            "exclusive": (None, int(tiers.exclusive(tier, now_ns))),
        }
        if parts.guard is not None:
            counted["connections"] = connections[tenant], parts.guard.connections_max
        for quota in _TENANTS:
            used, limit = counted.get(quota.name, (None, quota.limit))
            uses.append(reported.get((tenant, quota.name)) or Use(tenant, quota, used, limit))
    return uses


def _reported(view: ClusterView, measured: Iterable[Telemetry]) -> dict[tuple[str, str], Use]:
    """By tenant and quota, what the node says where the greatest part is used."""
    found: dict[tuple[str, str], Use] = {}
    for seen in measured:
        node = view.nodes.get(seen.node)
        if node is None or node.lost is not None:
            continue
        for said in seen.quotas:
            if said.quota in QUOTAS:
                use = Use(said.tenant, QUOTAS[said.quota], said.used, said.limit, seen.node)
                known = found.get((said.tenant, said.quota))
                if known is None or known.percent < use.percent:
                    found[said.tenant, said.quota] = use
    return found


def most_used(uses: Iterable[Use]) -> Mapping[str, Use]:
    """By quota, the tenant that has used the greatest part."""
    found: dict[str, Use] = {}
    for use in uses:
        if use.used is not None and (use.quota.name not in found or found[use.quota.name].percent < use.percent):
            found[use.quota.name] = use
    return found


def quota_answer(use: Use) -> Json:
    """``regained`` more every ``every_s`` seconds (0: not a rate); ``set_by``: the variable or the field of a tier that sets the limit."""
    quota = use.quota
    return {
        "tenant": use.tenant,
        "quota": quota.name,
        "unit": quota.unit,
        "scope": quota.scope,
        "used": use.used,
        "limit": use.limit,
        "regained": quota.regained,
        "every_s": quota.every_s,
        "node": use.node or None,
        "set_by": quota.set_by or None,
        "beyond": quota.beyond,
    }
