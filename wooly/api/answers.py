"""What the REST API answers, as structs. Fields that a newer service adds are ignored.

Amounts ending in ``_micro`` are micro-credits (1 credit = 1,000,000); times are aware datetimes, or Unix nanoseconds where they end in
``_ns``; ``revision`` goes into the ``revision`` argument of a change that shall fail (409) when something else was changed before.
"""

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

import msgspec

from bus_schemas.credits import CreditLine, CreditReport, CreditSeries, SeriesLine, Verification
from bus_schemas.statement import Statement, StatementGrant, StatementLine, StatementPrice
from bus_schemas.utilization import UtilizationBuckets, UtilizationLine, UtilizationReport, UtilizationSeries

__all__ = [
    "Account", "AuditRecord", "Budget", "Candidate", "ClusterConfig", "CreditLine", "CreditReport", "CreditSeries", "Device", "Grant",
    "Group", "Identity", "Key", "LogPart", "Measured", "NewKey", "Node", "Observed", "Outcome", "Page", "Placement", "Price", "QuotaUse",
    "Reason", "Refusal", "Remedy", "Run", "RunningSession", "SeriesLine", "Statement", "StatementGrant", "StatementLine", "StatementPrice",
    "Task", "Telemetry", "Tenant", "Tier", "TierMembership", "Tiers", "User", "UtilizationBuckets", "UtilizationLine",
    "UtilizationReport", "UtilizationSeries", "Verification", "Waiting",
]  # fmt: skip

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Part of a list. ``total``: how many there are on all pages."""

    items: list[T]
    total: int


# -- tasks -----------------------------------------------------------------------------------------------------------------------------


class Reason(msgspec.Struct, frozen=True):
    """Why devices were refused, and how many. ``text``: in words, of a waiting task."""

    reason: str
    count: int
    text: str = ""


class Refusal(msgspec.Struct, frozen=True):
    """An example of a refused device. ``gpu`` None: the whole node; ``node`` None: the whole cluster."""

    node: str | None
    gpu: int | None
    reason: str
    detail: str


class Measured(msgspec.Struct, frozen=True):
    """What a placement decision knew of a device."""

    utilization_percent: int
    starvation_percent: int
    vram_used_bytes: int
    free_bytes: int


class Candidate(msgspec.Struct, frozen=True):
    """A device that fits. ``score``: 0 to 1000; ``parts``: 0 to 100 each, by name."""

    node: str
    gpu: int
    score: int
    parts: dict[str, int]
    measured: Measured | None


class Placement(msgspec.Struct, frozen=True):
    """A placement decision. ``state``: ``placed`` or ``refused``."""

    task: str
    state: str
    node: str | None
    node_name: str | None
    node_address: str | None
    gpus: list[int]
    decided_at: datetime
    position: int
    candidates: list[Candidate]
    candidates_total: int
    refusals: list[Refusal]
    refused: list[Reason]


class Run(msgspec.Struct, frozen=True):
    """The script of a task that a runner executes. ``state``: pending, taken or ended. ``exit_code`` None: not known, or it has not ended;
    ``signal``: what killed it. ``webhook``: without its path."""

    task: str
    script: str
    state: str
    runner: str | None
    wanted_runner: str | None
    wall_limit_s: int
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    exit_code: int | None
    signal: int | None
    reason: str
    webhook: str | None
    webhook_result: str | None


class LogPart(msgspec.Struct, frozen=True):
    """A part of what a script has written. ``next``: where to go on; ``ended``: there is no more."""

    text: str
    next: int
    ended: bool
    run: Run | None


class Outcome(msgspec.Struct, frozen=True):
    """How a task's script ended. ``error``: of an uncaught exception; ``signal``: that ended the process."""

    exit_code: int
    error: str | None
    signal: int | None


class Move(msgspec.Struct, frozen=True):
    """Where a task goes that still runs elsewhere. ``sessions``: open there; ``position``: of the decision in the log; ``urgent``: the node
    on which it runs is being stopped."""

    node: str
    node_name: str
    gpus: list[int]
    sessions: int
    position: int
    urgent: bool


class Task(msgspec.Struct, frozen=True):
    """``state``: queued, started, completed, failed or cancelled. ``priority``: 0 (highest) to 4. ``outcome`` None: it is not
    over, or no client reported it. ``vram_grows``: it may get more memory than ``required_vram_mb``. ``reservation``: it keeps its place
    between sessions, until it is released. ``node``: where it runs; ``move``: where it goes, if it is being moved. ``stayed``: why it did
    not move when it was to, the last time."""

    id: str
    tenant: str
    title: str
    priority: int
    state: str
    reason: str
    outcome: Outcome | None
    required_vram_mb: int
    vram_grows: bool
    gpu_count: int
    gpu_mode: str
    groups: list[str]
    noswap: bool
    queue: bool
    queue_timeout_ms: int
    reservation: bool
    start_lease_ms: int
    gang: str
    gang_size: int
    weight: int
    sla_ms_p99: int
    pace_percent: int
    node: str | None
    node_name: str | None
    gpus: list[int]
    sessions: int
    submitted_at: datetime
    updated_at: datetime
    placement: Placement | None
    revision: int
    run: Run | None = None
    move: Move | None = None
    stayed: str | None = None


