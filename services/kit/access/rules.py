"""The one table of who may do what. Pure.

An identity acts in its tenant; those whose tenant is empty (admin, operator, node, service) act in the cluster. A key may be narrowed to
scopes; it then may do what its role and one of its scopes allow, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["ACTIONS", "ROLES", "SCOPES", "Action", "Identity", "allowed", "everyone"]

Action = Literal[
    "cluster.read",
    "node.read",
    "node.configure",
    "group.read",
    "group.write",
    "config.read",
    "config.write",
    "task.read",
    "task.submit",
    "task.cancel",
    "task.prioritise",
    "credits.read",
    "credits.grant",
    "budget.write",
    "tariff.write",
    "tenant.read",
    "tenant.write",
    "user.read",
    "user.write",
    "key.read",
    "key.write",
    "audit.read",
    "bus.client",
    "bus.node",
]

ROLES: Final = ("admin", "operator", "member", "viewer", "node", "service")
SCOPES: Final = ("read", "submit", "operate", "admin", "bus")

_READ: Final = frozenset({"cluster.read", "node.read", "group.read", "config.read", "task.read", "credits.read"})
_OWN: Final = frozenset({"task.submit", "task.cancel", "task.prioritise", "bus.client"})
_OPERATE: Final = frozenset({"node.configure", "group.write", "config.write", "tenant.read", "audit.read"})
_RULE: Final = frozenset(
    {"credits.grant", "budget.write", "tariff.write", "tenant.write", "user.read", "user.write", "key.read", "key.write"}
)

_BY_ROLE: Final[dict[str, frozenset[str]]] = {
    "admin": _READ | _OWN | _OPERATE | _RULE | {"bus.node"},
    "operator": _READ | _OWN | _OPERATE,
    "member": (_READ | _OWN | {"key.read", "key.write"}),
    "viewer": _READ,
    "node": frozenset({"bus.node"}),
    "service": _READ | _OWN | _OPERATE | _RULE | {"bus.node"},
}
_BY_SCOPE: Final[dict[str, frozenset[str]]] = {
    "read": _READ | {"tenant.read", "user.read", "key.read", "audit.read"},
    "submit": _OWN | {"task.read", "cluster.read", "node.read", "group.read"},
    "operate": _READ | _OWN | _OPERATE,
    "admin": _READ | _OWN | _OPERATE | _RULE | {"bus.node"},
    "bus": frozenset({"bus.client", "bus.node"}),
}
ACTIONS: Final[frozenset[str]] = frozenset().union(*_BY_ROLE.values())

_OF_CLUSTER: Final = frozenset({"cluster.read", "node.read", "group.read", "config.read"})
"""What is nobody's in particular: a tenant's member sees nodes and groups (never other tenants' tasks on them)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whoever asks. ``name``: user or key, as the log shall name them. ``tenant`` empty: the whole cluster. ``node``: the only node that
    this identity may be (role ``node``). ``key``: id of the key it came with, or empty (a password, or no authentication)."""

    name: str
    tenant: str
    role: str
    scopes: tuple[str, ...] = ()
    key: str = ""
    node: str = ""

    def may(self, action: Action, tenant: str | None = None) -> bool:
        return allowed(self, action, tenant)


def allowed(who: Identity, action: Action, tenant: str | None = None) -> bool:
    """May they do this to something of ``tenant`` (None: to something that is no tenant's)?"""
    if action not in _BY_ROLE.get(who.role, frozenset()):
        return False
    if who.scopes and not any(action in _BY_SCOPE.get(scope, frozenset()) for scope in who.scopes):
        return False
    if not who.tenant:
        return True
    return action in _OF_CLUSTER if tenant is None else tenant == who.tenant


def everyone() -> Identity:
    """Who everybody is where authentication is off (an embedded stack on loopback)."""
    return Identity("local", "", "admin")
