"""The tasks of a view as the Tasks page looks at them: kept in order of their last change, with shelves by tenant and by what is filtered.

``TaskIndex.follow(view)`` reads only what changed since; asking is a matter of the rows that are shown, also with 100,000 tasks in the log,
as long as it asks for what is kept in order. May live here: what is kept. May not: questions (table), how a row looks (templates).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.placement import ClusterView, TaskView

__all__ = ["FACETS", "Row", "Shelf", "TaskIndex", "row_of"]

FACETS = ("state", "priority", "node", "group")
"""What a shelf keeps apart: (facet, value) -> ids."""


@dataclass(frozen=True, slots=True)
class Row:
    """One task as the table shows it. ``serial`` grows with every change of any task; ``text`` is what search looks in, case folded."""

    id: str
    title: str
    tenant: str
    priority: int
    state: str
    reason: str
    vram_bytes: int
    gpu_count: int
    exclusive: bool
    node: str
    groups: tuple[str, ...]
    waiting: bool
    submitted_ns: int
    updated_ns: int
    serial: int
    text: str


def row_of(task: TaskView, node_name: str, serial: int) -> Row:
    said, node = task.submitted, task.placed.node if task.placed is not None else ""
    return Row(
        id=said.task,
        title=said.title,
        tenant=said.tenant,
        priority=task.priority,
        state=task.state,
        reason=task.reason,
        vram_bytes=said.vram_bytes,
        gpu_count=said.gpu_count,
        exclusive=said.exclusive,
        node=node,
        groups=said.groups,
        waiting=task.waiting,
        submitted_ns=said.at_ns,
        updated_ns=task.updated_ns,
        serial=serial,
        text="\n".join((said.task, said.title, said.tenant, node, node_name, *said.groups)).casefold(),
    )


@dataclass(slots=True)
class Shelf:
    """Rows by id, and their ids by facet; every mapping in order of last change, the newest last."""

    rows: dict[str, Row] = field(default_factory=dict)
    facets: dict[tuple[str, str], dict[str, None]] = field(default_factory=dict)

    def put(self, row: Row) -> None:
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


def _keys(row: Row) -> list[tuple[str, str]]:
    keys = [("state", row.state), ("priority", str(row.priority))]
    if row.node:
        keys.append(("node", row.node))
    keys += [("group", group) for group in row.groups]
    return keys


class TaskIndex:
    """``all``: every task. ``of(tenant)``: those of one. ``read``: how many changed tasks ``follow`` has read so far."""

    def __init__(self) -> None:
        self._view: ClusterView | None = None
        self._serial = 0
        self._position = 0
        self._tenants: dict[str, Shelf] = {}
        self.all = Shelf()
        self.read = 0

    def of(self, tenant: str) -> Shelf:
        return self._tenants.get(tenant, _NOBODY)

    def tenants(self) -> list[str]:
        return sorted(self._tenants)

    def follow(self, view: ClusterView) -> None:
        """Take in every task that changed since the last call; a view that is another one (the log began anew) is read in full."""
        if view is not self._view or view.position < self._position:
            self.__init__()  # type: ignore[misc]  # forget everything
            self._view = view
        changed: list[str] = []
        for task, position in reversed(view.recent.items()):
            if position < self._position:
                break
            changed.append(task)  # one position may bring several events: what is exactly as new as we are is read again
        for name in reversed(changed):
            self._take(view, view.tasks[name])
        self._position = view.position

    def _take(self, view: ClusterView, task: TaskView) -> None:
        self._serial += 1
        self.read += 1
        node = view.nodes.get(task.placed.node) if task.placed is not None else None
        row = row_of(task, node.registered.name if node is not None else "", self._serial)
        self.all.put(row)
        self._tenants.setdefault(row.tenant, Shelf()).put(row)


_NOBODY = Shelf()
