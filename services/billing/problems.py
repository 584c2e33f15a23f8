"""Problem documents of billing, beside those that all services have (services.kit.problems)."""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, Response

from billing.errors import BillingRequestError
from services.kit import problems
from services.kit.errors import RequestError
from services.kit.problems import Handlers, problem

__all__ = ["HANDLERS", "GrantExists"]


class GrantExists(RequestError):
    """The id belongs to a grant of another tenant or another amount."""

    kind, title = "grant-exists", "The grant exists"

    def __init__(self, message: str) -> None:
        super().__init__(message, "id")


def _bad_request(_: Request[Any, Any, Any], error: BillingRequestError) -> Response[Any]:
    return problem(400, "invalid-query", "The query is not valid", str(error), [(error.field, str(error))])


HANDLERS: Final[Handlers] = {**problems.HANDLERS, BillingRequestError: _bad_request}
