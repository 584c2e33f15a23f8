"""Tasks: submit, list, look, cancel, give another priority."""

from __future__ import annotations

import contextlib
import time
from typing import Annotated, Any, Final, Literal

from litestar import Request, Response, get, patch, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter

from bus_schemas.events import TaskRefused
from scheduler.placement import TaskView, why_waiting
from services.controller.answers import Json, task_answer
from services.controller.bodies import PriorityBody, TaskBody
from services.controller.errors import NotThere, OutOfState
from services.controller.identity import caller_of
from services.controller.journal_answer import timeline_answer, waits_answer
from services.controller.names import find_node
from services.controller.parts import parts_of
from services.controller.problems import field_problem, no_fit
from services.controller.revisions import task_revision
from services.controller.routes.described import Limit, Name, Offset, Revision, Search, TaskId, problems, revision_of, words
from services.controller.run_answer import run_answer
from services.controller.task_query import TaskQuery, find_tasks
from services.controller.waiting_answer import waiting_answer
from services.controller.web.tasks.history import life_of

__all__ = ["ROUTES", "answer_of"]

Ask = Request[Any, Any, Any]
State = Literal["queued", "started", "completed", "failed", "cancelled", "lost"]
_SUBMITTED: Final = {
    200: ResponseSpec(dict[str, Any], description="It was submitted before, with the same body", generate_examples=False),
    202: ResponseSpec(dict[str, Any], description="It waits in the queue", generate_examples=False),
}
Sort = Literal[
    "submitted", "updated", "priority", "state", "vram", "node", "tenant", "title", "id",
    "-submitted", "-updated", "-priority", "-state", "-vram", "-node", "-tenant", "-title", "-id",
]  # fmt: skip


def answer_of(request: Ask, task: TaskView) -> Json:
    parts, caller = parts_of(request), caller_of(request)
    shown = task_answer(parts.mirror.view, task, lambda tenant: caller.may("task.read", tenant))
    run = parts.runs.book.get(task.submitted.task)
    revision = task_revision(parts.mirror, task.submitted.task)
    return {**shown, "revision": revision, "run": run_answer(run) if run is not None else None}


@get("/api/v1/tasks", summary="List tasks, newest first", action="task.read", responses=problems())
async def tasks(
    request: Ask,
    task_state: Annotated[State | None, Parameter(query="state")] = None,
    priority: Annotated[int | None, Parameter(ge=0, le=4)] = None,
    node: Name = None,
    group: Name = None,
    tenant: Name = None,
    search: Search = "",
    sort: Annotated[Sort, Parameter(description="sort key; with - before it: descending")] = "-submitted",
    limit: Limit = 100,
    offset: Offset = 0,
) -> Json:
    """``total``: the number of matches on all pages."""
    parts = parts_of(request)
    view = await parts.fresh_view()
    if node is not None and node not in view.nodes:
        with contextlib.suppress(NotThere):  # a node that is not there has no tasks
            node = find_node(view, node)
    query = TaskQuery(task_state, priority, node, group, tenant, words(search), False, sort, limit, offset)
    found, total = find_tasks(view, query, caller_of(request).identity.tenant)
    return {"items": [answer_of(request, task) for task in found], "total": total}


@get("/api/v1/tasks/{task:str}", summary="Get a task", action="task.read", responses=problems(404, 409))
async def task(request: Ask, task: TaskId) -> Json:
    parts = parts_of(request)
    await parts.fresh_view()
    return answer_of(request, parts.tasks.seen(caller_of(request), task))


@get(
    "/api/v1/tasks/{task:str}/waiting",
    summary="Explain why a task waits and what would let it start",
    action="task.read",
    responses=problems(404, 409),
)
async def waiting(request: Ask, task: TaskId) -> Json:
    """409 if it does not wait."""
    parts, caller = parts_of(request), caller_of(request)
    view = await parts.fresh_view()
    task = parts.tasks.seen(caller, task).submitted.task
    found = why_waiting(view, task, time.time_ns())
    if found is None:
        raise OutOfState(f"task {task} does not wait: it is {view.tasks[task].state}")
    return waiting_answer(view, found, lambda tenant: caller.may("task.read", tenant))


