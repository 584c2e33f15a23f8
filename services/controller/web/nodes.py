"""The pages of nodes: the list, one node, and an operator's actions on it. Live topics ``nodes`` and ``node``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from litestar import Response, get, post
from litestar.response import Redirect

from scheduler.placement import ClusterView
from scheduler.placement.view import OVERCOMMIT_NODE
from scheduler.vram import PERCENT_MAX
from services.controller.actions import GroupValues
from services.controller.bodies import NewGroupBody
from services.controller.errors import Ambiguous, Invalid, NotThere, OutOfState, Stale
from services.controller.identity import caller_of
from services.controller.lookup import find_node, node_revision
from services.controller.parts import Ask, Parts, parts_of
from services.controller.presenters.nodes import (
    STATES,
    GroupRow,
    NodeRow,
    Seen,
    device_rows,
    group_rows,
    node_row,
    node_state,
    session_rows,
)
from services.controller.web.charts import Charts, chart_context, chart_data, chart_points, device_charts, past_charts
from services.controller.web.context import context_of
from services.controller.web.forms import Values, form_values, read_as, redirect, revision_in
from services.controller.web.history import History, Range
from services.controller.web.listing import Listing
from services.controller.web.live import Patch, Topic, TopicEnded
from services.controller.web.scope import Scope
from services.controller.web.templating import ENVIRONMENT, page, scope_of

__all__ = ["GROUP_ROUTES", "ROUTES", "SORTS", "groups_topic", "listed_nodes", "node_topic", "nodes_topic"]

SORTS: Final = ("name", "state", "devices", "utilization", "starvation", "vram", "tasks", "seen")
_FILTERS: Final = ("state", "group")
_WAKES: Final = frozenset({"telemetry", "node", "task", "session", "config", "group"})


def _seen(parts: Parts) -> Seen:
    return {(seen.node, seen.gpu): seen for seen in parts.gauges.last()}


# -- the list --------------------------------------------------------------------------------------------------------------------------


def listed_nodes(view: ClusterView, seen: Seen, scope: Scope, listing: Listing) -> tuple[list[NodeRow], Listing]:
    """The rows of one page of the list, and the listing with its count."""
    rows = [node_row(view, seen, scope.sees, name) for name in view.nodes if _wanted(view, name, listing)]
    rows.sort(key=lambda row: (row.name.casefold(), row.id))
    rows.sort(key=lambda row: _order(row, listing.sort), reverse=listing.descending)
    return listing.take(rows)


def _wanted(view: ClusterView, name: str, listing: Listing) -> bool:
    node = view.nodes[name]
    state, group = listing.filters.get("state"), listing.filters.get("group")
    if state and node_state(view, name, node) != state:
        return False
    if group and group not in view.groups_of(name):
        return False
    text = listing.search.casefold()
    fact = node.registered
    return not text or any(text in part.casefold() for part in (name, fact.name, fact.address, *(device.name for device in fact.devices)))


def _order(row: NodeRow, sort: str) -> Any:
    return {
        "name": row.name.casefold(),
        "state": STATES.index(row.state),
        "devices": row.devices,
        "utilization": row.utilization,
        "starvation": row.starvation,
        "vram": row.used_bytes / max(1, row.total_bytes),
        "tasks": row.tasks,
        "seen": row.seen_ns,
    }[sort]


def _list(parts: Parts, scope: Scope, query: Mapping[str, str]) -> dict[str, Any]:
    view = parts.projection.view
    listing = Listing.parse("/nodes", query, sorts=SORTS, default="name", filters=_FILTERS)
    rows, listing = listed_nodes(view, _seen(parts), scope, listing)
    return {"rows": rows, "listing": listing, "known": len(view.nodes)}


@get("/nodes", action="node.read", include_in_schema=False)
async def nodes(request: Ask) -> Response[str]:
    parts = parts_of(request)
    view = await parts.fresh_view()
    filters = [("state", "State", [(name, name.capitalize()) for name in STATES])]
    groups = sorted({group for name in view.nodes for group in view.groups_of(name)})
    if groups:
        filters.append(("group", "Group", [(name, name) for name in groups]))
    shown = _list(parts, scope_of(request), request.query_params)
    return page(request, "nodes/list.html", live="nodes", filters=filters, **shown)


def nodes_topic(parts: Parts) -> Topic:
    row = ENVIRONMENT.get_template("nodes/row.html")

    def render(scope: Scope, query: Mapping[str, str]) -> Patch:
        shown = _list(parts, scope, query)
        html = {f"node-{one.id}": row.render(row=one) for one in shown["rows"]}
        return Patch(html, {"node-rows": tuple(html)} if html else {})

    return Topic("nodes", _WAKES, "node.read", render)


# -- one node --------------------------------------------------------------------------------------------------------------------------


def _one(parts: Parts, scope: Scope, name: str) -> dict[str, Any]:
    """Raises NotThere, Ambiguous."""
    view, seen = parts.projection.view, _seen(parts)
    name = find_node(view, name)
    own = [seen[key] for key in ((name, device.index) for device in view.nodes[name].registered.devices) if key in seen]
    return {
        "node": node_row(view, seen, scope.sees, name),
        "devices": device_rows(view, seen, scope.sees, name),
        "sessions": session_rows(view, own, scope.sees),
    }


def _charts(history: History, shown: dict[str, Any], now_s: float) -> Charts:
    out = {}
    for device in shown["devices"]:
        load, vram = device_charts(history, device.node, device.index, now_s, device.total_bytes)
        out[f"load-{device.index}"] = f"GPU {device.index}: utilization and starvation", load
        out[f"vram-{device.index}"] = f"GPU {device.index}: VRAM", vram
    return out


@get("/nodes/{node:str}", action="node.read", include_in_schema=False)
async def node(request: Ask, node: str) -> Response[str]:
    parts = parts_of(request)
    await parts.fresh_view()
    return await _node_page(request, node)


async def _node_page(request: Ask, name: str, *, error: str = "", given: str | None = None, status: int = 200) -> Response[str]:
    parts = parts_of(request)
    shown = _one(parts, scope_of(request), name)
    store = context_of(request).metrics
    charts = _charts(request.app.state.web.history, shown, time.time())

    async def past(chosen: Range) -> Charts:
        found = await past_charts(store, chosen, time.time(), shown["node"].id)
        return {
            f"{kind}-{device.index}": (charts[f"{kind}-{device.index}"][0], found.get(str(device.index), found[""])[at])
            for device in shown["devices"]
            for at, kind in enumerate(("load", "vram"))
        }

    drawn = await chart_context(request.query_params, store, charts, past)
    own = shown["node"].overcommit_own
    return page(
        request,
        "nodes/one.html",
        status=status,
        live=f"node.{shown['node'].id}",
        revision=node_revision(parts.projection, shown["node"].id),
        overcommit=given if given is not None else "" if own is None else str(own),
        error=error,
        percent_max=PERCENT_MAX,
        **drawn,
        **shown,
    )


@get("/charts/nodes/{node:str}/{name:str}", action="node.read", include_in_schema=False)
async def node_chart(request: Ask, node: str, name: str) -> Response[dict[str, Any]]:
    """One chart's data, whole: read by a page that was cut off for a while."""
    charts = _charts(request.app.state.web.history, _one(parts_of(request), scope_of(request), node), time.time())
    if name not in charts:
        raise NotThere(f"there is no chart {name}")
    return Response(chart_data(charts[name][1]), headers={"cache-control": "no-store"})


