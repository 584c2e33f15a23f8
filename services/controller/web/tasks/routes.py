"""The pages /tasks: the table, one task, submit, cancel, change priority. Forms post here and do what REST does, by the same actions.

May live here: routes. May not: questions (table), wording (story), rules (actions).
"""

from __future__ import annotations

import time
from typing import Any, Final

from litestar import Request, Response, get, post

from bus_schemas.events import TaskRefused
from services.controller.answers import refusal_sentence
from services.controller.bodies import PriorityBody, RunBody, TaskBody
from services.controller.errors import Busy, Invalid, OutOfState, Stale, TaskExists
from services.controller.identity import caller_of
from services.controller.journal_answer import timeline_answer, waits_answer
from services.controller.parts import Parts, parts_of
from services.controller.web.context import UiContext, context_of
from services.controller.web.forms import Values, form_values, read_as, redirect, revision_in
from services.controller.web.tasks.history import life_of
from services.controller.web.tasks.ran import ran_of
from services.controller.web.tasks.showing import show
from services.controller.web.tasks.telling import Story, tell
from services.controller.web.templating import ENVIRONMENT, PAGE_HEADERS, page, scope_of
from services.kit.errors import BusRefused, BusUnavailable

__all__ = ["ROUTES", "STALE"]

Ask = Request[Any, Any, Any]
_LIVE: Final = "every 30s"
_SOON: Final = "load delay:5s"
"""When the browser requests the part again (htmx): for a live task, and when the journal could not be read."""
STALE: Final = "The task was changed after the page was loaded. Nothing was done: check its current state, and decide again."


@get("/tasks", action="task.read", include_in_schema=False)
async def listed(request: Ask) -> Response[str]:
    parts, context = parts_of(request), context_of(request)
    shown = show(await parts.fresh_view(), context, scope_of(request), request.query_params)
    story = await _opened(request, parts, context, shown.opened) if shown.opened else None
    return page(
        request,
        "tasks/list.html",
        live="tasks",
        listing=shown.listing,
        rows=shown.rows,
        names=shown.names,
        counts=shown.counts,
        filters=shown.filters,
        opened=shown.opened,
        story=story,
    )


async def _opened(request: Ask, parts: Parts, context: UiContext, task: str) -> Story:
    return await tell(request, parts, context, parts.tasks.seen(caller_of(request), task), time.time_ns())


@get("/tasks/{task:str}", action="task.read", include_in_schema=False)
async def one(request: Ask, task: str) -> Response[str]:
    parts, context = parts_of(request), context_of(request)
    await parts.fresh_view()
    story = await _opened(request, parts, context, task)
    return page(request, "tasks/task.html", live=f"task.{story.row.id}.{story.revision}", story=story)


@get("/tasks/{task:str}/ran", action="task.read", include_in_schema=False)
async def ran(request: Ask, task: str) -> Response[str]:
    """What it did on its devices: the part of its page that is read after the others, or a page where there are no scripts."""
    parts = parts_of(request)
    view, caller = await parts.fresh_view(), caller_of(request)
    found = parts.tasks.seen(caller, task)
    said, shown, problem, again = found.submitted, None, "", ""
    try:
        document = await parts.journals.of(await life_of(parts.projection, found))
        waits = waits_answer(view, said.tenant, document, caller.sees)
        shown, again = ran_of(timeline_answer(view, document), waits, said.vram_bytes), _LIVE if found.live else ""
    except OutOfState as error:
        problem = f"Nothing to show: {error}."
    except (Busy, BusUnavailable, BusRefused) as error:
        problem, again = f"Not now: {error}.", _SOON
    if request.headers.get("hx-request") != "true":
        return page(request, "tasks/ran_page.html", task=said.task, title=said.title or said.task, ran=shown, problem=problem)
    macros: Any = ENVIRONMENT.get_template("tasks/ran.html").module
    return Response(str(macros.shown(said.task, shown, problem, again)), media_type="text/html", headers=PAGE_HEADERS)