@post("/api/v1/tasks", summary="Submit a task and place it", action="task.submit", responses={**problems(409), **_SUBMITTED})
async def post_task(request: Ask, data: TaskBody) -> Response[Json]:
    """201: placed. 200: the same id and body were submitted before. 202: it waits. 409: no device fits now. 400: none could ever fit."""
    parts, caller = parts_of(request), caller_of(request)
    contradiction = data.contradiction()
    if contradiction is not None:
        return field_problem(*contradiction)
    await parts.fresh_view()  # the defaults of what was submitted before are what it got then
    submitted = data.submitted(time.time_ns(), caller.identity.tenant, parts.tasks.defaults)
    placed, new = await parts.tasks.submit(caller, submitted)
    if isinstance(placed.decision, TaskRefused) and not placed.submitted.queue:
        return no_fit(parts.mirror.view, placed.decision, lambda tenant: caller.may("task.read", tenant))
    status = 202 if placed.waiting else 201 if new else 200
    return Response(answer_of(request, placed), status_code=status)


@patch("/api/v1/tasks/{task:str}", summary="Change the priority of a task", action="task.prioritise", responses=problems(404, 409))
async def patch_task(request: Ask, task: TaskId, data: PriorityBody, if_match: Revision = None) -> Json:
    parts = parts_of(request)
    return answer_of(request, await parts.tasks.set_priority(caller_of(request), task, data.priority, revision=revision_of(if_match)))


@post(
    "/api/v1/tasks/{task:str}/cancel",
    status_code=200,
    summary="Cancel a task, waiting or running",
    action="task.cancel",
    responses=problems(404, 409),
)
async def cancel_task(request: Ask, task: TaskId, if_match: Revision = None) -> Json:
    """Idempotent: a task that is already cancelled is returned as it is. 409 if it has ended in another way."""
    parts = parts_of(request)
    return answer_of(request, await parts.tasks.cancel(caller_of(request), task, revision=revision_of(if_match)))


async def _journal(request: Ask, task: str) -> tuple[TaskView, Json]:
    """A task that the caller may know of, and what its devices' journals say of it."""
    parts = parts_of(request)
    await parts.fresh_view()
    found = parts.tasks.seen(caller_of(request), task)
    return found, await parts.journals.of(await life_of(parts.mirror, found))


@get(
    "/api/v1/tasks/{task:str}/waits",
    summary="Get a task's waits: how long, what ran instead, under which rule; and its time by program",
    action="task.read",
    responses=problems(404, 409),
)
async def waits(request: Ask, task: TaskId) -> Json:
    """Computed from the journals of its nodes, about a second behind; 409 if they do not contain the task. Other tenants' sessions appear
    without names. Times are Unix times in ns. ``origin`` of a program: the lines of the script that recorded it."""
    found, document = await _journal(request, task)
    caller = caller_of(request)
    return waits_answer(parts_of(request).mirror.view, found.submitted.tenant, document, lambda tenant: caller.may("task.read", tenant))


@get(
    "/api/v1/tasks/{task:str}/timeline",
    summary="Get a task's timeline: when it ran, waited, was preempted or swapped out, and the memory it held",
    action="task.read",
    responses=problems(404, 409),
)
async def timeline(request: Ask, task: TaskId) -> Json:
    """In slots of equal length: for each session, the part of the slot spent in each state, and the most memory held in the slot (null:
    not known). ``complete`` false: the journal was too long to be read in full."""
    _, document = await _journal(request, task)
    return timeline_answer(parts_of(request).mirror.view, document)


ROUTES: Final = [tasks, task, waiting, waits, timeline, post_task, patch_task, cancel_task]
