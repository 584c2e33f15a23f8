"""The pages /tasks: the table, one task, submit, cancel, set the priority; and their live topics. Forms use the same actions as REST."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from litestar import Request, Response, get, post

from bus_schemas.events import TaskRefused
from scheduler.placement import ClusterView, TaskView
from scheduler.placement.view import STATES
from services.controller.bodies import PriorityBody, RunBody, TaskBody
from services.controller.errors import Busy, Invalid, OutOfState, Stale, TaskExists
from services.controller.identity import caller_of
from services.controller.lookup import task_revision
from services.controller.parts import Ask, Parts, parts_of
from services.controller.presenters import node_name
from services.controller.presenters.journal import timeline_answer, waits_answer
from services.controller.presenters.tasks import Placement, TaskRow, placement_of, refusal_sentence, task_row
from services.controller.presenters.waiting import Waiting, waiting_of
from services.controller.task_history import Moment, SessionLine, facts_of, life_of, moments, session_lines, trace_of
from services.controller.task_index import SORTS, TaskIndex, TaskQuery, find_tasks
from services.controller.web.billing import Refused, Unreachable
from services.controller.web.charts import device_timeline
from services.controller.web.context import UiContext, context_of
from services.controller.web.formats import duration_text
from services.controller.web.forms import Values, form_values, read_as, redirect, revision_in
from services.controller.web.listing import Listing
from services.controller.web.live import Patch, Topic, TopicEnded
from services.controller.web.scope import Scope
from services.controller.web.templating import ENVIRONMENT, PAGE_HEADERS, page, scope_of
from services.kit.errors import BusRefused, BusUnavailable, QuotaReached

__all__ = ["ROUTES", "STALE", "DEFAULT_SORT", "FILTERS", "Page", "ask", "show", "task_topic", "tasks_topic", "Story", "story_of"]

_LIVE: Final = "every 30s"
_SOON: Final = "load delay:5s"
"""When the browser requests the part again (htmx): for a live task, and when the journal could not be read."""
STALE: Final = "The task was changed after the page was loaded. Nothing was done: check its current state, and decide again."
_TEMPLATE: Final = "tasks/rows.html"
_CHOICES_MAX: Final = 300
FILTERS: Final = ("state", "priority", "node", "group", "tenant")
"""Filters in the address. A state or priority may be several, with commas between: any of them."""
DEFAULT_SORT: Final = "-updated"
Choices = list[tuple[str, str, list[tuple[str, str]]]]
"""(name, label, (value, text) ...) of each select box."""


@get("/tasks", action="task.read", include_in_schema=False)
async def listed(request: Ask) -> Response[str]:
    parts = parts_of(request)
    await parts.fresh_view()
    shown = show(parts, scope_of(request), request.query_params)
    story = await story_of(request, shown["opened"]) if shown["opened"] else None
    return page(request, "tasks/list.html", live="tasks", story=story, **shown)


@get("/tasks/{task:str}", action="task.read", include_in_schema=False)
async def one(request: Ask, task: str) -> Response[str]:
    await parts_of(request).fresh_view()
    story = await story_of(request, task)
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
        shown, again = device_timeline(timeline_answer(view, document), waits, said.vram_bytes), _LIVE if found.live else ""
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
    except (TaskExists, QuotaReached) as error:
        return await _form(request, values, {"id": str(error)}, error.status)
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


@post("/tasks/{task:str}/move", action="task.move", include_in_schema=False, csrf="form")
async def move(request: Ask, task: str) -> Response[Any]:
    values = await form_values(request)
    try:
        await parts_of(request).tasks.move(caller_of(request), task, revision=revision_in(values))
    except Stale:
        return redirect(f"/tasks/{task}", STALE, "warn")
    except OutOfState as error:
        return redirect(f"/tasks/{task}", f"Not moved: {error}.", "warn")
    return redirect(f"/tasks/{task}", "It leaves its node, and continues on another one.")


@dataclass(frozen=True, slots=True)
class Page:
    """Rows of one page of the table."""

    rows: tuple[TaskRow, ...]
    listing: Listing  #: as asked, with the number of matches
    touched: int  #: rows looked at for the answer


def ask(index: TaskIndex, listing: Listing, tenant: str = "") -> Page:
    """The page that ``listing`` asks for; ``tenant`` not empty: of this tenant's tasks only, whatever the listing says."""
    several = ("state", "priority")
    filters = {
        name: tuple(dict.fromkeys(value.split(","))) if name in several else (value,)
        for name, value in listing.filters.items()
        if name != "tenant"
    }
    phrase = (listing.search.casefold(),) if listing.search else ()
    counted = listing

    def window(total: int) -> tuple[int, int]:
        nonlocal counted
        counted = listing.counted(total)
        return max(0, counted.first - 1), counted.last

    found = find_tasks(index, TaskQuery(filters, listing.filters.get("tenant", ""), phrase, listing.order), window, tenant)
    return Page(found.rows, counted.counted(found.total), found.touched)


