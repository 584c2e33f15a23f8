"""The questions of the Tasks page: filter, search, sort, page. Pure: an index and a listing in, rows out.

Asked as it stands, or with one filter, the table touches only the rows that it shows; any other sort or a search touches what the
narrowest filter leaves, once. ``Page.touched`` says how many rows that were.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from scheduler.placement.view import STATES
from services.controller.web.listing import Listing
from services.controller.web.tasks.index import Row, Shelf, TaskIndex

__all__ = ["DEFAULT_SORT", "FILTERS", "SORTS", "Page", "ask"]

FILTERS: Final = ("state", "priority", "node", "group", "tenant")
"""Names of filters in the address. A state or priority may be several, with commas between: any of them."""
DEFAULT_SORT: Final = "-updated"
_STATE_ORDER: Final = {state: number for number, state in enumerate(STATES)}

SORTS: Final[dict[str, Callable[[Row], Any]]] = {
    "updated": lambda row: row.serial,
    "id": lambda row: row.id,
    "title": lambda row: (row.title.casefold(), row.id),
    "tenant": lambda row: (row.tenant, row.id),
    "priority": lambda row: (row.priority, row.id),
    "state": lambda row: (_STATE_ORDER[row.state], row.id),
    "vram": lambda row: (row.vram_bytes, row.id),
    "gpus": lambda row: (row.gpu_count, row.id),
    "node": lambda row: (row.node, row.id),
    "groups": lambda row: (row.groups, row.id),
}
"""Column -> sort key; every order is total, so pages neither repeat nor leave out a row."""


@dataclass(frozen=True, slots=True)
class Page:
    """``listing``: as asked, with the number of rows that the filters leave. ``touched``: rows looked at for the answer."""

    rows: tuple[Row, ...]
    listing: Listing
    touched: int


_Filter = tuple[str, tuple[str, ...]]


def ask(index: TaskIndex, listing: Listing, tenant: str = "") -> Page:
    """The page that ``listing`` asks for; ``tenant`` not empty: of this tenant's tasks only, whatever the listing says."""
    wanted = listing.filters.get("tenant", "")
    if tenant and wanted not in ("", tenant):
        return Page((), listing.counted(0), 0)
    wanted = tenant or wanted
    shelf = index.of(wanted) if wanted else index.all
    filters = _filters(listing)
    needle = listing.search.casefold()
    start = min(filters, key=lambda one: _size(shelf, one)) if filters else None
    rest = [one for one in filters if one is not start]
    if not needle and not rest and (start is None or len(start[1]) == 1) and listing.sort == "updated":
        return _as_kept(shelf, listing, start)
    return _looked_through(shelf, listing, start, rest, needle)


def _filters(listing: Listing) -> list[_Filter]:
    several = {"state", "priority"}
    return [
        (name, tuple(dict.fromkeys(value.split(","))) if name in several else (value,))
        for name, value in listing.filters.items()
        if name != "tenant"
    ]


def _size(shelf: Shelf, one: _Filter) -> int:
    return sum(shelf.count(one[0], value) for value in one[1])


def _as_kept(shelf: Shelf, listing: Listing, start: _Filter | None) -> Page:
    """Order and filter are those that the shelf keeps: only the page's rows are touched (and those before it are stepped over)."""
    ids: dict[str, Any] = shelf.rows if start is None else shelf.facets.get((start[0], start[1][0]), {})
    counted = listing.counted(len(ids))
    order = reversed(ids) if listing.descending else iter(ids)
    rows = tuple(shelf.rows[name] for name in islice(order, max(0, counted.first - 1), counted.last))
    return Page(rows, counted, len(rows))


def _looked_through(shelf: Shelf, listing: Listing, start: _Filter | None, rest: list[_Filter], needle: str) -> Page:
    """Everything the smallest filter leaves is looked at once."""
    touched = 0
    found: list[Row] = []
    for row in _candidates(shelf, start):
        touched += 1
        if (not needle or needle in row.text) and all(_matches(row, facet, values) for facet, values in rest):
            found.append(row)
    counted = listing.counted(len(found))
    pick = heapq.nlargest if listing.descending else heapq.nsmallest
    best = pick(counted.last, found, key=SORTS[listing.sort])
    return Page(tuple(best[max(0, counted.first - 1) :]), counted, touched)


def _candidates(shelf: Shelf, start: _Filter | None) -> Iterable[Row]:
    if start is None:
        return shelf.rows.values()
    ids = (name for value in start[1] for name in shelf.facets.get((start[0], value), ()))
    return (shelf.rows[name] for name in ids)


def _matches(row: Row, facet: str, values: tuple[str, ...]) -> bool:
    if facet == "group":
        return values[0] in row.groups
    return (str(row.priority) if facet == "priority" else getattr(row, facet)) in values
