"""The task index: a secondary index over the view's tasks, and the one query engine of REST and pages. Pure.

``TaskIndex.follow(view)`` reads only what changed since the last call. A query for rows that are kept in the wanted order (at most one
filter, no search, by submission or last change) touches only the rows that it returns; any other touches what its narrowest filter leaves.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from scheduler.placement import ClusterView, TaskView
from scheduler.placement.states import STATES
from services.controller.presenters.tasks import TaskRow, task_row

_STATE_ORDER: Final = {state: number for number, state in enumerate(STATES)}

SORTS: Final[dict[str, Callable[[TaskRow], Any]]] = {
    "submitted": lambda row: (row.position, row.id),
    "updated": lambda row: row.serial,
    "id": lambda row: row.id,
    "title": lambda row: (row.title.casefold(), row.id),
    "tenant": lambda row: (row.tenant, row.id),
    "priority": lambda row: (row.priority, row.position, row.id),
    "state": lambda row: (_STATE_ORDER[row.state], row.position, row.id),
    "vram": lambda row: (row.vram_bytes, row.id),
    "gpus": lambda row: (row.gpu_count, row.id),
    "node": lambda row: (row.node, row.id),
    "groups": lambda row: (row.groups, row.id),
}
"""Every order is total, so pages neither repeat nor leave out a task."""

_Filter = tuple[str, tuple[str, ...]]


@dataclass(slots=True)
class TaskIndexShard:
    """Rows by id, and their ids by facet (state, priority, node, group, decided); every mapping in order of last change, newest last."""

    rows: dict[str, TaskRow] = field(default_factory=dict)
    facets: dict[tuple[str, str], dict[str, None]] = field(default_factory=dict)

    def put(self, row: TaskRow) -> None:
        before = self.rows.pop(row.id, None)
        if before is not None:
            for key in _keys(before):
                del self.facets[key][row.id]
        self.rows[row.id] = row
        for key in _keys(row):
            self.facets.setdefault(key, {})[row.id] = None

    def count(self, facet: str, value: str) -> int:
        return len(self.facets.get((facet, value), ()))

    def values(self, facet: str) -> list[str]:
        """The values that some task has now, sorted."""
        return sorted(value for (of, value), ids in self.facets.items() if of == facet and ids)


def _keys(row: TaskRow) -> list[tuple[str, str]]:
    keys = [("state", row.state), ("priority", str(row.priority))]
    if row.node:
        keys.append(("node", row.node))
    if row.decided:
        keys.append(("decided", "yes"))
    return [*keys, *(("group", group) for group in row.groups)]


class TaskIndex:
    """``all``: every task; ``of``: those of one tenant. ``read``: how many changed tasks ``follow`` has read so far."""

    def __init__(self) -> None:
        self._begin(None)

    def _begin(self, view: ClusterView | None) -> None:
        """Start an empty index of ``view``."""
        self.view = view
        self._serial = 0
        self._position = 0
        self._tenants: dict[str, TaskIndexShard] = {}
        self.all = TaskIndexShard()
        self.read = 0

    def of(self, tenant: str) -> TaskIndexShard:
        """The shard of a tenant; empty: of all."""
        return self._tenants.get(tenant, _EMPTY) if tenant else self.all

    def tenants(self) -> list[str]:
        return sorted(self._tenants)

    def follow(self, view: ClusterView) -> None:
        """Take in every task that changed since the last call. Another view (the log began anew) is read in full."""
        if view is not self.view or view.position < self._position:
            self._begin(view)
        changed: list[str] = []
        for task, position in reversed(view.recent.items()):
            if position < self._position:
                break
            changed.append(task)  # one position may bring several events: tasks exactly as new as the index are read again
        for name in reversed(changed):
            self._take(view, view.tasks[name])
        self._position = view.position

    def _take(self, view: ClusterView, task: TaskView) -> None:
        self._serial += 1
        self.read += 1
        row = task_row(view, task, self._serial)
        self.all.put(row)
        self._tenants.setdefault(row.tenant, TaskIndexShard()).put(row)


_EMPTY: Final = TaskIndexShard()


@dataclass(frozen=True, slots=True)
class TaskQuery:
    """What tasks are asked for; whatever is empty leaves none out."""

    filters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  #: facet to its wanted values: any of them
    tenant: str = ""
    words: Collection[str] = ()  #: case folded; each must occur in the row's text
    sort: str = "-submitted"  #: a key of SORTS; ``-`` before it: descending


@dataclass(frozen=True, slots=True)
class Found:
    """The rows of a page."""

    rows: tuple[TaskRow, ...]
    total: int  #: rows on all pages
    touched: int  #: rows looked at for the answer


def find_tasks(index: TaskIndex, query: TaskQuery, window: Callable[[int], tuple[int, int]], tenant: str = "") -> Found:
    """``window``: from the number of all matches to the numbers of the first row of the page and the one after its last. ``tenant`` not
    empty: this tenant's tasks only, whatever the query says."""
    if tenant and query.tenant not in ("", tenant):
        return Found((), 0, 0)
    shard = index.of(tenant or query.tenant)
    filters: list[_Filter] = list(query.filters.items())
    start = min(filters, key=lambda one: sum(shard.count(one[0], value) for value in one[1]), default=None)
    rest = [one for one in filters if one is not start]
    descending, sort = query.sort.startswith("-"), query.sort.removeprefix("-")
    kept = None if query.words or rest else _kept(index, shard, sort, start)
    if kept is not None:
        first, end = window(len(kept))
        rows = tuple(shard.rows[name] for name in islice(reversed(kept) if descending else iter(kept), first, end))
        return Found(rows, len(kept), len(rows))
    candidates = list(_candidates(shard, start))
    found = [row for row in candidates if all(word in row.text for word in query.words) and all(_matches(row, *one) for one in rest)]
    first, end = window(len(found))
    pick = heapq.nlargest if descending else heapq.nsmallest
    return Found(tuple(pick(min(end, len(found)), found, key=SORTS[sort])[first:]), len(found), len(candidates))


def _kept(index: TaskIndex, shard: TaskIndexShard, sort: str, start: _Filter | None) -> dict[str, Any] | None:
    """Ids in the wanted order where a mapping has them so; None where none has."""
    if sort == "submitted" and start is None and shard is index.all and index.view is not None:
        return index.view.tasks  # the view keeps them in the order of submission
    if sort != "updated" or (start is not None and len(start[1]) > 1):
        return None
    return shard.rows if start is None else shard.facets.get((start[0], start[1][0]), {})


def _candidates(shard: TaskIndexShard, start: _Filter | None) -> Iterable[TaskRow]:
    if start is None:
        return shard.rows.values()
    return (shard.rows[name] for value in start[1] for name in shard.facets.get((start[0], value), ()))


def _matches(row: TaskRow, facet: str, values: tuple[str, ...]) -> bool:
    if facet == "group":
        return any(value in row.groups for value in values)
    return (str(row.priority) if facet == "priority" else getattr(row, facet)) in values