@get("/tasks/new", action="task.submit", include_in_schema=False)
async def new(request: Ask) -> Response[str]:
    priority = parts_of(request).tasks.default_priority(caller_of(request).identity.tenant or "default")
    return await _form(request, {"queue": True, "priority": str(priority)}, {})


@post("/tasks", action="task.submit", include_in_schema=False, csrf="form")
async def submit(request: Ask) -> Response[Any]:
    """As POST /api/v1/tasks, but that a task whose tenant is not named is the caller's own; with a script as POST /api/v1/runs."""
    caller, parts = caller_of(request), parts_of(request)
    values = await form_values(request, lists=("groups",), flags=("queue", "noswap"))
    if caller.identity.tenant:
        values["tenant"] = caller.identity.tenant
    body: TaskBody | RunBody | None
    body, errors = read_as(RunBody if values.get("script") else TaskBody, values)
    contradiction = body.contradiction() if body is not None else None
    if isinstance(body, RunBody):
        contradiction = contradiction or body.fault()
    if body is None or contradiction is not None:
        return await _form(request, values, errors if contradiction is None else {contradiction[0]: contradiction[1]}, 400)
    try:
        asked = body.submitted(time.time_ns(), "", parts.tasks.defaults)
        if isinstance(body, RunBody):
            task, _ = await parts.runs.submit(caller, asked, body.script_of(asked), body.runner, body.webhook)
        else:
            task, _ = await parts.tasks.submit(caller, asked)
    except Invalid as error:
        return await _form(request, values, {error.field: str(error)}, 400)
    except TaskExists as error:
        return await _form(request, values, {"id": str(error)}, 409)
    if isinstance(task.decision, TaskRefused) and not task.submitted.queue:
        why = refusal_sentence(parts.projection.view, task.decision, caller.sees)
        return redirect(f"/tasks/{task.submitted.task}", f"It was not placed: {why}", "bad")
    waits = "It waits for a device." if task.waiting else "It has been placed."
    return redirect(f"/tasks/{task.submitted.task}", f"Submitted. {waits}")


async def _form(request: Ask, values: Values, errors: dict[str, str], status: int = 200) -> Response[str]:
    view = await parts_of(request).fresh_view()
    groups = sorted({group for node in view.nodes for group in view.groups_of(node)} | set(view.groups))
    return page(request, "tasks/new.html", status=status, values=values, errors=errors, groups=groups)


@post("/tasks/{task:str}/cancel", action="task.cancel", include_in_schema=False, csrf="form")
async def cancel(request: Ask, task: str) -> Response[Any]:
    """Unconditional: whatever changed since the page was shown, the wish is the same."""
    await form_values(request)
    try:
        await parts_of(request).tasks.cancel(caller_of(request), task)
    except OutOfState as error:
        return redirect(f"/tasks/{task}", f"Nothing to cancel: {error}.", "warn")
    return redirect(f"/tasks/{task}", "Cancelled. Running work is being stopped.")


@post("/tasks/{task:str}/priority", action="task.prioritise", include_in_schema=False, csrf="form")
async def prioritise(request: Ask, task: str) -> Response[Any]:
    values = await form_values(request)
    revision = revision_in(values)
    body, errors = read_as(PriorityBody, values)
    if body is None:
        field, message = next(iter(errors.items()))
        raise Invalid(field or "priority", message)
    try:
        await parts_of(request).tasks.set_priority(caller_of(request), task, body.priority, revision=revision)
    except Stale:
        return redirect(f"/tasks/{task}", STALE, "warn")
    except OutOfState as error:
        return redirect(f"/tasks/{task}", f"Its priority stays: {error}.", "warn")
    return redirect(f"/tasks/{task}", f"Priority {body.priority} from now on.")


ROUTES: Final = [listed, one, ran, new, submit, cancel, prioritise]
