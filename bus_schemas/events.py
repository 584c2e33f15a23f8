"""Facts, in the past tense: the only thing controller and billing are derived from. Pure.

One NATS message on an event subject is a msgpack list of events (frequent ones are packed by the hundred). Every struct is array-like with
a hand-written, versioned tag: new fields go last and have defaults; nothing is renamed, reordered or retyped. Frozen samples of each
live in tests/golden/events/. Times are integers: ``at_ns`` is Unix time of the emitting node; durations come from its monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from bus_schemas.limits import DEVICES_MAX, DOMAINS_MAX, GROUPS_MAX, Decode, Recorded, TenantName, decoding

__all__ = [
    "OUTCOME_ERROR_CHARS_MAX", "Outcome",
    "DeviceFact", "NodeRegistered", "NodeLost", "NodeRecovered", "SessionOpenedFact", "SessionClosedFact", "UsageRecorded",
    "DeviceAccounted", "TaskSubmitted", "Considered", "TaskPlaced", "TaskRefused", "TaskStateChanged", "ConfigChanged", "TariffSet",
    "GrantRecorded", "LoadObserved", "TaskPriorityChanged", "SessionPriorityChanged", "GroupChanged", "TenantChanged", "UserChanged",
    "KeyIssued", "KeyRevoked", "ActionTaken", "BudgetSet", "BudgetCrossed", "TierSet", "TaskDisplaced", "NodeLeaving", "TaskStayed",
    "Event",
    "encode_events", "decode_events", "split_events",
]  # fmt: skip


class DeviceFact(msgspec.Struct, array_like=True, frozen=True):
    index: int
    name: Recorded
    backend: Recorded
    cores: int
    vram_bytes: int


Domain = Annotated[tuple[TenantName, ...], Meta(max_length=DOMAINS_MAX)]


class NodeRegistered(msgspec.Struct, array_like=True, frozen=True, tag="node.registered.v1"):
    """A node started (or restarted: ``epoch`` grew). ``domains``: None: each device serves all tenants beside each other; else one trust
    domain at a time, and these are the domains of several tenants."""

    at_ns: int
    node: Recorded
    name: Recorded
    address: Recorded
    epoch: int
    devices: Annotated[tuple[DeviceFact, ...], Meta(max_length=DEVICES_MAX)]
    groups: Annotated[tuple[Recorded, ...], Meta(max_length=GROUPS_MAX)] = ()
    version: Recorded = ""
    domains: Annotated[tuple[Domain, ...], Meta(max_length=DOMAINS_MAX)] | None = None


class NodeLost(msgspec.Struct, array_like=True, frozen=True, tag="node.lost.v1"):
    """A node shut down (reason ``stopped``), or its lease expired."""

    at_ns: int
    node: Recorded
    epoch: int
    reason: Recorded


class NodeRecovered(msgspec.Struct, array_like=True, frozen=True, tag="node.recovered.v1"):
    """A node that was considered lost sends telemetry again in the same epoch: it was disconnected, and its sessions are open."""

    at_ns: int
    node: Recorded
    epoch: int


class SessionOpenedFact(msgspec.Struct, array_like=True, frozen=True, tag="session.opened.v1"):
    at_ns: int
    session: Recorded
    tenant: Recorded
    task: Recorded
    node: Recorded
    gpu: int
    priority: int
    quota_bytes: int
    swap: bool = True
    title: Recorded = ""
    weight: int = 100
    sla_ms_p99: int = 0
    pace_percent: int = 0
    traceparent: Recorded = ""
    """W3C trace context of the session's sampled batches, or empty."""
    replaces: Recorded = ""
    """The session whose place it takes, for that one was lost or displaced; or empty. The word of the client."""
    origin: Recorded = ""
    """The first of the sessions that took each other's place until it; empty: it is that one, or its client does not say. The word of the
    client."""
    image: int = 0
    """The image (see UsageRecorded) that its memory is built from before it repeats the batches since, 0: none. The word of the client."""


OUTCOME_ERROR_CHARS_MAX: Final = 200


