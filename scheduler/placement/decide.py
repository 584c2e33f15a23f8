"""The placement decision: the score of a device for a task, the choice of node and devices, and why not the others. One pure function of
(view, task, time).

    decision = decide(view, task, at_ns)
    event = decision.event()               # TaskPlaced or TaskRefused, ready for the log

It looks at nothing but the log: measurements are in it as LoadObserved, waiting tasks and their reservations as facts of tasks, and
``at_ns`` (which only says who has waited how long) is in the event. So each can be made again (recorded).

    score = 3 x (100 - utilization %) + 3 x (100 - starvation %) + 2 x share of promisable VRAM left free + 2 x room beside equals

Utilization says whether the device runs at all times, starvation whether work queues for it: a device that is busy but never short of
room to run (80 % utilized, 0 % starved) is a better place than one where launches wait. The VRAM term spreads tasks between
measurements, the last term keeps those of equal or higher priority apart. With the setting PACK both are 100 less what they were: of two
devices with the same load the fuller one is taken, so that whole devices stay free. Ties are broken by node id, then gpu index.
"""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import dataclass
from typing import Final

import numpy as np

from bus_schemas.events import Considered, TaskPlaced, TaskRefused, TaskSubmitted
from scheduler.placement import columns as col
from scheduler.placement import reasons as why
from scheduler.placement.columns import Hold, Ints
from scheduler.placement.feasible import Refusal, capacity_of_row, refuse_cluster, refuse_count, refuse_device, refuse_node, refuse_reserved
from scheduler.placement.order import kept_from, known_task, missing_members, next_reservation, priority_of, rank
from scheduler.placement.state import TaskView
from scheduler.placement.states import PACK, PRIORITY_MAX
from scheduler.placement.survey import CODES, Survey, survey
from scheduler.placement.view import ClusterView

__all__ = ["BEST", "EXAMPLES", "PARTS", "SCORE_MAX", "WEIGHTS", "Decision", "candidates", "decide", "explain"]

WEIGHTS: Final = {"utilization": 3, "starvation": 3, "vram": 2, "priority": 2}
SCORE_MAX: Final = 100 * sum(WEIGHTS.values())
PARTS: Final = tuple(WEIGHTS)
"""The parts of a score, in the order of the rows of ``parts`` and of Considered.parts."""

