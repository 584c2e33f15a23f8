"""Nodes: list, read, overcommit, drain and resume. Groups of nodes: list, create, edit, delete."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from litestar import delete, get, post, put
from litestar.params import Parameter
from msgspec import UNSET

from scheduler.placement.view import DRAINED, OVERCOMMIT_NODE
from services.controller.actions import GroupValues
from services.controller.bodies import GroupBody, NewGroupBody, NodeConfigBody, values_of
from services.controller.configuration import Values
from services.controller.errors import NotThere
from services.controller.identity import caller_of
from services.controller.lookup import find_node, node_revision
from services.controller.parts import Ask, Parts, parts_of
from services.controller.presenters import Json
from services.controller.presenters.nodes import group_answer, node_answer
from services.controller.presenters.nodes import node_state as state_of
from services.controller.routes import Limit, Name, Offset, Revision, Search, page, problems, revision_of, words

__all__ = ["GROUPS", "ROUTES"]

NodeId = Annotated[str, Parameter(description="id of a node, its name, or the beginning of its id")]
State = Literal["ready", "drained", "lost"]


def _node_answer(request: Ask, parts: Parts, node: str) -> Json:
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
    limit: Limit = 10_000,
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
    return page(found, limit, offset, lambda item: _node_answer(request, parts, item[1]))


@get("/api/v1/nodes/{node:str}", summary="Get a node", action="node.read", responses=problems(404, 409))
async def node(request: Ask, node: NodeId) -> Json:
    parts = parts_of(request)
    await parts.fresh_view()
    return _node_answer(request, parts, node)


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
    return _node_answer(request, parts, node)


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
    return _node_answer(request, parts, node)


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
    return _node_answer(request, parts, node)


ROUTES: Final = [nodes, node, put_node_config, drain, resume]


GroupId = Annotated[str, Parameter(description="id of a group")]


def _group_answer(request: Ask, parts: Parts, group: str) -> Json:
    if group not in parts.projection.view.membership.known():
        raise NotThere(f"there is no group {group}")
    return group_answer(parts.projection.view, group, caller_of(request).identity.tenant)


@get("/api/v1/groups", summary="List groups, including those without a node", action="group.read", responses=problems())
async def groups(
    request: Ask,
    search: Search = "",
    empty: Annotated[bool | None, Parameter(description="only groups without a node (true) or with one (false)")] = None,
    limit: Limit = 10_000,
    offset: Offset = 0,
) -> Json:
    """``total``: the number of matches on all pages."""
    parts = parts_of(request)
    view = await parts.fresh_view()
    found = [
        name
        for name in view.membership.known()
        if (empty is None or empty is not bool(view.membership.members(name)))
        and all(word in f"{name}\n{view.groups[name].title if name in view.groups else ''}".lower() for word in words(search))
    ]
    return page(found, limit, offset, lambda name: _group_answer(request, parts, name))


@get("/api/v1/groups/{group:str}", summary="Get a group", action="group.read", responses=problems(404))
async def group(request: Ask, group: GroupId) -> Json:
    parts = parts_of(request)
    await parts.fresh_view()
    return _group_answer(request, parts, group)


@post("/api/v1/groups", summary="Create a group", action="group.write", responses=problems(409))
async def post_group(request: Ask, data: NewGroupBody) -> Json:
    parts = parts_of(request)
    await parts.groups.create(caller_of(request), data.id, GroupValues(data.title, data.nodes))
    return _group_answer(request, parts, data.id)


@put("/api/v1/groups/{group:str}", summary="Change a group's title or members", action="group.write", responses=problems(404, 409))
async def put_group(request: Ask, group: GroupId, data: GroupBody, if_match: Revision = None) -> Json:
    """A group that so far only nodes have named is created by this."""
    parts = parts_of(request)
    await parts.groups.edit(caller_of(request), group, values_of(GroupValues, data), revision=revision_of(if_match))
    return _group_answer(request, parts, group)


@delete("/api/v1/groups/{group:str}", summary="Delete a group", action="group.write", responses=problems(404, 409))
async def delete_group(request: Ask, group: GroupId, if_match: Revision = None) -> None:
    """409 while a node names it in its own configuration, or a waiting task targets it."""
    await parts_of(request).groups.delete(caller_of(request), group, revision=revision_of(if_match))


GROUPS: Final = [groups, group, post_group, put_group, delete_group]