class Remedy(msgspec.Struct, frozen=True):
    """A change that would let a waiting task start."""

    kind: str
    text: str
    node: str | None
    gpus: list[int]
    tasks: list[str]
    sessions: list[str]
    value: int | str


class Waiting(msgspec.Struct, frozen=True):
    """Why a task waits. ``place``: in the queue, from 1; ``level``: its priority as it has risen by waiting."""

    task: str
    place: int
    queue_length: int
    priority: int
    level: int
    waited_ms: int
    refused: list[Reason]
    examples: list[Refusal]
    remedies: list[Remedy]
    rises_at: datetime | None
    protected_at: datetime | None
    reserved_node: str | None
    reserved_gpus: list[int]
    expires_at: datetime | None
    sentence: str


# -- nodes and groups ------------------------------------------------------------------------------------------------------------------


class Observed(msgspec.Struct, frozen=True):
    """The last load of a device that is in the event log."""

    utilization_percent: int
    starvation_percent: int
    vram_used_bytes: int


class Device(msgspec.Struct, frozen=True):
    """``schedulable_bytes``: physical memory and what overcommit adds; ``promised_bytes``: of it, what tasks have been promised."""

    index: int
    name: str
    backend: str
    cores: int
    vram_bytes: int
    schedulable_bytes: int
    promised_bytes: int
    promised_noswap_bytes: int
    free_bytes: int
    exclusive: bool
    reserved_for: str | None
    observed: Observed
    tasks: list[str]
    sessions: list[str]


class Node(msgspec.Struct, frozen=True):
    """``state``: ready, drained or lost. ``overcommit_vram_percent`` None: the global value."""

    id: str
    name: str
    address: str
    state: str
    reason: str
    epoch: int
    version: str
    groups: list[str]
    declared_groups: list[str]
    registered_at: datetime
    overcommit_vram_percent: int | None
    effective_overcommit_vram_percent: int
    drained: bool
    devices: list[Device]
    revision: int


class Group(msgspec.Struct, frozen=True):
    """``own_nodes``: members set by hand; ``declared_by``: nodes that name the group in their configuration."""

    id: str
    title: str
    nodes: list[str]
    own_nodes: list[str]
    declared_by: list[str]
    tasks: int
    tasks_waiting: int
    updated_at: datetime | None
    revision: int


class ClusterConfig(msgspec.Struct, frozen=True):
    """The values in force. ``source``: of the overcommit: stored, environment or default. ``default_vram_mb`` 0: tasks must name it.
    ``pack`` 1: placement prefers devices that hold more. ``defragment_after_ms`` 0: no running task is moved to make room."""

    default_vram_overcommit_percent: int
    source: str
    queue_age_ms: int
    queue_protect_ms: int
    queue_reservations_max: int
    default_vram_mb: int
    pack: int
    defragment_after_ms: int
    revision: int


class RunningSession(msgspec.Struct, frozen=True):
    """A session that is open on a device. Of the window: ``core_ns`` used, ``waits`` (batches launched), ``wait_ns`` (from arrival to first
    launch, summed), ``wait_max_ns``, ``slices``, ``slice_ns``, ``behind_ns`` (ready while another session ran). Bytes are of now."""

    session: str
    task: str
    tenant: str
    title: str
    priority: int
    weight: int
    state: str
    core_ns: int
    waits: int
    wait_ns: int
    wait_max_ns: int
    slices: int
    slice_ns: int
    behind_ns: int
    resident_bytes: int
    allocated_bytes: int
    swapped_bytes: int
    shared_bytes: int


class Telemetry(msgspec.Struct, frozen=True):
    """The last window of a device. ``vram_reserved_bytes``: the sum of its sessions' quotas; ``vram_saved_bytes``: what sharing saves.
    ``running``: the sessions that the caller may know of."""

    node: str
    gpu: int
    at: datetime
    window_ms: int
    age_ms: int
    utilization_percent: int
    starvation_percent: int
    vram_total_bytes: int
    vram_used_bytes: int
    vram_reserved_bytes: int
    vram_swapped_bytes: int
    vram_shared_bytes: int
    vram_saved_bytes: int
    cores: int
    running: list[RunningSession]


# -- credits ---------------------------------------------------------------------------------------------------------------------------


