"""Groups of nodes: list, create, edit, delete."""

from __future__ import annotations

from typing import Annotated, Final

from litestar import delete, get, post, put
from litestar.params import Parameter

from services.controller.actions import GroupValues
from services.controller.bodies import GroupBody, NewGroupBody, values_of
from services.controller.errors import NotThere
from services.controller.identity import caller_of
from services.controller.parts import Ask, Parts, parts_of
from services.controller.presenters.common import Json
from services.controller.presenters.groups import group_answer
from services.controller.routes.described import Limit, Offset, Revision, Search, page, problems, revision_of, words

__all__ = ["ROUTES"]

GroupId = Annotated[str, Parameter(description="id of a group")]


def _answer(request: Ask, parts: Parts, group: str) -> Json:
    if group not in parts.projection.view.membership.known():
        raise NotThere(f"there is no group {group}")
    return group_answer(parts.projection.view, group, caller_of(request).identity.tenant)


@get("/api/v1/groups", summary="List groups, including those without a node", action="group.read", responses=problems())
async def groups(
    request: Ask,
    search: Search = "",
    empty: Annotated[bool | None, Parameter(description="only groups without a node (true) or with one (false)")] = None,
    limit: Limit = 1_000,
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
    names, total = page(found, limit, offset)
    return {"items": [_answer(request, parts, name) for name in names], "total": total}


@get("/api/v1/groups/{group:str}", summary="Get a group", action="group.read", responses=problems(404))
async def group(request: Ask, group: GroupId) -> Json:
    parts = parts_of(request)
    await parts.fresh_view()
    return _answer(request, parts, group)


@post("/api/v1/groups", summary="Create a group", action="group.write", responses=problems(409))
async def post_group(request: Ask, data: NewGroupBody) -> Json:
    parts = parts_of(request)
    await parts.groups.create(caller_of(request), data.id, GroupValues(data.title, data.nodes))
    return _answer(request, parts, data.id)


@put("/api/v1/groups/{group:str}", summary="Change a group's title or members", action="group.write", responses=problems(404, 409))
async def put_group(request: Ask, group: GroupId, data: GroupBody, if_match: Revision = None) -> Json:
    """A group that so far only nodes have named is created by this."""
    parts = parts_of(request)
    await parts.groups.edit(caller_of(request), group, values_of(GroupValues, data), revision=revision_of(if_match))
    return _answer(request, parts, group)


@delete("/api/v1/groups/{group:str}", summary="Delete a group", action="group.write", responses=problems(404, 409))
async def delete_group(request: Ask, group: GroupId, if_match: Revision = None) -> None:
    """409 while a node names it in its own configuration, or a waiting task targets it."""
    await parts_of(request).groups.delete(caller_of(request), group, revision=revision_of(if_match))


ROUTES: Final = [groups, group, post_group, put_group, delete_group]
