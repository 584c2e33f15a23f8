"""Nodes, their devices, the sessions measured on them, and groups of nodes."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from bus_schemas.telemetry import RunningSession, Telemetry
from scheduler.placement import ClusterView, NodeView, capacity
from scheduler.placement.view import OVERCOMMIT_NODE
from services.controller.presenters import Json, Shown, everyone, rfc3339

__all__ = [
    "STATES", "DeviceRow", "GroupRow", "NodeRow", "Seen", "SessionRow", "device_rows", "first_sessions", "group_answer", "group_rows",
    "node_answer", "node_row", "node_state", "of_now", "session_rows", "telemetry_answer",
]  # fmt: skip

Seen = Mapping[tuple[str, int], Telemetry]
"""The last measurement of each device, by node and GPU index."""

STATES: Final = ("ready", "drained", "lost")


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node that has joined; shares are means over its measured devices, bytes are sums."""

    id: str
    name: str
    address: str
    state: str  #: one of STATES
    reason: str  #: why it is lost
    drained: bool
    seen_ns: int  #: when it was measured last, by its own clock; 0: never
    devices: int
    utilization: int
    starvation: int
    used_bytes: int
    total_bytes: int
    swapped_bytes: int
    tasks: int  #: placed on it, as far as the caller may know of them
    groups: tuple[str, ...]
    declared_groups: tuple[str, ...]  #: those that the node names itself
    overcommit_percent: int  #: in force
    overcommit_own: int | None  #: its own value; None: the cluster's is in force
    version: str
    registered_ns: int
    epoch: int

    @property
    def here(self) -> bool:
        return self.state != "lost"


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device of a node; figures of measurements are 0 where it is not ``measured``."""

    node: str
    node_name: str
    index: int
    name: str
    backend: str
    cores: int
    state: str  #: of its node
    measured: bool  #: by the node's present epoch
    utilization: int
    starvation: int
    used_bytes: int
    shared_bytes: int
    saved_bytes: int
    swapped_bytes: int
    total_bytes: int
    promised_bytes: int  #: of ``schedulable_bytes``, to tasks and sessions
    promised_noswap_bytes: int
    schedulable_bytes: int
    free_bytes: int
    exclusive: bool
    reserved_for: str | None  #: the task that the device is kept for; empty: a task that the caller may not know of
    sessions: int  #: measured on it, as far as the caller may know of them

    @property
    def key(self) -> str:
        """Its part of ids in the document."""
        return f"{self.node}-{self.index}"


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session measured on a device."""

    session: str
    task: str  #: empty: the view has no such task
    title: str  #: the script's, else the task's, else an id
    tenant: str
    priority: int
    state: str
    node: str
    node_name: str
    gpu: int
    share_percent: float  #: core time of the last window, of all that the device has
    resident_bytes: int
    swapped_bytes: int
    shared_bytes: int
    wait_ns: int  #: mean wait of a launch


def node_state(view: ClusterView, name: str, node: NodeView) -> str:
    return "lost" if node.lost is not None else "drained" if view.drained(name) else "ready"


def node_row(view: ClusterView, seen: Seen, shown: Shown, name: str) -> NodeRow:
    """Raises KeyError for a node that never joined."""
    node = view.nodes[name]
    fact = node.registered
    last = [seen[name, device.index] for device in fact.devices if (name, device.index) in seen]
    now = [one for one in last if one.epoch == fact.epoch and node.lost is None]
    count = max(1, len(now))
    return NodeRow(
        id=name,
        name=fact.name,
        address=fact.address,
        state=node_state(view, name, node),
        reason=node.lost or "",
        drained=view.drained(name),
        seen_ns=max([one.at_ns for one in last], default=0),
        devices=len(fact.devices),
        utilization=round(sum(one.utilization_percent for one in now) / count),
        starvation=round(sum(one.starvation_percent for one in now) / count),
        used_bytes=sum(one.vram_used_bytes for one in now),
        total_bytes=sum(device.vram_bytes for device in fact.devices),
        swapped_bytes=sum(one.vram_swapped_bytes for one in now),
        tasks=_tasks(view, node, shown),
        groups=tuple(sorted(view.groups_of(name))),
        declared_groups=tuple(sorted(fact.groups)),
        overcommit_percent=view.overcommit_percent(name),
        overcommit_own=view.number(name, OVERCOMMIT_NODE),
        version=fact.version,
        registered_ns=fact.at_ns,
        epoch=fact.epoch,
    )


def _tasks(view: ClusterView, node: NodeView, shown: Shown) -> int:
    if shown(""):
        return len(node.tasks)
    return sum(1 for task in node.tasks if shown(view.tasks[task].submitted.tenant))


