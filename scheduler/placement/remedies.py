"""Explanation of a task's waiting: its place in the queue, what blocks it, what happens by time alone, and remedies: the end of other
tasks, a setting, a node. Each remedy is a change after which the task fits where it says, were it alone in the queue; the tests make the
change and look. Pure, for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Final

import numpy as np

from bus_schemas.events import TaskSubmitted
from scheduler.placement import columns as col
from scheduler.placement import reasons as why
from scheduler.placement.columns import Hold, Ints
from scheduler.placement.decide import decide
from scheduler.placement.feasible import Capacity, Refusal, beyond_every_device, capacity_of_row, refuse_cluster
from scheduler.placement.order import NEVER, Place, effective_priority, kept_from, nearest, protected_from_ns, rank, rises_ns, shortfalls
from scheduler.placement.queue import expiry_ns
from scheduler.placement.states import CUT_LOST, OVERCOMMIT_NODE, QUEUED
from scheduler.placement.survey import CODES, FITS, Survey, survey
from scheduler.placement.view import ClusterView, NodeView, cut_off
from scheduler.vram.overcommit import PERCENT_MAX

END: Final = "end"
"""These tasks and sessions end."""
OVERCOMMIT: Final = "overcommit"
"""The node's overcommit is raised to ``value`` percent."""
RESUME: Final = "resume"
"""The drained node is taken into service again."""
RECOVER: Final = "recover"
"""The lost node comes back."""
GROUP: Final = "group"
"""The node is put into group ``value``; or, with an empty value, taken out of all groups."""
FIRST: Final = "first"
"""A task that goes first, for which devices are kept, gets its place."""
JOIN: Final = "join"
"""A node with such devices joins."""
GANG: Final = "gang"
"""The other tasks of its gang are submitted, or get room too."""

_PLACES: Final = 3
_MIB_SHIFT: Final = 20


@dataclass(frozen=True, slots=True)
class Remedy:
    """``kind``: one of the above; ``text`` says it all for a person. ``tasks``, ``sessions``: whose end (or placement) it takes."""

    kind: str
    text: str
    node: str = ""
    gpus: tuple[int, ...] = ()
    tasks: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    value: int | str = ""


def remedies(view: ClusterView, task: TaskSubmitted, kept: dict[tuple[str, int], str]) -> tuple[Remedy, ...]:
    """What would let ``task`` in, the nearest first. ``kept``: devices that are kept from it, with for whom. Empty: it fits now."""
    everywhere = refuse_cluster(view, task)
    if everywhere is not None:
        return (_for_cluster(task, everywhere[2]),)
    found = survey(view, task, kept)
    if len(found.fits):
        return ()  # it waits for its turn, or for its gang
    out = _ends(view, task, found, kept)
    out += _overcommit(view, task, found, kept)
    for kind, reason in ((RESUME, why.NODE_DRAINED), (RECOVER, why.NODE_LOST), (GROUP, why.NOT_IN_GROUP), (GROUP, why.GROUP_ONLY)):
        out += _without(view, task, kept, kind, reason)
    if kept:
        holders = tuple(sorted(set(kept.values())))
        out.append(Remedy(FIRST, f"{_names('task', holders)}, for which devices are kept, being placed or cancelled", tasks=holders))
    if not out or beyond_every_device(view, task):
        out.append(_join(task))
    return tuple(out)


def _for_cluster(task: TaskSubmitted, reason: str) -> Remedy:
    if reason == why.NO_NODES:
        return _join(task)
    wanted = sorted(set(task.groups))
    return Remedy(GROUP, f"a node being put into {_names('group', wanted)}", value=wanted[0])


def _join(task: TaskSubmitted) -> Remedy:
    where = f" in {_names('group', sorted(set(task.groups)))}" if task.groups else ""
    count = f"{task.gpu_count} devices" if task.gpu_count > 1 else "a device"
    return Remedy(JOIN, f"a node{where} with {count} of {task.vram_bytes >> _MIB_SHIFT} MiB or more joining")


# -- whose end ---------------------------------------------------------------------------------------------------------------------------


def _ends(view: ClusterView, task: TaskSubmitted, found: Survey, kept: dict[tuple[str, int], str]) -> list[Remedy]:
    """Of the nearest nodes: the fewest bytes that would have to end, largest holders first."""
    missing = shortfalls(task, found)
    missing[_rows(view, kept)] = NEVER
    out = []
    for place in nearest(missing, task.gpu_count, found, _PLACES):
        ending = _who_ends(view, task, place)
        if ending:
            tasks = tuple(sorted(name for kind, name in ending if kind == "task"))
            sessions = tuple(sorted(name for kind, name in ending if kind == "session"))
            who = " and ".join(_names(noun, names) for noun, names in (("task", tasks), ("session", sessions)) if names)
            gpus = _names("gpu", [str(gpu) for gpu in place.gpus])
            out.append(Remedy(END, f"{who} on node {place.node} {gpus} ending", place.node, place.gpus, tasks, sessions))
    return out


