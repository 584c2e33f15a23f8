"""Task queries: filter, search, sort, page. Pure: a view in, tasks out.

Unfiltered and in the order of submission, only the tasks of the page are looked at, however many there are; of the states that are not
over, only the tasks that are not over; anything else looks once at every task of the view.

May live here: questions about tasks. May not: how a task is shown.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from scheduler.placement import ClusterView, TaskView
from scheduler.placement.states import LIVE, STATES

__all__ = ["SORTS", "TaskQuery", "find_tasks"]

_STATE_ORDER: Final = {state: number for number, state in enumerate(STATES)}


def _node(task: TaskView) -> str:
    return task.placed.node if task.placed is not None else ""


SORTS: Final[dict[str, Callable[[TaskView], Any]]] = {
    "submitted": lambda task: (task.position, task.submitted.task),
    "updated": lambda task: (task.updated_ns, task.submitted.task),
    "priority": lambda task: (task.priority, task.position, task.submitted.task),
    "state": lambda task: (_STATE_ORDER[task.state], task.position, task.submitted.task),
    "vram": lambda task: (task.submitted.vram_bytes, task.submitted.task),
    "node": lambda task: (_node(task), task.submitted.task),
    "tenant": lambda task: (task.submitted.tenant, task.submitted.task),
    "title": lambda task: (task.submitted.title.casefold(), task.submitted.task),
    "id": lambda task: task.submitted.task,
}
"""Every order is total, so pages neither repeat nor leave out a task."""


@dataclass(frozen=True, slots=True)
class TaskQuery:
    """Empty and None: any. ``sort``: a key of SORTS, ``-`` before it: the other way round. ``words`` must all occur in what names it."""

    state: str | None = None
    priority: int | None = None
    node: str | None = None
    group: str | None = None
    tenant: str | None = None
    words: tuple[str, ...] = ()
    decided: bool = False
    sort: str = "-submitted"
    limit: int = 100
    offset: int = 0

    @property
    def everything(self) -> bool:
        return (self.state, self.priority, self.node, self.group, self.tenant, self.words, self.decided) == (None,) * 5 + ((), False)

    def takes(self, task: TaskView) -> bool:
        said = task.submitted
        return (
            (self.state is None or task.state == self.state)
            and (self.priority is None or task.priority == self.priority)
            and (self.node is None or _node(task) == self.node)
            and (self.group is None or self.group in said.groups)
            and (self.tenant is None or said.tenant == self.tenant)
            and (not self.decided or task.decision is not None)
            and (not self.words or self._names(task))
        )

    def _names(self, task: TaskView) -> bool:
        said = task.submitted
        text = f"{said.task}\n{said.title}\n{said.tenant}\n{_node(task)}"
        text = ("\n".join((text, *said.groups)) if said.groups else text).lower()
        return all(word in text for word in self.words)


def find_tasks(view: ClusterView, query: TaskQuery, tenant: str = "") -> tuple[list[TaskView], int]:
    """The tasks of the page, and how many there are on all pages. ``tenant`` not empty: of this tenant's only, whatever the query says."""
    until = query.offset + query.limit
    descending = query.sort.startswith("-")
    by_age = query.sort.removeprefix("-") == "submitted"
    if query.everything and not tenant and by_age:
        order: Iterator[TaskView] = reversed(view.tasks.values()) if descending else iter(view.tasks.values())
        return list(islice(order, query.offset, until)), len(view.tasks)
    found = [task for task in _candidates(view, query) if (not tenant or task.submitted.tenant == tenant) and query.takes(task)]
    if query.offset >= len(found):
        return [], len(found)
    if by_age:
        return (found[::-1] if descending else found)[query.offset : until], len(found)
    pick = heapq.nlargest if descending else heapq.nsmallest
    return pick(until, found, key=SORTS[query.sort.removeprefix("-")])[query.offset :], len(found)


def _candidates(view: ClusterView, query: TaskQuery) -> Iterable[TaskView]:
    """The tasks that may match, in the order of their submission: the view keeps them so."""
    if query.state in LIVE:
        return sorted((view.tasks[name] for name in view.live), key=SORTS["submitted"])
    return view.tasks.values()
