"""The bodies of requests: what is accepted, with its limits. Unknown fields are refused, so a typo is not a default."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from bus_schemas.events import TaskSubmitted
from scheduler.placement.states import DEFAULT_VRAM_MB, GLOBAL_LIMITS, OVERCOMMIT_GLOBAL, QUEUE_AGE_MS, QUEUE_PROTECT_MS, QUEUE_RESERVATIONS
from scheduler.vram import PERCENT_MAX

__all__ = ["TaskBody", "PriorityBody", "GroupBody", "NewGroupBody", "ConfigBody", "NodeConfigBody", "MIB"]

MIB = 1 << 20

Token = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z", description="1 to 64 letters, digits, '-' or '_'")]
Percent = Annotated[int, Meta(ge=0, le=PERCENT_MAX)]


Defaults = Callable[[str, str, bool], tuple[int, int]]
"""(task, tenant, whether it has a latency target) to the priority and the bytes of VRAM of a task that says nothing."""


class TaskBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A task to place."""

    required_vram_mb: (
        Annotated[int, Meta(ge=1, le=1 << 30, description="VRAM on each of its GPUs, in MiB; left out: default_vram_mb, and it may grow")]
        | None
    ) = None
    id: Token | None = None
    tenant: Annotated[str, Meta(min_length=1, max_length=200, description="whose it is; left out: the caller's own")] | None = None
    priority: Annotated[int, Meta(ge=0, le=4, description="0 is highest; left out: the middle of what the tier allows")] | None = None
    gpu_count: Annotated[int, Meta(ge=1, le=64, description="devices, all on one node")] = 1
    gpu_mode: Literal["Shared", "Exclusive"] = "Shared"
    groups: Annotated[tuple[Token, ...], Meta(max_length=64, description="only nodes of these groups; empty: nodes of no group")] = ()
    noswap: Annotated[bool, Meta(description="may not be swapped out: must fit physical VRAM")] = False
    title: Annotated[str, Meta(max_length=200)] = ""
    queue: Annotated[bool, Meta(description="wait for room when nothing fits now")] = False
    weight: Annotated[int, Meta(ge=1, le=10_000, description="part of the core time beside tasks of the same priority")] = 100
    sla_ms_p99: Annotated[int, Meta(ge=0, le=3_600_000, description="latency wanted for 99 of 100 batches, priority 0 only; 0: none")] = 0
    pace_percent: Annotated[int, Meta(ge=0, le=100, description="the most of a device's core time it may take; 0: no bound")] = 0

    queue_timeout_ms: Annotated[
        int, Meta(ge=0, le=30 * 86_400_000, description="how long it may wait for room before it fails, with queue; 0: for ever")
    ] = 0

    def contradiction(self) -> tuple[str, str] | None:
        """(field, reason) of what cannot be meant together."""
        if self.sla_ms_p99 and self.priority:
            return "sla_ms_p99", f"a latency target needs priority 0: at priority {self.priority} others go first, whatever it says"
        if self.sla_ms_p99 and self.pace_percent:
            return "sla_ms_p99", "a latency target contradicts pace_percent: a paced task waits by its own wish"
        if self.queue_timeout_ms and not self.queue:
            return "queue_timeout_ms", "a task that does not wait (queue) cannot wait too long"
        return None

    def submitted(self, at_ns: int, own_tenant: str, defaults: Defaults) -> TaskSubmitted:
        """The fact; an id is made when there is none. ``own_tenant``: the caller's, empty for those who are of none."""
        task, tenant = self.id or uuid.uuid4().hex, self.tenant or own_tenant or "default"
        priority, vram_bytes = defaults(task, tenant, bool(self.sla_ms_p99))
        return TaskSubmitted(
            at_ns=at_ns,
            task=task,
            tenant=tenant,
            priority=priority if self.priority is None else self.priority,
            vram_bytes=vram_bytes if self.required_vram_mb is None else self.required_vram_mb * MIB,
            gpu_count=self.gpu_count,
            exclusive=self.gpu_mode == "Exclusive",
            groups=tuple(sorted(set(self.groups))),
            noswap=self.noswap,
            title=self.title,
            queue=self.queue,
            weight=self.weight,
            sla_ms_p99=self.sla_ms_p99,
            pace_percent=self.pace_percent,
            queue_timeout_ms=self.queue_timeout_ms,
            vram_grows=self.required_vram_mb is None,
        )


class PriorityBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What may be changed of a task."""

    priority: Annotated[int, Meta(ge=0, le=4, description="0 is highest")]


class GroupBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A group; what is left out stays as it is. ``nodes``: its members beside the nodes that name it themselves."""

    title: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET
    nodes: Annotated[tuple[Token, ...], Meta(max_length=10_000)] | UnsetType = UNSET


class NewGroupBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A group to make."""

    id: Token
    title: Annotated[str, Meta(max_length=200)] = ""
    nodes: Annotated[tuple[Token, ...], Meta(max_length=10_000)] = ()


class ConfigBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The global configuration; null goes back to the controller's environment or default, what is left out stays as it is."""

    default_vram_overcommit_percent: Percent | None
    queue_age_ms: (
        Annotated[int, Meta(ge=0, le=GLOBAL_LIMITS[QUEUE_AGE_MS], description="a waiting task rises one priority for each; 0: never")]
        | UnsetType
        | None
    ) = UNSET
    queue_protect_ms: (
        Annotated[int, Meta(ge=0, le=GLOBAL_LIMITS[QUEUE_PROTECT_MS], description="after it a waiting task has devices kept; 0: never")]
        | UnsetType
        | None
    ) = UNSET
    queue_reservations_max: (
        Annotated[int, Meta(ge=0, le=GLOBAL_LIMITS[QUEUE_RESERVATIONS], description="tasks that may have devices kept at a time")]
        | UnsetType
        | None
    ) = UNSET
    default_vram_mb: (
        Annotated[int, Meta(ge=0, le=GLOBAL_LIMITS[DEFAULT_VRAM_MB], description="VRAM of a task that names none, in MiB; 0: it must")]
        | UnsetType
        | None
    ) = UNSET

    def changes(self) -> dict[str, int | None]:
        """What to set; None unsets."""
        named = {OVERCOMMIT_GLOBAL: self.default_vram_overcommit_percent, QUEUE_AGE_MS: self.queue_age_ms,
                 QUEUE_PROTECT_MS: self.queue_protect_ms, QUEUE_RESERVATIONS: self.queue_reservations_max,
                 DEFAULT_VRAM_MB: self.default_vram_mb}  # fmt: skip
        return {key: value for key, value in named.items() if not isinstance(value, UnsetType)}


class NodeConfigBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A node's configuration; what is left out stays as it is. ``overcommit_vram_percent`` null: the global value."""

    overcommit_vram_percent: Percent | UnsetType | None = UNSET
    drained: bool | UnsetType = UNSET
