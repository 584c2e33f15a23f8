"""The page of one task, gathered from the view, the task's own facts in the log, and billing."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from litestar import Request

from scheduler.placement import TaskView
from services.controller.lookup import task_revision
from services.controller.parts import Parts
from services.controller.presenters.common import node_name
from services.controller.presenters.tasks import Placement, TaskRow, placement_of, task_row
from services.controller.presenters.waiting import Waiting, waiting_of
from services.controller.web.context import UiContext
from services.controller.web.credits.client import Refused, Unreachable
from services.controller.web.formats import duration_text
from services.controller.web.tasks.history import Moment, SessionLine, facts_of, moments, session_lines, trace_of
from services.controller.web.templating import scope_of
from services.kit.errors import BusRefused, BusUnavailable

__all__ = ["Story", "story_of"]

_MS: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Story:
    """What templates/tasks/story.html shows."""

    row: TaskRow
    revision: int
    priority_first: int
    noswap: bool
    asked: tuple[tuple[str, str], ...]  #: wishes beyond the defaults: (name, value)
    placement: Placement | None
    waiting: Waiting | None
    moments: list[Moment]
    sessions: list[SessionLine]
    bill: Mapping[str, Any] | None  #: a line of billing's report; None: ``bill_missing`` says why
    bill_missing: str
    trace_id: str
    trace_url: str
    has_run: bool  #: a device has had a session of it
    log: tuple[str, ...] = ()  #: last lines of its output; empty: none was captured


async def story_of(request: Request[Any, Any, Any], parts: Parts, context: UiContext, task: TaskView, now_ns: int) -> Story:
    """Everything about one task that the caller may see. Never fails for want of a part: what is away is said to be."""
    view, scope = parts.mirror.view, scope_of(request)
    said = task.submitted
    try:
        sessions, decisions = [*task.past_sessions, *sorted(task.sessions)], parts.mirror.turns.subjects(said.task)
        facts = await facts_of(parts.mirror.bus, said.task, sessions, decisions)
    except (BusUnavailable, BusRefused):
        facts = []
    bill, missing = await _bill(request, context, task)
    log: tuple[str, ...] = ()
    with contextlib.suppress(BusUnavailable, BusRefused):
        log = await parts.runs.tail(said.task)
    trace = trace_of(facts)
    return Story(
        row=task_row(view, task),
        revision=task_revision(parts.mirror, said.task),
        priority_first=said.priority,
        noswap=said.noswap,
        asked=_wishes(task),
        placement=placement_of(view, task, scope.sees),
        waiting=waiting_of(view, said.task, now_ns, scope.sees),
        moments=moments(facts, lambda node: node_name(view, node)),
        sessions=session_lines(facts, lambda node: node_name(view, node)),
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
        out.append(("Waits", f"at most {duration_text(said.queue_timeout_ms * _MS)}"))
    elif not said.queue:
        out.append(("Waits", "no: it fails when nothing fits"))
    return tuple(out)


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
