"""Discovery, opening and closing of sessions (core request/reply, msgpack). Pure: data types."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from bus_schemas.batch import LIMITS, Fault, Limits
from bus_schemas.events import Outcome
from bus_schemas.limits import DEVICES_MAX, ENDED_MAX, Name, TenantName, Text, Title, Trace
from bus_schemas.quotas import Excess
from bus_schemas.terms import TaskTerms


class DeviceInfo(msgspec.Struct, frozen=True):
    """One device of a node. ``cores`` are the backend's units of occupancy (CPU threads or SMs)."""

    index: int
    name: str
    backend: str
    cores: int
    vram_bytes: int
    vram_free_bytes: int


class NodeInfo(msgspec.Struct, frozen=True):
    """A node as it answers discovery. ``data_port``: ``unix:/path`` and ``tcp:host:port`` addresses, best first. ``model_cache``: how its
    model cache is kept on disk, ``encrypted`` or ``not encrypted``; empty: it has none, or is of an earlier version."""

    node: str
    name: str
    address: str
    epoch: int
    devices: tuple[DeviceInfo, ...]
    data_port: tuple[str, ...]
    groups: tuple[str, ...] = ()
    version: str = ""
    model_cache: str = ""


class OpenSession(msgspec.Struct, frozen=True):
    """A client asks a node for a session. ``task``: the controller's task id, or empty. ``vram_bytes`` 0: no quota but the device.
    ``weight``: its part of core time beside others of its priority. ``sla_ms_p99``: the latency that 99 of 100 of its batches shall have
    (P0 only), 0: none. ``pace_percent``: the most of the device's core time it may take, 0: no bound. ``vram_wait_ms``: how long a batch
    may wait for memory that others hold before it fails, 0: not at all. ``traceparent`` (W3C): of the session's trace, or empty.
    ``replaces``: the session whose memory was lost and whose batches are repeated in this one, or empty; a repeated batch has a number
    lower by ``skips`` here. ``repeats``: the last number here of a batch that may have been executed there, as the client says; counts
    where the node does not know the lost session, because it was another node's. ``origin``: the first of the sessions that took each
    other's place until this one, or empty. ``shared``: the last number here of a batch that another session ran as well, on another
    node, which the lost one then took the place of; the word of the client. ``image``: the image (see Ping) that its memory is built
    from, 0: none."""

    session: Name
    tenant: TenantName
    task: Name
    priority: int
    gpus: Annotated[tuple[int, ...], Meta(max_length=DEVICES_MAX)]
    vram_bytes: int
    exclusive: bool = False
    dedup: bool = False
    swap: bool = True
    client_version: Name = ""
    title: Title = ""
    weight: int = 100
    sla_ms_p99: int = 0
    pace_percent: int = 0
    vram_wait_ms: int = 60_000
    traceparent: Trace = ""
    replaces: Name = ""
    skips: int = 0
    repeats: int = 0
    origin: Name = ""
    shared: int = 0
    image: int = 0

    @property
    def terms(self) -> TaskTerms:
        """Its fields of these names."""
        return TaskTerms(**{name: getattr(self, name) for name in TaskTerms.__struct_fields__})


class SessionOpened(msgspec.Struct, frozen=True):
    """The node's answer; ``fault`` set when refused. ``token`` opens the data port. ``gpus``: the devices the session is on.

    ``task``: the controller's task id, or empty; the client fills it in, who asked for it.
    """

    session: str
    epoch: int
    node: NodeInfo | None
    token: str = ""
    quota_bytes: int = 0
    limits: Limits = LIMITS
    lease_ms: int = 30_000
    fault: Fault | None = None
    gpus: tuple[int, ...] = ()
    task: str = ""
    tenant: str = ""
    """Whose session it is and who pays for it, as the node knows it; empty from nodes of earlier versions."""


