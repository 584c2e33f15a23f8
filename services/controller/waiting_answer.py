"""API answers about a waiting task: its place in the queue, what blocks it, remedies."""

from __future__ import annotations

from scheduler.placement import ClusterView, Remedy, Waiting
from scheduler.placement.reasons import NODE_WIDE, RESERVED, reason_text
from scheduler.placement.remedies import END, FIRST, OVERCOMMIT
from services.controller.answers import Json, Shown, node_name, rfc3339

__all__ = ["waiting_answer"]

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
        "refused": [{"reason": reason, "count": count, "text": reason_text(reason, count)} for reason, count in waiting.refused],
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
        "sentence": _sentence(view, waiting, shown),
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
    """What would let it in, by the titles of tasks and the names of nodes."""
    if remedy.kind == END:
        where = f"{node_name(view, remedy.node)}, GPU {', '.join(map(str, remedy.gpus))}"
        homeless = _count(len(remedy.sessions), "session", "without a task")
        return f"the end of {_joined([*_tasks(view, remedy, shown), *homeless])} on {where}"
    if remedy.kind == FIRST:
        return f"a place, or the end, for {_joined(_tasks(view, remedy, shown))}, for which devices are kept"
    if remedy.kind == OVERCOMMIT:
        now = view.overcommit_percent(remedy.node)
        return f"an overcommit of {node_name(view, remedy.node)} of {remedy.value} % or more (it is {now} %)"
    return remedy.text.replace(remedy.node, node_name(view, remedy.node)) if remedy.node else remedy.text


def _tasks(view: ClusterView, remedy: Remedy, shown: Shown) -> list[str]:
    """Titles (or ids) of those that may be known, and how many others."""
    known = [task for task in remedy.tasks if _task_shown(view, task, shown)]
    return [view.tasks[task].submitted.title or task for task in known] + _count(len(remedy.tasks) - len(known), "task", "of other tenants")


def _count(number: int, noun: str, what: str) -> list[str]:
    return [f"{number} {noun}{'s' if number != 1 else ''} {what}"] if number else []


def _joined(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _task_shown(view: ClusterView, task: str, shown: Shown) -> bool:
    return task in view.tasks and shown(view.tasks[task].submitted.tenant)


def _sentence(view: ClusterView, waiting: Waiting, shown: Shown) -> str:
    if not waiting.remedies:
        return waiting.sentence
    reasons = ", ".join(reason_text(reason, count) for reason, count in waiting.refused)
    return f"number {waiting.place} in the queue; nothing fits: {reasons}; what would let it in: " + "; or ".join(
        _text(view, remedy, shown) for remedy in waiting.remedies
    )


def _time(unix_ns: int | None) -> str | None:
    return None if unix_ns is None else rfc3339(unix_ns)
