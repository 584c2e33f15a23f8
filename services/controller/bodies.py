"""Request bodies with their limits. Unknown fields are refused: a misspelt field is no default. No repr shows a secret."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from bus_schemas.events import TaskSubmitted
from bus_schemas.limits import TITLE_CHARS_MAX
from bus_schemas.runs import SCRIPT_BYTES_MAX, RunScript
from bus_schemas.texts import TITLE_PATTERN
from scheduler.placement.states import (
    DEFAULT_VRAM_MB,
    DEFRAGMENT_AFTER_MS,
    GLOBAL_LIMITS,
    OVERCOMMIT_GLOBAL,
    PACK,
    QUEUE_AGE_MS,
    QUEUE_PROTECT_MS,
    QUEUE_RESERVATIONS,
)
from scheduler.vram import PERCENT_MAX
from services.controller.webhook import URL_CHARS_MAX
from services.kit.access.checker import PASSWORD_MAX
from services.kit.access.totp import SECRET_PATTERN

__all__ = [
    "TaskBody", "RunBody", "PriorityBody", "GroupBody", "NewGroupBody", "ConfigBody", "NodeConfigBody", "MIB", "KeyBody", "LoginBody",
    "LoginForm", "LogoutForm", "values_of", "NewTenantBody", "NewUserBody", "PasswordBody", "TenantBody", "UserBody",
]  # fmt: skip

MIB = 1 << 20

Token = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z", description="1 to 64 letters, digits, '-' or '_'")]
Percent = Annotated[int, Meta(ge=0, le=PERCENT_MAX)]
Title = Annotated[str, Meta(max_length=TITLE_CHARS_MAX, pattern=TITLE_PATTERN)]
Role = Literal["admin", "operator", "member", "viewer"]
Scope = Literal["read", "submit", "operate", "admin", "bus"]
Password = Annotated[str, Meta(max_length=PASSWORD_MAX)]
Code = Annotated[str, Meta(max_length=40, description="of the second factor: a time-based one-time password, or a recovery code")]
OidcName = Annotated[
    str, Meta(pattern=r"\A[!-~]{0,254}\Z", description="claim by which the identity provider names the user; empty: no such login")
]
TenantOrCluster = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{0,64}\Z", description="empty: the whole cluster")]
_DECADE_S = 10 * 366 * 86_400
Defaults = Callable[[str, str, bool], tuple[int, int]]
"""(task, tenant, whether it has a latency target) to the default priority and bytes of VRAM of the task."""
T = TypeVar("T")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z")
_OWN_NAMES: Final = ("WOOLY_", "CONTROLLER_", "RUNNER_", "LD_")
_OWN: Final = frozenset({"HOME", "TMPDIR", "TORCH_DEVICE_BACKEND_AUTOLOAD"})
_ARGUMENTS_BYTES_MAX: Final = 64 << 10


def values_of(kind: type[T], body: msgspec.Struct) -> T:
    """The dataclass ``kind`` made of those of its fields that ``body`` sets."""
    given = ((field.name, getattr(body, field.name, UNSET)) for field in fields(kind))  # type: ignore[arg-type]  # a dataclass
    return kind(**{name: value for name, value in given if value is not UNSET})


class _Wish(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a task asks for."""

    required_vram_mb: (
        Annotated[int, Meta(ge=1, le=1 << 30, description="VRAM on each of its GPUs, in MiB; left out: a default, which may grow")] | None
    ) = None
    id: Token | None = None
    tenant: (
        Annotated[str, Meta(min_length=1, max_length=200, pattern=TITLE_PATTERN, description="its tenant; left out: the caller's own")]
        | None
    ) = None
    priority: Annotated[int, Meta(ge=0, le=4, description="0 is highest; left out: the middle of what the tier allows")] | None = None
    gpu_count: Annotated[int, Meta(ge=1, le=64, description="devices, all on one node")] = 1
    gpu_mode: Literal["Shared", "Exclusive"] = "Shared"
    groups: Annotated[tuple[Token, ...], Meta(max_length=64, description="only nodes in these groups; empty: only nodes in no group")] = ()
    noswap: Annotated[bool, Meta(description="may not be swapped out: must fit physical VRAM")] = False
    title: Title = ""
    queue: Annotated[bool, Meta(description="wait in the queue if no device fits now")] = False
    weight: Annotated[int, Meta(ge=1, le=10_000, description="share of core time relative to other tasks of the same priority")] = 100
    sla_ms_p99: Annotated[int, Meta(ge=0, le=3_600_000, description="latency wanted for 99 of 100 batches, priority 0 only; 0: none")] = 0
    pace_percent: Annotated[int, Meta(ge=0, le=100, description="limit on its share of a device's core time; 0: no limit")] = 0

    queue_timeout_ms: Annotated[
        int, Meta(ge=0, le=30 * 86_400_000, description="with queue: waiting time after which it fails; 0: no limit")
    ] = 0

    def contradiction(self) -> tuple[str, str] | None:
        """(field, reason) of fields that contradict each other, None: none do."""
        if self.sla_ms_p99 and self.priority:
            return "sla_ms_p99", f"a latency target needs priority 0: at priority {self.priority} others go first, whatever it says"
        if self.sla_ms_p99 and self.pace_percent:
            return "sla_ms_p99", "a latency target contradicts pace_percent: a paced task waits by its own wish"
        if self.queue_timeout_ms and not self.queue:
            return "queue_timeout_ms", "a task that does not wait (queue) cannot wait too long"
        return None

    def submitted(self, at_ns: int, own_tenant: str, defaults: Defaults) -> TaskSubmitted:
        """The fact; without an id one is made. ``own_tenant``: the caller's tenant, or empty."""
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


