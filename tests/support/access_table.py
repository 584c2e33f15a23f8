"""Authorization table: each route of controller and billing with the roles that may call it, written by hand as the reference for the code.

A route that is not in here fails the matrix test, and so does an entry without a route.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["BILLING", "CONTROLLER", "MAY", "ONLY_CLUSTER", "SCOPED", "Route"]

_ROLES: Final = ("admin", "operator", "member", "viewer", "service", "node")
_GRID: Final = """
cluster.read     + + + + + .
node.read        + + + + + .
node.configure   + + . . + .
group.read       + + + + + .
group.write      + + . . + .
config.read      + + + + + .
config.write     + + . . + .
task.read        + + + + + .
task.submit      + + + . + .
task.cancel      + + + . + .
task.prioritise  + + + . + .
task.move        + + . . + .
credits.read     + + + + + .
credits.grant    + . . . + .
budget.write     + . . . + .
tariff.write     + . . . + .
tenant.read      + + + + + .
tenant.write     + . . . + .
user.read        + . . . + .
user.write       + . . . + .
key.read         + + + + + .
key.write        + + + + + .
audit.read       + + . . + .
bus.client       + + + . + .
bus.node         + . . . + +
"""
MAY: Final[dict[str, set[str]]] = {
    action: {role for role, mark in zip(_ROLES, marks, strict=True) if mark == "+"}
    for action, *marks in (line.split() for line in _GRID.strip().splitlines())
}
"""Action -> roles."""

_READ: Final = {"cluster.read", "node.read", "group.read", "config.read", "task.read", "credits.read", "tenant.read", "key.read"}
_TASKS: Final = {"task.submit", "task.cancel", "task.prioritise", "bus.client"}
SCOPED: Final[dict[str, set[str]]] = {
    "read": _READ | {"user.read", "audit.read"},
    "submit": _TASKS | {"task.read", "cluster.read", "node.read", "group.read"},
    "operate": _READ | _TASKS | {"node.configure", "task.move", "group.write", "config.write", "audit.read"},
    "admin": set(MAY),
    "bus": {"bus.client", "bus.node"},
}
"""Scope -> what it leaves of a role."""

ONLY_CLUSTER: Final = {
    "node.configure", "task.move", "group.write", "config.write", "credits.grant", "tariff.write", "tenant.write", "bus.node",
}  # fmt: skip
"""What identities of a tenant may not do, whatever their role: it is not about things of a tenant, or not theirs to give."""


@dataclass(frozen=True, slots=True)
class Route:
    """``needs``: an action, ``anyone`` or ``public``. ``of``: the path names a thing of a tenant's, in this variable; ``of_form``: the form
    does. ``path``: values of the other variables. ``body`` (JSON) or ``form``: good enough to get as far as the check of whose thing it
    is; ``$`` stands for the tenant, and ``names_tenant`` says that the body does. ``closed``: about the whole cluster at once, closed to
    identities of a tenant."""

    needs: str
    of: str = ""
    path: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    form: Any = None
    names_tenant: bool = False
    of_form: str = ""
    closed: bool = False


_TASK: Final = {"required_vram_mb": 1, "tenant": "$", "title": "of $"}
_PRICE: Final = {"core_second_micro": 1, "gib_second_micro": 1}

CONTROLLER: Final[dict[tuple[str, str], Route]] = {
    ("GET", "/api/v1/audit"): Route("audit.read"),
    ("GET", "/api/v1/audit/export"): Route("audit.read"),
    ("GET", "/api/v1/config"): Route("config.read"),
    ("PUT", "/api/v1/config"): Route("config.write", body={"default_vram_overcommit_percent": 0}),
    ("GET", "/api/v1/groups"): Route("group.read"),
    ("POST", "/api/v1/groups"): Route("group.write", body={"id": "more"}),
    ("GET", "/api/v1/groups/{group:str}"): Route("group.read", path={"group": "team"}),
    ("PUT", "/api/v1/groups/{group:str}"): Route("group.write", path={"group": "team"}, body={"title": "x"}),
    ("DELETE", "/api/v1/groups/{group:str}"): Route("group.write", path={"group": "team"}),
    ("GET", "/api/v1/keys"): Route("key.read"),
    ("POST", "/api/v1/keys"): Route("key.write", body={"tenant": "$"}, names_tenant=True),
    ("GET", "/api/v1/keys/{key:str}"): Route("key.read", of="key"),
    ("DELETE", "/api/v1/keys/{key:str}"): Route("key.write", of="key"),
    ("GET", "/api/v1/nodes"): Route("node.read"),
    ("GET", "/api/v1/nodes/{node:str}"): Route("node.read", path={"node": "node-a"}),
    ("PUT", "/api/v1/nodes/{node:str}/config"): Route("node.configure", path={"node": "node-a"}, body={"drained": True}),
    ("POST", "/api/v1/nodes/{node:str}/drain"): Route("node.configure", path={"node": "node-a"}),
    ("POST", "/api/v1/nodes/{node:str}/resume"): Route("node.configure", path={"node": "node-a"}),
    ("GET", "/api/v1/placements"): Route("task.read"),
    ("POST", "/api/v1/placements/query"): Route("task.read", body=_TASK, names_tenant=True),
    ("GET", "/api/v1/placements/{task:str}"): Route("task.read", of="task"),
    ("POST", "/api/v1/runs"): Route("task.submit", body={**_TASK, "script": "pass"}, names_tenant=True),
    ("GET", "/api/v1/quotas"): Route("tenant.read"),
    ("GET", "/api/v1/session"): Route("anyone"),
    ("POST", "/api/v1/session"): Route("public", body={"key": "wk_"}),
    ("DELETE", "/api/v1/session"): Route("anyone"),
    ("POST", "/api/v1/session/oidc"): Route("public"),
    ("POST", "/api/v1/session/password"): Route("anyone", body={"old_password": "", "new_password": ""}),
    ("PUT", "/api/v1/session/totp"): Route("anyone", body={"password": "", "secret": "A" * 32, "code": ""}),
    ("POST", "/api/v1/session/totp/removal"): Route("anyone", body={"password": "", "code": ""}),
    ("GET", "/api/v1/tasks"): Route("task.read"),
    ("POST", "/api/v1/tasks"): Route("task.submit", body=_TASK, names_tenant=True),
    ("GET", "/api/v1/tasks/{task:str}"): Route("task.read", of="task"),
    ("PATCH", "/api/v1/tasks/{task:str}"): Route("task.prioritise", of="task", body={"priority": 3}),
    ("POST", "/api/v1/tasks/{task:str}/cancel"): Route("task.cancel", of="task"),
    ("POST", "/api/v1/tasks/{task:str}/release"): Route("task.cancel", of="task", body={}),
    ("POST", "/api/v1/tasks/{task:str}/move"): Route("task.move", of="task", body={}),
    ("POST", "/api/v1/tasks/{task:str}/resume"): Route("task.submit", of="task"),
    ("POST", "/api/v1/tasks/{task:str}/stay"): Route("task.submit", of="task", body={"reason": "the node does not answer"}),
    ("GET", "/api/v1/tasks/{task:str}/waiting"): Route("task.read", of="task"),
    ("GET", "/api/v1/tasks/{task:str}/waits"): Route("task.read", of="task"),
    ("GET", "/api/v1/tasks/{task:str}/timeline"): Route("task.read", of="task"),
    ("GET", "/api/v1/tasks/{task:str}/log"): Route("task.read", of="task"),
    ("GET", "/api/v1/telemetry"): Route("node.read"),
    ("GET", "/api/v1/tenants"): Route("tenant.read"),
    ("POST", "/api/v1/tenants"): Route("tenant.write", body={"id": "new"}),
    ("GET", "/api/v1/tenants/{tenant:str}"): Route("tenant.read", of="tenant"),
    ("PATCH", "/api/v1/tenants/{tenant:str}"): Route("tenant.write", of="tenant", body={"title": "x"}),
    ("POST", "/api/v1/tenants/{tenant:str}/erase"): Route("tenant.write", of="tenant"),
    ("POST", "/api/v1/tokens"): Route("anyone", body={}),
    ("GET", "/api/v1/users"): Route("user.read"),
    ("POST", "/api/v1/users"): Route("user.write", body={"id": "new-user", "role": "viewer", "tenant": "$"}, names_tenant=True),
    ("GET", "/api/v1/users/{user:str}"): Route("user.read", of="user"),
    ("PATCH", "/api/v1/users/{user:str}"): Route("user.write", of="user", body={"title": "x"}),
    ("DELETE", "/api/v1/users/{user:str}/totp"): Route("user.write", of="user"),
    ("POST", "/api/v1/users/{user:str}/erase"): Route("user.write", of="user"),
    ("GET", "/"): Route("cluster.read"),
    ("GET", "/charts/cluster/{name:str}"): Route("cluster.read", path={"name": "load"}),
    ("GET", "/charts/nodes/{node:str}/{name:str}"): Route("node.read", path={"node": "node-a", "name": "load"}),
    ("GET", "/credits"): Route("credits.read"),
    ("GET", "/credits/export.csv"): Route("credits.read"),
    ("GET", "/credits/statement/{tenant:str}"): Route("credits.read", of="tenant"),
    ("GET", "/utilization"): Route("credits.read"),
    ("GET", "/utilization/export.csv"): Route("credits.read"),
    ("POST", "/credits/budget"): Route("budget.write", of_form="tenant", form={"tenant": "$", "period": "month", "limit": "9"}),
    ("POST", "/credits/grant"): Route("credits.grant", form={"tenant": "$", "credits": "1"}, names_tenant=True),
    ("GET", "/groups"): Route("group.read"),
    ("GET", "/groups/new"): Route("group.write"),
    ("POST", "/groups"): Route("group.write", form={"id": "more"}),
    ("GET", "/groups/{group:str}"): Route("group.read", path={"group": "team"}),
    ("POST", "/groups/{group:str}"): Route("group.write", path={"group": "team"}, form={"title": "x"}),
    ("POST", "/groups/{group:str}/delete"): Route("group.write", path={"group": "team"}, form={}),
    ("GET", "/health"): Route("public"),
    ("GET", "/health/live"): Route("public"),
    ("GET", "/health/ready"): Route("public"),
    ("GET", "/help"): Route("anyone"),
    ("GET", "/live"): Route("cluster.read"),
    ("GET", "/login"): Route("public"),
    ("GET", "/login/oidc"): Route("public"),
    ("GET", "/login/oidc/callback"): Route("public"),
    ("POST", "/login"): Route("public", form={"key": "wk_"}),
    ("POST", "/logout"): Route("public", form={}),
    ("GET", "/metrics"): Route("cluster.read", closed=True),
    ("GET", "/nodes"): Route("node.read"),
    ("GET", "/nodes/{node:str}"): Route("node.read", path={"node": "node-a"}),
    ("POST", "/nodes/{node:str}/drain"): Route("node.configure", path={"node": "node-a"}, form={}),
    ("POST", "/nodes/{node:str}/resume"): Route("node.configure", path={"node": "node-a"}, form={}),
    ("POST", "/nodes/{node:str}/overcommit"): Route("node.configure", path={"node": "node-a"}, form={"overcommit_vram_percent": "5"}),
    ("GET", "/settings"): Route("config.read"),
    ("POST", "/settings"): Route("config.write", form={"default_vram_overcommit_percent": "0"}),
    ("GET", "/settings/audit"): Route("audit.read"),
    ("GET", "/settings/keys"): Route("key.read"),
    ("POST", "/settings/keys"): Route("key.write", form={"tenant": "$", "title": "x"}, names_tenant=True),
    ("POST", "/settings/keys/{key:str}/revoke"): Route("key.write", of="key", form={}),
    ("GET", "/settings/quotas"): Route("tenant.read"),
    ("GET", "/settings/tenants"): Route("tenant.read"),
    ("POST", "/settings/tenants"): Route("tenant.write", form={"id": "new"}),
    ("POST", "/settings/tenants/{tenant:str}"): Route("tenant.write", of="tenant", form={"title": "x"}),
    ("GET", "/settings/tiers"): Route("credits.read"),
    ("POST", "/settings/tiers/{tier:str}/price"): Route("tariff.write", path={"tier": "Basic"}, form={}),
    ("POST", "/settings/tiers/{tier:str}/ceiling"): Route("tariff.write", path={"tier": "Basic"}, form={}),
    ("POST", "/settings/tiers/member"): Route("tariff.write", form={}),
    ("GET", "/settings/totp"): Route("anyone"),
    ("POST", "/settings/totp"): Route("anyone", form={}),
    ("POST", "/settings/totp/removal"): Route("anyone", form={}),
    ("POST", "/settings/users/{user:str}/totp"): Route("user.write", of="user", form={}),
    ("GET", "/settings/users"): Route("user.read"),
    ("POST", "/settings/users"): Route("user.write", form={"id": "new-user", "role": "viewer", "tenant": "$"}, names_tenant=True),
    ("GET", "/settings/users/{user:str}"): Route("user.read", of="user"),
    ("POST", "/settings/users/{user:str}"): Route("user.write", of="user", form={"title": "x"}),
    ("GET", "/static/{digest:str}/{name:path}"): Route("public", path={"digest": "0", "name": "wooly.css"}),
    ("GET", "/tasks"): Route("task.read"),
    ("GET", "/tasks/new"): Route("task.submit"),
    ("POST", "/tasks"): Route("task.submit", form={"required_vram_mb": "1"}),
    ("GET", "/tasks/{task:str}"): Route("task.read", of="task"),
    ("GET", "/tasks/{task:str}/ran"): Route("task.read", of="task"),
    ("POST", "/tasks/{task:str}/cancel"): Route("task.cancel", of="task", form={}),
    ("POST", "/tasks/{task:str}/move"): Route("task.move", of="task", form={}),
    ("POST", "/tasks/{task:str}/priority"): Route("task.prioritise", of="task", form={"priority": "3"}),
}

BILLING: Final[dict[tuple[str, str], Route]] = {
    ("GET", "/api/v1/billing/accounts"): Route("credits.read"),
    ("GET", "/api/v1/billing/accounts/{tenant:str}"): Route("credits.read", of="tenant"),
    ("GET", "/api/v1/billing/budgets"): Route("credits.read"),
    ("GET", "/api/v1/billing/budgets/{tenant:str}"): Route("credits.read", of="tenant"),
    ("PUT", "/api/v1/billing/budgets/{tenant:str}/{period:str}"): Route(
        "budget.write", of="tenant", path={"period": "month"}, body={"limit_micro": 9_000_000}
    ),
    ("GET", "/api/v1/billing/credits"): Route("credits.read"),
    ("GET", "/api/v1/billing/grants"): Route("credits.read"),
    ("POST", "/api/v1/billing/grants"): Route("credits.grant", body={"tenant": "$", "micro": 1}, names_tenant=True),
    ("GET", "/api/v1/billing/ledger"): Route("credits.read", closed=True),
    ("GET", "/api/v1/billing/prices"): Route("credits.read"),
    ("PUT", "/api/v1/billing/prices/{tier:str}"): Route("tariff.write", path={"tier": "Basic"}, body=_PRICE),
    ("GET", "/api/v1/billing/series"): Route("credits.read"),
    ("GET", "/api/v1/billing/statements/{tenant:str}"): Route("credits.read", of="tenant"),
    ("PUT", "/api/v1/billing/tenants/{tenant:str}/tier"): Route("tariff.write", of="tenant", body={"tier": "Basic"}),
    ("GET", "/api/v1/billing/tiers"): Route("credits.read"),
    ("PUT", "/api/v1/billing/tiers/{tier:str}"): Route("tariff.write", path={"tier": "Basic"}, body={"priority_ceiling": 0}),
    ("GET", "/api/v1/billing/utilization"): Route("credits.read"),
    ("GET", "/api/v1/billing/utilization/series"): Route("credits.read"),
    ("GET", "/api/v1/billing/verify"): Route("credits.read", closed=True),
    ("GET", "/health"): Route("public"),
    ("GET", "/health/live"): Route("public"),
    ("GET", "/health/ready"): Route("public"),
    ("GET", "/metrics"): Route("cluster.read", closed=True),
}
