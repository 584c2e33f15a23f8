"""Placement decisions of a log, made again."""

from __future__ import annotations

from copy import copy

import msgspec
import numpy as np

from bus_schemas.events import Considered, TaskPlaced, TaskRefused, TaskSubmitted
from scheduler.placement import ClusterView, decide, explain
from scheduler.placement import columns as col
from scheduler.placement.decide import parts
from scheduler.placement.feasible import refuse_cluster
from scheduler.placement.order import priority_of
from scheduler.placement.reasons import GPU_COUNT
from scheduler.placement.survey import CODES, FITS, NODE_REFUSED, survey
from tests.support.replayed import ReplayMismatch

__all__ = ["check_recorded"]


def check_recorded(view: ClusterView, recorded: TaskPlaced | TaskRefused) -> None:
    """Make a recorded decision again on ``view``, which must stand at the decision's position. Raises ReplayMismatch when it differs."""
    if view.position != recorded.position:
        raise ValueError(f"the decision on {recorded.task} was made at position {recorded.position}, the view stands at {view.position}")
    task = view.tasks[recorded.task].submitted
    again = decide(view, task, recorded.at_ns).event() if recorded.refused or _counts(recorded) else _with_all_devices(view, task, recorded)
    if again != recorded:
        raise ReplayMismatch(f"task {recorded.task} at position {recorded.position}: recorded {recorded!r}, decided again {again!r}")


def _counts(recorded: TaskPlaced | TaskRefused) -> bool:
    return isinstance(recorded, TaskPlaced) and recorded.candidates > 0


def _with_all_devices(view: ClusterView, task: TaskSubmitted, recorded: TaskPlaced | TaskRefused) -> TaskPlaced | TaskRefused:
    """The decision in its v1 form: it lists every device, with the measurements that were recorded with it."""
    then = copy(view)
    then.columns = copy(view.columns)
    then.columns.devices = view.columns.devices.copy()
    then.columns.devices[col.UTILIZATION : col.USED + 1] = 0
    for seen in recorded.considered:
        row = then.columns.row(seen.node, seen.gpu)
        if row >= 0:
            then.columns.measure(row, seen.utilization_percent, seen.starvation_percent, seen.vram_used_bytes)
    decision = explain(then, task, recorded.at_ns)
    considered = () if refuse_cluster(view, task) is not None else _all_considered(then, task)
    event = decision.event()
    if isinstance(event, TaskPlaced):
        return msgspec.structs.replace(event, considered=considered, candidates=0, refused=())
    return TaskRefused(recorded.at_ns, task.task, decision.refusals, decision.position, considered)


def _all_considered(view: ClusterView, task: TaskSubmitted) -> tuple[Considered, ...]:
    """Every device of a node that is not refused as a whole; with parts where the device itself would do."""
    found, columns = survey(view, task, {}), view.columns
    rows = np.flatnonzero(found.code != NODE_REFUSED)
    made_of = parts(view, rows, priority_of(view, task), found.need)
    out = []
    for at, row in enumerate(rows.tolist()):
        device = columns.devices[:, row].tolist()
        free_bytes = max(0, device[col.SCHEDULABLE] - device[col.PROMISED])
        would_do = found.code[row] in (FITS, CODES.index(GPU_COUNT))
        node = columns.names[columns.node_of[row]]
        measured = (device[col.UTILIZATION], device[col.STARVATION], device[col.USED])
        out.append(Considered(node, device[col.GPU], *measured, free_bytes, tuple(made_of[:, at].tolist()) if would_do else ()))
    return tuple(out)