class TaskBody(_Wish, forbid_unknown_fields=True, frozen=True):
    """A task to place."""

    reservation: Annotated[bool, Meta(description="an outside scheduler holds it for a job: it keeps its place until it is released")] = (
        False
    )
    start_lease_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=7 * 86_400_000,
            description="time without a session, since its placement or its last session, after which it fails; 0: the cluster's",
        ),
    ] = 0
    gang: Annotated[
        str, Meta(pattern=r"\A[A-Za-z0-9_-]{0,64}\Z", description="placed with the tenant's other tasks of this gang, or not at all")
    ] = ""
    gang_size: Annotated[int, Meta(ge=0, le=64, description="how many tasks its gang has")] = 0

    def contradiction(self) -> tuple[str, str] | None:
        if bool(self.gang) != (self.gang_size > 1):
            return "gang_size", "a gang has a name and at least two tasks"
        if self.gang and not self.queue:
            return "queue", "a task of a gang waits for the others: set queue"
        return super().contradiction()

    def submitted(self, at_ns: int, own_tenant: str, defaults: Defaults) -> TaskSubmitted:
        return replace(
            super().submitted(at_ns, own_tenant, defaults),
            reservation=self.reservation,
            start_lease_ms=self.start_lease_ms,
            gang=self.gang,
            gang_size=self.gang_size,
        )