_ROOM_BESIDE: Final = np.array([100 // (1 + rivals) for rivals in range(101)], np.int64)
_WEIGHTS: Final = tuple(WEIGHTS.values())


def parts(view: ClusterView, rows: Ints, priority: int, need_bytes: int) -> Ints:
    """The parts of the scores of ``rows`` for a task of ``priority`` that needs ``need_bytes`` and fits there: one row a part."""
    columns = view.columns
    device = columns.devices
    out = np.empty((len(PARTS), len(rows)), np.int64)
    for part, column in enumerate((col.UTILIZATION, col.STARVATION)):
        out[part] = 100 - np.minimum(device[column].take(rows), 100)
    schedulable = device[col.SCHEDULABLE].take(rows)
    left = np.maximum(schedulable - device[col.PROMISED].take(rows) - need_bytes, 0)
    out[2] = 100 * left // np.maximum(schedulable, 1)
    rivals = np.zeros(len(rows), np.int64)
    for level in range(min(priority, PRIORITY_MAX) + 1):
        rivals += device[col.HOLDERS + level].take(rows)
    out[3] = _ROOM_BESIDE.take(np.minimum(rivals, 100))
    if view.setting(PACK):
        out[2:] = 100 - out[2:]
    return out


def scores(made_of: Ints) -> Ints:
    total: Ints = made_of[0] * _WEIGHTS[0]
    for part, weight in zip(made_of[1:], _WEIGHTS[1:], strict=True):
        total += part * weight
    return total


def order_keys(score: Ints, rows: Ints, rows_in_all: int) -> Ints:
    """Sort keys, best first: by score, then by row, which is node id, then gpu. Total: no two devices share a row."""
    keys: Ints = (SCORE_MAX - score) * max(rows_in_all, 1) + rows
    return keys


BEST: Final = 8
"""How many candidates an event lists, beside the chosen devices."""
EXAMPLES: Final = 3
"""How many refusals it lists for each reason."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice with its reasons."""

    at_ns: int
    task: str
    node: str
    #: Empty: refused everywhere.
    gpus: tuple[int, ...]
    #: (node, gpu, score) of the best candidates, best first.
    scores: tuple[tuple[str, int, int], ...]
    #: Examples of what ``refused`` counts.
    refusals: tuple[Refusal, ...]
    #: What was known of the devices in ``scores``.
    considered: tuple[Considered, ...]
    position: int
    #: How many devices would do.
    candidates: int
    #: (reason, count), the commonest first.
    refused: tuple[tuple[str, int], ...]
    reserved_node: str = ""
    #: Kept for the task from now on.
    reserved_gpus: tuple[int, ...] = ()

    def event(self) -> TaskPlaced | TaskRefused:
        """The fact to append to the log."""
        if self.gpus:
            return TaskPlaced(
                at_ns=self.at_ns,
                task=self.task,
                node=self.node,
                gpus=self.gpus,
                scores=self.scores,
                refusals=self.refusals,
                position=self.position,
                considered=self.considered,
                candidates=self.candidates,
                refused=self.refused,
            )
        return TaskRefused(
            at_ns=self.at_ns,
            task=self.task,
            refusals=self.refusals,
            position=self.position,
            considered=self.considered,
            refused=self.refused,
            reserved_node=self.reserved_node,
            reserved_gpus=self.reserved_gpus,
        )


def decide(view: ClusterView, task: TaskSubmitted, at_ns: int) -> Decision:
    """Place ``task`` on ``view`` at Unix time ``at_ns``: the choice, the best candidates, and examples of why not the others."""
    return _decide(view, task, at_ns, full=False)


def explain(view: ClusterView, task: TaskSubmitted, at_ns: int) -> Decision:
    """The same decision with every candidate and every refusal: to explain it to a person, not for the log."""
    return _decide(view, task, at_ns, full=True)


def candidates(view: ClusterView, task: TaskSubmitted, at_ns: int) -> list[tuple[str, int, int]]:
    """(node, gpu, score) of every device on which a task that is not in the log fits, by node and gpu."""
    if refuse_cluster(view, task) is not None:
        return []
    found = survey(view, task, kept_from(view, task, at_ns))
    score = scores(parts(view, found.fits, task.priority, found.need))
    return [(*_device(found, row), value) for row, value in zip(found.fits.tolist(), score.tolist(), strict=True)]


def _decide(view: ClusterView, task: TaskSubmitted, at_ns: int, *, full: bool) -> Decision:
    everywhere = refuse_cluster(view, task)
    if everywhere is not None:
        return Decision(
            at_ns=at_ns,
            task=task.task,
            node="",
            gpus=(),
            scores=(),
            refusals=(everywhere,),
            considered=(),
            position=view.position,
            candidates=0,
            refused=((everywhere[2], 1),),
        )
    kept = kept_from(view, task, at_ns)
    found = survey(view, task, kept)
    made_of = parts(view, found.fits, priority_of(view, task), found.need)
    score = scores(made_of)
    node, chosen = _choose(found, score, task.gpu_count)
    alone = _refuse_alone(view, task, at_ns) if chosen and task.gang else None
    if alone is not None:
        node, chosen = "", []
    best = _best(found, score, chosen, full)
    counts = found.counts()
    reserved = None
    waiting = known_task(view, task)
    if not chosen and waiting is not None and waiting.waiting:
        reserved = next_reservation(view, waiting, at_ns, found)
        if reserved is not None and not _could_begin(view, waiting, at_ns):
            reserved = None
    refusals, refused = _refusals(view, task, found, counts, kept, None if full else EXAMPLES), Counter(counts)
    if alone is not None:
        refusals, refused = (alone, *refusals), Counter({**counts, alone[2]: 1})
    return Decision(
        at_ns=at_ns,
        task=task.task,
        node=node,
        gpus=tuple(int(view.columns.devices[col.GPU, found.fits[at]]) for at in chosen),
        scores=tuple((*_device(found, int(found.fits[at])), int(score[at])) for at in best),
        refusals=refusals,
        considered=tuple(_considered(found, at, made_of) for at in best),
        position=view.position,
        candidates=len(found.fits),
        refused=tuple(sorted(refused.items(), key=lambda item: (-item[1], item[0]))),
        reserved_node=reserved.node if reserved is not None else "",
        reserved_gpus=reserved.gpus if reserved is not None else (),
    )


def _refuse_alone(view: ClusterView, task: TaskSubmitted, at_ns: int) -> Refusal | None:
    """Why a member of a gang that fits must not be placed before the others; None: all of them fit, one after the other in their order. One
    that was placed before, or is only asked about, goes alone."""
    known = known_task(view, task)
    if known is None or known.hosts:
        return None
    missing = missing_members(view, known)
    if missing > 0:
        detail = f"{task.gang_size - missing} of the {task.gang_size} tasks of gang {task.gang} are submitted"
        return ("", why.NODE_WIDE, why.GANG_INCOMPLETE, detail)
    members = sorted(view.gang_waiting(task), key=lambda member: rank(view, member, at_ns))
    number = _fit_together(view, members, at_ns)
    if number < len(members):
        return ("", why.NODE_WIDE, why.GANG_SHORT, f"{number} of the {len(members)} tasks of gang {task.gang} that wait fit now")
    return None


def _could_begin(view: ClusterView, task: TaskView, at_ns: int) -> bool:
    """Whether all waiting members of a task's gang would fit were nothing else on the devices: else nothing is reserved for one of them."""
    if task.hosts or not task.submitted.gang:
        return True
    then = copy(view)
    then.reservations = {}
    then.columns = copy(view.columns)
    then.columns.devices = view.columns.devices.copy()
    then.columns.devices[[col.PROMISED, col.NOSWAP, col.EXCLUSIVE, col.USED, col.DOMAIN]] = 0
    then.columns.devices[col.HOLDERS :] = 0
    members = sorted(view.gang_waiting(task.submitted), key=lambda member: rank(view, member, at_ns))
    return _fit_together(then, members, at_ns) == len(members)


def _fit_together(view: ClusterView, members: list[TaskView], at_ns: int) -> int:
    """How many of these, from the first on, fit when each is placed before the next."""
    then = copy(view)
    then.columns = copy(view.columns)
    then.columns.devices = view.columns.devices.copy()
    for number, member in enumerate(members):
        wish = member.submitted
        placed = {before.submitted.task for before in members[:number]}  # nothing is kept for them any more
        kept = {device: holder for device, holder in kept_from(view, wish, at_ns).items() if holder not in placed}
        found = survey(then, wish, kept)
        _, chosen = _choose(found, scores(parts(then, found.fits, member.priority, found.need)), wish.gpu_count)
        if not chosen:
            return number
        hold = Hold.of("", 0, wish.vram_bytes, noswap=wish.noswap, exclusive=wish.exclusive, priority=member.priority)
        for at in chosen:
            then.columns.hold(int(found.fits[at]), 1, hold.nbytes, hold.noswap_bytes, hold.exclusive, hold.priority)
    return len(members)


def _choose(found: Survey, score: Ints, gpu_count: int) -> tuple[str, list[int]]:
    """The node whose best ``gpu_count`` devices score highest together (ties: node id), and those devices in index order, as places in
    ``found.fits``."""
    columns, fits = found.columns, found.fits
    if not len(fits):
        return "", []
    if gpu_count <= 1:
        at = int(score.argmax())  # the first of equals, and rows are in order
        return columns.names[columns.node_of[fits[at]]], [at]
    nodes, places = columns.node_of[fits], columns.place_of[fits]
    width = int(places.max()) + 1
    table = np.full((len(columns.names), width), -SCORE_MAX * width, np.int64)
    table[nodes, places] = score
    total = np.partition(table, width - gpu_count, axis=1)[:, width - gpu_count :].sum(axis=1)
    node = int(total.argmax())
    mine = np.flatnonzero(nodes == node)
    best = mine[np.argsort(-score[mine], kind="stable")[:gpu_count]]
    return columns.names[node], sorted(best.tolist())


def _best(found: Survey, score: Ints, chosen: list[int], full: bool) -> list[int]:
    """The candidates to list, best first, as places in ``found.fits``: the BEST ones and the chosen, or all."""
    keys = order_keys(score, found.fits, found.columns.rows)
    if full or len(keys) <= BEST:
        order: list[int] = np.argsort(keys).tolist()
        return order
    few = set(np.argpartition(keys, BEST)[:BEST].tolist()) | set(chosen)
    return sorted(few, key=lambda at: int(keys[at]))


def _device(found: Survey, row: int) -> tuple[str, int]:
    columns = found.columns
    return columns.names[columns.node_of[row]], int(columns.devices[col.GPU, row])


def _considered(found: Survey, at: int, made_of: Ints) -> Considered:
    row = int(found.fits[at])
    node, gpu = _device(found, row)
    device: list[int] = found.columns.devices[:, row].tolist()
    free_bytes = max(0, device[col.SCHEDULABLE] - device[col.PROMISED])
    score_parts = tuple(made_of[:, at].tolist())
    return Considered(
        node=node,
        gpu=gpu,
        utilization_percent=device[col.UTILIZATION],
        starvation_percent=device[col.STARVATION],
        vram_used_bytes=device[col.USED],
        free_bytes=free_bytes,
        parts=score_parts,
    )


def _refusals(
    view: ClusterView, task: TaskSubmitted, found: Survey, counts: dict[str, int], kept: dict[tuple[str, int], str], limit: int | None
) -> tuple[Refusal, ...]:
    """The first ``limit`` refusals of each reason that ``counts`` has, or all, by (node, gpu)."""
    out: list[Refusal] = []
    columns = found.columns
    for reason in counts:
        code = CODES.index(reason)
        for at in np.flatnonzero(found.node_code == code)[:limit].tolist():
            name = columns.names[at]
            out.append(_sure(refuse_node(view, task, name, view.nodes[name])))
        for row in np.flatnonzero(found.code == code)[:limit].tolist():
            name, gpu = _device(found, row)
            if reason == why.RESERVED:
                out.append(refuse_reserved(name, gpu, kept[name, gpu]))
            elif reason == why.GPU_COUNT:
                out.append(refuse_count(name, gpu, task.gpu_count, int(found.fit_counts[columns.node_of[row]])))
            else:
                node = view.nodes[name]
                device = node.device(gpu)
                assert device is not None  # a row is a device of its node
                used = int(columns.devices[col.USED, row])
                out.append(_sure(refuse_device(task, node, device, capacity_of_row(view, row), used)))
    out.sort(key=lambda refusal: refusal[:3])
    return tuple(out)


def _sure(refusal: Refusal | None) -> Refusal:
    assert refusal is not None  # survey and feasible say the same
    return refusal
