"""Rows of the Nodes pages: nodes, their devices and sessions, from the view and the last measurements. Pure.

May live here: rows. May not: markup, requests. A scope of one tenant sees nodes and devices whole, tasks and sessions only its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bus_schemas.telemetry import RunningSession, Telemetry
from scheduler.placement import ClusterView, NodeView, capacity
from scheduler.placement.view import OVERCOMMIT_NODE
from services.controller.web.listing import Listing
from services.controller.web.scope import Scope

__all__ = [
    "SORTS", "STATES", "DeviceRow", "NodeRow", "SessionRow", "device_rows", "first_sessions", "group_choices", "listed_nodes", "node_row",
    "node_state", "session_rows",
]  # fmt: skip

Seen = Mapping[tuple[str, int], Telemetry]

STATES: Final = ("ready", "drained", "lost")
SORTS: Final = ("name", "state", "devices", "utilization", "starvation", "vram", "tasks", "seen")


@dataclass(frozen=True, slots=True)
class NodeRow:
    """``seen_ns``: when it was measured last, by its own clock; 0: never. Shares are means over its devices, bytes are sums."""

    id: str
    name: str
    address: str
    state: str
    reason: str
    seen_ns: int
    devices: int
    utilization: int
    starvation: int
    used_bytes: int
    total_bytes: int
    swapped_bytes: int
    tasks: int
    groups: tuple[str, ...]
    overcommit_percent: int
    overcommit_own: int | None
    version: str
    registered_ns: int
    epoch: int

    @property
    def here(self) -> bool:
        return self.state != "lost"


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """``measured``: there is a measurement of this life of the node. ``promised_bytes`` of ``schedulable_bytes``: to tasks and sessions."""

    node: str
    node_name: str
    index: int
    name: str
    backend: str
    cores: int
    state: str
    measured: bool
    utilization: int
    starvation: int
    used_bytes: int
    shared_bytes: int
    saved_bytes: int
    swapped_bytes: int
    total_bytes: int
    promised_bytes: int
    schedulable_bytes: int
    free_bytes: int
    exclusive: bool
    sessions: int

    @property
    def key(self) -> str:
        """Its part of ids in the document."""
        return f"{self.node}-{self.index}"


@dataclass(frozen=True, slots=True)
class SessionRow:
    """``share_percent``: core time of the last window, of all the device has. ``title``: the script's, else the ids'."""

    session: str
    task: str
    title: str
    tenant: str
    priority: int
    state: str
    node: str
    node_name: str
    gpu: int
    share_percent: float
    resident_bytes: int
    swapped_bytes: int
    shared_bytes: int
    wait_ns: int


def node_state(view: ClusterView, name: str, node: NodeView) -> str:
    return "lost" if node.lost is not None else "drained" if view.drained(name) else "ready"


def node_row(view: ClusterView, seen: Seen, scope: Scope, name: str) -> NodeRow:
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
        seen_ns=max([one.at_ns for one in last], default=0),
        devices=len(fact.devices),
        utilization=round(sum(one.utilization_percent for one in now) / count),
        starvation=round(sum(one.starvation_percent for one in now) / count),
        used_bytes=sum(one.vram_used_bytes for one in now),
        total_bytes=sum(device.vram_bytes for device in fact.devices),
        swapped_bytes=sum(one.vram_swapped_bytes for one in now),
        tasks=_tasks(view, node, scope),
        groups=tuple(sorted(view.groups_of(name))),
        overcommit_percent=view.overcommit_percent(name),
        overcommit_own=view.number(name, OVERCOMMIT_NODE),
        version=fact.version,
        registered_ns=fact.at_ns,
        epoch=fact.epoch,
    )


def listed_nodes(view: ClusterView, seen: Seen, scope: Scope, listing: Listing) -> tuple[list[NodeRow], Listing]:
    """The rows of one page of the list, and the listing with its count."""
    rows = [node_row(view, seen, scope, name) for name in view.nodes if _wanted(view, name, listing)]
    rows.sort(key=lambda row: (row.name.casefold(), row.id))
    rows.sort(key=lambda row: _order(row, listing.sort), reverse=listing.descending)
    return listing.take(rows)


def _wanted(view: ClusterView, name: str, listing: Listing) -> bool:
    node = view.nodes[name]
    state, group = listing.filters.get("state"), listing.filters.get("group")
    if state and node_state(view, name, node) != state:
        return False
    if group and group not in view.groups_of(name):
        return False
    text = listing.search.casefold()
    fact = node.registered
    return not text or any(text in part.casefold() for part in (name, fact.name, fact.address, *(device.name for device in fact.devices)))


def _order(row: NodeRow, sort: str) -> Any:
    return {
        "name": row.name.casefold(),
        "state": STATES.index(row.state),
        "devices": row.devices,
        "utilization": row.utilization,
        "starvation": row.starvation,
        "vram": row.used_bytes / max(1, row.total_bytes),
        "tasks": row.tasks,
        "seen": row.seen_ns,
    }[sort]


def _tasks(view: ClusterView, node: NodeView, scope: Scope) -> int:
    if not scope.tenant:
        return len(node.tasks)
    return sum(1 for task in node.tasks if scope.sees(view.tasks[task].submitted.tenant))


def device_rows(view: ClusterView, seen: Seen, scope: Scope, name: str) -> list[DeviceRow]:
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
                schedulable_bytes=room.schedulable_bytes,
                free_bytes=room.free_bytes,
                exclusive=room.exclusive,
                sessions=sum(1 for run in now.running if scope.sees(run.tenant)) if now else 0,
            )
        )
    return out


def session_rows(view: ClusterView, measured: Iterable[Telemetry], scope: Scope) -> list[SessionRow]:
    """The sessions open on measured devices that the scope sees: by priority, then by what they use."""
    return first_sessions(view, measured, scope, None)[0]


def first_sessions(view: ClusterView, measured: Iterable[Telemetry], scope: Scope, most: int | None) -> tuple[list[SessionRow], int]:
    """The first ``most`` of them, and how many there are: rows are made of those shown only."""
    found = [(seen, run) for seen in measured if _of_now(view, seen) for run in seen.running if scope.sees(run.tenant)]
    shown = sorted(found, key=_first) if most is None else heapq.nsmallest(most, found, key=_first)
    return [_session_row(view, seen, run, view.nodes[seen.node].registered.name) for seen, run in shown], len(found)


def _first(one: tuple[Telemetry, RunningSession]) -> tuple[int, float, str]:
    seen, run = one
    return run.priority, -run.core_ns / max(1, seen.window_ms * seen.cores), run.session


def _of_now(view: ClusterView, seen: Telemetry) -> bool:
    """Is it of the present life of a node that is here?"""
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


def group_choices(view: ClusterView) -> Sequence[str]:
    """Every group some node is in, for the filter."""
    return sorted({group for name in view.nodes for group in view.groups_of(name)})
