"""Puts the story of a task together: from the view, from the task's own facts in the log, from billing.

May live here: gathering. May not: what each part says (story, history, the billing service).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from litestar import Request

from scheduler.placement import ClusterView, TaskView
from services.controller.parts import Parts
from services.controller.revisions import task_revision
from services.controller.web.context import UiContext
from services.controller.web.credits.client import Refused, Unreachable
from services.controller.web.formats import duration_text
from services.controller.web.tasks.history import Moment, SessionLine, facts_of, moments, session_lines, trace_of
from services.controller.web.tasks.index import Row, row_of
from services.controller.web.tasks.story import Placement, name_of, placement_of
from services.controller.web.tasks.waiting import Waiting, waiting_of
from services.controller.web.templating import scope_of
from services.kit.errors import BusRefused, BusUnavailable

__all__ = ["Story", "tell"]

_MS: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Story:
    """What templates/tasks/story.html shows. ``asked``: wishes beyond the usual, (name, value). ``bill``: a line of billing's report, or
    None with ``bill_missing`` saying why. ``has_run``: a device has had a session of it. ``log``: the last lines of its output; empty where
    none was captured."""

    row: Row
    revision: int
    priority_first: int
    noswap: bool
    asked: tuple[tuple[str, str], ...]
    placement: Placement | None
    waiting: Waiting | None
    moments: list[Moment]
    sessions: list[SessionLine]
    bill: Mapping[str, Any] | None
    bill_missing: str
    trace_id: str
    trace_url: str
    has_run: bool
    log: tuple[str, ...] = ()


async def tell(request: Request[Any, Any, Any], parts: Parts, context: UiContext, task: TaskView, now_ns: int) -> Story:
    """Everything about one task that the caller may see. Never fails for want of a part: what is away is said to be."""
    view, scope = parts.projection.view, scope_of(request)
    said = task.submitted
    try:
        sessions, decisions = [*task.past_sessions, *sorted(task.sessions)], parts.projection.turns.subjects(said.task)
        facts = await facts_of(parts.projection.bus, said.task, sessions, decisions)
    except (BusUnavailable, BusRefused):
        facts = []
    bill, missing = await _bill(request, context, task)
    log: tuple[str, ...] = ()
    with contextlib.suppress(BusUnavailable, BusRefused):
        log = await parts.runs.tail(said.task)
    trace = trace_of(facts)
    node = view.nodes.get(task.placed.node) if task.placed is not None else None
    return Story(
        row=row_of(task, node.registered.name if node is not None else "", 0),
        revision=task_revision(parts.projection, said.task),
        priority_first=said.priority,
        noswap=said.noswap,
        asked=_wishes(task),
        placement=placement_of(view, task, scope),
        waiting=waiting_of(view, said.task, now_ns, scope),
        moments=moments(facts, lambda node: name_of(view, node)),
        sessions=_named(view, session_lines(facts)),
        bill=bill,
        bill_missing=missing,
        trace_id=trace,
        trace_url=context.trace_of(trace),
        has_run=bool(task.sessions or task.past_sessions),
        log=log,
    )


def _wishes(task: TaskView) -> tuple[tuple[str, str], ...]:
    said = task.submitted
    out = []
    if said.weight != 100:
        out.append(("Weight", str(said.weight)))
    if said.sla_ms_p99:
        out.append(("Latency", f"{said.sla_ms_p99} ms for 99 of 100 batches"))
    if said.pace_percent:
        out.append(("Pace", f"at most {said.pace_percent} % of a device"))
    if said.queue_timeout_ms:
        out.append(("Queue", f"at most {duration_text(said.queue_timeout_ms * _MS)}"))
    elif not said.queue:
        out.append(("Queue", "no: refused if no device is free"))
    return tuple(out)


def _named(view: ClusterView, lines: list[SessionLine]) -> list[SessionLine]:
    for line in lines:
        known = view.nodes.get(line.node)
        if known is not None:
            line.node_name = known.registered.name
    return lines


async def _bill(request: Request[Any, Any, Any], context: UiContext, task: TaskView) -> tuple[Mapping[str, Any] | None, str]:
    """The task's line of the report, or why there is none."""
    try:
        report = await context.billing.get("credits", request, by="task", tenant=task.submitted.tenant, task=task.submitted.task)
    except Unreachable as error:
        return None, str(error)
    except Refused as error:
        return None, f"Billing does not show it: {error}"
    line = next((line for line in report["items"] if line["key"] == task.submitted.task), None)
    return (line, "") if line is not None else (None, "Nothing has been charged yet: a bill begins with the first batch.")
