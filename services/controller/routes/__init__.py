"""The REST API of the controller, under /api/v1. Reads show the log; writes go through ``actions``.

Every handler names its action (``action="task.read"``), which the guard looks up in the table of rights. What a tenant may not see is
left out or not found, here and in the actions.

This module has what routes share: OpenAPI descriptions of parameters, and the problems they may answer with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter

from services.controller.presenters import Json
from services.kit import problems as kit
from services.kit.rest import Revision, revision_of

__all__ = ["Limit", "Offset", "Name", "Search", "TaskId", "Revision", "problems", "revision_of", "page", "words"]

T = TypeVar("T")

Limit = Annotated[int, Parameter(ge=1, le=10_000, description="the most items to return")]
Offset = Annotated[int, Parameter(ge=0, le=1 << 53, description="the number of items to skip")]
Name = Annotated[str | None, Parameter(min_length=1, max_length=200, description="only matches of this one")]
TaskId = Annotated[str, Parameter(description="id of a task, its title, or the beginning of its id")]
Search = Annotated[str, Parameter(query="q", max_length=200, description="words that must all occur in its names")]


def problems(*statuses: int) -> dict[int, ResponseSpec]:
    """The problems a route may answer with, beside those that any may: 400, 401, 403, 408, 413, 415, 429, 503."""
    return kit.problems(408, 413, 415, *statuses)


def words(search: str) -> tuple[str, ...]:
    """The words of a search, as they are looked for."""
    return tuple(search.casefold().split())


def page(items: list[T], limit: int, offset: int, answer: Callable[[T], Json]) -> Json:
    """The part asked for, an ``answer`` for each item, and how many there are."""
    return {"items": [answer(item) for item in items[offset : offset + limit]], "total": len(items)}
