"""API answers about the view: JSON-ready values, a pure function of the log. Keys in one order, lists by id: equal views, equal bytes.

May live here: presentation. May not: anything measured now, any clock.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from bus_schemas.events import Considered, TaskPlaced, TaskRefused
from scheduler.placement import ClusterView, NodeView, TaskView, capacity
from scheduler.placement.reasons import NODE_WIDE, RESERVED, reason_text
from scheduler.placement.view import OVERCOMMIT_NODE
from services.controller.bodies import MIB

__all__ = ["Json", "task_answer", "placement_answer", "node_answer", "node_name", "node_state_of", "refusal_sentence", "rfc3339", "Shown"]

Json = dict[str, Any]
Shown = Callable[[str], bool]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def rfc3339(unix_ns: int) -> str:
    """A Unix time in RFC 3339 with milliseconds, UTC."""
    moment = _EPOCH + timedelta(milliseconds=unix_ns // 1_000_000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _all(tenant: str) -> bool:
    return True


def task_answer(view: ClusterView, task: TaskView, shown: Shown = _all) -> Json:
    """``shown``: whether the caller may know of a tenant's tasks; of the others no decision names one."""
    submitted, placed = task.submitted, task.placed
    node = view.nodes.get(placed.node) if placed is not None else None
    return {
        "id": submitted.task,
        "tenant": submitted.tenant,
        "title": submitted.title,
        "priority": task.priority,
        "state": task.state,
        "reason": task.reason,
        "outcome": _outcome(task),
        "required_vram_mb": submitted.vram_bytes // MIB,
        "vram_grows": submitted.vram_grows,
        "gpu_count": submitted.gpu_count,
        "gpu_mode": "Exclusive" if submitted.exclusive else "Shared",
        "groups": list(submitted.groups),
        "noswap": submitted.noswap,
        "queue": submitted.queue,
        "queue_timeout_ms": submitted.queue_timeout_ms,
        "weight": submitted.weight,
        "sla_ms_p99": submitted.sla_ms_p99,
        "pace_percent": submitted.pace_percent,
        "node": placed.node if placed is not None else None,
        "node_name": node.registered.name if node is not None else None,
        "gpus": list(placed.gpus) if placed is not None else [],
        "sessions": len(task.sessions),
        "submitted_at": rfc3339(submitted.at_ns),
        "updated_at": rfc3339(task.updated_ns),
        "placement": placement_answer(view, task.decision, shown) if task.decision is not None else None,
    }


def _outcome(task: TaskView) -> Json | None:
    """How the script of a task that is over ended, None where no client reported it."""
    ended = task.outcome
    if ended is None or ended.lost or task.live:
        return None
    return {"exit_code": ended.exit_code, "error": ended.error or None, "signal": ended.signal or None}


def placement_answer(view: ClusterView, decision: TaskPlaced | TaskRefused, shown: Shown = _all) -> Json:
    """A decision: the choice, the best candidates' scores with their parts, and examples of why not the others, with all counts."""
    placed = decision if isinstance(decision, TaskPlaced) else None
    node = view.nodes.get(placed.node) if placed is not None else None
    considered = {(seen.node, seen.gpu): seen for seen in decision.considered}
    scores = placed.scores if placed is not None else ()
    candidates = [_candidate(name, gpu, score, considered.get((name, gpu))) for name, gpu, score in scores]
    return {
        "task": decision.task,
        "state": "placed" if placed is not None else "refused",
        "node": placed.node if placed is not None else None,
        "node_name": node.registered.name if node is not None else None,
        "node_address": node.registered.address if node is not None else None,
        "gpus": list(placed.gpus) if placed is not None else [],
        "decided_at": rfc3339(decision.at_ns),
        "position": decision.position,
        "candidates": candidates,
        "candidates_total": max(len(candidates), placed.candidates) if placed is not None else 0,
        "refusals": refusals_answer(decision, shown),
        "refused": [{"reason": reason, "count": count} for reason, count in decision.refused],
    }


def _candidate(node: str, gpu: int, score: int, seen: Considered | None) -> Json:
    """``seen``: what the decision knew of it; None in the log of another writer, who left it out."""
    names = ("utilization", "starvation", "vram", "priority")
    return {
        "node": node,
        "gpu": gpu,
        "score": score,
        "parts": dict(zip(names, seen.parts, strict=False)) if seen is not None else {},
        "measured": {
            "utilization_percent": seen.utilization_percent,
            "starvation_percent": seen.starvation_percent,
            "vram_used_bytes": seen.vram_used_bytes,
            "free_bytes": seen.free_bytes,
        }
        if seen is not None
        else None,
    }


