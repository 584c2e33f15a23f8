"""Authorisation helpers for route handlers: permission checks, visible tenants, audit fields."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from bus_schemas.events import ActionTaken
from services.kit.access.access import Access
from services.kit.access.errors import Forbidden, Hidden
from services.kit.access.rules import Action, Identity
from services.kit.access.tokens import Token

__all__ = ["ANONYMOUS", "Proof", "permit", "proof_of", "relay_authorization", "audit_record", "tenant_filter", "tenant_of", "identity_of"]

ANONYMOUS = Identity("", "", "")
"""An unauthenticated caller of a public route; it has no rights."""


@dataclass(frozen=True, slots=True)
class Proof:
    """How an identity was proved; on ``request.auth``."""

    #: ``off`` (no authentication), ``none``, ``key``, ``session``, ``relay``
    kind: str
    #: the caller's address
    source: str = ""
    #: whether the browser speaks TLS
    secure: bool = False
    #: the token that writes of a session's pages must carry; empty unless ``kind`` is ``session``
    csrf: str = ""
    #: of the session
    token: Token | None = None


def identity_of(connection: Any) -> Identity:
    """The caller's identity. Raises RuntimeError where no AccessPlugin is installed: there is no default identity."""
    found = connection.scope.get("user")
    if not isinstance(found, Identity):
        raise RuntimeError("the application has no AccessPlugin")
    return found


def proof_of(connection: Any) -> Proof:
    found = connection.scope.get("auth")
    if not isinstance(found, Proof):
        raise RuntimeError("the application has no AccessPlugin")
    return found


def permit(connection: Any, action: Action, tenant: str | None = None, *, hidden: str = "", field: str = "") -> Identity:
    """The caller's identity, if it may do ``action`` to something of ``tenant`` (None: to nothing of a tenant's). Else raises Forbidden; or
    Hidden with the text ``hidden`` (the same as for what does not exist) when it is of another tenant."""
    asking = identity_of(connection)
    if asking.may(action, tenant):
        return asking
    if hidden and asking.tenant and tenant is not None and tenant != asking.tenant:
        raise Hidden(hidden)
    raise Forbidden(f"{asking.role} {asking.name} may not do this ({action})", field)


def tenant_filter(connection: Any, action: Action, wanted: str | None = None) -> str | None:
    """The tenant that a list is restricted to: ``wanted`` or none (None) in the cluster, one's own in a tenant. Raises Forbidden."""
    asking = identity_of(connection)
    tenant = wanted if wanted is not None else (asking.tenant or None)
    if tenant is not None:
        permit(connection, action, tenant, field="tenant")
    elif not asking.may(action, ""):
        raise Forbidden(f"{asking.role} {asking.name} may not do this ({action})")
    return tenant


def tenant_of(connection: Any, action: Action, given: str | None = None, *, default: str = "default") -> str:
    """The tenant of a new entity: ``given``, else one's own, else ``default``. Raises Forbidden."""
    tenant = given if given is not None else (identity_of(connection).tenant or default)
    permit(connection, action, tenant, field="tenant")
    return tenant


def audit_record(connection: Any, action: str, target: str, detail: str = "", *, tenant: str | None = None) -> ActionTaken:
    """The audit record, to be stored behind the facts of the action. ``tenant``: of the entity (default: the caller's own)."""
    asking = identity_of(connection)
    of = asking.tenant if tenant is None else tenant
    return ActionTaken(time.time_ns(), asking.name, of, action, target, detail, proof_of(connection).source)


def relay_authorization(connection: Any) -> str:
    """The Authorization header with which a service asks another one on behalf of its caller; empty without authentication."""
    access: Access = connection.app.state.access
    return f"Bearer {access.write(access.relay(identity_of(connection)))}" if access.on else ""
