"""Which privileges a caller may grant: never more than their own. Pure."""

from __future__ import annotations

from collections.abc import Collection

from services.kit.access.errors import Forbidden
from services.kit.access.rules import PEOPLE, Identity, rights

__all__ = ["check_grant", "check_over"]


def check_grant(who: Identity, role: str, tenant: str, scopes: Collection[str] = ()) -> None:
    """Check that ``who`` may create a user or key of ``role`` in ``tenant`` (empty: the cluster), narrowed to ``scopes``. Raises Forbidden
    with the field."""
    if who.tenant and tenant != who.tenant:
        raise Forbidden(f"{who.name} may give rights in tenant {who.tenant} only", "tenant")
    if who.tenant and role not in PEOPLE:
        raise Forbidden(f"keys of nodes and services are made by people of the whole cluster, not of tenant {who.tenant}", "role")
    beyond = rights(role, scopes, tenant) - rights(who.role, who.scopes, who.tenant)
    if beyond:
        raise Forbidden(f"{who.name} cannot grant a right that they do not have: {sorted(beyond)[0]}", "scopes" if scopes else "role")


def check_over(who: Identity, role: str, tenant: str) -> None:
    """Check that ``who`` may change a user or key that has ``role`` in ``tenant`` today: only one without rights beyond their own. Raises
    Forbidden."""
    if (who.tenant and tenant != who.tenant) or rights(role, (), tenant) - rights(who.role, who.scopes, who.tenant):
        raise Forbidden(f"{who.name} may not change a user or key with more rights")