class Outcome(msgspec.Struct, array_like=True, frozen=True):
    """How the script behind a session ended, as its client reported it. ``exit_code``: 0 to 255. ``error``: the class of the exception that
    ended it, or empty; never its message, which may hold data. ``signal``: the number of the signal that killed it, 0: none.
    ``lost``: set by the node, when the client stopped answering and reported nothing. ``child``: reported by a process that the script
    started by multiprocessing."""

    exit_code: int = 0
    error: Recorded = ""
    signal: int = 0
    lost: bool = False
    child: bool = False


class SessionClosedFact(msgspec.Struct, array_like=True, frozen=True, tag="session.closed.v1"):
    at_ns: int
    session: Recorded
    node: Recorded
    reason: Recorded
    core_ns: int
    byte_ms: int
    instructions: int
    launches: int
    launch_digest: Recorded
    failed: bool = False
    outcome: Outcome | None = None
    """None: nothing was reported, as by clients of earlier versions."""
    compile_ns: int = 0


class UsageRecorded(msgspec.Struct, array_like=True, frozen=True, tag="usage.recorded.v1"):
    """One session, one interval on one device: [from_ns, to_ns) of the node's Unix time. ``core_ns``: launch time x cores occupied;
    ``byte_ms``: resident bytes x time; ``compile_ns``: time of the node's compiler, which takes one core of its processor and none of the
    device, so it is in no DeviceAccounted; ``recovered_ns``: of the core time, what repeated the work of a session whose memory the node
    had lost, and is not charged; ``displaced_ns``, ``displaced_instructions``, ``displaced_launches``: of the core time, instructions and
    launches, what the client says another node did before the task was displaced, and does not count as far as the log says so too.
    ``begun_ns``: core time up to here of a batch of the session that is not over; ``resumed_ns``: of the core time, that of the first batch
    that repeats none of another node, which may have begun there. ``image``: the client has an image of the session's memory with all that
    the session used up to here and nothing else, under this number (0: none).
    (node, epoch, gpu, serial) identifies the event; a repetition is ignored."""

    node: Recorded
    epoch: int
    gpu: int
    serial: int
    session: Recorded
    tenant: Recorded
    task: Recorded
    priority: int
    from_ns: int
    to_ns: int
    core_ns: int
    byte_ms: int
    instructions: int
    launches: int
    compile_ns: int = 0
    recovered_ns: int = 0
    displaced_ns: int = 0
    displaced_instructions: int = 0
    displaced_launches: int = 0
    begun_ns: int = 0
    resumed_ns: int = 0
    image: int = 0

    @property
    def charged_core_ns(self) -> int:
        """What the bill counts as core time, if it believes none of ``displaced_ns``."""
        return self.core_ns - self.recovered_ns + self.compile_ns


class DeviceAccounted(msgspec.Struct, array_like=True, frozen=True, tag="device.accounted.v1"):
    """One device, one interval: charged_core_ns + scheduler_core_ns + idle_core_ns == wall_ns * cores, exactly.
    ``serial_first``..``serial_last`` are the UsageRecorded of this interval (their core_ns sum to charged_core_ns); last < first: none.
    ``launch_ns``: wall time in which a launch ran, whatever cores it occupied; 0 in events of earlier versions."""

    node: Recorded
    epoch: int
    gpu: int
    serial: int
    from_ns: int
    wall_ns: int
    cores: int
    charged_core_ns: int
    scheduler_core_ns: int
    idle_core_ns: int
    serial_first: int
    serial_last: int
    launch_ns: int = 0


