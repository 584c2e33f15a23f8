"""Which tasks a question finds: the same as the obvious slow way, and no more work than it must be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus_schemas.events import TaskPlaced, TaskStateChanged, TaskSubmitted
from scheduler.placement import ClusterView
from services.controller.presenters.tasks import TaskRow
from services.controller.task_index import SORTS, Found, TaskIndex, TaskQuery, find_tasks

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


def index_of(view: ClusterView) -> TaskIndex:
    index = TaskIndex()
    index.follow(view)
    return index


INDEX = index_of(view_of(60))


def page(index: TaskIndex, query: TaskQuery, limit: int, offset: int, tenant: str = "") -> Found:
    return find_tasks(index, query, lambda total: (offset, offset + limit), tenant)


def obviously(index: TaskIndex, query: TaskQuery, limit: int, offset: int, tenant: str) -> tuple[list[TaskRow], int]:
    found = []
    for row in index.all.rows.values():
        wanted: list[tuple[Any, Any]] = [
            (query.filters.get("state"), row.state),
            (query.filters.get("priority"), str(row.priority)),
            (query.filters.get("node"), row.node),
            ((query.tenant,) if query.tenant else None, row.tenant),
            ((tenant,) if tenant else None, row.tenant),
        ]
        text = f"{row.id} {row.title} {row.tenant} {row.node}".lower()
        if all(wish is None or held in wish for wish, held in wanted) and all(word in text for word in query.words):
            found.append(row)
    found.sort(key=SORTS[query.sort.removeprefix("-")], reverse=query.sort.startswith("-"))
    return found[offset : offset + limit], len(found)


FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "state": st.lists(st.sampled_from(STATES), min_size=1, max_size=2, unique=True).map(tuple),
        "priority": st.integers(0, 4).map(lambda level: (str(level),)),
        "node": st.sampled_from([("n0",), ("n1",)]),
    },
)
QUERIES = st.builds(
    TaskQuery,
    filters=FILTERS,
    tenant=st.sampled_from(["", "tenant0", "absent"]),
    words=st.lists(st.sampled_from(["run", "1", "tenant2", "zzz"]), max_size=2).map(tuple),
    sort=st.sampled_from([prefix + name for prefix in ("", "-") for name in SORTS]),
)


@given(query=QUERIES, limit=st.integers(1, 70), offset=st.integers(0, 70), tenant=st.sampled_from(["", "tenant1"]))
def test_as_the_obvious_way_finds_them(query: TaskQuery, limit: int, offset: int, tenant: str) -> None:
    found = page(INDEX, query, limit, offset, tenant)
    assert (list(found.rows), found.total) == obviously(INDEX, query, limit, offset, tenant)


@pytest.mark.parametrize("sort", ["submitted", "-submitted", "updated", "-updated"])
def test_an_unfiltered_page_looks_at_its_own_tasks_only(sort: str) -> None:
    found = page(INDEX, TaskQuery(sort=sort), 5, 10)
    assert (len(found.rows), found.total, found.touched) == (5, 60, 5)


def test_decided_tasks_are_those_with_a_decision() -> None:
    found = page(INDEX, TaskQuery({"decided": ("yes",)}, sort="id"), 100, 0)
    assert [row.id for row in found.rows] == sorted(row.id for row in INDEX.all.rows.values() if row.node)