def _who_ends(view: ClusterView, task: TaskSubmitted, place: Place) -> set[tuple[str, str]]:
    """The holders whose end makes the place fit; empty when not even all of them would."""
    ending: set[tuple[str, str]] = set()
    for gpu in place.gpus:
        row = view.columns.row(place.node, gpu)
        room, used = capacity_of_row(view, row), int(view.columns.devices[col.USED, row])
        held = _held(view, place.node, gpu)
        other_domain = room.domain not in (0, view.nodes[place.node].domain_number(task.tenant))
        must_be_empty = task.exclusive or room.exclusive or other_domain
        fits = _fits_after(task, room, used, held, must_be_empty)
        chosen = {holder for holder in held if holder in ending}
        for holder in sorted(held, key=lambda holder: (-held[holder][0], holder)):
            if fits(chosen):
                break
            chosen.add(holder)
        if not fits(chosen):
            return set()
        for holder in sorted(chosen - ending, key=lambda holder: (held[holder][0], holder)):
            if fits(chosen - {holder}):
                chosen.discard(holder)
        ending |= chosen
    return ending


def _held(view: ClusterView, node: str, gpu: int) -> dict[tuple[str, str], tuple[int, int]]:
    """The holders of memory on a device: (kind, id) to bytes and the part of them that cannot be swapped out."""
    here = view.nodes[node]
    holders = [("task", name) for name in here.tasks] + [("session", name) for name in here.sessions]
    return {
        holder: (hold.nbytes, hold.noswap_bytes)
        for holder in holders
        for hold in view.holdings.held.get(holder, ())
        if (hold.node, hold.gpu) == (node, gpu)
    }


def _fits_after(
    task: TaskSubmitted, room: Capacity, used: int, held: dict[tuple[str, str], tuple[int, int]], must_be_empty: bool
) -> Callable[[set[tuple[str, str]]], bool]:
    """Whether the task fits once these holders have ended and released what they use."""

    def fits(ended: set[tuple[str, str]]) -> bool:
        if must_be_empty and len(ended) < len(held):
            return False
        freed = sum(held[holder][0] for holder in ended)
        after = Capacity(
            room.physical_bytes,
            room.schedulable_bytes,
            room.promised_bytes - freed,
            room.promised_noswap_bytes - sum(held[holder][1] for holder in ended),
            False,
            (),
        )
        if task.noswap:
            return task.vram_bytes <= after.free_physical_bytes(max(0, used - freed))
        return task.vram_bytes <= after.free_bytes

    return fits


# -- which setting, which node -----------------------------------------------------------------------------------------------------------


