"""The pages /groups: every group, make, change, delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from litestar import Response, get, post

from scheduler.placement import ClusterView
from services.controller.actions import GroupValues
from services.controller.bodies import NewGroupBody
from services.controller.errors import Invalid, NotThere, OutOfState, Stale
from services.controller.identity import caller_of
from services.controller.parts import Ask, Parts, parts_of
from services.controller.presenters.groups import GroupRow, group_rows
from services.controller.web.channel import Patch, Topic
from services.controller.web.forms import Values, form_values, read_as, redirect, revision_in
from services.controller.web.listing import Listing
from services.controller.web.scope import Scope
from services.controller.web.templating import ENVIRONMENT, page, scope_of

__all__ = ["ROUTES", "groups_topic"]

SORTS: Final[dict[str, Callable[[GroupRow], Any]]] = {
    "id": lambda row: row.id,
    "title": lambda row: (row.title.casefold(), row.id),
    "nodes": lambda row: (len(row.members), row.id),
    "gpus": lambda row: (row.gpus, row.id),
    "vram": lambda row: (row.vram_bytes, row.id),
    "tasks": lambda row: (row.tasks, row.id),
}
_STALE: Final = "This group was changed since the page was loaded. Nothing was saved: check the current values."


@get("/groups", action="group.read", include_in_schema=False)
async def listed(request: Ask) -> Response[str]:
    view = await parts_of(request).fresh_view()
    shown, listing = _shown(view, scope_of(request).tenant, request.query_params)
    return page(request, "groups/list.html", live="groups", listing=listing, rows=shown)


def _shown(view: ClusterView, tenant: str, query: Mapping[str, str]) -> tuple[list[GroupRow], Listing]:
    """The page of groups that ``query`` asks for."""
    listing = Listing.parse("/groups", query, sorts=tuple(SORTS), default="id", filters=("members",))
    rows = [row for row in group_rows(view, tenant) if listing.search.casefold() in row.text]
    if listing.filters.get("members") in ("none", "some"):
        rows = [row for row in rows if bool(row.members) is (listing.filters["members"] == "some")]
    rows.sort(key=SORTS[listing.sort], reverse=listing.descending)
    return listing.take(rows)


def groups_topic(parts: Parts) -> Topic:
    """Keeps the rows of open Groups pages up to date."""

    def render(scope: Scope, query: Mapping[str, str]) -> Patch:
        rows, _ = _shown(parts.projection.view, scope.tenant, query)
        row_of: Any = ENVIRONMENT.get_template("groups/row.html").module
        html = {f"group-{row.id}": str(row_of.row_of(row)) for row in rows}
        return Patch(html, {"group-rows": tuple(html)})

    return Topic("groups", frozenset({"group", "node", "task", "session"}), "group.read", render)


@get("/groups/new", action="group.write", include_in_schema=False)
async def new(request: Ask) -> Response[str]:
    return await _form(request, "", {}, {})


@get("/groups/{group:str}", action="group.read", include_in_schema=False)
async def one(request: Ask, group: str) -> Response[str]:
    return await _form(request, group, {}, {})


async def _form(request: Ask, group: str, values: Values, errors: dict[str, str], status: int = 200) -> Response[str]:
    """The form of one group, empty for a new one; and what hangs on it. Raises NotThere."""
    view = await parts_of(request).fresh_view()
    if group and group not in view.membership.known():
        raise NotThere(f"there is no group {group}")
    row = group_rows(view, scope_of(request).tenant, [group])[0] if group else None
    return page(request, "groups/group.html", status=status, row=row, values=values, errors=errors, choices=_members_to_choose(view, group))


def _members_to_choose(view: ClusterView, group: str = "") -> list[tuple[str, str, bool, bool, str]]:
    """(node, name, chosen, by itself, other groups) of every node: what the form of a group offers."""
    made = view.groups.get(group)
    chosen = made.nodes if made is not None else frozenset()
    out = []
    for node in sorted(view.nodes):
        registered = view.nodes[node].registered
        others = ", ".join(sorted(view.groups_of(node) - {group}))
        out.append((node, registered.name, node in chosen, bool(group) and group in registered.groups, others))
    return out


@post("/groups", action="group.write", include_in_schema=False, csrf="form")
async def create(request: Ask) -> Response[Any]:
    values = await form_values(request, lists=("nodes",))
    values.pop("revision", None)
    body, errors = read_as(NewGroupBody, values)
    if body is None:
        return await _form(request, "", values, errors, 400)
    try:
        await parts_of(request).groups.create(caller_of(request), body.id, GroupValues(body.title, body.nodes))
    except OutOfState as error:
        return await _form(request, "", values, {"id": str(error)}, 409)
    except Invalid as error:
        return await _form(request, "", values, {error.field: str(error)}, 400)
    return redirect("/groups", f"Group {body.id} was created.")


@post("/groups/{group:str}", action="group.write", include_in_schema=False, csrf="form")
async def edit(request: Ask, group: str) -> Response[Any]:
    values = await form_values(request, lists=("nodes",))
    revision = revision_in(values)
    body, errors = read_as(NewGroupBody, {**values, "id": group})
    if body is None:
        return await _form(request, group, values, errors, 400)
    try:
        await parts_of(request).groups.edit(caller_of(request), group, GroupValues(body.title, body.nodes), revision=revision)
    except Stale:
        return redirect(f"/groups/{group}", _STALE, "warn")
    except Invalid as error:
        return await _form(request, group, values, {error.field: str(error)}, 400)
    return redirect("/groups", f"Group {group} is saved.")


@post("/groups/{group:str}/delete", action="group.write", include_in_schema=False, csrf="form")
async def delete(request: Ask, group: str) -> Response[Any]:
    values = await form_values(request)
    try:
        await parts_of(request).groups.delete(caller_of(request), group, revision=revision_in(values))
    except Stale:
        return redirect(f"/groups/{group}", _STALE, "warn")
    except OutOfState as error:
        return redirect(f"/groups/{group}", f"The group was not deleted: {error}.", "warn")
    return redirect("/groups", f"Group {group} is deleted.")


ROUTES: Final = [listed, new, one, create, edit, delete]
