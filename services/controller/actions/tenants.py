"""Actions on tenants: create, rename, disable."""

from __future__ import annotations

import time

from bus_schemas.events import TenantChanged
from services.controller.actions.access_log import AccessLog, Change
from services.controller.errors import NotThere, OutOfState
from services.controller.identity import Caller
from services.controller.revisions import check
from services.kit.access import AccessView
from services.kit.access.view import Tenant

__all__ = ["TenantActions", "visible_tenants"]


class TenantActions:
    """Each method raises Denied, NotThere (also for another tenant), OutOfState, Stale, and kit.errors.BusUnavailable; it returns once the
    view shows what was done."""

    def __init__(self, log: AccessLog) -> None:
        self._log = log

    def seen(self, by: Caller, tenant: str) -> Tenant:
        """Raises NotThere."""
        found = self._log.view.tenants.get(tenant)
        if found is None or not by.may("tenant.read", tenant):
            raise NotThere(f"there is no tenant {tenant}")
        return found

    async def create(self, by: Caller, tenant: str, title: str = "") -> Tenant:
        """Raises OutOfState when there is one of this name, in whatever case."""
        by.require("tenant.write")

        def decide(view: AccessView) -> Change:
            same = next((name for name in view.tenants if name.lower() == tenant.lower()), None)
            if same is not None:
                raise OutOfState(f"tenant {same} exists")
            return Change(TenantChanged(time.time_ns(), tenant, title), "tenant.write", tenant, tenant, "created")

        return (await self._log.change(by, decide)).tenants[tenant]

    async def change(
        self, by: Caller, tenant: str, *, title: str | None = None, disabled: bool | None = None, revision: int | None = None
    ) -> Tenant:
        """What is None stays as it is. A disabled tenant's keys and users open nothing, at once; its facts stay."""
        by.require("tenant.write")

        def decide(view: AccessView) -> Change | None:
            held = self.seen(by, tenant)
            check(f"tenant {tenant}", held.position, revision)
            new = TenantChanged(
                time.time_ns(), tenant, held.fact.title if title is None else title, held.fact.disabled if disabled is None else disabled
            )
            if (new.title, new.disabled) == (held.fact.title, held.fact.disabled):
                return None
            detail = "changed" if new.disabled == held.fact.disabled else "disabled" if new.disabled else "enabled"
            return Change(new, "tenant.write", tenant, tenant, detail)

        return (await self._log.change(by, decide)).tenants[tenant]


def visible_tenants(view: AccessView, by: Caller) -> list[Tenant]:
    """By name."""
    return [view.tenants[name] for name in sorted(view.tenants) if by.may("tenant.read", name)]
