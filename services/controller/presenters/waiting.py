"""Why a task waits, and what would let it in: one wording for REST and pages, with titles and names in place of ids. Tasks of tenants that
the caller may not know of are counted and not named."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.placement import ClusterView, Remedy, why_waiting
from scheduler.placement import Waiting as Found
from scheduler.placement.reasons import reason_text
from scheduler.placement.remedies import END, FIRST, OVERCOMMIT
from services.controller.presenters import Json, Shown, node_name, rfc3339
from services.controller.presenters.tasks import refusals_answer
from services.controller.web.formats import duration_text


@dataclass(frozen=True, slots=True)
class Way:
    """One remedy in words."""

    before: str
    links: tuple[tuple[str, str], ...] = ()  #: (label, path) of each thing; path empty: it has no page
    after: str = ""

    @property
    def text(self) -> str:
        labels = [label for label, _ in self.links]
        return self.before + " and ".join([", ".join(labels[:-1]), labels[-1]] if len(labels) > 1 else labels) + self.after


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the page of a task shows while it waits."""

    place: int  #: in the queue, from 1
    of: int  #: length of the queue
    why: tuple[str, ...]  #: sentences
    frees: tuple[Way, ...]  #: remedies; any one of them is enough


def waiting_of(view: ClusterView, task: str, at_ns: int, shown: Shown) -> Waiting | None:
    """None: it does not wait. Takes milliseconds: for questions about one task."""
    found = why_waiting(view, task, at_ns)
    if found is None:
        return None
    ways = tuple(_way(view, remedy, shown) for remedy in found.remedies)
    return Waiting(found.place, found.queue_length, tuple(_sentences(view, found, at_ns)), ways)


def waiting_answer(view: ClusterView, waiting: Found, shown: Shown) -> Json:
    texts = [_way(view, remedy, shown).text for remedy in waiting.remedies]
    return {
        "task": waiting.task,
        "place": waiting.place,
        "queue_length": waiting.queue_length,
        "priority": waiting.priority,
        "level": waiting.level,
        "waited_ms": waiting.waited_ns // 1_000_000,
        "refused": [{"reason": reason, "count": count, "text": reason_text(reason, count)} for reason, count in waiting.refused],
        "examples": refusals_answer(waiting.examples, shown),
        "remedies": [
            {
                "kind": remedy.kind,
                "text": text,
                "node": remedy.node or None,
                "gpus": list(remedy.gpus),
                "tasks": _known(view, remedy, shown),
                "sessions": [name for name in remedy.sessions if name in view.sessions and shown(view.sessions[name].fact.tenant)],
                "value": remedy.value,
            }
            for remedy, text in zip(waiting.remedies, texts, strict=True)
        ],
        "rises_at": _time(waiting.rises_ns),
        "protected_at": _time(waiting.protected_ns),
        "reserved_node": waiting.reserved_node or None,
        "reserved_gpus": list(waiting.reserved_gpus),
        "expires_at": _time(waiting.expires_ns),
        "sentence": _sentence(waiting, texts),
    }


def _sentence(waiting: Found, texts: list[str]) -> str:
    if not texts:
        return waiting.sentence
    reasons = ", ".join(reason_text(reason, count) for reason, count in waiting.refused)
    return f"number {waiting.place} in the queue; nothing fits: {reasons}; what would let it in: {'; or '.join(texts)}"


def _sentences(view: ClusterView, found: Found, at_ns: int) -> list[str]:
    out = [f"It has waited {duration_text(found.waited_ns)}."]
    if not found.remedies:
        out.append("A device is free for it: it is placed when its turn comes.")
    if found.level < found.priority:
        out.append(f"By waiting it has risen from priority {found.priority} to {found.level}.")
    if found.rises_ns is not None and found.rises_ns > at_ns:
        out.append(f"Its priority rises by one level in {duration_text(found.rises_ns - at_ns)}.")
    if found.reserved_gpus:
        gpus = ", ".join(map(str, found.reserved_gpus))
        kept = f"GPU {gpus} of {node_name(view, found.reserved_node)} is reserved for it"
        out.append(f"It has waited so long that {kept}: no later task is placed there.")
    elif found.protected_ns is not None and found.protected_ns > at_ns:
        out.append(f"In {duration_text(found.protected_ns - at_ns)} devices are reserved for it, so that no later task can overtake it.")
    if found.expires_ns is not None:
        out.append(f"It leaves the queue in {duration_text(max(0, found.expires_ns - at_ns))}.")
    return out


def _way(view: ClusterView, remedy: Remedy, shown: Shown) -> Way:
    node = node_name(view, remedy.node)
    if remedy.kind == END:
        links = (*_tasks(view, remedy, shown), *_count(len(remedy.sessions), "session", "without a task"))
        return Way("the end of ", links, f" on {node}, GPU{'s' * (len(remedy.gpus) > 1)} {' and '.join(map(str, remedy.gpus))}")
    if remedy.kind == FIRST:
        return Way("a place, or the end, for ", _tasks(view, remedy, shown), ", for which devices are reserved")
    if remedy.kind == OVERCOMMIT:
        held = view.overcommit_percent(remedy.node)
        return Way("an overcommit of ", ((node, f"/nodes/{remedy.node}"),), f" of at least {remedy.value}\u00a0% (now {held}\u00a0%)")
    return Way(remedy.text.replace(f"node {remedy.node}", f"node {node}", 1) if remedy.node else remedy.text)


def _tasks(view: ClusterView, remedy: Remedy, shown: Shown) -> tuple[tuple[str, str], ...]:
    """Titles (or ids) of those that may be known, and how many others."""
    known = _known(view, remedy, shown)
    links = [(view.tasks[task].submitted.title or task, f"/tasks/{task}") for task in known]
    return (*links, *_count(len(remedy.tasks) - len(known), "task", "of other tenants"))


def _known(view: ClusterView, remedy: Remedy, shown: Shown) -> list[str]:
    return [task for task in remedy.tasks if task in view.tasks and shown(view.tasks[task].submitted.tenant)]


def _count(number: int, noun: str, what: str) -> list[tuple[str, str]]:
    return [(f"{number} {noun}{'s' if number != 1 else ''} {what}", "")] if number else []


def _time(unix_ns: int | None) -> str | None:
    return None if unix_ns is None else rfc3339(unix_ns)
