"""OpenAPI descriptions of routes: the parameters several share, and the problems they may answer with.

May live here: OpenAPI descriptions, parameter types. May not: routes.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter

from services.controller.errors import Invalid

__all__ = ["Limit", "Offset", "Name", "Search", "TaskId", "Revision", "Problem", "problems", "revision_of", "page", "words"]

Limit = Annotated[int, Parameter(ge=1, le=10_000, description="the most items to return")]
Offset = Annotated[int, Parameter(ge=0, le=1 << 53, description="the number of items to skip")]
Name = Annotated[str | None, Parameter(min_length=1, max_length=200, description="only matches of this one")]
TaskId = Annotated[str, Parameter(description="id of a task, its title, or the beginning of its id")]
Search = Annotated[str, Parameter(query="q", max_length=200, description="words that must all occur in its names")]
Revision = Annotated[
    str | None, Parameter(header="If-Match", max_length=40, description="the revision that the change is based on; 409 if it is outdated")
]


class FieldError(msgspec.Struct):
    field: str
    message: str


class Problem(msgspec.Struct):
    """A problem document (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldError] = []


_TEXT = {
    400: "The query or the body is not valid; errors names the fields",
    401: "The request has no credentials, or unknown ones",
    403: "Not allowed",
    404: "Not found, or the caller may not see it",
    408: "The body did not arrive in time",
    405: "This method is none of this path's",
    409: "It was changed in the meantime, or its current state does not allow this",
    413: "The body is too large",
    415: "The body is not JSON",
    429: "Too many requests",
    503: "The bus, the store or the log is not available now",
}


def problems(*statuses: int) -> dict[int, ResponseSpec]:
    """The problems a route may answer with, beside those that any may: 400, 401, 403, 408, 413, 415, 429, 503."""
    return {
        status: ResponseSpec(Problem, generate_examples=False, description=_TEXT[status], media_type="application/problem+json")
        for status in sorted({400, 401, 403, 408, 413, 415, 429, 503, *statuses})
    }


def revision_of(header: str | None) -> int | None:
    """The revision of an If-Match header: a number, quoted or not; ``*`` and nothing: whatever holds. Raises Invalid."""
    if header is None or header.strip() == "*":
        return None
    text = header.strip().removeprefix("W/").strip('"')
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Invalid("If-Match", f"{header!r} is no revision; give the number that the answer carried as revision")
    return int(text)


def words(search: str) -> tuple[str, ...]:
    """The words of a search, as they are looked for."""
    return tuple(search.lower().split())


def page(items: list[Any], limit: int, offset: int) -> tuple[list[Any], int]:
    """The part asked for, and how many there are."""
    return items[offset : offset + limit], len(items)