class TaskSubmitted(msgspec.Struct, array_like=True, frozen=True, tag="task.submitted.v1"):
    at_ns: int
    task: str
    tenant: str
    priority: int
    vram_bytes: int
    gpu_count: int = 1
    exclusive: bool = False
    groups: tuple[str, ...] = ()
    noswap: bool = False
    title: str = ""
    """Encrypted under the tenant's key, as personal fields of access events."""
    queue: bool = False
    """Wait in the queue instead of failing if no device fits now."""
    weight: int = 100
    sla_ms_p99: int = 0
    pace_percent: int = 0
    queue_timeout_ms: int = 0
    """Waiting time after which it fails (0: no limit)."""
    vram_grows: bool = False
    """The submission named no VRAM: ``vram_bytes`` is the default of the tier or the cluster, by which the task is placed, and its sessions
    have no quota but the device."""
    reservation: bool = False
    """An outside scheduler holds it for a job: it keeps its place between sessions, until a TaskStateChanged ends it."""
    start_lease_ms: int = 0
    """Time without a session, since its placement or its last session, after which it fails (0: the cluster's)."""
    gang: str = ""
    """It is placed together with the tenant's other tasks of this gang, or not at all; empty: it is in none."""
    gang_size: int = 0
    """How many tasks the gang has."""
    hold_percent: int = 0
    """The part of the price that its devices, or the memory it is promised there, cost while it holds and does not use them
    (billing.holds)."""


class Considered(msgspec.Struct, array_like=True, frozen=True):
    """The inputs of a decision on one device that are not in the log (the last telemetry; zeros: none) and the results: the promisable
    memory free before the task, and the parts of the score (utilization, starvation, VRAM, priority: 0-100 each; empty if refused)."""

    node: str
    gpu: int
    utilization_percent: int
    starvation_percent: int
    vram_used_bytes: int
    free_bytes: int
    parts: tuple[int, ...] = ()


class TaskPlaced(msgspec.Struct, array_like=True, frozen=True, tag="task.placed.v1"):
    """``scores``: (node, gpu, score) of every candidate, best first; ``refusals``: (node, gpu, reason, detail) of the others. ``position``:
    the log position of the last event the decision saw. ``considered``: every device examined, so that the decision can be repeated.

    If ``refused`` or ``candidates`` is set, the decision depends only on the log up to ``position`` and on ``at_ns``, and the event holds a
    part of the result: ``scores`` and ``considered`` of the best of ``candidates``, and ``refusals`` as examples of each reason counted in
    ``refused``."""

    at_ns: int
    task: str
    node: str
    gpus: tuple[int, ...]
    scores: tuple[tuple[str, int, int], ...]
    refusals: tuple[tuple[str, int, str, str], ...]
    position: int
    considered: tuple[Considered, ...] = ()
    candidates: int = 0
    refused: tuple[tuple[str, int], ...] = ()


class TaskRefused(msgspec.Struct, array_like=True, frozen=True, tag="task.refused.v1"):
    """Fields as in TaskPlaced. ``reserved_node`` and ``reserved_gpus``: devices reserved for the task from now on; empty: none."""

    at_ns: int
    task: str
    refusals: tuple[tuple[str, int, str, str], ...]
    position: int
    considered: tuple[Considered, ...] = ()
    refused: tuple[tuple[str, int], ...] = ()
    reserved_node: str = ""
    reserved_gpus: tuple[int, ...] = ()


class TaskStateChanged(msgspec.Struct, array_like=True, frozen=True, tag="task.state_changed.v1"):
    """state: queued, started, completed, failed, cancelled, lost."""

    at_ns: int
    task: str
    state: str
    reason: str = ""


class ConfigChanged(msgspec.Struct, array_like=True, frozen=True, tag="config.changed.v1"):
    """``scope``: ``global``, a node id, or ``environment`` (a default the controller was started with); ``key`` with its new value
    (None: unset)."""

    at_ns: int
    scope: str
    key: str
    value: int | str | None


class TariffSet(msgspec.Struct, array_like=True, frozen=True, tag="tariff.set.v1"):
    """Prices in micro-credits, valid from ``from_ns`` for tenants of ``tier``."""

    at_ns: int
    tier: str
    from_ns: int
    core_second_micro: int
    gib_second_micro: int


class GrantRecorded(msgspec.Struct, array_like=True, frozen=True, tag="grant.recorded.v1"):
    """Credits granted to a tenant (``grant`` identifies the event; a repetition is ignored)."""

    at_ns: int
    grant: str
    tenant: str
    micro: int
    tier: str = ""