def device_rows(view: ClusterView, seen: Seen, shown: Shown, name: str) -> list[DeviceRow]:
    """The devices of a node, by index. Raises KeyError for a node that never joined."""
    node = view.nodes[name]
    state = node_state(view, name, node)
    out = []
    for device in node.registered.devices:
        room = capacity(view, name, device)
        last = seen.get((name, device.index))
        now = last if last is not None and last.epoch == node.epoch and node.lost is None else None
        out.append(
            DeviceRow(
                node=name,
                node_name=node.registered.name,
                index=device.index,
                name=device.name,
                backend=device.backend,
                cores=device.cores,
                state=state,
                measured=now is not None,
                utilization=now.utilization_percent if now else 0,
                starvation=now.starvation_percent if now else 0,
                used_bytes=now.vram_used_bytes if now else 0,
                shared_bytes=now.vram_shared_bytes if now else 0,
                saved_bytes=now.vram_saved_bytes if now else 0,
                swapped_bytes=now.vram_swapped_bytes if now else 0,
                total_bytes=device.vram_bytes,
                promised_bytes=room.promised_bytes,
                promised_noswap_bytes=room.promised_noswap_bytes,
                schedulable_bytes=room.schedulable_bytes,
                free_bytes=room.free_bytes,
                exclusive=room.exclusive,
                reserved_for=_reserved_for(view, name, device.index, shown),
                sessions=sum(1 for run in now.running if shown(run.tenant)) if now else 0,
            )
        )
    return out


def session_rows(view: ClusterView, measured: Iterable[Telemetry], shown: Shown) -> list[SessionRow]:
    """The sessions open on measured devices, as far as they are shown: by priority, then by core time."""
    return first_sessions(view, measured, shown, None)[0]


def first_sessions(view: ClusterView, measured: Iterable[Telemetry], shown: Shown, most: int | None) -> tuple[list[SessionRow], int]:
    """The first ``most`` of them, and how many there are."""
    found = [(seen, run) for seen in measured if of_now(view, seen) for run in seen.running if shown(run.tenant)]
    first = sorted(found, key=_first) if most is None else heapq.nsmallest(most, found, key=_first)
    return [_session_row(view, seen, run, view.nodes[seen.node].registered.name) for seen, run in first], len(found)


def _first(one: tuple[Telemetry, RunningSession]) -> tuple[int, float, str]:
    seen, run = one
    return run.priority, -run.core_ns / max(1, seen.window_ms * seen.cores), run.session


def of_now(view: ClusterView, seen: Telemetry) -> bool:
    """Whether it is a measurement by the present epoch of a node that is not lost."""
    node = view.nodes.get(seen.node)
    return node is not None and node.lost is None and node.epoch == seen.epoch


def _session_row(view: ClusterView, seen: Telemetry, run: RunningSession, node_name: str) -> SessionRow:
    whole_ns = seen.window_ms * 10**6 * max(1, seen.cores)
    task = view.tasks.get(run.task)
    return SessionRow(
        session=run.session,
        task=run.task if task is not None else "",
        title=run.title or (task.submitted.title if task is not None else "") or run.task or run.session,
        tenant=run.tenant,
        priority=run.priority,
        state=run.state or "idle",
        node=seen.node,
        node_name=node_name,
        gpu=seen.gpu,
        share_percent=round(100 * run.core_ns / whole_ns, 1) if whole_ns else 0.0,
        resident_bytes=run.resident_bytes,
        swapped_bytes=run.swapped_bytes,
        shared_bytes=run.shared_bytes,
        wait_ns=run.wait_ns // run.waits if run.waits else 0,
    )


def _reserved_for(view: ClusterView, node: str, gpu: int, shown: Shown) -> str | None:
    holder = view.reservations.get((node, gpu))
    return holder if holder is None or shown(view.tasks[holder].submitted.tenant) else ""


def node_answer(view: ClusterView, name: str, shown: Shown = everyone) -> Json:
    """Tasks and sessions that are not ``shown`` are left out; what is promised to them counts all the same."""
    row = node_row(view, {}, shown, name)
    return {
        "id": row.id,
        "name": row.name,
        "address": row.address,
        "state": row.state,
        "reason": row.reason,
        "epoch": row.epoch,
        "version": row.version,
        "groups": list(row.groups),
        "declared_groups": list(row.declared_groups),
        "registered_at": rfc3339(row.registered_ns),
        "overcommit_vram_percent": row.overcommit_own,
        "effective_overcommit_vram_percent": row.overcommit_percent,
        "drained": row.drained,
        "devices": [_device_answer(view, device, shown) for device in device_rows(view, {}, shown, name)],
    }