class CloseSession(msgspec.Struct, frozen=True):
    """The client closes its session. ``outcome``: how the script ended; None if it is still running, or if the client cannot tell."""

    session: Name
    reason: Text = "done"
    last_seq: int = 0
    outcome: Outcome | None = None


class SessionClosed(msgspec.Struct, frozen=True):
    """What the session used: totals from open to close, and its launch-order digest (hex). ``core_ns``: without what repeated the work of
    a lost session and is not charged."""

    session: str
    core_ns: int = 0
    byte_ms: int = 0
    instructions: int = 0
    launches: int = 0
    launch_digest: str = ""
    core_credits_micro: int = 0
    vram_credits_micro: int = 0
    compile_ns: int = 0


class Ping(msgspec.Struct, frozen=True):
    """Keeps a session's lease alive; empty session: only asks whether the node is there. ``seq_seen``: the last batch whose Done the
    session has; the node sends those after it again (-1: it is not asked to). ``image``: the client holds an image of the session's memory
    under this number, and uses it once the log has all that the session used so far, which the node brings there (0: none)."""

    session: Name = ""
    seq_seen: int = -1
    image: int = 0


class Pong(msgspec.Struct, frozen=True):
    node: str
    epoch: int
    session_known: bool
    seq_done: int = 0
    seq_next: int = 0
    """The lowest batch the node has not got yet (0: it does not say)."""
    vram_free_bytes: int = -1
    """Of the session's device, now (-1: the node does not say)."""
    excess: Excess | None = None
    """The quota that the session's tenant has used up, so that its batches wait."""
    image: int | None = None
    """The image that was asked about, once the log has what the session used so far; 0: it has not yet. None: a node of an earlier
    version."""


class SessionStats(msgspec.Struct, frozen=True):
    """One open session, for people: times in ns, memory in bytes. ``resident_bytes``: what it is charged for; ``swapped_bytes`` and
    ``shared_bytes``: of what it allocated. ``state``: as in telemetry."""

    session: str
    tenant: str
    task: str
    gpu: int
    priority: int
    seq_done: int
    core_ns: int
    instructions: int
    launches: int
    resident_bytes: int
    launch_digest: str
    weight: int = 100
    state: str = ""
    slices: int = 0
    swapped_bytes: int = 0
    shared_bytes: int = 0


class NodeStats(msgspec.Struct, frozen=True):
    """What a node answers to ``stats``. Counters run since the server started."""

    node: str
    epoch: int
    sessions: tuple[SessionStats, ...]
    batches_received: int = 0
    batches_executed: int = 0
    batches_dropped: int = 0
    batches_refused: int = 0
    executor_restarts: int = 0


class EndTask(msgspec.Struct, frozen=True):
    """End sessions of a task, now: what runs is stopped where it can be, what waits is dropped. ``by``: who wishes it, for the sessions'
    error. ``displaced``: the task is not cancelled, but is to run elsewhere. ``asks``: then its clients are only asked to leave, and their
    sessions run on until they have. ``sessions``: those to end; empty: all. The same again changes nothing."""

    task: Name
    by: Text = ""
    displaced: bool = False
    asks: bool = False
    sessions: Annotated[tuple[Name, ...], Meta(max_length=ENDED_MAX)] = ()


class TaskEnded(msgspec.Struct, frozen=True):
    """``sessions``: of the task, open here and ending; each is over when its SessionClosedFact (reason ``cancelled`` or ``displaced``)
    says so."""

    node: str
    epoch: int
    task: str
    sessions: tuple[str, ...] = ()
    fault: Fault | None = None


class SetPriority(msgspec.Struct, frozen=True):
    """Every open session of a task has this priority from now on (0, the highest, to 4). One that leaves P0 loses its latency target."""

    task: Name
    priority: int


class PrioritySet(msgspec.Struct, frozen=True):
    """``sessions``: of the task, open here; of each that had another priority a SessionPriorityChanged says so."""

    node: str
    epoch: int
    task: str
    priority: int = 0
    sessions: tuple[str, ...] = ()
    fault: Fault | None = None