def _overcommit(view: ClusterView, task: TaskSubmitted, found: Survey, kept: dict[tuple[str, int], str]) -> list[Remedy]:
    """The node that needs the smallest percent so that enough of its devices would do."""
    columns = found.columns
    device = columns.devices
    if task.noswap or not columns.rows:
        return []
    short = found.code == CODES.index(why.VRAM_SHORT)
    would_do = (found.code == FITS) | (found.code == CODES.index(why.GPU_COUNT))
    physical = np.maximum(device[col.PHYSICAL], 1)
    percent: Ints = -(-(100 * (device[col.PROMISED] + found.need)) // physical) - 100
    percent = np.where(would_do, 0, np.where(short & (device[col.PHYSICAL] > 0), np.maximum(percent, 0), NEVER))
    percent[percent > PERCENT_MAX] = NEVER
    percent[_rows(view, kept)] = NEVER
    width = int(columns.place_of.max()) + 1
    if task.gpu_count > width:
        return []
    table = np.full((len(columns.names), width), NEVER, np.int64)
    table[columns.node_of, columns.place_of] = percent
    needed = np.partition(table, task.gpu_count - 1, axis=1)[:, task.gpu_count - 1]
    node = int(needed.argmin())
    if needed[node] >= NEVER:
        return []
    name, value = columns.names[node], int(needed[node])
    text = f"{OVERCOMMIT_NODE} of node {name} at {value} or more (it is {view.overcommit_percent(name)})"
    return [Remedy(OVERCOMMIT, text, name, value=value)]


def _without(view: ClusterView, task: TaskSubmitted, kept: dict[tuple[str, int], str], kind: str, reason: str) -> list[Remedy]:
    """The first node that would do, were it not for ``reason``."""
    found = survey(_recovered(view) if kind == RECOVER else view, task, kept, frozenset({reason}))
    fitting = (found.columns.names[node] for node in found.columns.node_of[found.fits].tolist())
    name = next((name for name in fitting if not view.nodes[name].leaving), "")  # one that is being stopped takes nothing
    if not name:
        return []
    if kind == RESUME:
        return [Remedy(RESUME, f"node {name}, which is drained, being resumed", name)]
    if kind == RECOVER:
        return [Remedy(RECOVER, f"node {name}, which is lost, coming back", name)]
    if task.groups:
        group = min(task.groups)
        return [Remedy(GROUP, f"node {name} being put into group {group}", name, value=group)]
    groups = sorted(view.groups_of(name))
    return [Remedy(GROUP, f"node {name} leaving {_names('group', groups)}, or the task targeting one of them", name)]


def _recovered(view: ClusterView) -> ClusterView:
    """For a survey: with what would be held on the lost nodes, had they come back."""
    then = copy(view)
    then.columns = copy(view.columns)
    then.columns.devices = view.columns.devices.copy()
    for name, node in view.nodes.items():
        for hold, tenant in _returning(view, name, node) if node.lost is not None else ():
            row, domain = then.columns.row(name, hold.gpu), node.domain_number(tenant)
            if row >= 0:
                then.columns.hold(row, 1, hold.nbytes, hold.noswap_bytes, hold.exclusive, hold.priority)
            if row >= 0 and domain:
                then.columns.serve(row, domain)
    return then


def _returning(view: ClusterView, name: str, node: NodeView) -> Iterator[tuple[Hold, str]]:
    """What the sessions of a lost node, and their tasks, would hold there again, and for which tenant."""
    covered: set[tuple[str, int]] = set()
    lost = [view.sessions[session] for session in node.sessions if view.sessions[session].cut_off == CUT_LOST]
    for session in lost:
        task = view.tasks.get(session.fact.task)
        placed = task.placed if task is not None and not session.given_up and (task.state == QUEUED or cut_off(task)) else None
        if task is not None and placed is not None and placed.node == name:
            wish = task.submitted
            for gpu in {gpu for gpu in placed.gpus if (wish.task, gpu) not in covered}:
                covered.add((wish.task, gpu))
                hold = Hold.of(name, gpu, wish.vram_bytes, noswap=wish.noswap, exclusive=wish.exclusive, priority=task.priority)
                yield hold, wish.tenant
    for session in lost:
        fact = session.fact
        if session.given_up or (fact.task, fact.gpu) not in covered:
            hold = Hold.of(name, fact.gpu, fact.quota_bytes, noswap=not fact.swap, exclusive=False, priority=session.priority)
            yield hold, fact.tenant


def _rows(view: ClusterView, kept: dict[tuple[str, int], str]) -> list[int]:
    """The rows of devices that are kept for others."""
    rows = (view.columns.row(node, gpu) for node, gpu in kept)
    return [row for row in rows if row >= 0]


def _names(noun: str, names: tuple[str, ...] | list[str]) -> str:
    return f"{noun}{'s' if len(names) != 1 else ''} {', '.join(names)}"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why one task waits, at one time. Times in ns; None: never."""

    task: str
    #: 1 for the first in the queue.
    place: int
    queue_length: int
    priority: int
    #: Where it waits: ``priority`` raised by waiting.
    level: int
    waited_ns: int
    #: Reasons with counts, the commonest first.
    refused: tuple[tuple[str, int], ...]
    #: Of these refusals.
    examples: tuple[Refusal, ...]
    #: What would let it in.
    remedies: tuple[Remedy, ...]
    #: When its level rises next.
    rises_ns: int | None
    #: From when on it may reserve devices.
    protected_ns: int | None
    reserved_node: str
    #: Devices it has reserved.
    reserved_gpus: tuple[int, ...]
    #: When it gives up.
    expires_ns: int | None
    sentence: str


def why_waiting(view: ClusterView, name: str, at_ns: int) -> Waiting | None:
    """Of a task that waits for room at Unix time ``at_ns``; None when it does not. Milliseconds of work: for questions about one task."""
    task = view.tasks.get(name)
    if task is None or not task.waiting:
        return None
    decision = decide(view, task.submitted, at_ns)
    mine = rank(view, task, at_ns)
    place = 1 + sum(1 for other in view.queue if rank(view, view.tasks[other], at_ns) < mine)
    found = remedies(view, task.submitted, kept_from(view, task.submitted, at_ns)) if not decision.gpus else ()
    gang = (detail for _, _, reason, detail in decision.refusals if reason in why.GANG)
    found = found or tuple(Remedy(GANG, f"room for its whole gang: {detail}") for detail in gang)
    return Waiting(
        task=name,
        place=place,
        queue_length=len(view.queue),
        priority=task.priority,
        level=effective_priority(view, task, at_ns),
        waited_ns=max(0, at_ns - task.wait_from_ns),
        refused=decision.refused,
        examples=decision.refusals,
        remedies=found,
        rises_ns=rises_ns(view, task, at_ns),
        protected_ns=protected_from_ns(view, task),
        reserved_node=task.reserved.node if task.reserved is not None else "",
        reserved_gpus=task.reserved.gpus if task.reserved is not None else (),
        expires_ns=expiry_ns(task),
        sentence=_sentence(place, decision.refused, found),
    )


def _sentence(place: int, refused: tuple[tuple[str, int], ...], found: tuple[Remedy, ...]) -> str:
    if not found:
        return f"there is room; it is number {place} in the queue and is placed when its turn comes"
    reasons = ", ".join(f"{reason} ({count}x)" for reason, count in refused)
    return f"number {place} in the queue; nothing fits: {reasons}; what would let it in: {'; or '.join(remedy.text for remedy in found)}"
