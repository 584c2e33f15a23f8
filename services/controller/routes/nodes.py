"""Nodes: what joined, what is promised there, overcommit, drain and resume."""

from __future__ import annotations

from typing import Annotated, Any, Final

from litestar import Request, get, post, put
from litestar.params import Parameter
from msgspec import UNSET

from scheduler.placement import ClusterView
from scheduler.placement.view import DRAINED, OVERCOMMIT_NODE
from services.controller.answers import Json, node_answer
from services.controller.bodies import NodeConfigBody
from services.controller.configuration import Values
from services.controller.errors import NotThere
from services.controller.identity import caller_of
from services.controller.parts import Parts, parts_of
from services.controller.revisions import node_revision
from services.controller.routes.described import Limit, Offset, Revision, page, problems, revision_of

__all__ = ["ROUTES"]

Ask = Request[Any, Any, Any]
NodeId = Annotated[str, Parameter(description="id of a node")]


def _answer(request: Ask, parts: Parts, node: str) -> Json:
    view = parts.mirror.view
    if node not in view.nodes:
        raise NotThere(f"there is no node {node}")
    caller = caller_of(request)
    shown = node_answer(view, node, view.nodes[node], lambda tenant: caller.may("task.read", tenant))
    return {**shown, "revision": node_revision(parts.mirror, node)}


@get(
    "/api/v1/nodes",
    summary="Every node that ever joined, with its devices and what is promised on them",
    action="node.read",
    responses=problems(),
)
async def nodes(request: Ask, limit: Limit = 1_000, offset: Offset = 0) -> Json:
    parts = parts_of(request)
    view: ClusterView = await parts.fresh_view()
    names, total = page(sorted(view.nodes), limit, offset)
    return {"items": [_answer(request, parts, name) for name in names], "total": total}


@get("/api/v1/nodes/{node:str}", summary="One node", action="node.read", responses=problems(404))
async def node(request: Ask, node: NodeId) -> Json:
    parts = parts_of(request)
    await parts.fresh_view()
    return _answer(request, parts, node)


@put(
    "/api/v1/nodes/{node:str}/config",
    summary="Set a node's overcommit, or take it out of service for new tasks",
    action="node.configure",
    responses=problems(404, 409),
)
async def put_node_config(request: Ask, node: NodeId, data: NodeConfigBody, if_match: Revision = None) -> Json:
    parts = parts_of(request)
    changes: Values = {}
    if data.overcommit_vram_percent is not UNSET:
        changes[OVERCOMMIT_NODE] = data.overcommit_vram_percent
    if data.drained is not UNSET:
        changes[DRAINED] = 1 if data.drained else None
    await parts.nodes.configure(caller_of(request), node, changes, revision=revision_of(if_match))
    return _answer(request, parts, node)


@post(
    "/api/v1/nodes/{node:str}/drain",
    status_code=200,
    summary="No new tasks; it finishes what it has",
    action="node.configure",
    responses=problems(404, 409),
)
async def drain(request: Ask, node: NodeId, if_match: Revision = None) -> Json:
    parts = parts_of(request)
    await parts.nodes.drain(caller_of(request), node, revision=revision_of(if_match))
    return _answer(request, parts, node)


@post("/api/v1/nodes/{node:str}/resume", status_code=200, summary="New tasks again", action="node.configure", responses=problems(404, 409))
async def resume(request: Ask, node: NodeId, if_match: Revision = None) -> Json:
    parts = parts_of(request)
    await parts.nodes.resume(caller_of(request), node, revision=revision_of(if_match))
    return _answer(request, parts, node)


ROUTES: Final = [nodes, node, put_node_config, drain, resume]