def node_topic(parts: Parts, history: History) -> Topic:
    """Followed as ``/live/node.<id>``."""

    def render(scope: Scope, query: Mapping[str, str]) -> Patch:
        try:
            shown = _one(parts, scope, query.get("topic", ""))
        except (Ambiguous, NotThere):
            raise TopicEnded from None
        charts = _charts(history, shown, time.time())
        html = {"node-facts": ENVIRONMENT.get_template("nodes/facts.html").render(shown)}
        html["node-sessions"] = ENVIRONMENT.get_template("nodes/sessions.html").render(shown)
        for device in shown["devices"]:
            html[f"device-{device.index}"] = ENVIRONMENT.get_template("nodes/device.html").render(device=device)
        return Patch(html, {}, {name: chart_points(chart) for name, (_, chart) in charts.items()})

    return Topic("node", _WAKES, "node.read", render)


# -- what is done to it ----------------------------------------------------------------------------------------------------------------


@post("/nodes/{node:str}/drain", action="node.configure", include_in_schema=False, csrf="form")
async def drain(request: Ask, node: str) -> Redirect:
    values = await form_values(request)
    found = await parts_of(request).nodes.drain(caller_of(request), node, revision=revision_in(values))
    return redirect(f"/nodes/{node}", f"{found.registered.name} takes no new tasks, and finishes those it has.")


@post("/nodes/{node:str}/resume", action="node.configure", include_in_schema=False, csrf="form")
async def resume(request: Ask, node: str) -> Redirect:
    values = await form_values(request)
    found = await parts_of(request).nodes.resume(caller_of(request), node, revision=revision_in(values))
    return redirect(f"/nodes/{node}", f"{found.registered.name} takes new tasks again.")


@post("/nodes/{node:str}/overcommit", action="node.configure", include_in_schema=False, csrf="form")
async def overcommit(request: Ask, node: str) -> Redirect | Response[str]:
    """An empty field goes back to the global value."""
    values = await form_values(request)
    text = str(values.get("percent", ""))
    try:
        percent = _percent(values)
        found = await parts_of(request).nodes.configure(caller_of(request), node, {OVERCOMMIT_NODE: percent}, revision=revision_in(values))
    except Invalid as error:
        return await _node_page(request, node, error=str(error), given=text, status=400)
    except Stale:
        stale = "This node was changed since the page was loaded. Check the current values, and save again."
        return await _node_page(request, node, error=stale, given=text, status=409)
    now = "inherits the global overcommit" if percent is None else f"is overcommitted by {percent} %"
    return redirect(f"/nodes/{node}", f"{found.registered.name} {now}.")


def _percent(values: Values) -> int | None:
    text = str(values.get("percent", ""))
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) <= PERCENT_MAX):
        raise Invalid("percent", f"write a whole number from 0 to {PERCENT_MAX}, or nothing for the global value")
    return int(text)


ROUTES: Final[list[Any]] = [nodes, node, node_chart, drain, resume, overcommit]


GROUP_SORTS: Final[dict[str, Callable[[GroupRow], Any]]] = {
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
    listing = Listing.parse("/groups", query, sorts=tuple(GROUP_SORTS), default="id", filters=("members",))
    rows = [row for row in group_rows(view, tenant) if listing.search.casefold() in row.text]
    if listing.filters.get("members") in ("none", "some"):
        rows = [row for row in rows if bool(row.members) is (listing.filters["members"] == "some")]
    rows.sort(key=GROUP_SORTS[listing.sort], reverse=listing.descending)
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


GROUP_ROUTES: Final = [listed, new, one, create, edit, delete]