class LoadObserved(msgspec.Struct, array_like=True, frozen=True, tag="load.observed.v1"):
    """Measurements for placement, as one controller received them: (node, gpu, utilization percent, starvation percent, used bytes) of
    devices whose measurement changed significantly. Earlier measurements of all other devices stay valid."""

    at_ns: int
    devices: tuple[tuple[str, int, int, int, int], ...]


class TaskPriorityChanged(msgspec.Struct, array_like=True, frozen=True, tag="task.priority_changed.v1"):
    """The priority of a task that has not ended. Its open sessions follow with SessionPriorityChanged, reported by their node."""

    at_ns: int
    task: str
    priority: int


class SessionPriorityChanged(msgspec.Struct, array_like=True, frozen=True, tag="session.priority_changed.v1"):
    at_ns: int
    session: Recorded
    node: Recorded
    priority: int


class GroupChanged(msgspec.Struct, array_like=True, frozen=True, tag="group.changed.v1"):
    """The new state of a group. ``nodes``: its members, apart from nodes that name the group when they register."""

    at_ns: int
    group: str
    title: str = ""
    nodes: tuple[str, ...] = ()
    deleted: bool = False


class TenantChanged(msgspec.Struct, array_like=True, frozen=True, tag="tenant.changed.v1"):
    """The new state of a tenant. ``disabled``: its keys and users are refused. ``title``: as all personal fields of access events encrypted
    under a key that can be destroyed (``services.controller.personal``)."""

    at_ns: int
    tenant: str
    title: str = ""
    disabled: bool = False


class UserChanged(msgspec.Struct, array_like=True, frozen=True, tag="user.changed.v1"):
    """The new state of a user. ``tenant``: empty for users of the whole cluster. ``role``: admin, operator, member or viewer.
    ``password_hash``: argon2id as a PHC string; empty: no password (keys only). ``oidc_name``: the claim by which the OpenID Connect
    provider names the user at the first login through it; empty: no such login. ``oidc_subject``: issuer and subject of that login,
    separated by a space; empty: there was none yet. ``totp``: the second factor beside the password (``services.kit.access.totp``); empty:
    none. These three and ``title`` are encrypted."""

    at_ns: int
    user: str
    tenant: str
    role: str
    password_hash: str = ""
    title: str = ""
    disabled: bool = False
    oidc_name: str = ""
    oidc_subject: str = ""
    totp: str = ""


class KeyIssued(msgspec.Struct, array_like=True, frozen=True, tag="key.issued.v1"):
    """An API key, without its secret. ``title`` is encrypted if a user or tenant has the key. ``role``: as for a user, or ``node`` (then
    ``node`` is the only node that may use it) or ``service``. ``secret_hash``: argon2id, PHC string. ``scopes``: restrict the role's
    permissions; empty: all. ``expires_ns`` 0: never. Of a node's key, ``groups``: those that the node may name when it registers, None:
    any; ``device_cores`` and ``device_mb``: the most cores and memory (MiB) that a device of it may have, 0: any."""

    at_ns: int
    key: str
    tenant: str
    user: str
    role: str
    secret_hash: str
    scopes: tuple[str, ...] = ()
    expires_ns: int = 0
    title: str = ""
    node: str = ""
    groups: tuple[str, ...] | None = None
    device_cores: int = 0
    device_mb: int = 0


class KeyRevoked(msgspec.Struct, array_like=True, frozen=True, tag="key.revoked.v1"):
    at_ns: int
    key: str


class ActionTaken(msgspec.Struct, array_like=True, frozen=True, tag="action.taken.v1"):
    """The audit record of an action. It is in the same message as the events that it caused, so record and effect commit atomically.
    ``actor``: user or key; ``action``: an Action of services.kit.access; ``target``: id of the changed object; ``source``: address of the
    caller, or empty."""

    at_ns: int
    actor: str
    tenant: str
    action: str
    target: str
    detail: str = ""
    source: str = ""


class BudgetSet(msgspec.Struct, array_like=True, frozen=True, tag="budget.set.v1"):
    """A tenant's budget for a period (``day``, ``month`` or ``total``, UTC); ``limit_micro`` -1: no budget. At ``warn_percent`` of it
    BudgetCrossed is recorded, at ``stop_percent`` the tenant's next batch is refused (0: never)."""

    at_ns: int
    tenant: str
    period: str
    limit_micro: int
    warn_percent: int = 80
    stop_percent: int = 100


