"""Telemetry: a node's measurements of each device, about once a second. A signal for routing, never the basis of a bill. Pure: data types
and codec.

Published on ``subjects.telemetry_subject(node, gpu)``; also the node's heartbeat: the controller holds a node for lost that sends none
for its lease. Array-like: new fields go last and have defaults; nothing is renamed, reordered or retyped.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from bus_schemas.limits import QUOTA_USES_MAX, RUNNING_MAX, Name, TenantName, Title, decoding


class RunningSession(msgspec.Struct, array_like=True, frozen=True):
    """A session open on the device. ``task``: the controller's task id, or empty. Of the window: ``core_ns`` used, ``waits`` (batches
    launched), ``wait_ns`` (sum over them of arrival to first launch), ``wait_max_ns``, ``slices`` and ``slice_ns`` (their wall time),
    ``behind_ns`` (time in which a batch of it was ready while another session's ran: interference). Of now: ``allocated_bytes`` (all it
    allocated), of them ``swapped_bytes`` elsewhere and ``shared_bytes`` held together with others. ``state``: running, ready, idle, paced,
    awaits memory, closing."""

    session: Name
    task: Name
    priority: int
    resident_bytes: int
    tenant: TenantName = ""
    title: Title = ""
    weight: int = 100
    core_ns: int = 0
    waits: int = 0
    wait_ns: int = 0
    wait_max_ns: int = 0
    slices: int = 0
    slice_ns: int = 0
    behind_ns: int = 0
    allocated_bytes: int = 0
    swapped_bytes: int = 0
    shared_bytes: int = 0
    state: Name = ""


class QuotaUse(msgspec.Struct, array_like=True, frozen=True):
    """What a tenant has used of a quota on the node, and the limit, in the quota's unit (bus_schemas.quotas)."""

    tenant: TenantName
    quota: Name
    used: int
    limit: int


class Telemetry(msgspec.Struct, array_like=True, frozen=True, tag="telemetry.v1"):
    """One window of one device, ending at ``at_ns`` (the node's Unix time).

    ``utilization_percent``: share of the window with a launch running. ``starvation_percent``: share of the window with a further
    launch waiting while one ran. ``vram_reserved_bytes``: the sum of its sessions' quotas; ``vram_swapped_bytes``: held elsewhere.
    """

    at_ns: int
    node: Name
    epoch: int
    gpu: int
    window_ms: int
    utilization_percent: int
    starvation_percent: int
    vram_total_bytes: int
    vram_used_bytes: int
    vram_reserved_bytes: int = 0
    vram_swapped_bytes: int = 0
    running: Annotated[tuple[RunningSession, ...], Meta(max_length=RUNNING_MAX)] = ()
    cores: int = 0
    vram_shared_bytes: int = 0
    vram_saved_bytes: int = 0
    """What sharing saves: the sum over holders of shared memory, less that memory once."""
    quotas: Annotated[tuple[QuotaUse, ...], Meta(max_length=QUOTA_USES_MAX)] = ()
    """Of the node, in the measurements of its first device."""


_encoder: Final = msgspec.msgpack.Encoder()
decode_telemetry: Final = decoding(msgspec.msgpack.Decoder(Telemetry))


def encode_telemetry(telemetry: Telemetry) -> bytes:
    return _encoder.encode(telemetry)


def telemetry_on(subject: str, data: bytes) -> Telemetry:
    """What was published on ``subject``. Raises msgspec.DecodeError also when it is about another device than the subject: a client that
    may publish about one node speaks of no other."""
    seen = decode_telemetry(data)
    if subject.split(".") != ["wooly", "telemetry", seen.node, str(seen.gpu)]:
        raise msgspec.DecodeError(f"it is about gpu {seen.gpu} of node {seen.node[:64]}")
    return seen
