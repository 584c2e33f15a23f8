"""Why a task waits and what would free it, in words for the person who looks. Pure: what scheduler.placement found, with names for ids; of
other tenants' tasks a member learns that there are some, and not which.

May live here: wording. May not: finding out (scheduler.placement.waiting), markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.placement import ClusterView
from scheduler.placement.remedies import END, FIRST, OVERCOMMIT, Remedy
from scheduler.placement.waiting import Waiting as Found
from scheduler.placement.waiting import why_waiting
from services.controller.web.formats import duration_text
from services.controller.web.scope import Scope

__all__ = ["Waiting", "Way", "waiting_of"]

Link = tuple[str, str]
"""(label, path)"""


@dataclass(frozen=True, slots=True)
class Way:
    """What would let it in: ``before``, then the things by name, then ``after``."""

    before: str
    links: tuple[Link, ...] = ()
    after: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """``place`` of ``of`` in the queue; ``why``: sentences; ``frees``: any one of them is enough."""

    place: int
    of: int
    why: tuple[str, ...]
    frees: tuple[Way, ...]


def waiting_of(view: ClusterView, task: str, at_ns: int, scope: Scope) -> Waiting | None:
    """None: it does not wait. Milliseconds of work: for who asks about one task."""
    found = why_waiting(view, task, at_ns)
    if found is None:
        return None
    frees = tuple(_way(view, one, scope) for one in found.remedies)
    return Waiting(found.place, found.queue_length, tuple(_sentences(view, found, at_ns)), frees)


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
        kept = f"GPU {gpus} of {_node(view, found.reserved_node)} is reserved for it"
        out.append(f"It has waited so long that {kept}: no later task is placed there.")
    elif found.protected_ns is not None and found.protected_ns > at_ns:
        out.append(f"In {duration_text(found.protected_ns - at_ns)} devices are reserved for it, so that no later task can overtake it.")
    if found.expires_ns is not None:
        left_ns = max(0, found.expires_ns - at_ns)
        out.append(f"It leaves the queue in {duration_text(left_ns)}.")
    return out


def _way(view: ClusterView, remedy: Remedy, scope: Scope) -> Way:
    gpus = f", GPU{'s' * (len(remedy.gpus) > 1)} {' and '.join(map(str, remedy.gpus))}" if remedy.gpus else ""
    where = f"{_node(view, remedy.node)}{gpus}"
    if remedy.kind == END:
        links, others = _tasks(view, remedy.tasks, scope)
        homeless = f"{len(remedy.sessions)} session{'s' * (len(remedy.sessions) != 1)} without a task" if remedy.sessions else ""
        more = [f"{others} of other tenants" if others else "", homeless]
        rest = " and ".join(text for text in more if text)
        joined = " and " if links and rest else ""
        return Way("The end of ", links, f"{joined}{rest} on {where}")
    if remedy.kind == FIRST:
        links, others = _tasks(view, remedy.tasks, scope)
        return Way("A place, or the end, for ", links, f"{' and ' if links and others else ''}{others}, for which devices are reserved")
    if remedy.kind == OVERCOMMIT:
        held = view.overcommit_percent(remedy.node)
        link = (_node(view, remedy.node), f"/nodes/{remedy.node}")
        return Way("An overcommit of ", (link,), f" of at least {remedy.value}\u00a0% (now {held}\u00a0%)")
    return Way(remedy.text[:1].upper() + remedy.text[1:])


def _tasks(view: ClusterView, names: Sequence[str], scope: Scope) -> tuple[tuple[Link, ...], str]:
    """Those that may be known, by title; how many others in words, empty when there are none."""
    links = []
    others = 0
    for name in names:
        said = view.tasks[name].submitted
        if scope.sees(said.tenant):
            links.append((said.title or name, f"/tasks/{name}"))
        else:
            others += 1
    return tuple(links), f"{others} task{'s' * (others != 1)}" if others else ""


def _node(view: ClusterView, node: str) -> str:
    known = view.nodes.get(node)
    return known.registered.name if known is not None else node
