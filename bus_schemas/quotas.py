"""Quotas: how much of a shared resource one tenant, key, user or address may use. One table, which every enforcing component reads, and the
refusal that they all answer with. Pure: data types.

A *count* bounds what exists at one time. A *rate* is a token bucket: ``limit`` at once, then ``regained`` more every ``every_s`` seconds. A
*right* is had or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

_SECOND: Final = 10**9
COUNT_RETRY_MS: Final = 5_000
"""When to ask again for what a count refused. The count falls when something ends, which no component can predict."""


class Rate(msgspec.Struct, frozen=True):
    """Parameters of a token bucket: ``burst`` at once, then ``amount`` more every ``every_ns``."""

    amount: int
    burst: int
    every_ns: int = _SECOND

    def ns(self, cost: int) -> int:
        """The time in which ``cost`` is regained."""
        return cost * self.every_ns // self.amount


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table."""

    name: str
    #: of ``limit``
    unit: str
    #: whose use is counted together, and where
    scope: str
    #: the default; of a right 0
    limit: int = 0
    #: of a rate: what is regained every ``every_s``; 0: not a rate
    regained: int = 0
    every_s: int = 1
    #: the module that enforces it
    enforced: str
    #: the environment variable or the field of a tier that sets another limit; empty: fixed
    set_by: str = ""
    #: what happens at the limit
    beyond: str
    #: what a caller can do about it
    remedy: str = ""

    def rate(self, limit: int = 0) -> Rate:
        """The bucket, with ``limit`` in place of the default if that is not 0. Of a rate only."""
        return Rate(self.regained, limit or self.limit, self.every_s * _SECOND)


class Excess(msgspec.Struct, array_like=True, frozen=True):
    """A quota that refused something: its name, the limit and what was used of it (in the quota's unit), and when to try again."""

    quota: str
    limit: int
    used: int
    retry_after_ms: int

    def sentence(self, whose: str) -> str:
        """For people; ``whose``: such as ``tenant 'lab'``."""
        quota = QUOTAS[self.quota]
        text = f"{whose} has used {self.used} of {self.limit} {quota.unit} (quota {self.quota}"
        if quota.regained:
            text += f", {quota.regained} more {'each second' if quota.every_s == 1 else f'every {quota.every_s} s'}"
        return f"{text}); {quota.remedy}; try again in {-(-self.retry_after_ms // 1000)} s"


