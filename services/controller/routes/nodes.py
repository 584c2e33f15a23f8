"""Nodes: list, read, overcommit, drain and resume."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from litestar import get, post, put
from litestar.params import Parameter
from msgspec import UNSET

from scheduler.placement.view import DRAINED, OVERCOMMIT_NODE
from services.controller.bodies import NodeConfigBody
from services.controller.configuration import Values
from services.controller.identity import caller_of
from services.controller.lookup import find_node, node_revision
from services.controller.parts import Ask, Parts, parts_of
from services.controller.presenters.common import Json
from services.controller.presenters.nodes import node_answer
from services.controller.presenters.nodes import node_state as state_of
from services.controller.routes.described import Limit, Name, Offset, Revision, Search, page, problems, revision_of, words

__all__ = ["ROUTES"]

NodeId = Annotated[str, Parameter(description="id of a node, its name, or the beginning of its id")]
State = Literal["ready", "drained", "lost"]


def _answer(request: Ask, parts: Parts, node: str) -> Json:
    view = parts.projection.view
    node = find_node(view, node)
    caller = caller_of(request)
    shown = node_answer(view, node, caller.sees)
    return {**shown, "revision": node_revision(parts.projection, node)}


@get("/api/v1/nodes", summary="List nodes with their devices and the memory promised on them", action="node.read", responses=problems())
async def nodes(
    request: Ask,
    *,
    search: Search = "",
    node_state: Annotated[State | None, Parameter(query="state")] = None,
    group: Name = None,
    sort: Annotated[Literal["id", "-id", "name", "-name"], Parameter(description="sort key; with - before it: descending")] = "id",
    limit: Limit = 1_000,
    offset: Offset = 0,
) -> Json:
    """``total``: the number of matches on all pages."""
    parts = parts_of(request)
    view = await parts.fresh_view()
    found = [
        (node.registered.name if sort.endswith("name") else "", name)
        for name, node in view.nodes.items()
        if (node_state is None or state_of(view, name, node) == node_state)
        and (group is None or group in view.groups_of(name))
        and all(word in f"{name}\n{node.registered.name}\n{node.registered.address}".lower() for word in words(search))
    ]
    found.sort(reverse=sort.startswith("-"))
    shown, total = page(found, limit, offset)
    return {"items": [_answer(request, parts, name) for _, name in shown], "total": total}


@get("/api/v1/nodes/{node:str}", summary="Get a node", action="node.read", responses=problems(404, 409))
async def node(request: Ask, node: NodeId) -> Json:
    parts = parts_of(request)
    await parts.fresh_view()
    return _answer(request, parts, node)


@put(
    "/api/v1/nodes/{node:str}/config",
    summary="Set a node's overcommit and whether it is drained",
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
    summary="Drain a node: it gets no new tasks and finishes those it has",
    action="node.configure",
    responses=problems(404, 409),
)
async def drain(request: Ask, node: NodeId, if_match: Revision = None) -> Json:
    parts = parts_of(request)
    await parts.nodes.drain(caller_of(request), node, revision=revision_of(if_match))
    return _answer(request, parts, node)


@post(
    "/api/v1/nodes/{node:str}/resume",
    status_code=200,
    summary="Give a drained node new tasks",
    action="node.configure",
    responses=problems(404, 409),
)
async def resume(request: Ask, node: NodeId, if_match: Revision = None) -> Json:
    parts = parts_of(request)
    await parts.nodes.resume(caller_of(request), node, revision=revision_of(if_match))
    return _answer(request, parts, node)


ROUTES: Final = [nodes, node, put_node_config, drain, resume]
