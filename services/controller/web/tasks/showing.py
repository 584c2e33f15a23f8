"""What the Tasks page and its live stream both show: one reading of the index for a scope and a query string.

May live here: that reading, and its parts as patches. May not: requests, the story of a task.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduler.placement import ClusterView
from scheduler.placement.view import STATES
from services.controller.parts import Parts
from services.controller.presenters.tasks import TaskRow, task_row
from services.controller.presenters.waiting import waiting_of
from services.controller.revisions import task_revision
from services.controller.task_index import SORTS, TaskIndex, TaskQuery, find_tasks
from services.controller.web.channel import Gone, Patch, Topic
from services.controller.web.listing import Listing
from services.controller.web.scope import Scope
from services.controller.web.templating import ENVIRONMENT

__all__ = ["DEFAULT_SORT", "FILTERS", "Page", "Shown", "ask", "show", "task_topic", "tasks_topic"]

_TEMPLATE: Final = "tasks/rows.html"
_CHOICES_MAX: Final = 300
FILTERS: Final = ("state", "priority", "node", "group", "tenant")
"""Filters in the address. A state or priority may be several, with commas between: any of them."""
DEFAULT_SORT: Final = "-updated"

Choices = list[tuple[str, str, list[tuple[str, str]]]]
"""(name, label, (value, text) ...) of each select box."""


@dataclass(frozen=True, slots=True)
class Shown:
    """``names``: what people call the nodes of the rows. ``counts``: tasks of the scope, all and by state. ``opened``: the row whose story
    is asked for, or empty."""

    listing: Listing
    rows: tuple[TaskRow, ...]
    names: Mapping[str, str]
    counts: Mapping[str, Any]
    filters: Choices
    opened: str


@dataclass(frozen=True, slots=True)
class Page:
    """``listing``: as asked, with the number of rows that the filters leave. ``touched``: rows looked at for the answer."""

    rows: tuple[TaskRow, ...]
    listing: Listing
    touched: int


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


def show(parts: Parts, scope: Scope, query: Mapping[str, str]) -> Shown:
    """The page of tasks that ``query`` asks for, of those that ``scope`` sees."""
    view, index = parts.mirror.view, parts.task_index()
    listing = Listing.parse("/tasks", query, sorts=tuple(SORTS), default=DEFAULT_SORT, filters=FILTERS)
    found = ask(index, listing, scope.tenant)
    shard = index.of(scope.tenant)
    opened = query.get("open", "")
    return Shown(
        listing=found.listing,
        rows=found.rows,
        names=_names(view, [row.node for row in found.rows]),
        counts={"all": len(shard.rows), "states": [(state, shard.count("state", state)) for state in STATES]},
        filters=_choices(view, index, scope, found.listing),
        opened=opened if any(row.id == opened for row in found.rows) else "",
    )


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
        html = {f"task-{one.id}": str(parts_of_page.row(shown.listing, one, shown.names, shown.opened)) for one in shown.rows}
        html["task-counts"] = str(parts_of_page.chips(shown.listing, shown.counts))
        html["task-empty"] = str(parts_of_page.empty_note(shown.listing))
        html["task-foot"] = str(parts_of_page.foot(shown.listing))
        return Patch(html, {"task-rows": tuple(f"task-{one.id}" for one in shown.rows)})

    return Topic("tasks", frozenset({"task", "session", "node"}), "task.read", render)


def task_topic(parts: Parts) -> Topic:
    """Followed as ``/live/task.<id>.<revision>``: state, priority and waiting of one task, and whether it changed since that revision."""

    def render(scope: Scope, query: Mapping[str, str]) -> Patch:
        name, _, revision = query.get("topic", "").partition(".")
        view = parts.mirror.view
        task = view.tasks.get(name)
        if task is None or not scope.sees(task.submitted.tenant):
            raise Gone
        parts_of_page: Any = ENVIRONMENT.get_template("tasks/now.html").module
        changed = revision != str(task_revision(parts.mirror, name))
        waiting = waiting_of(view, name, time.time_ns(), scope.sees)
        return Patch({"task-now": str(parts_of_page.head(task_row(view, task), changed)), "task-waits": str(parts_of_page.waits(waiting))})

    return Topic("task", frozenset({"task", "session", "node", "config"}), "task.read", render)
