"""The terms that pages explain: a tooltip at the term, and all of them on the page /help. The same words as docs/glossary.md."""

from __future__ import annotations

from typing import Final

__all__ = ["TERMS", "term_of"]

TERMS: Final = {
    "balance": "The credits granted to a tenant less those charged; negative when the tenant owes.",
    "batch": "The message of one flush: allocations, uploads, one program, reads and frees.",
    "budget": "The most credits a tenant may spend in a day, a month or in all; further batches are refused when it is used up.",
    "core share": "The part of all cores' time of a device that a session used in the last window. "
    "Utilization counts the time in which anything ran, so shares may add up to less.",
    "core time": "The time that cores of a device worked for a task, added up over cores: two cores for one second are two core-seconds.",
    "credit": "The unit of the bill: core credits for measured core time, VRAM credits for memory held over time.",
    "default VRAM": "The memory by which a task is placed that names none: of its tenant's tier, else of the cluster. The task may grow.",
    "drain": "To give a node no new tasks while it finishes those it has.",
    "epoch": "One incarnation of a process.",
    "exclusive": "Of a task: no other task is placed on its devices.",
    "GiB-second": "One GiB of device memory held for one second.",
    "group": "A named set of nodes; a node in a group serves only tasks that ask for the group.",
    "launch": "The execution of one batch's program on a device.",
    "mean wait": "How long the launches of a session waited for the device, on average over the last window.",
    "node": "The server process of one machine, with all its devices.",
    "overcommit": "Promising more memory than the device has; idle tasks are swapped out when it is needed.",
    "placement": "The choice of node and GPUs for a task.",
    "priority": "0 (first) to 4 (last): work of a higher priority always runs before work of a lower one.",
    "promised": "Of device memory: what placed tasks may use, whether or not they do.",
    "reservation": "Memory or devices that are held for a task.",
    "resident": "Of memory: it is on the device now.",
    "session": "A client's use of one node, from opening to closing.",
    "shared": "Of memory: weights that several tasks use, held once.",
    "starvation": "The percentage of a window in which a device was busy and at least one further launch waited.",
    "swapped": "Of memory: moved from the device to host memory or disk; it is moved back before it is used.",
    "task": "What a user asks to run: priority, memory, GPUs, groups.",
    "tenant": "The party that owns tasks and pays for them.",
    "tier": "The price class of a tenant, which also bounds the priority of its tasks.",
    "utilization": "The percentage of a window in which a device was busy.",
    "VRAM": "The memory of a device.",
}

_ALSO: Final = {
    "best priority": "priority", "core credits": "credit", "credits": "credit", "core-second": "core time",
    "credits per hour": "credit", "devices": "node",
    "for core time": "core time", "for vram": "GiB-second", "gib·s": "GiB-second", "groups": "group", "launches": "launch",
    "nodes ready": "node", "running tasks": "task", "queued tasks": "task", "swapped out": "swapped", "vram credits": "credit",
    "vram in use": "VRAM", "vram overcommit": "overcommit", "vram time": "GiB-second",
}  # fmt: skip
"""Labels of pages -> the term that they are about."""
_BY_LABEL: Final = {word.lower(): word for word in TERMS} | _ALSO


def term_of(label: str) -> tuple[str, str] | None:
    """(term, what it means) for a label of a page; None where no term is meant."""
    word = _BY_LABEL.get(label.lower())
    return None if word is None else (word, TERMS[word])
