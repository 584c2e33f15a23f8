"""Lookup of tasks and nodes by what users write, and the revisions of entities. Pure.

An id always means itself. A name that several have means the only one of them that is not over (a task) or not lost (a node). A revision is
the log position of the last fact about the entity itself, which answers carry and ``If-Match`` names; facts about its parts (a session that
opens on a task, a task on a node) do not change it, so a client with the revision of a running task can still cancel it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bus_schemas.subjects import event_subject
from scheduler.placement import ClusterView
from scheduler.placement.view import GLOBAL
from services.controller.errors import Ambiguous, NotThere, Stale
from services.controller.log_projection import LogProjection
from services.controller.presenters import Shown

_PREFIX_LEAST: Final = 4
"""A shorter beginning of an id would mean another task tomorrow."""
_LISTED_MAX: Final = 5


def find_task(view: ClusterView, asked: str, shown: Shown) -> str:
    """The id of a task given by id, title or the beginning of its id, among those of the tenants that are ``shown``. Raises NotThere,
    Ambiguous."""
    if asked in view.tasks:
        if shown(view.tasks[asked].submitted.tenant):
            return asked
        raise NotThere(f"there is no task {asked}")
    titled: list[str] = []
    begun: list[str] = []
    for name, task in view.tasks.items():
        said = task.submitted
        if (said.title == asked or _begins(name, asked)) and shown(said.tenant):
            (titled if said.title == asked else begun).append(name)
    return _only("task", asked, titled or begun, lambda name: view.tasks[name].live)


def find_node(view: ClusterView, asked: str) -> str:
    """The id of a node given by id, name or the beginning of its id. Raises NotThere, Ambiguous."""
    if asked in view.nodes:
        return asked
    named = [name for name, node in view.nodes.items() if node.registered.name == asked]
    begun = [] if named else [name for name in view.nodes if _begins(name, asked)]
    return _only("node", asked, named or begun, lambda name: view.nodes[name].lost is None)


def _begins(name: str, asked: str) -> bool:
    return len(asked) >= _PREFIX_LEAST and name.startswith(asked)


def _only(what: str, asked: str, found: list[str], lives: Shown) -> str:
    if not found:
        raise NotThere(f"there is no {what} {asked}")
    living = found if len(found) == 1 else [name for name in found if lives(name)]
    if len(living) == 1:
        return living[0]
    raise Ambiguous(f"{asked} may mean {len(found)} {what}s, give an id: {_list(living or found)}")


def _list(names: Iterable[str]) -> str:
    """The newest first."""
    newest = list(names)[::-1]
    return ", ".join(newest[:_LISTED_MAX]) + (" ..." if len(newest) > _LISTED_MAX else "")


def task_revision(projection: LogProjection, task: str) -> int:
    return max(_last(projection, ("task", task)), projection.turns.positions.get(task, 0))


def node_revision(projection: LogProjection, node: str) -> int:
    return _last(projection, ("node", node), ("config", node))


def group_revision(projection: LogProjection, group: str) -> int:
    """0: the group is no fact of its own (nodes name it, no user has described it)."""
    made = projection.view.groups.get(group)
    return made.revision if made is not None else 0


def config_revision(projection: LogProjection) -> int:
    return _last(projection, ("config", GLOBAL))


def check(what: str, held: int, expected: int | None) -> None:
    """Raises Stale when ``expected`` is given and is not the revision that holds."""
    if expected is not None and expected != held:
        raise Stale(what, held)


def _last(projection: LogProjection, *areas: tuple[str, str]) -> int:
    return max(projection.subject_positions.get(event_subject(area, entity), 0) for area, entity in areas)