class BudgetCrossed(msgspec.Struct, array_like=True, frozen=True, tag="budget.crossed.v1"):
    """A budget reached a threshold. ``threshold``: ``warning``, ``stopped``, or ``open`` (a new period, a raised limit). ``position``: the
    log position of the event that caused it."""

    at_ns: int
    tenant: str
    threshold: str
    period_from_ns: int
    used_micro: int
    limit_micro: int
    position: int
    period: str = ""
    """Which of the tenant's budgets: ``day``, ``month`` or ``total``."""


class TierSet(msgspec.Struct, array_like=True, frozen=True, tag="tier.set.v1"):
    """What a tier allows: ``priority_ceiling`` is the best (lowest) priority of its tasks, ``default_vram_mb`` the VRAM (MiB) by which a
    task is placed that names none (0: the cluster's default), ``live_tasks`` the most tasks of a tenant that are not over (0: the default),
    ``exclusive`` whether its tasks may have a device for themselves (None: the tier's default), ``queued_tasks`` the most queued tasks of a
    tenant (0: the default), ``hold_percent`` as in TaskSubmitted (None: the default). With ``tenant``: assigns the tenant to the tier
    instead, as a GrantRecorded with a tier does; the last one holds."""

    at_ns: int
    tier: str
    priority_ceiling: int = 0
    tenant: str = ""
    from_ns: int = 0
    default_vram_mb: int = 0
    live_tasks: int = 0
    exclusive: bool | None = None
    queued_tasks: int = 0
    hold_percent: int | None = None


class TaskDisplaced(msgspec.Struct, array_like=True, frozen=True, tag="task.displaced.v1"):
    """A task that runs, or failed because its node was lost, is to run elsewhere; its client repeats its work there. ``lost``: what it
    had on ``node`` counts no longer, and is ended there if the node comes back; else its sessions there count until they have ended.
    ``to``: the only node where it may be placed now; empty: any but ``node``, and if that was lost, any. ``gpus``: devices of ``to`` that
    are held for it from now on, so that its client opens sessions there before it leaves ``node``; empty: none, it waits for a place."""

    at_ns: int
    task: str
    node: str
    lost: bool
    to: str = ""
    gpus: tuple[int, ...] = ()


class TaskStayed(msgspec.Struct, array_like=True, frozen=True, tag="task.stayed.v1"):
    """A task that was to leave ``node`` stays there, for this reason: a sentence of its client."""

    at_ns: int
    task: str
    node: str
    reason: str


class NodeLeaving(msgspec.Struct, array_like=True, frozen=True, tag="node.leaving.v1"):
    """A node is being stopped: it takes no new tasks, and waits until ``until_ns`` for its tasks to be displaced."""

    at_ns: int
    node: Recorded
    epoch: int
    until_ns: int


Event = (
    NodeRegistered | NodeLost | SessionOpenedFact | SessionClosedFact | UsageRecorded | DeviceAccounted | TaskSubmitted | TaskPlaced
    | TaskRefused | TaskStateChanged | ConfigChanged | TariffSet | GrantRecorded | NodeRecovered | LoadObserved | TaskPriorityChanged
    | SessionPriorityChanged | GroupChanged | TenantChanged | UserChanged | KeyIssued | KeyRevoked | ActionTaken | BudgetSet | BudgetCrossed
    | TierSet | TaskDisplaced | NodeLeaving | TaskStayed
)  # fmt: skip

_encoder: Final = msgspec.msgpack.Encoder()
decode_events: Final[Decode[list[Event]]] = decoding(msgspec.msgpack.Decoder(list[Event]))
split_events: Final = decoding(msgspec.msgpack.Decoder(list[msgspec.Raw]))
"""The events of a message, each still encoded."""


def encode_events(events: Sequence[Event | msgspec.Raw]) -> bytes:
    """One message. Events that are encoded already are copied."""
    return _encoder.encode(events)
