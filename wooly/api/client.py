"""The client: one method an operation of the REST API."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import UNSET, UnsetType

from wooly import config as configuration
from wooly.api.answers import (
    Account,
    AuditRecord,
    Budget,
    ClusterConfig,
    CreditReport,
    CreditSeries,
    Grant,
    Group,
    Identity,
    Key,
    LogPart,
    NewKey,
    Node,
    Page,
    Placement,
    QuotaUse,
    Statement,
    Task,
    Telemetry,
    Tenant,
    Tier,
    TierMembership,
    Tiers,
    User,
    UtilizationReport,
    UtilizationSeries,
    Verification,
    Waiting,
)
from wooly.api.journal import Program, Timeline, Waits
from wooly.errors import ConfigError, ProtocolError
from wooly.rest import Credentials, ask

__all__ = ["Client"]

T = TypeVar("T")
Period = Literal["day", "month", "total"]
TierName = Literal["premium", "standard", "basic"]
By = Literal["tenant", "task", "model", "node"]
Step = Literal["minute", "hour", "day"]
_BILLING = "billing/"
_JOURNAL_S = 30.0
"""How long the controller may read a task's journals, beside the client's own limit of time."""
_VERIFY_S = 600.0
"""The same of billing and the whole log."""


def _part(name: str) -> str:
    return quote(name, safe="")


class Client:
    """Every method raises ``NoServerError`` when nothing answers, ``ApiError`` when the request is refused, ``ConfigError`` when the key
    would be sent in plain text to another machine, and ``ProtocolError`` when the answer is not one of this API."""

    def __init__(
        self, url: str, *, api_key: str = "", ca: str = "", insecure: bool = False, billing_url: str = "", timeout_s: float = 10.0
    ) -> None:
        """``url``: the controller's, which relays to billing; ``billing_url``: ask billing there instead. ``ca``: a PEM file with the
        authority of the certificates; ``insecure``: send the key over plain HTTP."""
        self._url = url.rstrip("/")
        self._billing_url = billing_url.rstrip("/") or self._url
        self._credentials = Credentials(api_key, ca, insecure)
        self._timeout_s = timeout_s

    @classmethod
    def configured(cls) -> Self:
        """With CONTROLLER_URL and the key that `wooly login` stored (or WOOLY_API_KEY). Raises ConfigError."""
        found = configuration.load(task=False)
        if not found.controller_url:
            raise ConfigError("CONTROLLER_URL is not set; give the controller's address, for example https://controller:8080")
        return cls(found.controller_url, api_key=found.api_key, ca=found.tls_ca, insecure=found.insecure, billing_url=found.billing_url)

    # -- tasks -------------------------------------------------------------------------------------------------------------------------

    def submit(
        self,
        required_vram_mb: int | None = None,
        *,
        id: str | None = None,
        tenant: str | None = None,
        priority: int | None = None,
        gpu_count: int = 1,
        gpu_mode: Literal["Shared", "Exclusive"] = "Shared",
        groups: tuple[str, ...] = (),
        noswap: bool = False,
        title: str = "",
        queue: bool = False,
        queue_timeout_ms: int = 0,
        weight: int = 100,
        sla_ms_p99: int = 0,
        pace_percent: int = 0,
        reservation: bool = False,
        start_lease_ms: int = 0,
        gang: str = "",
        gang_size: int = 0,
    ) -> Task:
        """Reserve memory on a device for a task; a script started with its id uses the reservation. ``required_vram_mb``
        and ``priority`` None: the defaults of the cluster and of the tier. ``queue``: wait when nothing fits. ``reservation``: it keeps
        its place between scripts until ``release``, or until it has had no session for ``start_lease_ms`` (0: the cluster's).
        ``gang``: it is placed together with the tenant's other tasks of this gang, ``gang_size`` in all, or not at all."""
        body = {name: value for name, value in locals().items() if name != "self"}
        return self._send("POST", "tasks", Task, body)

    def submit_run(
        self,
        script: str,
        required_vram_mb: int | None = None,
        *,
        name: str = "script.py",
        arguments: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        wall_limit_s: int = 86_400,
        ram_limit_mb: int = 0,
        runner: str = "",
        webhook: str = "",
        id: str | None = None,
        tenant: str | None = None,
        priority: int | None = None,
        gpu_count: int = 1,
        gpu_mode: Literal["Shared", "Exclusive"] = "Shared",
        groups: tuple[str, ...] = (),
        noswap: bool = False,
        title: str = "",
        queue: bool = True,
        queue_timeout_ms: int = 0,
        weight: int = 100,
        sla_ms_p99: int = 0,
        pace_percent: int = 0,
    ) -> Task:
        """Submit a task and the text of the script that a runner executes for it. ``environment`` is stored: put no secrets there."""
        body = {name: value for name, value in locals().items() if name != "self"}
        return self._send("POST", "runs", Task, {**body, "environment": environment or {}})

    def log(self, task: str, *, after: int = 0, wait_s: int = 0) -> LogPart:
        """A part of what the script of a task has written, from ``after`` on; waits up to ``wait_s`` (at most 20) for more."""
        return self._read(f"tasks/{_part(task)}/log", LogPart, wait_s, {"after": after, "wait_s": wait_s})

    def task(self, task: str) -> Task:
        return self._get(f"tasks/{_part(task)}", Task)

    def tasks(
        self,
        *,
        state: str | None = None,
        priority: int | None = None,
        node: str | None = None,
        group: str | None = None,
        tenant: str | None = None,
        search: str = "",
        sort: str = "-submitted",
        limit: int = 100,
        offset: int = 0,
    ) -> Page[Task]:
        """``search``: words that must all occur in id, title, tenant, node or groups."""
        query = {"state": state, "priority": priority, "node": node, "group": group, "tenant": tenant, "q": search, "sort": sort}
        return self._get("tasks", Page[Task], limit=limit, offset=offset, **query)

    def cancel(self, task: str, *, revision: int | None = None) -> Task:
        return self._send("POST", f"tasks/{_part(task)}/cancel", Task, revision=revision)

    def release(self, task: str, *, failed: bool = False, reason: str = "") -> Task:
        """End a reservation, as completed or failed; one that is over stays as it is."""
        return self._send("POST", f"tasks/{_part(task)}/release", Task, {"failed": failed, "reason": reason})

    def move(self, task: str, to: str = "", *, revision: int | None = None) -> Task:
        """Have it run on node ``to``; empty: on any other one."""
        return self._send("POST", f"tasks/{_part(task)}/move", Task, {"to": to} if to else {}, revision)

    def stay(self, task: str, reason: str) -> Task:
        """Give up its move: it stays where it is."""
        return self._send("POST", f"tasks/{_part(task)}/stay", Task, {"reason": reason})

    def place_again(self, task: str) -> Task:
        """Place a task again whose node was lost."""
        return self._send("POST", f"tasks/{_part(task)}/resume", Task)

    def set_priority(self, task: str, priority: int, *, revision: int | None = None) -> Task:
        return self._send("PATCH", f"tasks/{_part(task)}", Task, {"priority": priority}, revision)

    def waiting(self, task: str) -> Waiting:
        """Why it waits, and what would let it start; ApiError with status 409 when it does not wait."""
        return self._get(f"tasks/{_part(task)}/waiting", Waiting)

    def placement(self, task: str) -> Placement:
        return self._get(f"placements/{_part(task)}", Placement)

    def timeline(self, task: str) -> Timeline:
        """When it ran, waited, was preempted and was swapped out, and the memory it held; ApiError with status 409 when no journal has it
        (yet)."""
        return self._read(f"tasks/{_part(task)}/timeline", Timeline, _JOURNAL_S, {})

    def waits(self, task: str) -> Waits:
        """How long its batches waited, what ran instead, and under which rule; 409 as for ``timeline``."""
        return self._read(f"tasks/{_part(task)}/waits", Waits, _JOURNAL_S, {})

    def programs(self, task: str) -> list[Program]:
        """Its time by program, those that ran longest first; 409 as for ``timeline``."""
        return self.waits(task).programs

    # -- nodes and groups --------------------------------------------------------------------------------------------------------------

    def nodes(self, *, state: str | None = None, group: str | None = None, search: str = "") -> Page[Node]:
        return self._get("nodes", Page[Node], state=state, group=group, q=search)

    def node(self, node: str) -> Node:
        return self._get(f"nodes/{_part(node)}", Node)

    def configure_node(
        self,
        node: str,
        *,
        overcommit_vram_percent: int | UnsetType | None = UNSET,
        drained: bool | UnsetType = UNSET,
        revision: int | None = None,
    ) -> Node:
        """What is not given stays; ``overcommit_vram_percent`` None: the global value."""
        body = {"overcommit_vram_percent": overcommit_vram_percent, "drained": drained}
        return self._send("PUT", f"nodes/{_part(node)}/config", Node, body, revision)

    def drain(self, node: str) -> Node:
        """No new tasks; what runs there finishes."""
        return self._send("POST", f"nodes/{_part(node)}/drain", Node)

    def resume(self, node: str) -> Node:
        return self._send("POST", f"nodes/{_part(node)}/resume", Node)

    def telemetry(self) -> Page[Telemetry]:
        """The last measurements of every device: live, not from the log."""
        return self._get("telemetry", Page[Telemetry])

    def config(self) -> ClusterConfig:
        return self._get("config", ClusterConfig)

    def configure(
        self,
        default_vram_overcommit_percent: int | None,
        *,
        queue_age_ms: int | UnsetType | None = UNSET,
        queue_protect_ms: int | UnsetType | None = UNSET,
        queue_reservations_max: int | UnsetType | None = UNSET,
        default_vram_mb: int | UnsetType | None = UNSET,
        pack: int | UnsetType | None = UNSET,
        defragment_after_ms: int | UnsetType | None = UNSET,
        revision: int | None = None,
    ) -> ClusterConfig:
        """Change the cluster's configuration. None: the controller's environment or default; what is not given stays."""
        body = {name: value for name, value in locals().items() if name not in ("self", "revision")}
        return self._send("PUT", "config", ClusterConfig, body, revision)

    def groups(self) -> Page[Group]:
        return self._get("groups", Page[Group])

    def group(self, group: str) -> Group:
        return self._get(f"groups/{_part(group)}", Group)

    def create_group(self, group: str, *, title: str = "", nodes: tuple[str, ...] = ()) -> Group:
        return self._send("POST", "groups", Group, {"id": group, "title": title, "nodes": nodes})

    def edit_group(
        self, group: str, *, title: str | UnsetType = UNSET, nodes: tuple[str, ...] | UnsetType = UNSET, revision: int | None = None
    ) -> Group:
        """What is not given stays."""
        return self._send("PUT", f"groups/{_part(group)}", Group, {"title": title, "nodes": nodes}, revision)

    def delete_group(self, group: str, *, revision: int | None = None) -> None:
        self._send("DELETE", f"groups/{_part(group)}", type(None), revision=revision)

    # -- credits -----------------------------------------------------------------------------------------------------------------------

    def credits(
        self, by: By = "tenant", *, from_: str = "", to: str = "", tenant: str | None = None, task: str | None = None
    ) -> CreditReport:
        """``from_`` and ``to`` (exclusive): Unix seconds or ISO 8601; empty: not bounded."""
        return self._get(_BILLING + "credits", CreditReport, **{"from": from_}, by=by, to=to, tenant=tenant, task=task)

    def series(
        self, by: By = "tenant", *, from_: str = "", to: str = "", step: Step = "hour", tenant: str | None = None, top: int = 8
    ) -> CreditSeries:
        """Credits over time. ``from_`` empty: the day before ``to``; ``to`` empty: up to now. ``top``: lines of their own (1 to 50); the
        rest is summed."""
        return self._get(_BILLING + "series", CreditSeries, **{"from": from_}, by=by, to=to, step=step, tenant=tenant, top=top)

    def utilization(
        self,
        by: Literal["device", "node", "tenant", "task", "model"] = "device",
        *,
        from_: str = "",
        to: str = "",
        tenant: str | None = None,
        task: str | None = None,
    ) -> UtilizationReport:
        """Time in each state, waste and its cost. ``from_`` and ``to``: as for ``credits``."""
        return self._get(_BILLING + "utilization", UtilizationReport, **{"from": from_}, by=by, to=to, tenant=tenant, task=task)

    def utilization_series(
        self, *, from_: str = "", to: str = "", step: Step = "hour", tenant: str | None = None, top: int = 8
    ) -> UtilizationSeries:
        """The states of devices over time. ``from_`` and ``to``: as for ``series``. ``top``: how many devices (1 to 50)."""
        path = _BILLING + "utilization/series"
        return self._get(path, UtilizationSeries, **{"from": from_}, to=to, step=step, tenant=tenant, top=top)

    def verify(self) -> Verification:
        """Recompute the whole bill from the log and compare. Only without a tenant."""
        return self._read(_BILLING + "verify", Verification, _VERIFY_S, {})

    def prices(self) -> Tiers:
        """Prices by tier, now and over time."""
        return self._get(_BILLING + "prices", Tiers)

    def set_price(
        self, tier: TierName, *, core_second_micro: int, gib_second_micro: int, from_: str = "", revision: int | None = None
    ) -> Tier:
        """What a tier pays. ``from_``: from when on, not in the past; empty: now."""
        body = {"core_second_micro": core_second_micro, "gib_second_micro": gib_second_micro, "from": from_}
        return self._send("PUT", f"{_BILLING}prices/{_part(tier)}", Tier, body, revision)

    def accounts(self, *, tenant: str | None = None) -> Page[Account]:
        return self._get(_BILLING + "accounts", Page[Account], tenant=tenant)

    def account(self, tenant: str) -> Account:
        return self._get(f"{_BILLING}accounts/{_part(tenant)}", Account)

    def grants(self, *, tenant: str | None = None) -> Page[Grant]:
        return self._get(_BILLING + "grants", Page[Grant], tenant=tenant)

    def grant(self, tenant: str, micro: int, *, id: str | None = None, note: str = "") -> Grant:
        """``id``: a repeated request with the same one grants once."""
        return self._send("POST", _BILLING + "grants", Grant, {"tenant": tenant, "micro": micro, "id": id, "note": note})

    def budgets(self, *, tenant: str | None = None) -> Page[Budget]:
        return self._get(_BILLING + "budgets", Page[Budget], tenant=tenant)

    def set_budget(
        self,
        tenant: str,
        period: Period,
        limit_micro: int | None,
        *,
        warn_percent: int = 80,
        stop_percent: int = 100,
        note: str = "",
        revision: int | None = None,
    ) -> Budget:
        """``limit_micro`` None: no budget; ``warn_percent``, ``stop_percent`` 0: never."""
        body = {"limit_micro": limit_micro, "warn_percent": warn_percent, "stop_percent": stop_percent, "note": note}
        return self._send("PUT", f"{_BILLING}budgets/{_part(tenant)}/{_part(period)}", Budget, body, revision)

    def tiers(self) -> Tiers:
        return self._get(_BILLING + "tiers", Tiers)

    def configure_tier(
        self,
        tier: TierName,
        priority_ceiling: int,
        *,
        default_vram_mb: int | UnsetType | None = UNSET,
        live_tasks: int | UnsetType | None = UNSET,
        exclusive: bool | UnsetType | None = UNSET,
        queued_tasks: int | UnsetType | None = UNSET,
        hold_percent: int | UnsetType | None = UNSET,
        from_: str = "",
        revision: int | None = None,
    ) -> Tier:
        """What a tier allows; ``live_tasks``: the most of one tenant that are not over, ``queued_tasks``: that wait; ``hold_percent``: what
        devices and memory cost, of the price, while tasks hold and do not use them. None: the default; not given: it stays. ``from_`` as in
        ``set_price``."""
        body = {
            "priority_ceiling": priority_ceiling,
            "default_vram_mb": default_vram_mb,
            "live_tasks": live_tasks,
            "exclusive": exclusive,
            "queued_tasks": queued_tasks,
            "hold_percent": hold_percent,
            "from": from_,
        }
        return self._send("PUT", f"{_BILLING}tiers/{_part(tier)}", Tier, body, revision)

    def set_tier(self, tenant: str, tier: TierName, *, from_: str = "") -> TierMembership:
        """``from_``: from when on, not in the past; empty: now."""
        return self._send("PUT", f"{_BILLING}tenants/{_part(tenant)}/tier", TierMembership, {"tier": tier, "from": from_})

    def statement(self, tenant: str, month: str = "") -> Statement:
        """``month``: YYYY-MM in UTC; empty: this month so far."""
        return self._get(f"{_BILLING}statements/{_part(tenant)}", Statement, month=month)

    # -- access ------------------------------------------------------------------------------------------------------------------------

    def identity(self) -> Identity:
        return self._get("session", Identity)

    def tenants(self) -> Page[Tenant]:
        return self._get("tenants", Page[Tenant])

    def quotas(self, tenant: str | None = None) -> Page[QuotaUse]:
        """Of the tenants that the caller may see, or of one."""
        return self._get("quotas", Page[QuotaUse], tenant=tenant)

    def create_tenant(self, tenant: str, *, title: str = "") -> Tenant:
        return self._send("POST", "tenants", Tenant, {"id": tenant, "title": title})

    def change_tenant(self, tenant: str, *, title: str | UnsetType = UNSET, disabled: bool | UnsetType = UNSET) -> Tenant:
        return self._send("PATCH", f"tenants/{_part(tenant)}", Tenant, {"title": title, "disabled": disabled})

    def erase_tenant(self, tenant: str) -> Tenant:
        """Disable it, and make the names and identities of the tenant and its users unreadable for good."""
        return self._send("POST", f"tenants/{_part(tenant)}/erase", Tenant)

    def users(self, *, tenant: str | None = None) -> Page[User]:
        return self._get("users", Page[User], tenant=tenant)

    def create_user(
        self, user: str, role: str, *, tenant: str | UnsetType = UNSET, title: str = "", password: str = "", oidc_name: str = ""
    ) -> User:
        """``tenant``: empty for the whole cluster; not given: the caller's own. ``oidc_name``: as in User."""
        body = {"id": user, "role": role, "tenant": tenant, "title": title, "password": password, "oidc_name": oidc_name}
        return self._send("POST", "users", User, body)

    def change_user(
        self,
        user: str,
        *,
        role: str | UnsetType = UNSET,
        tenant: str | UnsetType = UNSET,
        title: str | UnsetType = UNSET,
        disabled: bool | UnsetType = UNSET,
        password: str | UnsetType = UNSET,
        oidc_name: str | UnsetType = UNSET,
    ) -> User:
        body = {"role": role, "tenant": tenant, "title": title, "disabled": disabled, "password": password, "oidc_name": oidc_name}
        return self._send("PATCH", f"users/{_part(user)}", User, body)

    def erase_user(self, user: str) -> User:
        """Disable the user, and make name and identity unreadable for good."""
        return self._send("POST", f"users/{_part(user)}/erase", User)

    def remove_totp(self, user: str) -> User:
        """Remove the user's second factor."""
        return self._send("DELETE", f"users/{_part(user)}/totp", User)

    def keys(self, *, tenant: str | None = None, user: str | None = None) -> Page[Key]:
        return self._get("keys", Page[Key], tenant=tenant, user=user)

    def create_key(
        self,
        *,
        title: str = "",
        user: str | UnsetType = UNSET,
        tenant: str | UnsetType = UNSET,
        role: str | UnsetType = UNSET,
        scopes: tuple[str, ...] | UnsetType = UNSET,
        expires_in_s: int | None = None,
        node: str = "",
        groups: tuple[str, ...] = (),
        device_cores: int = 0,
        device_mb: int = 0,
    ) -> NewKey:
        """With role ``node``: ``node``, the only one that may use the key; ``groups``, those that it may name; ``device_cores`` and
        ``device_mb``, the most that a device of it may have (0: any)."""
        body = {name: value for name, value in locals().items() if name != "self"}
        return self._send("POST", "keys", NewKey, body)

    def revoke_key(self, key: str) -> Key:
        """``key``: its id."""
        return self._send("DELETE", f"keys/{_part(key)}", Key)

    def audit(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        target: str | None = None,
        tenant: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> Page[AuditRecord]:
        """Who did what, the newest first. ``after`` and ``before`` (exclusive): aware datetimes."""
        query = {"actor": actor, "action": action, "target": target, "tenant": tenant}
        times = {name: None if at is None else at.isoformat() for name, at in (("after", after), ("before", before))}
        return self._get("audit", Page[AuditRecord], limit=limit, offset=offset, **query, **times)

    # -- requests ----------------------------------------------------------------------------------------------------------------------

    def _get(self, path: str, answer: type[T], **query: str | int | None) -> T:
        return self._read(path, answer, 0.0, query)

    def _read(self, path: str, answer: type[T], more_s: float, query: Mapping[str, str | int | None]) -> T:
        """As ``_get``, of what may take ``more_s`` seconds longer than the client's own limit."""
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return self._ask("GET", path + (f"?{urlencode(given)}" if given else ""), answer, None, {}, more_s)

    def _send(self, method: str, path: str, answer: type[T], body: dict[str, Any] | None = None, revision: int | None = None) -> T:
        data = None if body is None else msgspec.json.encode({name: value for name, value in body.items() if value is not UNSET})
        return self._ask(method, path, answer, data, {} if revision is None else {"If-Match": f'"{revision}"'})

    def _ask(self, method: str, path: str, answer: type[T], data: bytes | None, headers: dict[str, str], more_s: float = 0.0) -> T:
        what, base = ("billing service", self._billing_url) if path.startswith(_BILLING) else ("controller", self._url)
        headers = {"Accept": "application/json", **({} if data is None else {"Content-Type": "application/json"}), **headers}
        timeout_s = self._timeout_s + more_s
        given = ask(base, f"/api/v1/{path}", self._credentials, what=what, method=method, data=data, headers=headers, timeout_s=timeout_s)
        if answer is type(None):
            return None
        try:
            return msgspec.json.decode(given, type=answer)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"what answers at {base} is not a {what} of this version: {error}; check the address") from None
