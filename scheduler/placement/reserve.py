"""Protection of those who wait long: which devices are kept for a task, so that what ends there becomes its room.

A task that has waited for ``queue_protect_ms`` reserves as many devices of one node as it needs: those where the fewest bytes must be
given back first. No task behind it in the queue gets room on them (``order.kept_from``), so the bytes missing there only become fewer; it
has room at the latest when everything that ran there has ended. A reservation stays where it is; only after another ``queue_protect_ms``
does it move, and only to where strictly less is missing. At most ``queue_reservations_max`` tasks have one at a time; the first in order
get it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from bus_schemas.events import TaskSubmitted
from scheduler.placement import columns as col
from scheduler.placement.columns import Ints
from scheduler.placement.order import MS
from scheduler.placement.records import Reservation, TaskView
from scheduler.placement.states import QUEUE_PROTECT_MS, QUEUE_RESERVATIONS
from scheduler.placement.survey import FITS, Survey
from scheduler.placement.view import ClusterView

__all__ = ["NEVER", "Place", "shortfalls", "nearest", "next_reservation", "protected_from_ns"]

NEVER: Final = 1 << 52
"""The shortfall of a device that could not serve the task even when empty; more than any sum of others."""


@dataclass(frozen=True, slots=True)
class Place:
    """Devices of a node, and how many bytes must be given back there before the task fits."""

    node: str
    gpus: tuple[int, ...]
    missing_bytes: int


def shortfalls(task: TaskSubmitted, found: Survey) -> Ints:
    """Of every device: the bytes that must be given back before the task fits, NEVER where no end of a task helps.

    A device held exclusively, or wanted so, must become empty.
    """
    columns = found.columns
    device = columns.devices
    left: Ints = device[col.SCHEDULABLE] - device[col.PROMISED]  # below 0: more is promised than there is, since the overcommit was lowered
    if task.noswap:
        left = np.minimum(left, device[col.PHYSICAL] - np.maximum(device[col.NOSWAP], device[col.USED]))
    missing: Ints = np.maximum(found.need - left, 0)
    held = device[col.HOLDERS :].any(axis=0)
    empty_first = held if task.exclusive else device[col.EXCLUSIVE] > 0
    missing = np.where(empty_first, np.maximum(device[col.PROMISED], 1), missing)
    most = device[col.PHYSICAL] if task.noswap else device[col.SCHEDULABLE]
    missing[(most < found.need) | (found.node_code != FITS)[columns.node_of]] = NEVER
    return missing


def nearest(missing: Ints, gpu_count: int, found: Survey, count: int) -> list[Place]:
    """The ``count`` nodes where the fewest bytes are missing, the best first; ties by node id, inside a node by gpu."""
    columns = found.columns
    if not columns.rows:
        return []
    gpu_count = max(1, gpu_count)
    width = int(columns.place_of.max()) + 1
    if gpu_count > width:
        return []
    table = np.full((len(columns.names), width), NEVER, np.int64)
    table[columns.node_of, columns.place_of] = missing
    totals = np.partition(table, gpu_count - 1, axis=1)[:, :gpu_count].sum(axis=1) if gpu_count > 1 else table.min(axis=1)
    if count == 1:
        best = [int(totals.argmin())]
    else:
        best = np.argsort(totals, kind="stable")[:count].tolist()
    out = []
    for node in best:
        if totals[node] < NEVER:
            rows = slice(int(columns.offsets[node]), int(columns.offsets[node + 1]))
            chosen = np.argsort(missing[rows], kind="stable")[:gpu_count]
            gpus = sorted(columns.devices[col.GPU, rows][chosen].tolist())
            out.append(Place(columns.names[node], tuple(gpus), int(totals[node])))
    return out


def protected_from_ns(view: ClusterView, task: TaskView) -> int | None:
    """From when on a waiting task may reserve, None: never."""
    protect_ms = view.setting(QUEUE_PROTECT_MS)
    return task.wait_from_ns + protect_ms * MS if protect_ms and task.submitted.queue else None


def next_reservation(view: ClusterView, task: TaskView, at_ns: int, found: Survey) -> Reservation | None:
    """What is kept for a task that waits and fits nowhere: the same as before, other devices, or nothing."""
    from_ns = protected_from_ns(view, task)
    if from_ns is None or at_ns < from_ns:
        return None
    held = task.reserved
    if held is None and len(set(view.reservations.values())) >= view.setting(QUEUE_RESERVATIONS):
        return None
    missing = shortfalls(task.submitted, found)
    name = task.submitted.task
    for (node, gpu), holder in view.reservations.items():
        row = view.columns.row(node, gpu)
        if holder != name and row >= 0:
            missing[row] = NEVER
    held_missing = NEVER
    if held is not None:
        rows = [view.columns.row(held.node, gpu) for gpu in held.gpus]
        held_missing = sum(int(missing[row]) if row >= 0 else NEVER for row in rows)
        if held_missing < NEVER and at_ns - held.since_ns < view.setting(QUEUE_PROTECT_MS) * MS:
            return held
    places = nearest(missing, task.submitted.gpu_count, found, 1)
    if places and places[0].missing_bytes < held_missing:
        return Reservation(places[0].node, places[0].gpus, at_ns)
    return held if held_missing < NEVER else None
