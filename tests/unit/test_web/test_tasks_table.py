"""The questions of the Tasks page against a plain definition, and what they cost: rows touched, never milliseconds."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from bus_schemas.events import DeviceFact, NodeRegistered, TaskPlaced, TaskRefused, TaskStateChanged, TaskSubmitted
from scheduler.placement import ClusterView
from services.controller.presenters.tasks import TaskRow, task_row
from services.controller.task_index import SORTS, TaskIndex
from services.controller.web.listing import Listing
from services.controller.web.tasks import DEFAULT_SORT, FILTERS, ask

_NODES = ("alpha", "beta", "gamma")
_TENANTS = ("acme", "globex", "initech")


def facts(count: int) -> Iterator[object]:
    """Three nodes and ``count`` tasks: of every state, priority, tenant, group."""
    dice = random.Random(count)
    for node in _NODES:
        yield NodeRegistered(1, node, f"{node}-name", "", 1, (DeviceFact(0, "gpu", "host", 8, 1 << 40),), (), "1")
    for number in range(count):
        name, at = f"t{number:06d}", 1_000 + number
        groups = dice.choice(((), ("train",), ("train", "west")))
        title, vram = f"{dice.choice(('Llama', 'ResNet', 'Émile'))} {number % 97}", (1 + number % 7) << 30
        yield TaskSubmitted(at, name, dice.choice(_TENANTS), dice.randrange(5), vram, groups=groups, title=title, queue=True)
        end = dice.randrange(6)
        if end == 0:
            yield TaskRefused(at, name, (("alpha", 0, "vram_short", "x"),), 1)
        elif end >= 2:
            yield TaskPlaced(at, name, dice.choice(_NODES), (0,), (), (), 1)
        if end >= 4:
            yield TaskStateChanged(at + 1, name, "completed" if end == 4 else "failed", "why")


def fold(count: int) -> ClusterView:
    view = ClusterView()
    for position, fact in enumerate(facts(count), start=1):
        view.apply(position, fact)  # type: ignore[arg-type]  # a row of facts
    return view


@pytest.fixture(scope="module")
def view() -> ClusterView:
    return fold(600)


@pytest.fixture(scope="module")
def index(view: ClusterView) -> TaskIndex:
    made = TaskIndex()
    made.follow(view)
    return made


def asking(search: str = "", sort: str = "-updated", page: int = 1, per_page: int = 50, **filters: str) -> Listing:
    query = {"q": search, "sort": sort, "page": str(page), "per_page": str(per_page), **filters}
    return Listing.parse("/tasks", query, sorts=tuple(SORTS), default=DEFAULT_SORT, filters=FILTERS)


def plainly(view: ClusterView, listing: Listing, tenant: str = "") -> tuple[list[str], int]:
    """The same question, as one would define it: rows of all tasks, filtered, sorted, cut."""
    order = {name: number for number, name in enumerate(view.recent)}
    rows = [task_row(view, task, order[task.submitted.task]) for task in view.tasks.values()]
    left = [row for row in rows if _wanted(row, listing) and (not tenant or row.tenant == tenant)]
    left.sort(key=SORTS[listing.sort], reverse=listing.descending)
    cut, counted = listing.take(left)
    return [row.id for row in cut], counted.total


def _wanted(row: TaskRow, listing: Listing) -> bool:
    asked = listing.filters
    return (
        row.state in asked.get("state", row.state).split(",")
        and str(row.priority) in asked.get("priority", str(row.priority)).split(",")
        and row.node == asked.get("node", row.node)
        and ("group" not in asked or asked["group"] in row.groups)
        and row.tenant == asked.get("tenant", row.tenant)
        and listing.search.casefold() in row.text
    )


@pytest.mark.parametrize("sort", [sign + key for key in sorted(SORTS) for sign in ("", "-")])
def test_every_sort_is_the_plain_one_page_after_page(view: ClusterView, index: TaskIndex, sort: str) -> None:
    for number in (1, 2, 12, 13, 10_000):
        listing = asking(sort=sort, page=number)
        page = ask(index, listing)
        assert ([row.id for row in page.rows], page.listing.total) == plainly(view, listing)


def test_any_mixture_of_filters_is_the_plain_one(view: ClusterView, index: TaskIndex) -> None:
    dice = random.Random(7)
    for _ in range(400):
        listing = asking(
            search=dice.choice(("", "", "llama", "ÉMILE 1", "t00001", "BETA-name", "no task has this")),
            sort=dice.choice(("", "-")) + dice.choice(sorted(SORTS)),
            page=dice.choice((1, 1, 2, 5)),
            per_page=dice.choice((25, 50, 200)),
            state=dice.choice(("", "queued", "started,failed", "completed", "running")),
            priority=dice.choice(("", "0", "1,4", "1,1")),
            node=dice.choice(("", "", "alpha", "unheard-of")),
            group=dice.choice(("", "train", "west")),
            tenant=dice.choice(("", *_TENANTS, "nobody")),
        )
        page = ask(index, listing)
        assert ([row.id for row in page.rows], page.listing.total) == plainly(view, listing), listing


def test_a_tenant_sees_its_own_whatever_it_asks_for(view: ClusterView, index: TaskIndex) -> None:
    listing = asking(per_page=200)
    page = ask(index, listing, tenant="acme")
    assert ([row.id for row in page.rows], page.listing.total) == plainly(view, listing, "acme")
    assert {row.tenant for row in page.rows} == {"acme"}
    assert ask(index, asking(tenant="globex"), tenant="acme").listing.total == 0
    assert ask(index, asking(), tenant="nobody").listing.total == 0


def test_pages_follow_each_other_without_gap_or_repeat(view: ClusterView, index: TaskIndex) -> None:
    seen: list[str] = []
    first = ask(index, asking(state="completed", sort="priority", per_page=25)).listing
    for number in range(1, first.pages + 1):
        seen += [row.id for row in ask(index, asking(state="completed", sort="priority", per_page=25, page=number)).rows]
    assert len(seen) == len(set(seen)) == first.total == sum(task.state == "completed" for task in view.tasks.values())


def test_a_change_moves_a_task_and_nothing_else_is_read_again() -> None:
    view, index = fold(300), TaskIndex()
    index.follow(view)
    waiting = next(name for name, task in view.tasks.items() if task.state == "queued")
    view.apply(view.position + 1, TaskStateChanged(10**6, waiting, "failed", "no"))
    before, counted = index.read, index.all.count("state", "failed")
    index.follow(view)
    assert index.read - before <= 2  # it, and at most one that is as new as the last look
    assert ask(index, asking()).rows[0].id == waiting
    assert index.all.count("state", "failed") == counted + 1
    assert waiting not in [row.id for row in ask(index, asking(state="queued", per_page=200)).rows]


def test_a_view_that_began_anew_is_read_in_full() -> None:
    index = TaskIndex()
    index.follow(fold(50))
    index.follow(fold(20))
    assert ask(index, asking()).listing.total == 20


def test_what_one_page_of_100_000_tasks_touches() -> None:
    view, index = fold(100_000), TaskIndex()
    index.follow(view)
    assert index.read == 100_000
    index.follow(view)
    assert index.read <= 100_001  # nothing has changed
    as_kept = [
        asking(),
        asking(page=1_001),
        asking(state="queued"),
        asking(node="beta", sort="updated"),
        asking(tenant="acme"),
        asking(tenant="acme", priority="0"),
    ]
    for listing in as_kept:
        page = ask(index, listing)
        assert len(page.rows) == page.touched == 50, listing
    searched = ask(index, asking(search="llama", state="queued", group="west"))
    assert searched.touched == min(index.all.count("state", "queued"), index.all.count("group", "west"))
    assert ask(index, asking(sort="vram")).touched == 100_000
    assert len(ask(index, asking(sort="vram", per_page=200)).rows) == 200
