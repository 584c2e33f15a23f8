"""Errors as problem documents (RFC 9457): what went wrong, and for a bad body or query which field.

May live here: what an error looks like over HTTP. May not: raising it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.handlers import BaseRouteHandler

from billing.errors import BillingRequestError
from services.billing.errors import AlreadyThere, Invalid, NotThere, Stale
from services.kit.errors import BusUnavailable, Conflict

__all__ = ["HANDLERS", "refuse_unknown_parameters"]

_QUOTED: Final = re.compile(r"`([^`]+)`")
_MEDIA: Final = "application/problem+json"
_OURS: Final = frozenset({"request", "state", "data", "headers", "cookies", "query", "scope", "socket", "body"})
_BODY: Final = frozenset({"data", ""})


def problem(status: int, kind: str, title: str, detail: str, fields: Sequence[tuple[str, str]] = (), **more: Any) -> Response[Any]:
    body: dict[str, Any] = {"type": f"urn:wooly:problem:{kind}", "title": title, "status": status, "detail": detail, **more}
    if fields:
        body["errors"] = [{"field": field, "message": message} for field, message in fields]
    return Response(body, status_code=status, media_type=_MEDIA)


def _bad(source: str, fields: Sequence[tuple[str, str]]) -> Response[Any]:
    detail = "; ".join(f"{field}: {message}" for field, message in fields)
    return problem(400, f"invalid-{source}", f"The {source} is not valid", detail, fields)


def _field(item: dict[str, Any]) -> str:
    """The field a message is about. For one that is missing or unknown, litestar names the body and the message names the field."""
    key, message = str(item.get("key", "")).removesuffix("_"), str(item.get("message", ""))
    named = _QUOTED.search(message)
    if key in _BODY and named and ("missing" in message or "unknown" in message):
        return named.group(1)
    return "body" if key in _BODY else key


def _invalid(_: Request[Any, Any, Any], error: ValidationException) -> Response[Any]:
    found = error.extra if isinstance(error.extra, list) else []
    source = "query" if any(item.get("source") == "query" for item in found) else "body"
    if not found:
        return problem(400, "invalid-body", "The body is not valid", error.detail, [("body", error.detail)])
    return _bad(source, [(_field(item), str(item.get("message", ""))) for item in found])


def _http_error(_: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    if error.status_code == 400:
        return _bad("body", [("body", error.detail)])
    return problem(error.status_code, "http", type(error).__name__.removesuffix("Exception"), error.detail)


def _too_deep(_: Request[Any, Any, Any], error: RecursionError) -> Response[Any]:
    """JSON nested beyond what the decoder follows; litestar takes it for a failure of ours."""
    return _bad("body", [("body", "the JSON is nested too deeply")])


def _not_text(_: Request[Any, Any, Any], error: UnicodeDecodeError) -> Response[Any]:
    """A string in the body that is no UTF-8: the decoder lets that error through."""
    return _bad("body", [("body", "the body is not UTF-8")])


def _bad_request(_: Request[Any, Any, Any], error: BillingRequestError) -> Response[Any]:
    return problem(400, "invalid-query", "The query is not valid", str(error), [(error.field, str(error))])


def _cannot_be(_: Request[Any, Any, Any], error: Invalid) -> Response[Any]:
    return _bad("body", [(error.field, str(error))])


def _not_there(_: Request[Any, Any, Any], error: NotThere) -> Response[Any]:
    return problem(404, "not-found", "Not found", str(error))


def _stale(_: Request[Any, Any, Any], error: Stale) -> Response[Any]:
    return problem(409, "stale-revision", "Changed in the meantime", str(error), [("If-Match", str(error))], revision=error.revision)


def _already_there(_: Request[Any, Any, Any], error: AlreadyThere) -> Response[Any]:
    return problem(409, "grant-exists", "The grant exists", str(error), [("id", str(error))])


def _unavailable(_: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    return problem(503, "unavailable", "Not available now", str(error))


HANDLERS: Final[dict[int | type[Exception], Any]] = {
    ValidationException: _invalid,
    HTTPException: _http_error,
    RecursionError: _too_deep,
    UnicodeDecodeError: _not_text,
    BillingRequestError: _bad_request,
    Invalid: _cannot_be,
    NotThere: _not_there,
    Stale: _stale,
    AlreadyThere: _already_there,
    BusUnavailable: _unavailable,
    Conflict: _unavailable,
}

_known: dict[BaseRouteHandler, frozenset[str]] = {}


async def refuse_unknown_parameters(request: Request[Any, Any, Any]) -> Response[Any] | None:
    """Unknown query parameters are refused, like unknown fields of a body: a typo is not a default."""
    if not request.query_params or not request.url.path.startswith("/api/"):
        return None
    known = _parameters(request.route_handler)
    allowed = f"; there are: {', '.join(sorted(known))}" if known else ""
    unknown = sorted(set(request.query_params) - known)
    return _bad("query", [(name, f"there is no such parameter{allowed}") for name in unknown]) if unknown else None


def _parameters(handler: BaseRouteHandler) -> frozenset[str]:
    """Names of the query parameters a handler takes."""
    if handler not in _known:
        names = set()
        for name, field in handler.parsed_fn_signature.parameters.items():
            given = field.kwarg_definition
            if name not in _OURS and not getattr(given, "header", None) and not getattr(given, "cookie", None):
                names.add(getattr(given, "query", None) or getattr(given, "name", None) or name)
        _known[handler] = frozenset(names)
    return _known[handler]
