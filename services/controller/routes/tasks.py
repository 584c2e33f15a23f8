"""Tasks, the placement decisions on them, and runs: submit (a script for a runner as a run), list, read, cancel, set the priority."""

from __future__ import annotations

import contextlib
import time
from typing import Annotated, Any, Final, Literal

from litestar import Response, get, patch, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter

from bus_schemas.events import TaskRefused
from scheduler.placement import TaskView, why_waiting
from services.controller.bodies import MoveBody, PriorityBody, ReleaseBody, RunBody, StayBody, TaskBody
from services.controller.errors import Invalid, NotThere, OutOfState
from services.controller.identity import caller_of
from services.controller.lookup import find_node, task_revision
from services.controller.parts import Ask, parts_of
from services.controller.presenters import Json
from services.controller.presenters.journal import timeline_answer, waits_answer
from services.controller.presenters.tasks import only_lost, placement_answer, refusal_sentence, refusals_answer, run_answer, task_answer
from services.controller.presenters.waiting import waiting_answer
from services.controller.routes import Limit, Name, Offset, Revision, Search, TaskId, problems, revision_of, words
from services.controller.runs import WAIT_S_MAX
from services.controller.task_history import life_of
from services.controller.task_index import TaskQuery, find_tasks
from services.kit.access.errors import Unauthenticated
from services.kit.access.web import proof_of
from services.kit.problems import invalid, problem

__all__ = ["PLACEMENTS", "RUNS", "TASKS"]

_SUBMITTED: Final = {
    200: ResponseSpec(dict[str, Any], description="It was submitted before, with the same body", generate_examples=False),
    202: ResponseSpec(dict[str, Any], description="It waits in the queue", generate_examples=False),
}
State = Literal["queued", "started", "completed", "failed", "cancelled", "lost"]
Sort = Literal[
    "submitted", "updated", "priority", "state", "vram", "node", "tenant", "title", "id",
    "-submitted", "-updated", "-priority", "-state", "-vram", "-node", "-tenant", "-title", "-id",
]  # fmt: skip


def answer_of(request: Ask, task: TaskView) -> Json:
    parts, caller = parts_of(request), caller_of(request)
    shown = task_answer(parts.projection.view, task, caller.sees)
    run = parts.runs.book.get(task.submitted.task)
    revision = task_revision(parts.projection, task.submitted.task)
    return {**shown, "revision": revision, "run": run_answer(run) if run is not None else None}