def _device_answer(view: ClusterView, row: DeviceRow, shown: Shown) -> Json:
    """``observed``: the measurement in the log, on which decisions are based."""
    observed = view.measured(row.node, row.index)
    return {
        "index": row.index,
        "name": row.name,
        "backend": row.backend,
        "cores": row.cores,
        "vram_bytes": row.total_bytes,
        "schedulable_bytes": row.schedulable_bytes,
        "promised_bytes": row.promised_bytes,
        "promised_noswap_bytes": row.promised_noswap_bytes,
        "free_bytes": row.free_bytes,
        "exclusive": row.exclusive,
        "reserved_for": row.reserved_for,
        "observed": {
            "utilization_percent": observed.utilization_percent,
            "starvation_percent": observed.starvation_percent,
            "vram_used_bytes": observed.vram_used_bytes,
        },
        "tasks": [task.submitted.task for task in view.tasks_on(row.node, row.index) if shown(task.submitted.tenant)],
        "sessions": [session.session for session in view.sessions_on(row.node, row.index) if shown(session.tenant)],
    }


def telemetry_answer(seen: Telemetry, now_ns: int, shown: Shown) -> Json:
    """A live measurement. ``now_ns``: Unix time of the question, for the age."""
    return {
        "node": seen.node,
        "gpu": seen.gpu,
        "at": rfc3339(seen.at_ns),
        "window_ms": seen.window_ms,
        "age_ms": max(0, (now_ns - seen.at_ns) // 1_000_000),
        "utilization_percent": seen.utilization_percent,
        "starvation_percent": seen.starvation_percent,
        "vram_total_bytes": seen.vram_total_bytes,
        "vram_used_bytes": seen.vram_used_bytes,
        "vram_reserved_bytes": seen.vram_reserved_bytes,
        "vram_swapped_bytes": seen.vram_swapped_bytes,
        "vram_shared_bytes": seen.vram_shared_bytes,
        "vram_saved_bytes": seen.vram_saved_bytes,
        "cores": seen.cores,
        "running": [msgspec.structs.asdict(run) for run in seen.running if shown(run.tenant)],
    }


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a group."""

    node: str
    name: str
    by_itself: bool  #: the node names the group when it registers, so it cannot be taken out by an action
    state: str


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group, described by a user or only named by nodes."""

    id: str
    title: str
    members: tuple[Member, ...]
    own_nodes: tuple[str, ...]  #: members that a user put into it, joined or not
    absent: tuple[str, ...]  #: those of them that have not joined
    tasks: int  #: live tasks that target it, as far as the caller may know of them
    waiting: int
    made: bool  #: a user described it
    revision: int  #: 0: it has no fact of its own
    updated_ns: int
    vram_bytes: int
    gpus: int

    @property
    def text(self) -> str:
        return "\n".join((self.id, self.title, *(f"{one.node}\n{one.name}" for one in self.members))).casefold()


def group_rows(view: ClusterView, tenant: str = "", groups: Collection[str] | None = None) -> list[GroupRow]:
    """``groups`` (None: every group, also those without a node) by id. ``tenant`` not empty: only tasks of this tenant are counted."""
    live = [view.tasks[name] for name in view.live if tenant in ("", view.tasks[name].submitted.tenant)]
    tasks = Counter(group for task in live for group in task.submitted.groups)
    waiting = Counter(group for task in live if task.waiting for group in task.submitted.groups)
    return [_row(view, group, tasks[group], waiting[group]) for group in sorted(view.membership.known() if groups is None else groups)]


def _row(view: ClusterView, group: str, tasks: int, waiting: int) -> GroupRow:
    made = view.groups.get(group)
    nodes = sorted(view.membership.members(group))
    devices = [device for node in nodes for device in view.nodes[node].registered.devices]
    return GroupRow(
        id=group,
        title=made.title if made is not None else "",
        members=tuple(_member(view, group, node) for node in nodes),
        own_nodes=tuple(sorted(made.nodes)) if made is not None else (),
        absent=tuple(sorted(made.nodes - view.nodes.keys())) if made is not None else (),
        tasks=tasks,
        waiting=waiting,
        made=made is not None,
        revision=made.revision if made is not None else 0,
        updated_ns=made.updated_ns if made is not None else 0,
        vram_bytes=sum(device.vram_bytes for device in devices),
        gpus=len(devices),
    )


def _member(view: ClusterView, group: str, node: str) -> Member:
    known = view.nodes[node]
    return Member(node, known.registered.name, group in view.membership.declared[node], node_state(view, node, known))


def group_answer(view: ClusterView, group: str, tenant: str = "") -> Json:
    """``nodes``: those of it that have joined; ``declared_by``: those that name it themselves. ``tenant``: as of ``group_rows``."""
    (row,) = group_rows(view, tenant, [group])
    return {
        "id": row.id,
        "title": row.title,
        "nodes": [member.node for member in row.members],
        "own_nodes": list(row.own_nodes),
        "declared_by": [member.node for member in row.members if member.by_itself],
        "tasks": row.tasks,
        "tasks_waiting": row.waiting,
        "updated_at": rfc3339(row.updated_ns) if row.made else None,
        "revision": row.revision,
    }