_TABLE: Final = (
    Quota(
        name="messages", unit="batches", scope="tenant, node", limit=16_384, regained=4_096, enforced="services.server.inflow",
        set_by="WOOLY_TENANT_MESSAGES_A_SECOND", beyond="wait for the tenant's turn, then are dropped and sent again by the client",
        remedy="flush less often",
    ),
    Quota(
        name="decoded_bytes", unit="bytes", scope="tenant, node", limit=32 << 20, regained=16 << 20, enforced="services.server.inflow",
        beyond="as for messages", remedy="send large tensors once, not with every batch",
    ),
    Quota(
        name="requests", unit="requests", scope="key, node", limit=4_096, regained=512, enforced="services.server.node",
        beyond="not answered; the client asks again", remedy="open fewer sessions with one key",
    ),
    Quota(
        name="opens", unit="sessions opened", scope="tenant, node", limit=1_024, regained=2, enforced="services.server.admission",
        set_by="WOOLY_TENANT_SESSIONS_MAX", beyond="refused; the client tries again", remedy="open fewer sessions, or use another node",
    ),
    Quota(
        name="key_opens", unit="sessions opened", scope="key, node", limit=512, regained=1, enforced="services.server.admission",
        set_by="WOOLY_TENANT_SESSIONS_MAX", beyond="refused; the client tries again", remedy="open fewer sessions, or use another key",
    ),
    Quota(
        name="sessions", unit="open sessions", scope="tenant, node", limit=1_024, enforced="services.server.admission",
        set_by="WOOLY_TENANT_SESSIONS_MAX", beyond="refused", remedy="end some of them, or use another node",
    ),
    Quota(
        name="connections", unit="connections to the bus", scope="key, bus", limit=1_024, enforced="services.controller.bus_guard",
        set_by="WOOLY_KEY_CONNECTIONS_MAX", beyond="refused by the bus", remedy="end some of them, or use another key",
    ),
    Quota(
        name="changes", unit="requests that may change something", scope="tenant, service", limit=1_000, regained=20,
        enforced="services.kit.access.access", beyond="refused", remedy="send fewer of them: each is recorded for ever",
    ),
    Quota(
        name="live_tasks", unit="tasks that are not over", scope="tenant", limit=1_000, enforced="billing.tiers", set_by="tier: live_tasks",
        beyond="refused", remedy="cancel some, or wait for their end",
    ),
    Quota(
        name="queued_tasks", unit="queued tasks", scope="tenant", limit=500, enforced="billing.tiers", set_by="tier: queued_tasks",
        beyond="refused", remedy="cancel some, or wait until they are placed",
    ),
    Quota(
        name="runs", unit="runs that are not over", scope="tenant", limit=200, enforced="services.controller.runs", beyond="refused",
        remedy="cancel some, or wait for their end",
    ),
    Quota(
        name="priority", unit="right", scope="tenant", enforced="billing.tiers, services.server.allowance", set_by="tier: priority_ceiling",
        beyond="refused",
    ),
    Quota(name="exclusive", unit="right", scope="tenant", enforced="billing.tiers", set_by="tier: exclusive", beyond="refused"),
    Quota(
        name="compile_ns", unit="ns of compiling", scope="tenant, device", limit=10 * _SECOND, regained=_SECOND // 4,
        enforced="services.server.executor.preparing", beyond="served while no other tenant wants anything",
    ),
    Quota(
        name="staged_bytes", unit="bytes", scope="tenant, device", limit=8 << 30, enforced="services.server.executor.staging",
        beyond="refused", remedy="read answers sooner, or send less at a time",
    ),
    Quota(
        name="stored_bytes", unit="bytes in the model cache", scope="tenant or trust domain, device", limit=8 << 30,
        enforced="services.server.executor.model_cache", set_by="WOOLY_TENANT_MODEL_CACHE_MB", beyond="refused",
        remedy="delete a model (wooly model-cache delete)",
    ),
    Quota(
        name="log_bytes", unit="bytes of logs", scope="tenant, runner", limit=64 << 20, regained=8 << 10, enforced="services.runner.runs",
        beyond="left out of the log, which says so",
    ),
    Quota(
        name="failed_logins", unit="failed logins", scope="user or key", limit=10, regained=1, every_s=15,
        enforced="services.kit.access.checker", beyond="refused, but for addresses that it was opened from before",
        remedy="check the password or the key",
    ),
    Quota(
        name="address_failed_logins", unit="failed logins", scope="address (IPv6: one /64)", limit=20, regained=1, every_s=3,
        enforced="services.kit.access.checker", beyond="refused", remedy="check the password or the key",
    ),
    Quota(
        name="secret_checks", unit="secrets that wait to be checked", scope="service", limit=512, enforced="services.kit.access.checker",
        beyond="refused", remedy="wait a moment",
    ),
    Quota(
        name="browser_sessions", unit="logins", scope="user or key", limit=30, regained=1, every_s=10,
        enforced="services.kit.access.access", beyond="refused", remedy="keep the session's cookie",
    ),
    Quota(
        name="device_logins", unit="requests at the identity provider", scope="address (IPv6: one /64)", limit=60, regained=1, every_s=1,
        enforced="services.controller.oidc", beyond="refused", remedy="finish the login that was begun",
    ),
    Quota(
        name="user_keys", unit="keys neither revoked nor expired", scope="user", limit=200, enforced="services.controller.actions.access",
        beyond="refused", remedy="revoke some",
    ),
)  # fmt: skip
QUOTAS: Final[Mapping[str, Quota]] = {quota.name: quota for quota in _TABLE}
