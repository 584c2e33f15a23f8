"""Which tasks a question finds: the same as the obvious slow way, and no more work than it must be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus_schemas.events import TaskPlaced, TaskStateChanged, TaskSubmitted
from scheduler.placement import ClusterView, TaskView
from services.controller.task_query import SORTS, TaskQuery, find_tasks

STATES = ("queued", "completed", "failed", "cancelled")


def view_of(count: int) -> ClusterView:
    view = ClusterView()
    for number in range(count):
        name = f"t{number * 7 % count:03}"
        view.apply(2 * number + 1, TaskSubmitted(number, name, f"tenant{number % 3}", number % 5, 1 << 20, title=f"Run {number % 4}"))
        if number % 2:
            view.apply(2 * number + 2, TaskPlaced(number, name, f"n{number % 3}", (0,), (), (), 1))
        state = STATES[number % 4]
        if state != "queued":
            view.apply(2 * number + 2, TaskStateChanged(number, name, state))
    return view


VIEW = view_of(60)


def obviously(view: ClusterView, query: TaskQuery, tenant: str) -> tuple[list[TaskView], int]:
    found = []
    for task in view.tasks.values():
        said = task.submitted
        node = task.placed.node if task.placed is not None else ""
        wanted: list[tuple[Any, Any]] = [
            (query.state, task.state),
            (query.priority, task.priority),
            (query.node, node),
            (query.tenant, said.tenant),
            (tenant or None, said.tenant),
        ]
        text = f"{said.task} {said.title} {said.tenant} {node}".lower()
        if all(wish is None or wish == held for wish, held in wanted) and all(word in text for word in query.words):
            found.append(task)
    found.sort(key=SORTS[query.sort.removeprefix("-")], reverse=query.sort.startswith("-"))
    return found[query.offset : query.offset + query.limit], len(found)


QUERIES = st.builds(
    TaskQuery,
    state=st.none() | st.sampled_from(STATES),
    priority=st.none() | st.integers(0, 4),
    node=st.none() | st.sampled_from(["n0", "n1"]),
    tenant=st.none() | st.sampled_from(["tenant0", "nobody"]),
    words=st.lists(st.sampled_from(["run", "1", "tenant2", "zzz"]), max_size=2).map(tuple),
    sort=st.sampled_from([prefix + name for prefix in ("", "-") for name in SORTS]),
    limit=st.integers(1, 70),
    offset=st.integers(0, 70),
)


@given(query=QUERIES, tenant=st.sampled_from(["", "tenant1"]))
def test_as_the_obvious_way_finds_them(query: TaskQuery, tenant: str) -> None:
    assert find_tasks(VIEW, query, tenant) == obviously(VIEW, query, tenant)


@pytest.mark.parametrize("sort", ["submitted", "-submitted"])
def test_an_unfiltered_page_looks_at_its_own_tasks_only(sort: str) -> None:
    class Counted(dict[str, TaskView]):
        looked = 0

        def values(self) -> Any:
            return self

        def __iter__(self) -> Any:
            for task in super().values():
                Counted.looked += 1
                yield task

        def __reversed__(self) -> Any:
            for task in reversed(list(super().values())):
                Counted.looked += 1
                yield task

    view = view_of(60)
    view.tasks = Counted(view.tasks)
    page, total = find_tasks(view, TaskQuery(sort=sort, limit=5, offset=10))
    assert (len(page), total) == (5, 60)
    assert Counted.looked == 15
