"""What the Tasks page and its live stream both show: one reading of the index for a scope and a query string.

May live here: that reading, and its parts as patches. May not: requests, the story of a task.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduler.placement import ClusterView
from scheduler.placement.view import STATES
from services.controller.parts import Parts
from services.controller.revisions import task_revision
from services.controller.web.channel import Gone, Topic
from services.controller.web.desk import Desk
from services.controller.web.listing import Listing
from services.controller.web.patch import Patch
from services.controller.web.scope import Scope
from services.controller.web.tasks.index import Row, row_of
from services.controller.web.tasks.table import DEFAULT_SORT, FILTERS, SORTS, ask
from services.controller.web.tasks.waiting import waiting_of
from services.controller.web.templating import ENVIRONMENT
from services.kit.errors import BusRefused, BusUnavailable

__all__ = ["Shown", "show", "task_topic", "tasks_topic"]

_TEMPLATE: Final = "tasks/rows.html"
_CHOICES_MAX: Final = 300

Choices = list[tuple[str, str, list[tuple[str, str]]]]
"""(name, label, (value, text) ...) of each select box."""


@dataclass(frozen=True, slots=True)
class Shown:
    """``names``: what people call the nodes of the rows. ``counts``: tasks of the scope, all and by state. ``opened``: the row whose story
    is asked for, or empty."""

    listing: Listing
    rows: tuple[Row, ...]
    names: Mapping[str, str]
    counts: Mapping[str, Any]
    filters: Choices
    opened: str


def show(view: ClusterView, desk: Desk, scope: Scope, query: Mapping[str, str]) -> Shown:
    """The page of tasks that ``query`` asks for, of those that ``scope`` sees."""
    desk.tasks.follow(view)
    listing = Listing.parse("/tasks", query, sorts=tuple(SORTS), default=DEFAULT_SORT, filters=FILTERS)
    found = ask(desk.tasks, listing, scope.tenant)
    shelf = desk.tasks.of(scope.tenant) if scope.tenant else desk.tasks.all
    opened = query.get("open", "")
    return Shown(
        listing=found.listing,
        rows=found.rows,
        names=_names(view, [row.node for row in found.rows]),
        counts={"all": len(shelf.rows), "states": [(state, shelf.count("state", state)) for state in STATES]},
        filters=_choices(view, desk, scope, found.listing),
        opened=opened if any(row.id == opened for row in found.rows) else "",
    )


def _names(view: ClusterView, nodes: list[str]) -> dict[str, str]:
    return {node: view.nodes[node].registered.name for node in nodes if node in view.nodes}


def _choices(view: ClusterView, desk: Desk, scope: Scope, listing: Listing) -> Choices:
    """The select boxes of the filter bar. What is chosen is always among the choices."""
    shelf = desk.tasks.of(scope.tenant) if scope.tenant else desk.tasks.all
    nodes = shelf.values("node")[:_CHOICES_MAX]
    names = _names(view, nodes)
    found = [
        ("priority", "Priority", [(str(level), f"P{level}") for level in range(5)]),
        ("node", "Node", [(node, names.get(node, node)) for node in nodes]),
        ("group", "Group", [(group, group) for group in shelf.values("group")[:_CHOICES_MAX]]),
    ]
    if not scope.tenant:
        found.append(("tenant", "Tenant", [(tenant, tenant) for tenant in desk.tasks.tenants()[:_CHOICES_MAX]]))
    for name, _, choices in found:
        chosen = listing.filters.get(name, "")
        if chosen and chosen not in [value for value, _ in choices]:
            choices.append((chosen, chosen))
    return found


def tasks_topic(parts: Parts, desk: Desk) -> Topic:
    """Keeps the open Tasks pages up to date: rows, counts, pager."""

    def render(scope: Scope, query: Mapping[str, str]) -> Patch:
        shown = show(parts.mirror.view, desk, scope, query)
        parts_of_page: Any = ENVIRONMENT.get_template(_TEMPLATE).module
        html = {f"task-{one.id}": str(parts_of_page.row(shown.listing, one, shown.names, shown.opened)) for one in shown.rows}
        html["task-counts"] = str(parts_of_page.chips(shown.listing, shown.counts))
        html["task-empty"] = str(parts_of_page.empty_note(shown.listing))
        html["task-foot"] = str(parts_of_page.foot(shown.listing))
        return Patch(html, {"task-rows": tuple(f"task-{one.id}" for one in shown.rows)})

    return Topic("tasks", frozenset({"task", "session", "node"}), "task.read", render)


def task_topic(parts: Parts) -> Topic:
    """Followed as ``/live/task.<id>.<revision>``: state, priority, waiting and the end of the log of one task, and whether it changed since
    that revision."""

    async def render(scope: Scope, query: Mapping[str, str]) -> Patch:
        name, _, revision = query.get("topic", "").partition(".")
        view = parts.mirror.view
        task = view.tasks.get(name)
        if task is None or not scope.sees(task.submitted.tenant):
            raise Gone
        parts_of_page: Any = ENVIRONMENT.get_template("tasks/now.html").module
        changed = revision != str(task_revision(parts.mirror, name))
        waiting = waiting_of(view, name, time.time_ns(), scope)
        html = {"task-now": parts_of_page.head(row_of(task, "", 0), changed), "task-waits": parts_of_page.waits(waiting)}
        with contextlib.suppress(BusUnavailable, BusRefused):  # the log stays as it is shown
            html["task-log"] = parts_of_page.log(await parts.runs.tail(name))
        return Patch({name: str(part) for name, part in html.items()})

    return Topic("task", frozenset({"task", "session", "node", "config", "log"}), "task.read", render)