def show(parts: Parts, scope: Scope, query: Mapping[str, str]) -> dict[str, Any]:
    """What the page shows of the tasks that ``query`` asks for and ``scope`` sees. ``opened``: the row whose story is asked for."""
    view, index = parts.projection.view, parts.task_index()
    listing = Listing.parse("/tasks", query, sorts=tuple(SORTS), default=DEFAULT_SORT, filters=FILTERS)
    found = ask(index, listing, scope.tenant)
    shard = index.of(scope.tenant)
    opened = query.get("open", "")
    return {
        "listing": found.listing,
        "rows": found.rows,
        "names": _names(view, [row.node for row in found.rows]),  # display names of the rows' nodes
        "counts": {"all": len(shard.rows), "states": [(state, shard.count("state", state)) for state in STATES]},
        "filters": _choices(view, index, scope, found.listing),
        "opened": opened if any(row.id == opened for row in found.rows) else "",
    }


def _names(view: ClusterView, nodes: list[str]) -> dict[str, str]:
    return {node: view.nodes[node].registered.name for node in nodes if node in view.nodes}


def _choices(view: ClusterView, index: TaskIndex, scope: Scope, listing: Listing) -> Choices:
    """The select boxes of the filter bar. What is chosen is always among the choices."""
    shard = index.of(scope.tenant)
    nodes = shard.values("node")[:_CHOICES_MAX]
    names = _names(view, nodes)
    found = [
        ("priority", "Priority", [(str(level), f"P{level}") for level in range(5)]),
        ("node", "Node", [(node, names.get(node, node)) for node in nodes]),
        ("group", "Group", [(group, group) for group in shard.values("group")[:_CHOICES_MAX]]),
    ]
    if not scope.tenant:
        found.append(("tenant", "Tenant", [(tenant, tenant) for tenant in index.tenants()[:_CHOICES_MAX]]))
    for name, _, choices in found:
        chosen = listing.filters.get(name, "")
        if chosen and chosen not in [value for value, _ in choices]:
            choices.append((chosen, chosen))
    return found


def tasks_topic(parts: Parts) -> Topic:
    """Keeps the open Tasks pages up to date: rows, counts, pager."""

    def render(scope: Scope, query: Mapping[str, str]) -> Patch:
        shown = show(parts, scope, query)
        parts_of_page: Any = ENVIRONMENT.get_template(_TEMPLATE).module
        listing, rows = shown["listing"], shown["rows"]
        html = {f"task-{one.id}": str(parts_of_page.row(listing, one, shown["names"], shown["opened"])) for one in rows}
        html["task-counts"] = str(parts_of_page.chips(listing, shown["counts"]))
        html["task-empty"] = str(parts_of_page.empty_note(listing))
        html["task-foot"] = str(parts_of_page.foot(listing))
        return Patch(html, {"task-rows": tuple(f"task-{one.id}" for one in rows)})

    return Topic("tasks", frozenset({"task", "session", "node"}), "task.read", render)


def task_topic(parts: Parts) -> Topic:
    """Followed as ``/live/task.<id>.<revision>``: state, priority, waiting and the end of the log of one task, and whether it changed since
    that revision."""

    async def render(scope: Scope, query: Mapping[str, str]) -> Patch:
        name, _, revision = query.get("topic", "").partition(".")
        view = parts.projection.view
        task = view.tasks.get(name)
        if task is None or not scope.sees(task.submitted.tenant):
            raise TopicEnded
        parts_of_page: Any = ENVIRONMENT.get_template("tasks/now.html").module
        changed = revision != str(task_revision(parts.projection, name))
        waiting = waiting_of(view, name, time.time_ns(), scope.sees)
        html = {"task-now": parts_of_page.head(task_row(view, task), changed), "task-waits": parts_of_page.waits(waiting)}
        with contextlib.suppress(BusUnavailable, BusRefused):  # the log stays as it is shown
            html["task-log"] = parts_of_page.log(await parts.runs.tail(name))
        return Patch({name: str(part) for name, part in html.items()})

    return Topic("task", frozenset({"task", "session", "node", "config", "log"}), "task.read", render)


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


async def story_of(request: Ask, name: str) -> Story:
    """What the caller may see of one task. A part that is not available is named as such; the page is shown without it. Raises NotThere,
    Ambiguous."""
    parts, context, scope = parts_of(request), context_of(request), scope_of(request)
    view, task = parts.projection.view, parts.tasks.seen(caller_of(request), name)
    said = task.submitted
    try:
        facts = await facts_of(parts.projection.bus, task, parts.projection.turns.subjects(said.task))
    except (BusUnavailable, BusRefused):
        facts = []
    bill, missing = await _bill(request, context, task)
    log: tuple[str, ...] = ()
    with contextlib.suppress(BusUnavailable, BusRefused):
        log = await parts.runs.tail(said.task)
    trace = trace_of(facts)
    return Story(
        row=task_row(view, task),
        revision=task_revision(parts.projection, said.task),
        priority_first=said.priority,
        noswap=said.noswap,
        asked=_wishes(task),
        placement=placement_of(view, task, scope.sees),
        waiting=waiting_of(view, said.task, time.time_ns(), scope.sees),
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
        out.append(("Queue", f"at most {duration_text(said.queue_timeout_ms * 1_000_000)}"))
    elif not said.queue:
        out.append(("Queue", "no: refused if no device is free"))
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


ROUTES: Final = [listed, one, ran, new, submit, cancel, move, prioritise]