class RunBody(_Wish, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A task to place, and the script that a runner executes for it."""

    script: Annotated[str, Meta(min_length=1, max_length=SCRIPT_BYTES_MAX, description="the text of a Python program, 256 KiB at most")]
    name: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\Z", description="the file's name")] = "script.py"
    arguments: Annotated[
        tuple[Annotated[str, Meta(max_length=8192)], ...], Meta(max_length=256, description="of the program's command line")
    ] = ()
    environment: Annotated[
        dict[str, Annotated[str, Meta(max_length=8192)]],
        Meta(max_length=128, description="variables of the program; stored: put no secrets here"),
    ] = {}
    wall_limit_s: Annotated[int, Meta(ge=1, le=7 * 86_400, description="run time in seconds after which the script is killed")] = 86_400
    ram_limit_mb: Annotated[
        int, Meta(ge=0, le=1 << 24, description="limit of its address space in MiB (PyTorch alone reserves several GiB); 0: no limit")
    ] = 0
    runner: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{0,64}\Z", description="the only runner that may take it; empty: any")] = ""
    webhook: Annotated[str, Meta(max_length=URL_CHARS_MAX, description="URL that gets a POST at the end, and when a budget runs low")] = ""
    queue: Annotated[bool, Meta(description="wait in the queue if no device fits now")] = True

    def fault(self) -> tuple[str, str] | None:
        """(field, reason) of a fault that the types do not catch, None: there is none."""
        if len(self.script.encode(errors="replace")) > SCRIPT_BYTES_MAX:
            return "script", f"it has more than {SCRIPT_BYTES_MAX >> 10} KiB; put data elsewhere"
        texts = [self.script, *self.arguments, *self.environment.values()]
        if any("\0" in text for text in texts):
            return "script" if "\0" in self.script else "arguments", "a NUL character cannot be passed to a program"
        if sum(len(text.encode(errors="replace")) for text in texts[1:]) > _ARGUMENTS_BYTES_MAX:
            return "environment", f"arguments and environment have more than {_ARGUMENTS_BYTES_MAX >> 10} KiB together"
        for name in self.environment:
            if not _NAME.match(name):
                return "environment", f"{name[:100]!r} is no name of a variable"
            if name.startswith(_OWN_NAMES) or name in _OWN:
                return "environment", f"{name} is set by the platform"
        return None

    def submitted(self, at_ns: int, own_tenant: str, defaults: Defaults) -> TaskSubmitted:
        fact = super().submitted(at_ns, own_tenant, defaults)
        return fact if fact.title else msgspec.structs.replace(fact, title=self.name)

    def script_of(self, task: TaskSubmitted) -> RunScript:
        return RunScript(
            task=task.task,
            tenant=task.tenant,
            script=self.script,
            name=self.name,
            arguments=self.arguments,
            environment=self.environment,
            wall_s=self.wall_limit_s,
            ram_mb=self.ram_limit_mb,
        )


class PriorityBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What may be changed of a task."""

    priority: Annotated[int, Meta(ge=0, le=4, description="0 is highest")]


class ReleaseBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How the job of a reservation ended."""

    failed: bool = False
    reason: Annotated[str, Meta(max_length=TITLE_CHARS_MAX, pattern=TITLE_PATTERN, description="shown with the task")] = ""


class MoveBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Where a task shall run: ``to`` is a node's id, name or the beginning of its id; without it, on any other node."""

    to: Title | UnsetType = UNSET


class StayBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Why a task could not be moved."""

    reason: Annotated[str, Meta(min_length=1, max_length=TITLE_CHARS_MAX, pattern=TITLE_PATTERN, description="a sentence for the operator")]


class GroupBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A group; what is left out stays as it is. ``nodes``: its members beside the nodes that name it themselves."""

    title: Title | UnsetType = UNSET
    nodes: Annotated[tuple[Token, ...], Meta(max_length=10_000)] | UnsetType = UNSET


class NewGroupBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A group to make."""

    id: Token
    title: Title = ""
    nodes: Annotated[tuple[Token, ...], Meta(max_length=10_000)] = ()


class ConfigBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The global configuration; null goes back to the controller's environment or default, what is left out stays as it is."""

    default_vram_overcommit_percent: Percent | None
    queue_age_ms: (
        Annotated[
            int, Meta(ge=0, le=GLOBAL_LIMITS[QUEUE_AGE_MS], description="waiting time after which a task rises one priority; 0: never")
        ]
        | UnsetType
        | None
    ) = UNSET
    queue_protect_ms: (
        Annotated[
            int, Meta(ge=0, le=GLOBAL_LIMITS[QUEUE_PROTECT_MS], description="waiting time after which devices are reserved; 0: never")
        ]
        | UnsetType
        | None
    ) = UNSET
    queue_reservations_max: (
        Annotated[int, Meta(ge=0, le=GLOBAL_LIMITS[QUEUE_RESERVATIONS], description="the most tasks with reserved devices at a time")]
        | UnsetType
        | None
    ) = UNSET
    default_vram_mb: (
        Annotated[int, Meta(ge=0, le=GLOBAL_LIMITS[DEFAULT_VRAM_MB], description="default VRAM of a task, in MiB; 0: tasks must name it")]
        | UnsetType
        | None
    ) = UNSET

    pack: (
        Annotated[
            int, Meta(ge=0, le=1, description="1: prefer devices that hold more, so that whole ones stay free; 0: those that hold less")
        ]
        | UnsetType
        | None
    ) = UNSET
    defragment_after_ms: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=GLOBAL_LIMITS[DEFRAGMENT_AFTER_MS],
                description="waiting time after which a running task is moved to make room; 0: never",
            ),
        ]
        | UnsetType
        | None
    ) = UNSET

    def changes(self) -> dict[str, int | None]:
        """What to set; None unsets."""
        named = {OVERCOMMIT_GLOBAL: self.default_vram_overcommit_percent, QUEUE_AGE_MS: self.queue_age_ms,
                 QUEUE_PROTECT_MS: self.queue_protect_ms, QUEUE_RESERVATIONS: self.queue_reservations_max,
                 DEFAULT_VRAM_MB: self.default_vram_mb, PACK: self.pack,
                 DEFRAGMENT_AFTER_MS: self.defragment_after_ms}  # fmt: skip
        return {key: value for key, value in named.items() if not isinstance(value, UnsetType)}


class NodeConfigBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A node's configuration; what is left out stays as it is. ``overcommit_vram_percent`` null: the global value."""

    overcommit_vram_percent: Percent | UnsetType | None = UNSET
    drained: bool | UnsetType = UNSET


class NewTenantBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    id: Token
    title: Title = ""


class TenantBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What is left out stays as it is."""

    title: Title | UnsetType = UNSET
    disabled: Annotated[bool, Meta(description="true: its keys and users are refused")] | UnsetType = UNSET


class NewUserBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    id: Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9_-]{0,63}\Z", description="1 to 64 lower-case letters, digits, '-' or '_'")]
    role: Role
    tenant: TenantOrCluster | UnsetType = UNSET
    title: Title = ""
    password: Password = ""
    oidc_name: OidcName = ""

    def __repr__(self) -> str:
        return f"NewUserBody(id={self.id!r})"


class UserBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What is left out stays as it is."""

    role: Role | UnsetType = UNSET
    tenant: TenantOrCluster | UnsetType = UNSET
    title: Title | UnsetType = UNSET
    disabled: bool | UnsetType = UNSET
    password: Annotated[str, Meta(max_length=PASSWORD_MAX, description="empty: removes the password")] | UnsetType = UNSET
    oidc_name: OidcName | UnsetType = UNSET

    def __repr__(self) -> str:
        return "UserBody()"


class KeyBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A new key; fields left out default to those of the caller."""

    title: Title = ""
    user: Annotated[str, Meta(max_length=64, description="the user that the key belongs to; empty: no user")] | UnsetType = UNSET
    tenant: TenantOrCluster | UnsetType = UNSET
    role: Literal["admin", "operator", "member", "viewer", "node", "service"] | UnsetType = UNSET
    scopes: Annotated[tuple[Scope, ...], Meta(max_length=8, description="restricts the role's permissions; empty: all")] | UnsetType = UNSET
    expires_in_s: Annotated[int, Meta(ge=1, le=_DECADE_S)] | None = None
    node: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{0,64}\Z", description="with role node: the only node that may use the key")] = ""
    groups: Annotated[tuple[Token, ...], Meta(max_length=64, description="with role node: groups that the node may name")] = ()
    device_cores: Annotated[int, Meta(ge=0, le=1 << 20, description="with role node: the most cores of a device of it; 0: any")] = 0
    device_mb: Annotated[int, Meta(ge=0, le=1 << 30, description="with role node: the most memory of a device of it, in MiB; 0: any")] = 0


class LoginBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A user with a password, an API key, or the code of a login at the identity provider."""

    user: Annotated[str, Meta(max_length=64)] = ""
    password: Password = ""
    code: Code = ""
    key: Annotated[str, Meta(max_length=100)] = ""
    device_code: Annotated[str, Meta(max_length=4_096, description="of POST /api/v1/session/oidc; 409 until it is confirmed")] = ""

    def __repr__(self) -> str:
        return f"LoginBody(user={self.user!r})"


class TokenBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A new token of the caller's key."""

    expires_in_s: Annotated[int, Meta(ge=60, le=12 * 3_600)] = 3_600
    scopes: Annotated[tuple[Scope, ...], Meta(max_length=8, description="narrows the key's permissions; empty: all of them")] = ()


class LoginForm(msgspec.Struct, frozen=True):
    """What the login page sends."""

    user: Annotated[str, Meta(max_length=64)] = ""
    password: Password = ""
    code: Code = ""
    key: Annotated[str, Meta(max_length=100)] = ""
    next: Annotated[str, Meta(max_length=2_000)] = ""
    csrf: Annotated[str, Meta(max_length=200)] = msgspec.field(name="_csrf_token", default="")

    def __repr__(self) -> str:
        return f"LoginForm(user={self.user!r})"


class LogoutForm(msgspec.Struct, frozen=True):
    csrf: Annotated[str, Meta(max_length=200)] = msgspec.field(name="_csrf_token", default="")


class TotpBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``secret``: what the caller made at random and entered in the authenticator app; ``code``: what the app shows."""

    password: Password
    secret: Annotated[str, Meta(pattern=SECRET_PATTERN, description="160 random bits in base32")]
    code: Code

    def __repr__(self) -> str:
        return "TotpBody()"


class TotpRemovalBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``code``: what the app shows, or a recovery code."""

    password: Password
    code: Code

    def __repr__(self) -> str:
        return "TotpRemovalBody()"


class PasswordBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    old_password: Password
    new_password: Password

    def __repr__(self) -> str:
        return "PasswordBody()"
