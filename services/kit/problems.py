"""Problem documents (RFC 9457): how errors and malformed requests are answered over HTTP, and how OpenAPI describes that."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.handlers import BaseRouteHandler
from litestar.openapi.datastructures import ResponseSpec

from services.kit.errors import BusRefused, BusUnavailable, RequestError

__all__ = ["HANDLERS", "Handlers", "MEDIA_TYPE", "document", "invalid", "problem", "problems", "refused", "unknown_parameters"]

MEDIA_TYPE: Final = "application/problem+json"
_QUOTED: Final = re.compile(r"`([^`]+)`")
_BODY: Final = frozenset({"data", ""})
_RESERVED: Final = frozenset({"request", "state", "data", "headers", "cookies", "query", "scope", "socket", "body"})
"""Names that litestar gives to parameters of handlers that are none of the request."""


def document(
    status: int, kind: str, title: str, detail: str, fields: Iterable[tuple[str, str]] = (), members: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """``fields``: (name, message) of what in the request is wrong."""
    body: dict[str, Any] = {"type": f"urn:wooly:problem:{kind}", "title": title, "status": status, "detail": detail, **(members or {})}
    errors = [{"field": field, "message": message} for field, message in fields]
    return {**body, "errors": errors} if errors else body


def problem(
    status: int,
    kind: str,
    title: str,
    detail: str,
    fields: Iterable[tuple[str, str]] = (),
    *,
    members: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response[dict[str, Any]]:
    """The document as an answer."""
    body = document(status, kind, title, detail, fields, members)
    return Response(body, status_code=status, media_type=MEDIA_TYPE, headers=dict(headers or {}))


def invalid(source: str, fields: Iterable[tuple[str, str]]) -> Response[dict[str, Any]]:
    """400: fields of the ``source`` (body or query) that are not valid."""
    found = list(fields)
    detail = "; ".join(f"{field}: {message}" for field, message in found)
    return problem(400, f"invalid-{source}", f"The {source} is not valid", detail, found)


def refused(_: Request[Any, Any, Any], error: RequestError, **headers: str) -> Response[dict[str, Any]]:
    """The answer to a request that one of our errors refuses."""
    fields = [(error.field, str(error))] if error.field else []
    sent = {**error.headers, **headers}
    return problem(error.status, error.kind, error.title, error.detail, fields, members=error.members, headers=sent)


def _field(item: Mapping[str, Any]) -> str:
    """The field a message is about. For one that is missing or unknown, litestar names the body and the message names the field."""
    key, message = str(item.get("key", "")), str(item.get("message", ""))
    named = _QUOTED.search(message)
    if key in _BODY:
        return named.group(1) if named and ("missing" in message or "unknown" in message) else "body"
    return key.removesuffix("_").removeprefix("task_")  # parameters are named so where Python or litestar reserve the word


def _message(item: Mapping[str, Any]) -> str:
    message = str(item.get("message", ""))
    return "a JSON object is required" if message == "'data'" else message


def _invalid(_: Request[Any, Any, Any], error: ValidationException) -> Response[dict[str, Any]]:
    found = error.extra if isinstance(error.extra, list) else []
    if not found:
        return problem(400, "invalid-body", "The body is not valid", error.detail, [("body", error.detail)])
    source = "query" if any(item.get("source") == "query" for item in found) else "body"
    return invalid(source, [(_field(item), _message(item)) for item in found])


def _http_error(_: Request[Any, Any, Any], error: HTTPException) -> Response[dict[str, Any]]:
    if error.status_code == 400:
        return problem(400, "invalid-body", "The body is not valid", error.detail, [("body", error.detail)])
    return problem(error.status_code, "http", type(error).__name__.removesuffix("Exception"), error.detail)


def _too_deep(_: Request[Any, Any, Any], error: RecursionError) -> Response[dict[str, Any]]:
    """JSON nested deeper than the decoder follows; litestar takes it for an internal error."""
    return _bad_body("the JSON is nested too deeply")


def _not_text(_: Request[Any, Any, Any], error: UnicodeDecodeError) -> Response[dict[str, Any]]:
    """A string in the body that is no UTF-8: the decoder lets that error through."""
    return _bad_body("the body is not UTF-8")


def _bad_body(detail: str) -> Response[dict[str, Any]]:
    return problem(400, "invalid-body", "The body is not valid", detail, [("body", detail)])


def _unavailable(_: Request[Any, Any, Any], error: Exception) -> Response[dict[str, Any]]:
    return problem(503, "unavailable", "Not available now", str(error))


Handlers = dict[int | type[Exception], Any]
"""Exception handlers of a litestar application, by status or class."""

HANDLERS: Final[Handlers] = {
    ValidationException: _invalid,
    HTTPException: _http_error,
    RecursionError: _too_deep,
    UnicodeDecodeError: _not_text,
    RequestError: refused,
    BusUnavailable: _unavailable,
    BusRefused: _unavailable,
}


# -- OpenAPI ---------------------------------------------------------------------------------------------------------------------------


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


_TEXT: Final = {
    400: "The query or the body is not valid; errors names the fields",
    401: "The request has no credentials, or unknown ones",
    403: "Not allowed",
    404: "Not found, or the caller may not see it",
    405: "This method is none of this path's",
    408: "The body did not arrive in time",
    409: "It was changed in the meantime, contradicts what is stored, or its current state does not allow this",
    413: "The body is too large",
    415: "The body is not JSON",
    429: "Too many requests",
    503: "The bus, the store or the log is not available now",
}
_ANY: Final = (400, 401, 403, 429, 503)


def problems(*statuses: int) -> dict[int, ResponseSpec]:
    """The problems a route may answer with, beside those that any may: 400, 401, 403, 429, 503."""
    return {
        status: ResponseSpec(Problem, generate_examples=False, description=_TEXT[status], media_type=MEDIA_TYPE)
        for status in sorted({*_ANY, *statuses})
    }


# -- query parameters --------------------------------------------------------------------------------------------------------------------

_known: Final[dict[BaseRouteHandler, frozenset[str]]] = {}


def unknown_parameters(request: Request[Any, Any, Any]) -> Response[dict[str, Any]] | None:
    """The refusal of query parameters that the route does not have, like that of unknown fields of a body: a typo is not a default. For
    routes under /api/: pages ignore unknown parameters, because links from elsewhere carry some."""
    if not request.query_params or not request.url.path.startswith("/api/"):
        return None
    known = _parameters(request.route_handler)
    allowed = f"; there are: {', '.join(sorted(known))}" if known else ""
    unknown = sorted(set(request.query_params) - known)
    return invalid("query", [(name, f"there is no such parameter{allowed}") for name in unknown]) if unknown else None


def _parameters(handler: BaseRouteHandler) -> frozenset[str]:
    """Names of the query parameters a handler takes."""
    if handler not in _known:
        names = set()
        for name, field in handler.parsed_fn_signature.parameters.items():
            given = field.kwarg_definition
            if name not in _RESERVED and not getattr(given, "header", None) and not getattr(given, "cookie", None):
                names.add(getattr(given, "query", None) or getattr(given, "name", None) or name)
        _known[handler] = frozenset(names)
    return _known[handler]
