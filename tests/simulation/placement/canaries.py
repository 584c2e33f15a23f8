"""Bugs of the kind that is really made, planted one at a time in the placement core. The auditor, or the replay, must catch every one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from typing import Any, Final

from scheduler.placement import columns, order, queue, survey
from scheduler.placement.state import ClusterState
from scheduler.placement.view import ClusterView
from tests.simulation.placement.auditor import AuditError
from tests.simulation.placement.world import Plan, replay, run
from tests.support.replayed import ReplayMismatch

__all__ = ["CANARIES", "PLAN", "caught_by", "planted"]

decide: Final = import_module("scheduler.placement.decide")
"""The module; the package gives the function of this name."""

PLAN: Final = Plan(seed=4, nodes=12, gpus=4, tasks=400, fill=2.4, task_s=600)


def counts_only_the_first_device(original: Any) -> Any:
    """A task of several devices is charged on one of them."""

    def add(self: columns.Holdings, holds: Iterable[columns.Hold], sign: int) -> None:
        original(self, list(holds)[:1], sign)

    return add


def forgets_who_wants_to_be_alone(original: Any) -> Any:
    def hold(self: columns.Columns, row: int, sign: int, nbytes: int, noswap: int, exclusive: bool, priority: int) -> None:
        original(self, row, sign, nbytes, noswap, False, priority)

    return hold


def forgets_whom_a_device_serves(original: Any) -> Any:
    return lambda self, name: None


def takes_pinned_memory_for_swappable(original: Any) -> Any:
    return survey.free


def lets_everybody_into_groups(original: Any) -> Any:
    return lambda view, task, relaxed: original(view, task, relaxed | {"group_only", "not_in_group"})


def uses_drained_nodes(original: Any) -> Any:
    return lambda view, task, relaxed: original(view, task, relaxed | {"node_drained"})


def places_a_task_where_it_comes_from(original: Any) -> Any:
    return lambda self, task: None


def leaves_a_task_with_its_lost_node(original: Any) -> Any:
    return lambda self, event: None if event.lost else original(self, event)


def serves_the_youngest_first(original: Any) -> Any:
    return lambda view, names, at_ns: original(view, names, at_ns)[::-1]


def never_lets_anybody_rise(original: Any) -> Any:
    return lambda task, at_ns, period_ns: task.priority


def ignores_reservations(original: Any) -> Any:
    return lambda view, wish, at_ns: {}


def never_lets_go_of_a_reservation(original: Any) -> Any:
    """Keeps the first reservation on top of all later ones."""

    def reserve(self: Any, task: Any, reserved: Any) -> None:
        if reserved is not None:
            original(self, task, reserved)

    return reserve


def leaks_memory(original: Any) -> Any:
    """What ends goes on being counted."""

    def add(self: columns.Holdings, holds: Iterable[columns.Hold], sign: int) -> None:
        if sign > 0:
            original(self, holds, sign)

    return add


def takes_the_second_best(original: Any) -> Any:
    def choose(found: Any, score: Any, gpu_count: int) -> Any:
        if gpu_count > 1 or len(score) < 2:
            return original(found, score, gpu_count)
        at = int(score.argsort(kind="stable")[-2])
        return found.columns.names[found.columns.node_of[found.fits[at]]], [at]

    return choose


def loses_a_reason(original: Any) -> Any:
    def counts(self: Any) -> dict[str, int]:
        found: dict[str, int] = original(self)
        found.pop("device_exclusive", None)
        return found

    return counts


def decides_by_something_else_than_the_log(original: Any) -> Any:
    turn = count()

    def choose(found: Any, score: Any, gpu_count: int) -> Any:
        shifted = score.copy()
        if gpu_count > 1 and len(shifted) > 1 and next(turn) % 3 == 2:
            shifted[int(score.argmax())] -= 500
        return original(found, shifted, gpu_count)

    return choose


def _in(owner: Any, name: str) -> tuple[tuple[Any, str], ...]:
    return ((owner, name),)


CANARIES: Final[dict[Callable[[Any], Any], tuple[tuple[Any, str], ...]]] = {
    counts_only_the_first_device: _in(columns.Holdings, "_add"),
    forgets_who_wants_to_be_alone: _in(columns.Columns, "hold"),
    forgets_whom_a_device_serves: _in(ClusterView, "_serve"),
    takes_pinned_memory_for_swappable: _in(survey, "free_physical"),
    lets_everybody_into_groups: _in(survey, "_nodes"),
    uses_drained_nodes: _in(survey, "_nodes"),
    places_a_task_where_it_comes_from: _in(ClusterState, "leaving"),
    leaves_a_task_with_its_lost_node: _in(ClusterView, "_displaced"),
    serves_the_youngest_first: _in(queue, "in_order"),
    never_lets_anybody_rise: _in(order, "_level"),
    ignores_reservations: _in(decide, "kept_from"),
    never_lets_go_of_a_reservation: _in(ClusterView, "_reserve"),
    leaks_memory: _in(columns.Holdings, "_add"),
    takes_the_second_best: _in(decide, "_choose"),
    loses_a_reason: _in(survey.Survey, "counts"),
    decides_by_something_else_than_the_log: _in(decide, "_choose"),
}
"""Each bug, and where it is planted."""


@contextmanager
def planted(bug: Callable[[Any], Any]) -> Iterator[None]:
    """The core has this bug while inside."""
    originals = [(owner, name, getattr(owner, name)) for owner, name in CANARIES[bug]]
    for owner, name, original in originals:
        setattr(owner, name, bug(original))
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def caught_by(bug: Callable[[Any], Any], plan: Plan = PLAN) -> str:
    """Who noticed a bug, or nothing."""
    with planted(bug):
        try:
            outcome = run(plan)
            replay(outcome.log, 1)
        except AuditError:
            return "auditor"
        except ReplayMismatch:
            return "replay"
    return ""
