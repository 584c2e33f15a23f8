"""Runs: submit a script, read its log. How it goes is in the answer about its task."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

from litestar import Request, Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter

from bus_schemas.events import TaskRefused
from services.controller.answers import Json
from services.controller.bodies import RunBody
from services.controller.identity import caller_of
from services.controller.parts import parts_of
from services.controller.problems import field_problem, no_fit
from services.controller.routes.described import TaskId, problems
from services.controller.routes.tasks import answer_of
from services.controller.run_answer import run_answer
from services.controller.runs import WAIT_S_MAX

__all__ = ["ROUTES"]

Ask = Request[Any, Any, Any]
_SUBMITTED: Final = {
    200: ResponseSpec(dict[str, Any], description="It was submitted before, with the same body", generate_examples=False),
    202: ResponseSpec(dict[str, Any], description="It waits in the queue", generate_examples=False),
}


@post("/api/v1/runs", summary="Submit a script for a runner to execute", action="task.submit", responses={**problems(409), **_SUBMITTED})
async def post_run(request: Ask, data: RunBody) -> Response[Json]:
    """Creates a task and its script; statuses as for a task, and 400 for ``runner`` if no runner takes scripts of this tenant. The script
    starts once the task is placed and a runner is free."""
    parts, caller = parts_of(request), caller_of(request)
    wrong = data.contradiction() or data.fault()
    if wrong is not None:
        return field_problem(*wrong)
    await parts.fresh_view()  # the defaults of what was submitted before are what it got then
    task = data.submitted(time.time_ns(), caller.identity.tenant, parts.tasks.defaults)
    placed, new = await parts.runs.submit(caller, task, data.script_of(task), data.runner, data.webhook)
    if isinstance(placed.decision, TaskRefused) and not placed.submitted.queue:
        return no_fit(parts.mirror.view, placed.decision, lambda tenant: caller.may("task.read", tenant))
    status = 202 if placed.waiting else 201 if new else 200
    return Response(answer_of(request, placed), status_code=status)


@get("/api/v1/tasks/{task:str}/log", summary="Get the output of a task's script", action="task.read", responses=problems(404, 409))
async def log(
    request: Ask,
    task: TaskId,
    after: Annotated[
        int, Parameter(ge=0, le=1 << 53, description="position to continue from: ``next`` of the previous answer; 0: from the beginning")
    ] = 0,
    wait_s: Annotated[int, Parameter(ge=0, le=WAIT_S_MAX, description="seconds to wait for output if there is none yet")] = 0,
) -> Json:
    """Standard output and standard error in the order of writing, in parts. ``ended``: the output is complete. ``run`` null: no runner
    executes the task's script, or it ended more than a week ago."""
    parts = parts_of(request)
    await parts.fresh_view()
    task = parts.tasks.seen(caller_of(request), task).submitted.task
    part = await parts.runs.log(task, after, wait_s)
    state = parts.runs.book.get(task)
    return {"text": part.text, "next": part.next, "ended": part.ended, "run": None if state is None else run_answer(state)}


ROUTES: Final = [post_run, log]
