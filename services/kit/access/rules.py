"""Roles, actions and rights: the one table of permissions, and which rights a caller may grant. Pure.

An identity acts in its tenant; those whose tenant is empty (admin, operator, node, service) act in the cluster. A key may be narrowed to
scopes; it then may do what its role and one of its scopes allow, and nothing else. ``key.read`` and ``key.write`` are about one's own
keys; those of others need ``user.read`` and ``user.write`` beside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from services.kit.access.errors import Forbidden

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
    "task.move",
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

ACTIONS: Final[frozenset[str]] = frozenset(get_args(Action))
AUDITED: Final = ACTIONS | {
    "session.begin",
    "session.end",
    "session.fail",
    "access.deny",
    "password.change",
    "identity.link",
    "token.issue",
    "totp.change",
    "code.use",
}
"""What an audit record may name: an action, an operation on one's own session, password or identity, or a refusal."""
ROLES: Final = ("admin", "operator", "member", "viewer", "node", "service")
PEOPLE: Final = ("admin", "operator", "member", "viewer")
"""Roles a user may have; the others are for keys of programs."""
SCOPES: Final = ("read", "submit", "operate", "admin", "bus")

_READ: Final = frozenset({"cluster.read", "node.read", "group.read", "config.read", "task.read", "credits.read", "tenant.read", "key.read"})
_KEYS: Final = frozenset({"key.read", "key.write"})
_OWN: Final = frozenset({"task.submit", "task.cancel", "task.prioritise", "bus.client"})
_OPERATE: Final = frozenset({"node.configure", "task.move", "group.write", "config.write", "audit.read"})
_RULE: Final = frozenset({"credits.grant", "budget.write", "tariff.write", "tenant.write", "user.read", "user.write"})
_ALL: Final = _READ | _KEYS | _OWN | _OPERATE | _RULE | {"bus.node"}

_BY_ROLE: Final[dict[str, frozenset[str]]] = {
    "admin": _ALL,
    "operator": _READ | _KEYS | _OWN | _OPERATE,
    "member": _READ | _KEYS | _OWN,
    "viewer": _READ | _KEYS,
    "node": frozenset({"bus.node"}),
    "service": _ALL,
}
_BY_SCOPE: Final[dict[str, frozenset[str]]] = {
    "read": _READ | {"user.read", "audit.read"},
    "submit": _OWN | {"task.read", "cluster.read", "node.read", "group.read"},
    "operate": (_READ | _OWN | _OPERATE),
    "admin": _ALL,
    "bus": frozenset({"bus.client", "bus.node"}),
}

_OF_CLUSTER: Final = frozenset({"cluster.read", "node.read", "group.read", "config.read"})
"""Actions on entities that belong to no tenant: a tenant's member sees nodes and groups (never other tenants' tasks on them)."""
_CLUSTER_ONLY: Final = frozenset(
    {"node.configure", "task.move", "group.write", "config.write", "credits.grant", "tariff.write", "tenant.write", "bus.node"}
)
"""Actions that identities of a tenant may not do, whatever their role: they concern the whole cluster, or would let a tenant set its own
credits, prices or existence."""


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated caller."""

    #: of the user or key, as in the log
    name: str
    #: empty: the whole cluster
    tenant: str
    role: str
    #: narrow the role; empty: all of it
    scopes: tuple[str, ...] = ()
    #: id of the key it was authenticated by; empty: a password, or no authentication
    key: str = ""
    #: the only node that this identity may be (role ``node``)
    node: str = ""

    def may(self, action: Action, tenant: str | None = None) -> bool:
        return allowed(self, action, tenant)


def rights(role: str, scopes: Iterable[str] = (), tenant: str = "") -> frozenset[str]:
    """Every action of ``role`` narrowed to ``scopes`` (none: all of it), in a tenant or (empty) in the cluster. Unknown names give none."""
    found = _BY_ROLE.get(role, frozenset())
    named = tuple(scopes)
    if named:
        found &= frozenset().union(*(_BY_SCOPE.get(scope, frozenset()) for scope in named))
    return found - _CLUSTER_ONLY if tenant else found


def allowed(who: Identity, action: Action, tenant: str | None = None) -> bool:
    """Whether ``who`` may do this to an entity of ``tenant`` (None: to one that belongs to no tenant)."""
    if action not in rights(who.role, who.scopes, who.tenant):
        return False
    if not who.tenant:
        return True
    return action in _OF_CLUSTER if tenant is None else tenant == who.tenant


def may_at_all(who: Identity, action: Action) -> bool:
    """Whether ``who`` may do this to any entity: checked before a route looks for the entity of the request."""
    return allowed(who, action, who.tenant or None) or allowed(who, action)


def local_identity() -> Identity:
    """The identity of every caller where authentication is off (an embedded stack on loopback)."""
    return Identity("local", "", "admin")


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
