"""Decisions: where each task went and why, and where one would go now."""

from __future__ import annotations

import time
from typing import Any, Final

from litestar import Request, get, post

from services.controller.answers import Json, Shown, placement_answer
from services.controller.bodies import TaskBody
from services.controller.errors import Invalid, NotThere
from services.controller.identity import caller_of
from services.controller.parts import parts_of
from services.controller.routes.described import Limit, Offset, TaskId, problems
from services.controller.task_query import TaskQuery, find_tasks

__all__ = ["ROUTES"]

Ask = Request[Any, Any, Any]


def _shown(request: Ask) -> Shown:
    caller = caller_of(request)
    return lambda tenant: caller.may("task.read", tenant)


@get("/api/v1/placements", summary="List the last placement decision of every task, newest first", action="task.read", responses=problems())
async def placements(request: Ask, limit: Limit = 100, offset: Offset = 0) -> Json:
    view = await parts_of(request).fresh_view()
    found, total = find_tasks(view, TaskQuery(decided=True, limit=limit, offset=offset), caller_of(request).identity.tenant)
    return {
        "items": [placement_answer(view, task.decision, _shown(request)) for task in found if task.decision is not None],
        "total": total,
    }


@get(
    "/api/v1/placements/{task:str}",
    summary="Get the placement decision of a task: the choice, the scores, and why other devices were refused",
    action="task.read",
    responses=problems(404, 409),
)
async def placement(request: Ask, task: TaskId) -> Json:
    parts = parts_of(request)
    view = await parts.fresh_view()
    decision = parts.tasks.seen(caller_of(request), task).decision
    if decision is None:
        raise NotThere(f"there is no decision on task {task}")
    return placement_answer(view, decision, _shown(request))


@post(
    "/api/v1/placements/query",
    status_code=200,
    summary="Compute where a task would be placed now, without submitting it",
    action="task.read",
    responses=problems(413),
)
async def query_placement(request: Ask, data: TaskBody) -> Json:
    parts, caller = parts_of(request), caller_of(request)
    contradiction = data.contradiction()
    if contradiction is not None:
        raise Invalid(*contradiction)
    await parts.fresh_view()
    decision = await parts.tasks.dry_run(caller, data.submitted(time.time_ns(), caller.identity.tenant, parts.tasks.defaults))
    return placement_answer(parts.mirror.view, decision, _shown(request))


ROUTES: Final = [placements, placement, query_placement]