def refusals_answer(decision: TaskPlaced | TaskRefused, shown: Shown = _all) -> list[Json]:
    """gpu null: the whole node; node null: the whole cluster."""
    return [
        {"node": node or None, "gpu": None if gpu == NODE_WIDE else gpu, "reason": reason, "detail": _detail(reason, detail, shown)}
        for node, gpu, reason, detail in decision.refusals
    ]


def refusal_sentence(view: ClusterView, decision: TaskPlaced | TaskRefused, shown: Shown = _all) -> str:
    """One sentence for the user whose task fits nowhere: every distinct reason, with how often and an example."""
    counts = dict(decision.refused)
    reasons: dict[str, list[str]] = {}
    for node, gpu, reason, detail in decision.refusals:
        where = f"{node_name(view, node)}{'' if gpu == NODE_WIDE else f', GPU {gpu}'}: " if node else ""
        reasons.setdefault(reason, []).append(where + _detail(reason, detail, shown))
    parts = []
    for reason, seen in sorted(reasons.items()):
        count = max(len(seen), counts.get(reason, 0))
        parts.append(f"{reason_text(reason, count)} ({'e.g. ' if count > 1 else ''}{seen[0]})")
    return "no device fits: " + "; ".join(parts)


def node_name(view: ClusterView, node: str) -> str:
    """The name of a node for people; its id when it is unknown."""
    known = view.nodes.get(node)
    return known.registered.name if known is not None else node


def _detail(reason: str, detail: str, shown: Shown) -> str:
    """The sentence of a refusal; for who may not know of all tenants, without the task that a device is kept for."""
    return "kept for a task that has waited long and goes first" if reason == RESERVED and not shown("") else detail


def node_state_of(view: ClusterView, name: str, node: NodeView) -> str:
    return "lost" if node.lost is not None else "drained" if view.drained(name) else "ready"


def node_answer(view: ClusterView, name: str, node: NodeView, shown: Shown = _all) -> Json:
    """``shown``: whether the caller may know of a tenant's tasks and sessions; what is promised to the others counts all the same."""
    registered = node.registered
    state = node_state_of(view, name, node)
    return {
        "id": name,
        "name": registered.name,
        "address": registered.address,
        "state": state,
        "reason": node.lost or "",
        "epoch": registered.epoch,
        "version": registered.version,
        "groups": sorted(view.groups_of(name)),
        "declared_groups": sorted(registered.groups),
        "registered_at": rfc3339(registered.at_ns),
        "overcommit_vram_percent": view.number(name, OVERCOMMIT_NODE),
        "effective_overcommit_vram_percent": view.overcommit_percent(name),
        "drained": view.drained(name),
        "devices": [_device(view, name, node, index, shown) for index in range(len(registered.devices))],
    }


def _device(view: ClusterView, name: str, node: NodeView, index: int, shown: Shown) -> Json:
    device = node.registered.devices[index]
    room = capacity(view, name, device)
    observed = view.measured(name, device.index)
    return {
        "index": device.index,
        "name": device.name,
        "backend": device.backend,
        "cores": device.cores,
        "vram_bytes": device.vram_bytes,
        "schedulable_bytes": room.schedulable_bytes,
        "promised_bytes": room.promised_bytes,
        "promised_noswap_bytes": room.promised_noswap_bytes,
        "free_bytes": room.free_bytes,
        "exclusive": room.exclusive,
        "reserved_for": _reserved_for(view, name, device.index, shown),
        "observed": {
            "utilization_percent": observed.utilization_percent,
            "starvation_percent": observed.starvation_percent,
            "vram_used_bytes": observed.vram_used_bytes,
        },
        "tasks": [task.submitted.task for task in view.tasks_on(name, device.index) if shown(task.submitted.tenant)],
        "sessions": [session.session for session in view.sessions_on(name, device.index) if shown(session.tenant)],
    }


def _reserved_for(view: ClusterView, node: str, gpu: int, shown: Shown) -> str | None:
    """The task a device is kept for; empty: another tenant's."""
    holder = view.reservations.get((node, gpu))
    return holder if holder is None or shown(view.tasks[holder].submitted.tenant) else ""
