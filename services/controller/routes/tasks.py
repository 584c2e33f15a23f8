"""Tasks: submit, list, look, cancel, give another priority."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final, Literal

from litestar import Request, Response, get, patch, post
from litestar.params import Parameter

from bus_schemas.events import TaskRefused
from scheduler.placement import TaskView
from services.controller.answers import Json, task_answer
from services.controller.bodies import PriorityBody, TaskBody
from services.controller.identity import caller_of
from services.controller.parts import Parts, parts_of
from services.controller.problems import field_problem, no_fit
from services.controller.revisions import task_revision
from services.controller.routes.described import Limit, Offset, Revision, page, problems, revision_of

__all__ = ["ROUTES"]

Ask = Request[Any, Any, Any]
TaskId = Annotated[str, Parameter(description="id of a task")]
State = Literal["queued", "started", "completed", "failed", "cancelled"]


def _answer(parts: Parts, task: TaskView) -> Json:
    return {**task_answer(parts.mirror.view, task), "revision": task_revision(parts.mirror, task.submitted.task)}


@get("/api/v1/tasks", summary="Tasks, newest first", action="task.read", responses=problems())
async def tasks(
    request: Ask,
    task_state: Annotated[State | None, Parameter(query="state")] = None,
    node: str | None = None,
    tenant: str | None = None,
    limit: Limit = 1_000,
    offset: Offset = 0,
) -> Json:
    parts = parts_of(request)
    caller = caller_of(request)
    view = await parts.fresh_view()
    found = [
        task
        for task in view.tasks.values()
        if (task_state is None or task.state == task_state)
        and (node is None or (task.placed is not None and task.placed.node == node))
        and (tenant is None or task.submitted.tenant == tenant)
        and caller.may("task.read", task.submitted.tenant)
    ]
    found.sort(key=lambda task: (-task.position, task.submitted.task))
    shown, total = page(found, limit, offset)
    return {"items": [_answer(parts, task) for task in shown], "total": total}


@get("/api/v1/tasks/{task:str}", summary="One task", action="task.read", responses=problems(404))
async def task(request: Ask, task: TaskId) -> Json:
    parts = parts_of(request)
    await parts.fresh_view()
    return _answer(parts, parts.tasks.seen(caller_of(request), task))


@post("/api/v1/tasks", summary="Submit a task and place it", action="task.submit", responses=problems(409, 413))
async def post_task(request: Ask, data: TaskBody) -> Response[Json]:
    """201 placed, 200 when the same id and body came before, 202 waiting, 409 when nothing fits now, 400 when nothing ever could."""
    parts = parts_of(request)
    contradiction = data.contradiction()
    if contradiction is not None:
        return field_problem(*contradiction)
    placed, new = await parts.tasks.submit(caller_of(request), data.submitted(time.time_ns()))
    if isinstance(placed.decision, TaskRefused) and not placed.submitted.queue:
        return no_fit(placed.decision)
    status = 202 if placed.waiting else 201 if new else 200
    return Response(_answer(parts, placed), status_code=status)


@patch("/api/v1/tasks/{task:str}", summary="Give a task another priority", action="task.prioritise", responses=problems(404, 409, 413))
async def patch_task(request: Ask, task: TaskId, data: PriorityBody, if_match: Revision = None) -> Json:
    parts = parts_of(request)
    return _answer(parts, await parts.tasks.set_priority(caller_of(request), task, data.priority, revision=revision_of(if_match)))


@post(
    "/api/v1/tasks/{task:str}/cancel",
    status_code=200,
    summary="End a task, waiting or running",
    action="task.cancel",
    responses=problems(404, 409),
)
async def cancel_task(request: Ask, task: TaskId, if_match: Revision = None) -> Json:
    """Of a task cancelled before: the task as it is. Of one that is over in another way: 409."""
    parts = parts_of(request)
    return _answer(parts, await parts.tasks.cancel(caller_of(request), task, revision=revision_of(if_match)))


ROUTES: Final = [tasks, task, post_task, patch_task, cancel_task]
