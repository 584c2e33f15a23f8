"""API answers about a waiting task: its place in the queue, what blocks it, remedies."""

from __future__ import annotations

from scheduler.placement import ClusterView, Remedy, Waiting
from scheduler.placement.reasons import NODE_WIDE, RESERVED
from services.controller.answers import Json, Shown, rfc3339

__all__ = ["waiting_answer"]

_OTHERS = "what others have there ends"
_HIDDEN = "kept for a task that has waited long and goes first"


def waiting_answer(view: ClusterView, waiting: Waiting, shown: Shown) -> Json:
    """``shown``: whether the caller may know of a tenant's tasks; of the others none is named."""
    all_shown = shown("")
    return {
        "task": waiting.task,
        "place": waiting.place,
        "queue_length": waiting.queue_length,
        "priority": waiting.priority,
        "level": waiting.level,
        "waited_ms": waiting.waited_ns // 1_000_000,
        "refused": [{"reason": reason, "count": count} for reason, count in waiting.refused],
        "examples": [
            {
                "node": node or None,
                "gpu": None if gpu == NODE_WIDE else gpu,
                "reason": reason,
                "detail": detail if all_shown or reason != RESERVED else _HIDDEN,
            }
            for node, gpu, reason, detail in waiting.examples
        ],
        "remedies": [_remedy(view, remedy, shown) for remedy in waiting.remedies],
        "rises_at": _time(waiting.rises_ns),
        "protected_at": _time(waiting.protected_ns),
        "reserved_node": waiting.reserved_node or None,
        "reserved_gpus": list(waiting.reserved_gpus),
        "expires_at": _time(waiting.expires_ns),
        "sentence": waiting.sentence if all_shown else _sentence(view, waiting, shown),
    }


def _remedy(view: ClusterView, remedy: Remedy, shown: Shown) -> Json:
    return {
        "kind": remedy.kind,
        "text": _text(view, remedy, shown),
        "node": remedy.node or None,
        "gpus": list(remedy.gpus),
        "tasks": [task for task in remedy.tasks if _task_shown(view, task, shown)],
        "sessions": [name for name in remedy.sessions if name in view.sessions and shown(view.sessions[name].fact.tenant)],
        "value": remedy.value,
    }


def _text(view: ClusterView, remedy: Remedy, shown: Shown) -> str:
    if all(_task_shown(view, task, shown) for task in remedy.tasks) and (not remedy.sessions or shown("")):
        return remedy.text
    return f"{_OTHERS}: node {remedy.node}" if remedy.node else _OTHERS


def _task_shown(view: ClusterView, task: str, shown: Shown) -> bool:
    return task in view.tasks and shown(view.tasks[task].submitted.tenant)


def _sentence(view: ClusterView, waiting: Waiting, shown: Shown) -> str:
    reasons = ", ".join(f"{reason} ({count}x)" for reason, count in waiting.refused)
    return f"number {waiting.place} in the queue; nothing fits: {reasons}; what would let it in: " + "; or ".join(
        _text(view, remedy, shown) for remedy in waiting.remedies
    )


def _time(unix_ns: int | None) -> str | None:
    return None if unix_ns is None else rfc3339(unix_ns)
