"""The REST face of the controller, under /api/v1. Reads show the log; writes append to it and return once they show.

May live here: routes. May not: decisions, what an answer looks like (answers), what a body may hold (bodies).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from litestar import Litestar, Response, get, post, put
from litestar.datastructures import State
from litestar.openapi.config import OpenAPIConfig
from litestar.params import Parameter
from msgspec import UNSET

from bus_schemas.events import TaskRefused
from scheduler.placement import ClusterView
from scheduler.placement.view import DRAINED, ENVIRONMENT, GLOBAL, OVERCOMMIT_GLOBAL, OVERCOMMIT_NODE
from services.controller.answers import Json, node_answer, placement_answer, task_answer
from services.controller.bodies import ConfigBody, NodeConfigBody, TaskBody
from services.controller.configuration import Configuration, Values
from services.controller.gauges import Gauges
from services.controller.metrics import metrics_text
from services.controller.mirror import Mirror
from services.controller.placer import Placer
from services.controller.problems import HANDLERS, NotThere, field_problem, no_fit
from services.controller.sentinel import Sentinel
from services.controller.telemetry_answer import telemetry_answer

__all__ = ["Parts", "make_app"]

Limit = Annotated[int, Parameter(ge=1, le=10_000, description="how many at most")]
Offset = Annotated[int, Parameter(ge=0, description="how many to leave out")]


@dataclass(frozen=True, slots=True)
class Parts:
    """What the routes work with."""

    mirror: Mirror
    gauges: Gauges
    placer: Placer
    configuration: Configuration
    sentinel: Sentinel


async def _view(state: State) -> ClusterView:
    """The view, with everything that is in the log now."""
    mirror: Mirror = state.parts.mirror
    await mirror.caught_up()
    return mirror.view


def _page(items: list[Any], limit: int, offset: int) -> tuple[list[Any], int]:
    return items[offset : offset + limit], len(items)


@get("/api/v1/nodes", summary="Every node that ever joined, with its devices and what is promised on them")
async def nodes(state: State, limit: Limit = 1_000, offset: Offset = 0) -> Json:
    view = await _view(state)
    page, total = _page(sorted(view.nodes), limit, offset)
    return {"items": [node_answer(view, name, view.nodes[name]) for name in page], "total": total}


@get("/api/v1/nodes/{node:str}", summary="One node")
async def node(state: State, node: str) -> Json:
    view = await _view(state)
    return node_answer(view, node, _node(view, node))


@put("/api/v1/nodes/{node:str}/config", summary="Set a node's overcommit, or take it out of service for new tasks")
async def put_node_config(state: State, node: str, data: NodeConfigBody) -> Json:
    _node(await _view(state), node)
    changes: Values = {}
    if data.overcommit_vram_percent is not UNSET:
        changes[OVERCOMMIT_NODE] = data.overcommit_vram_percent
    if data.drained is not UNSET:
        changes[DRAINED] = 1 if data.drained else None
    await state.parts.configuration.set_node(node, changes)
    view: ClusterView = state.parts.mirror.view
    return node_answer(view, node, view.nodes[node])


@get("/api/v1/tasks", summary="Tasks, newest first")
async def tasks(
    state: State,
    task_state: Annotated[Literal["queued", "started", "completed", "failed"] | None, Parameter(query="state")] = None,
    node: str | None = None,
    tenant: str | None = None,
    limit: Limit = 1_000,
    offset: Offset = 0,
) -> Json:
    view = await _view(state)
    found = [
        task
        for task in view.tasks.values()
        if (task_state is None or task.state == task_state)
        and (node is None or (task.placed is not None and task.placed.node == node))
        and (tenant is None or task.submitted.tenant == tenant)
    ]
    found.sort(key=lambda task: (-task.position, task.submitted.task))
    page, total = _page(found, limit, offset)
    return {"items": [task_answer(view, task) for task in page], "total": total}


@get("/api/v1/tasks/{task:str}", summary="One task")
async def task(state: State, task: str) -> Json:
    view = await _view(state)
    if task not in view.tasks:
        raise NotThere(f"there is no task {task}")
    return task_answer(view, view.tasks[task])


@post("/api/v1/tasks", summary="Submit a task and place it")
async def post_task(state: State, data: TaskBody) -> Response[Json]:
    """201 placed, 200 when the same id and body came before, 202 waiting, 409 when nothing fits now, 400 when nothing ever could."""
    contradiction = data.contradiction()
    if contradiction is not None:
        return field_problem(*contradiction)
    placed, new = await state.parts.placer.submit(data.submitted(time.time_ns()))
    if isinstance(placed.decision, TaskRefused) and not placed.submitted.queue:
        return no_fit(placed.decision)
    status = 202 if placed.waiting else 201 if new else 200
    return Response(task_answer(state.parts.mirror.view, placed), status_code=status)


@get("/api/v1/placements", summary="The last decision on every task, newest first")
async def placements(state: State, limit: Limit = 1_000, offset: Offset = 0) -> Json:
    view = await _view(state)
    found = [task for task in view.tasks.values() if task.decision is not None]
    found.sort(key=lambda task: (-task.position, task.submitted.task))
    page, total = _page(found, limit, offset)
    return {"items": [placement_answer(view, task.decision) for task in page], "total": total}


@get("/api/v1/placements/{task:str}", summary="Where a task was placed: the choice, the scores, and why not the others")
async def placement(state: State, task: str) -> Json:
    view = await _view(state)
    known = view.tasks.get(task)
    if known is None or known.decision is None:
        raise NotThere(f"there is no decision on task {task}" if known else f"there is no task {task}")
    return placement_answer(view, known.decision)


@post("/api/v1/placements/query", status_code=200, summary="Where would this task be placed now? Writes nothing")
async def query_placement(state: State, data: TaskBody) -> Json:
    decision = await state.parts.placer.dry_run(data.submitted(time.time_ns()))
    return placement_answer(state.parts.mirror.view, decision)


@get("/api/v1/telemetry", summary="The last measurements of every device: live, not from the log")
async def telemetry(state: State) -> Json:
    now_ns = time.time_ns()
    items = [telemetry_answer(seen, now_ns) for seen in state.parts.gauges.last()]
    return {"items": items, "total": len(items)}


@get("/api/v1/config", summary="The global configuration")
async def get_config(state: State) -> Json:
    return _config(await _view(state))


@put("/api/v1/config", summary="Change the global configuration")
async def put_config(state: State, data: ConfigBody) -> Json:
    await state.parts.configuration.set_global({OVERCOMMIT_GLOBAL: data.default_vram_overcommit_percent})
    return _config(state.parts.mirror.view)


@get("/health", summary="Whether the controller follows the log")
async def health(state: State) -> Response[Json]:
    mirror: Mirror = state.parts.mirror
    if mirror.failure is not None:
        return Response({"status": "failed", "position": mirror.position, "detail": str(mirror.failure)}, status_code=503)
    if not mirror.connected:
        return Response({"status": "disconnected", "position": mirror.position, "detail": "the bus is away"}, status_code=503)
    return Response({"status": "ok", "position": mirror.position, "sentinel": state.parts.sentinel.on_duty})


@get("/metrics", summary="Prometheus metrics", media_type="text/plain; version=0.0.4")
async def metrics(state: State) -> str:
    return metrics_text(state.parts.mirror, state.parts.gauges)


def _node(view: ClusterView, name: str) -> Any:
    if name not in view.nodes:
        raise NotThere(f"there is no node {name}")
    return view.nodes[name]


def _config(view: ClusterView) -> Json:
    """The value that holds, and where it is from."""
    stored = view.number(GLOBAL, OVERCOMMIT_GLOBAL)
    source = "stored" if stored is not None else "environment" if view.number(ENVIRONMENT, OVERCOMMIT_GLOBAL) else "default"
    return {OVERCOMMIT_GLOBAL: stored if stored is not None else view.overcommit_default(), "source": source}


def make_app(parts: Parts) -> Litestar:
    """The application over running parts."""
    return Litestar(
        [
            nodes,
            node,
            put_node_config,
            tasks,
            task,
            post_task,
            placements,
            placement,
            query_placement,
            telemetry,
            get_config,
            put_config,
            health,
            metrics,
        ],
        state=State({"parts": parts}),
        exception_handlers=HANDLERS,
        openapi_config=OpenAPIConfig(title="Wooly controller", version="1"),
        logging_config=None,
    )
