"""The caller's identity, as routes and actions see it. The access middleware has put the identity into the request's scope; it is
``local_identity()`` without authentication (an embedded stack on loopback)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from litestar.connection import ASGIConnection

from bus_schemas.events import ActionTaken
from services.controller.errors import Denied
from services.kit.access import Action, Identity
from services.kit.access.web import identity_of, proof_of

__all__ = ["Caller", "caller_of"]

Connection = ASGIConnection[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Caller:
    """The identity behind an action, and its address (empty: unknown)."""

    identity: Identity
    source: str = ""

    def may(self, action: Action, tenant: str | None = None) -> bool:
        return self.identity.may(action, tenant)

    def sees(self, tenant: str) -> bool:
        """Whether the caller may know of tasks and sessions of ``tenant``."""
        return self.may("task.read", tenant)

    def require(self, action: Action, tenant: str | None = None) -> None:
        """Raises Denied."""
        if not self.may(action, tenant):
            where = f" of tenant {tenant}" if tenant is not None else ""
            raise Denied(f"{self.identity.name} ({self.identity.role}) may not {action}{where}")

    def took(self, action: Action, target: str, *, tenant: str = "", detail: str = "") -> ActionTaken:
        """The audit record, appended with the facts of the action. ``tenant``: the owner of the target (default: the caller's own)."""
        who = self.identity
        return ActionTaken(time.time_ns(), who.name, tenant or who.tenant, action, target, detail=detail, source=self.source)


def caller_of(connection: Connection) -> Caller:
    return Caller(identity_of(connection), proof_of(connection).source)
