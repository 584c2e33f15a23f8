"""Search, filters, sort and paging of a table: read from the query string, and written back into links, so that every state has an address.

    listing = Listing.parse("/nodes", request.query_params, sorts=("updated", "priority"), default="-updated", filters=("state", "node"))
    rows, listing = listing.take(sorted_rows)

Invalid parameters (an unknown sort, page 0) fall back to the default: an old link still opens. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self, TypeVar
from urllib.parse import urlencode

__all__ = ["Listing", "PER_PAGE"]

T = TypeVar("T")

PER_PAGE: Final = 50
PER_PAGE_CHOICES: Final = (25, 50, 100, 200)
_LONGEST: Final = 200
_LAST_PAGE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Listing:
    """The state of a table."""

    path: str
    search: str = ""  #: text of the search box
    sort: str = ""  #: a key of the table's columns
    descending: bool = False
    page: int = 1
    per_page: int = PER_PAGE
    filters: Mapping[str, str] = field(default_factory=dict)  #: chosen values by name; names without a choice are absent
    default: str = ""
    total: int = 0  #: number of rows, known after ``take``

    @classmethod
    def parse(cls, path: str, query: Mapping[str, str], *, sorts: Sequence[str], default: str, filters: Sequence[str] = ()) -> Self:
        """``default``: the sort of a plain link, with ``-`` before it for descending."""
        asked = query.get("sort", default)
        if asked.removeprefix("-") not in sorts:
            asked = default
        per_page = _whole(query.get("per_page", ""), PER_PAGE)
        return cls(
            path,
            search=query.get("q", "").strip()[:_LONGEST],
            sort=asked.removeprefix("-"),
            descending=asked.startswith("-"),
            page=min(max(1, _whole(query.get("page", ""), 1)), _LAST_PAGE),
            per_page=per_page if per_page in PER_PAGE_CHOICES else PER_PAGE,
            filters={name: query[name].strip()[:_LONGEST] for name in filters if query.get(name, "").strip()},
            default=default,
        )

    # -- rows ----------------------------------------------------------------------------------------------------------------------

    def take(self, rows: Sequence[T]) -> tuple[list[T], Self]:
        """The rows of this page, and the listing that knows how many there are. A page behind the end is the last one."""
        counted = self.counted(len(rows))
        return list(rows[counted.first - 1 : counted.last] if rows else []), counted

    def counted(self, total: int) -> Self:
        pages = max(1, -(-total // self.per_page))
        return replace(self, total=total, page=min(self.page, pages))

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // self.per_page))

    @property
    def first(self) -> int:
        """Number of the first row of the page, from 1; 0 when there is none."""
        return (self.page - 1) * self.per_page + 1 if self.total else 0

    @property
    def last(self) -> int:
        return min(self.page * self.per_page, self.total)

    @property
    def narrowed(self) -> bool:
        """Whether search or filters leave anything out: an empty table then offers to show all."""
        return bool(self.search or self.filters)

    @property
    def window(self) -> list[int]:
        """Page numbers to offer, 0 for a gap: 1 0 4 5 6 0 20."""
        near = [number for number in range(self.page - 1, self.page + 2) if 1 <= number <= self.pages]
        out: list[int] = []
        for number in sorted({1, *near, self.pages}):
            if out and number - out[-1] > 1:
                out.append(0)
            out.append(number)
        return out

    # -- addresses -----------------------------------------------------------------------------------------------------------------

    def url(self, **changes: str | int | None) -> str:
        """This listing's address with changes: ``url(state="queued")``, ``url(state=None)``. Any change but of the page goes to page 1."""
        values: dict[str, str | int | None] = {"q": self.search, **self.filters}
        if self.order != self.default:
            values["sort"] = self.order
        if self.per_page != PER_PAGE:
            values["per_page"] = self.per_page
        if self.page > 1:
            values["page"] = self.page
        if set(changes) - {"page"}:
            values.pop("page", None)
        values.update(changes)
        kept = [(name, value) for name, value in values.items() if value not in (None, "") and not (name == "page" and value == 1)]
        return self.path + ("?" + urlencode(kept) if kept else "")

    @property
    def order(self) -> str:
        return ("-" if self.descending else "") + self.sort

    @property
    def clear_url(self) -> str:
        return self.path

    def sort_url(self, key: str, descending_first: bool = False) -> str:
        """Target of a column's head: the reverse order when the table is sorted by it."""
        down = not self.descending if key == self.sort else descending_first
        return self.url(sort=("-" if down else "") + key)

    def aria_sort(self, key: str) -> str:
        return "none" if key != self.sort else "descending" if self.descending else "ascending"


def _whole(text: str, fallback: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else fallback