@get("/api/v1/tasks", summary="List tasks, newest first", action="task.read", responses=problems())
async def tasks(
    request: Ask,
    *,
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
    asked = {"state": task_state, "priority": priority, "node": node, "group": group}
    filters = {facet: (str(value),) for facet, value in asked.items() if value is not None}
    query = TaskQuery(filters, tenant or "", words(search), sort)
    found = find_tasks(parts.task_index(), query, lambda total: (offset, offset + limit), caller_of(request).identity.tenant)
    return {"items": [answer_of(request, view.tasks[row.id]) for row in found.rows], "total": found.total}


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
    return waiting_answer(view, found, caller.sees)


def _submitted(request: Ask, placed: TaskView, new: bool) -> Response[Json]:
    """The answer to a submission: 201 placed, 200 submitted before, 202 waiting, 409 nothing fits."""
    if isinstance(placed.decision, TaskRefused) and not placed.queues:
        view, decision, shown = parts_of(request).projection.view, placed.decision, caller_of(request).sees
        members = {"task": decision.task, "refusals": refusals_answer(decision.refusals, shown)}
        sentence = refusal_sentence(view, decision, shown)
        return problem(409, "nodes-lost" if only_lost(decision) else "no-placement", "No device fits", sentence, members=members)
    status = 202 if placed.waiting else 201 if new else 200
    return Response(answer_of(request, placed), status_code=status)


@post("/api/v1/tasks", summary="Submit a task and place it", action="task.submit", responses={**problems(409), **_SUBMITTED})
async def post_task(request: Ask, data: TaskBody) -> Response[Json]:
    """201: placed. 200: the same id and body were submitted before. 202: it waits. 409: no device fits now. 400: none could ever fit."""
    parts, caller = parts_of(request), caller_of(request)
    contradiction = data.contradiction()
    if contradiction is not None:
        return invalid("body", [contradiction])
    await parts.fresh_view()  # the defaults of what was submitted before are what it got then
    submitted = data.submitted(time.time_ns(), caller.identity.tenant, parts.tasks.defaults)
    placed, new = await parts.tasks.submit(caller, submitted)
    return _submitted(request, placed, new)


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


@post(
    "/api/v1/tasks/{task:str}/release", status_code=200, summary="Release a reservation", action="task.cancel", responses=problems(404, 409)
)
async def release_task(request: Ask, task: TaskId, data: ReleaseBody) -> Json:
    """Idempotent: one that is over is returned as it is. 409 for a task that is not a reservation."""
    parts = parts_of(request)
    return answer_of(request, await parts.tasks.release(caller_of(request), task, failed=data.failed, reason=data.reason))


@post(
    "/api/v1/tasks/{task:str}/move",
    status_code=200,
    summary="Have a running task run on another node",
    action="task.move",
    responses=problems(404, 409),
)
async def move_task(request: Ask, task: TaskId, data: MoveBody, if_match: Revision = None) -> Json:
    """It runs where it is until its session there has caught up; ``move`` says where it goes. 409 if it does not run, is being moved, or
    fits on no such node now."""
    parts, to = parts_of(request), data.to or ""
    return answer_of(request, await parts.tasks.move(caller_of(request), task, to, revision=revision_of(if_match)))


@post(
    "/api/v1/tasks/{task:str}/stay",
    status_code=200,
    summary="Give up the move of a task",
    action="task.submit",
    responses=problems(404, 409),
)
async def stay_task(request: Ask, task: TaskId, data: StayBody) -> Json:
    """For the client, which could not continue on the other node. A task that is not being moved is returned as it is."""
    return answer_of(request, await parts_of(request).tasks.stay(caller_of(request), task, data.reason))


@post(
    "/api/v1/tasks/{task:str}/resume",
    status_code=200,
    summary="Place a task again whose node was lost",
    action="task.submit",
    responses=problems(404, 409),
)
async def resume_task(request: Ask, task: TaskId) -> Json:
    """For the client, which repeats its work. 409 if its node is not lost."""
    return answer_of(request, await parts_of(request).tasks.resume(caller_of(request), task))


async def _journal(request: Ask, task: str) -> tuple[TaskView, Json]:
    """A task that the caller may know of, and what its devices' journals say of it."""
    parts = parts_of(request)
    await parts.fresh_view()
    found = parts.tasks.seen(caller_of(request), task)
    return found, await parts.journals.of(await life_of(parts.projection, found))


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
    return waits_answer(parts_of(request).projection.view, found.submitted.tenant, document, caller.sees)


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
    return timeline_answer(parts_of(request).projection.view, document)


@get("/api/v1/placements", summary="List the last placement decision of tasks, newest task first", action="task.read", responses=problems())
async def placements(request: Ask, limit: Limit = 100, offset: Offset = 0) -> Json:
    parts, caller = parts_of(request), caller_of(request)
    view = await parts.fresh_view()
    query = TaskQuery({"decided": ("yes",)})
    found = find_tasks(parts.task_index(), query, lambda total: (offset, offset + limit), caller.identity.tenant)
    decisions = [view.tasks[row.id].decision for row in found.rows]
    return {
        "items": [placement_answer(view, decision, caller.sees) for decision in decisions if decision is not None],
        "total": found.total,
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
    return placement_answer(view, decision, caller_of(request).sees)


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
    return placement_answer(parts.projection.view, decision, caller_of(request).sees)


@post("/api/v1/runs", summary="Submit a script for a runner to execute", action="task.submit", responses={**problems(409), **_SUBMITTED})
async def post_run(request: Ask, data: RunBody) -> Response[Json]:
    """Creates a task and its script; statuses as for a task, and 400 for ``runner`` if no runner takes scripts of this tenant. The script
    starts once the task is placed and a runner is free."""
    parts, caller = parts_of(request), caller_of(request)
    wrong = data.contradiction() or data.fault()
    if wrong is not None:
        return invalid("body", [wrong])
    await parts.fresh_view()  # the defaults of what was submitted before are what it got then
    task = data.submitted(time.time_ns(), caller.identity.tenant, parts.tasks.defaults)
    placed, new = await parts.runs.submit(caller, task, data.script_of(task), data.runner, data.webhook)
    return _submitted(request, placed, new)


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
    parts, caller = parts_of(request), caller_of(request)
    await parts.fresh_view()
    task = parts.tasks.seen(caller, task).submitted.task
    part = await parts.runs.log(task, after, wait_s)
    if not parts.access.is_current(caller.identity, proof_of(request).token):
        raise Unauthenticated("the key or session ended while the output was awaited")
    state = parts.runs.book.get(task)
    return {"text": part.text, "next": part.next, "ended": part.ended, "run": None if state is None else run_answer(state)}


TASKS: Final = [tasks, task, waiting, waits, timeline, post_task, patch_task, cancel_task, release_task, move_task, stay_task, resume_task]
PLACEMENTS: Final = [placements, placement, query_placement]
RUNS: Final = [post_run, log]
