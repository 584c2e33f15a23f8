"""A table's state in its address: what is read from it, what links are made of it."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.controller.web.listing import Listing

SORTS = ("name", "state")


def read(**query: str) -> Listing:
    return Listing.parse("/nodes", query, sorts=SORTS, default="-name", filters=("state", "group"))


def query_of(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query))


@pytest.mark.parametrize(
    ("query", "sort", "descending", "page", "per_page"),
    [
        ({}, "name", True, 1, 50),
        ({"sort": "state"}, "state", False, 1, 50),
        ({"sort": "-state", "page": "3", "per_page": "25"}, "state", True, 3, 25),
        ({"sort": "secret"}, "name", True, 1, 50),
        ({"page": "0"}, "name", True, 1, 50),
        ({"page": "-4", "per_page": "7"}, "name", True, 1, 50),
        ({"page": "9" * 40}, "name", True, 1, 50),
        ({"page": "٣"}, "name", True, 1, 50),
    ],
)
def test_what_cannot_be_meant_is_the_default(query: dict[str, str], sort: str, descending: bool, page: int, per_page: int) -> None:
    listing = read(**query)
    assert (listing.sort, listing.descending, listing.page, listing.per_page) == (sort, descending, page, per_page)


def test_a_page_behind_the_end_is_the_last() -> None:
    rows, listing = read(page="9", per_page="25").take(list(range(60)))
    assert (rows, listing.page, listing.pages, listing.first, listing.last) == (list(range(50, 60)), 3, 3, 51, 60)


def test_no_rows() -> None:
    rows, listing = read().take([])
    assert (rows, listing.total, listing.first, listing.last, listing.pages) == ([], 0, 0, 0, 1)


def test_links_keep_the_rest_and_go_to_the_first_page() -> None:
    listing = read(q="a&b=c", state="lost", sort="state", page="2").counted(500)
    assert query_of(listing.url(page=3)) == {"q": "a&b=c", "state": "lost", "sort": "state", "page": "3"}
    assert query_of(listing.url(state=None)) == {"q": "a&b=c", "sort": "state"}
    assert query_of(listing.sort_url("state")) == {"q": "a&b=c", "state": "lost", "sort": "-state"}
    assert listing.sort_url("name") == "/nodes?q=a%26b%3Dc&state=lost&sort=name"
    assert listing.clear_url == "/nodes"


def test_a_plain_link_says_nothing_that_is_the_default() -> None:
    assert read(sort="-name", page="1", per_page="50", unknown="x").url() == "/nodes"


@pytest.mark.parametrize(
    ("page", "pages", "window"),
    [(1, 1, [1]), (1, 3, [1, 2, 3]), (5, 20, [1, 0, 4, 5, 6, 0, 20]), (20, 20, [1, 0, 19, 20]), (2, 4, [1, 2, 3, 4])],
)
def test_page_numbers_offered(page: int, pages: int, window: list[int]) -> None:
    assert read(page=str(page), per_page="25").counted(25 * pages).window == window


def test_the_head_says_how_it_is_sorted() -> None:
    listing = read(sort="state")
    assert [listing.aria_sort(name) for name in SORTS] == ["none", "ascending"]


@given(st.dictionaries(st.sampled_from(["q", "state", "group", "sort", "page", "per_page", "x"]), st.text(max_size=20)))
def test_an_address_is_read_back_as_it_was_written(query: dict[str, str]) -> None:
    listing = read(**query)
    again = Listing.parse("/nodes", query_of(listing.url()), sorts=SORTS, default="-name", filters=("state", "group"))
    assert again == listing