class Budget(msgspec.Struct, frozen=True):
    """What a tenant may spend in a ``period``: day, month (both UTC) or total. ``limit_micro`` None: there is no budget."""

    tenant: str
    period: str
    limit_micro: int | None
    state: str
    revision: int
    from_ns: int = 0
    to_ns: int = 0
    granted_micro: int = 0
    used_micro: int = 0
    left_micro: int | None = None
    limit_credits: str = ""
    used_credits: str = ""
    warn_percent: int = 0
    stop_percent: int = 0


class Account(msgspec.Struct, frozen=True):
    """``balance_micro``: granted less charged; negative when the tenant owes. ``spent_micro``: by period."""

    tenant: str
    tier: str
    priority_ceiling: int
    balance_micro: int
    balance_credits: str
    granted_micro: int
    charged_micro: int
    spent_micro: dict[str, int]
    budgets: list[Budget]
    revision: int


class Grant(msgspec.Struct, frozen=True):
    id: str
    tenant: str
    micro: int
    credits: str
    at_ns: int
    position: int


class Price(msgspec.Struct, frozen=True):
    """What a core-second and a GiB-second cost in [from_ns, to_ns); ``to_ns`` 0: until further notice."""

    from_ns: int
    to_ns: int
    core_second_micro: int
    gib_second_micro: int


class Tier(msgspec.Struct, frozen=True):
    """``default_vram_mb``: of its tasks that name no VRAM, in MiB; 0: the cluster's default. ``live_tasks``: the most of one tenant that
    are not over, ``queued_tasks``: that wait. ``exclusive``: whether they may have a device for themselves, ``hold_percent``:
    what devices and memory cost while tasks hold and do not use them, of the price."""

    tier: str
    priority_ceiling: int
    core_second_micro: int
    gib_second_micro: int
    windows: list[Price]
    revision: int
    default_vram_mb: int = 0
    live_tasks: int = 0
    exclusive: bool = True
    queued_tasks: int = 0
    hold_percent: int = 0


class Tiers(msgspec.Struct, frozen=True):
    """``tenants``: the tier of each that was put into one."""

    items: list[Tier]
    tenants: dict[str, str]
    default_tier: str


class TierMembership(msgspec.Struct, frozen=True):
    tenant: str
    tier: str
    from_ns: int
    next_tier: str
    revision: int


# -- access ----------------------------------------------------------------------------------------------------------------------------


class Tenant(msgspec.Struct, frozen=True):
    id: str
    title: str
    disabled: bool
    updated_at: datetime
    revision: int


class QuotaUse(msgspec.Struct, frozen=True):
    """What a tenant has used of a quota, and the limit, in ``unit``; ``regained`` more every ``every_s`` seconds (0: not a rate). ``used``
    None: it is not reported. ``node``: where. ``set_by``: the variable or the field of a tier that sets the limit."""

    tenant: str
    quota: str
    unit: str
    scope: str
    limit: int
    regained: int
    every_s: int
    beyond: str
    used: int | None = None
    node: str | None = None
    set_by: str | None = None


class User(msgspec.Struct, frozen=True):
    """``tenant`` None: the whole cluster. ``has_totp``: a second factor stands beside the password. ``oidc_name``: how the identity
    provider names the user (None: no login through it); ``oidc_linked``: an identity of the provider has logged in as this user."""

    id: str
    tenant: str | None
    role: str
    title: str
    disabled: bool
    has_password: bool
    has_totp: bool
    oidc_name: str | None
    oidc_linked: bool
    updated_at: datetime
    revision: int


class Key(msgspec.Struct, frozen=True):
    """``state``: active, revoked, expired or disabled (its user or tenant is). Of a node's key, ``groups``: those that the node may name
    (None: any); ``device_cores``, ``device_mb``: bounds of its devices."""

    id: str
    title: str
    tenant: str | None
    user: str | None
    node: str | None
    groups: list[str] | None
    device_cores: int | None
    device_mb: int | None
    role: str
    scopes: list[str]
    state: str
    issued_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class NewKey(Key, frozen=True, kw_only=True):
    """``key``: the secret; no later answer has it."""

    key: str

    def __repr__(self) -> str:
        return f"NewKey(id={self.id!r})"


class Identity(msgspec.Struct, frozen=True):
    """The caller. ``actions``: what it may do."""

    name: str
    tenant: str | None
    role: str
    scopes: list[str]
    key: str | None
    actions: list[str]


class AuditRecord(msgspec.Struct, frozen=True):
    """One action. ``tenant`` None: of the whole cluster. ``source``: the address that it came from, where it is known."""

    position: int
    at: datetime
    actor: str
    tenant: str | None
    action: str
    target: str
    detail: str
    source: str | None
