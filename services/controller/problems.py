"""Errors as problem documents (RFC 9457): what went wrong, and for a bad body which field."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException

from bus_schemas.events import TaskRefused
from scheduler.placement import ClusterView
from services.controller.answers import Shown, refusal_sentence, refusals_answer
from services.controller.errors import Ambiguous, Busy, Denied, Invalid, LogUnreadable, NotThere, OutOfState, Stale, TaskExists
from services.controller.store import StoreUnavailable
from services.kit.errors import BusRefused, BusUnavailable

__all__ = ["HANDLERS", "field_problem", "problem", "query_problem", "no_fit"]

_QUOTED: Final = re.compile(r"`([^`]+)`")
_MEDIA: Final = "application/problem+json"


def problem(status: int, kind: str, title: str, detail: str, **more: Any) -> Response[dict[str, Any]]:
    body = {"type": f"urn:wooly:problem:{kind}", "title": title, "status": status, "detail": detail, **more}
    return Response(body, status_code=status, media_type=_MEDIA)


def field_problem(field: str, reason: str) -> Response[dict[str, Any]]:
    """400: a field that is well-formed and cannot be granted."""
    return problem(400, "invalid-body", "The body is not valid", f"{field}: {reason}", errors=[{"field": field, "message": reason}])


def query_problem(found: Sequence[tuple[str, str]]) -> Response[dict[str, Any]]:
    """400: query parameters that are not valid, with their messages."""
    errors = [{"field": name, "message": message} for name, message in found]
    detail = "; ".join(f"{name}: {message}" for name, message in found)
    return problem(400, "invalid-query", "The query is not valid", detail, errors=errors)


def no_fit(view: ClusterView, decision: TaskRefused, shown: Shown) -> Response[dict[str, Any]]:
    """409: a task that no device can serve. ``shown``: whether the caller may know of a tenant's tasks."""
    return problem(
        409,
        "no-placement",
        "No device fits",
        refusal_sentence(view, decision, shown),
        task=decision.task,
        refusals=refusals_answer(decision, shown),
    )


def _field(item: dict[str, Any]) -> str:
    """The field a message is about. For one that is missing or unknown, litestar names the body and the message names the field."""
    key, message = str(item.get("key", "")).removeprefix("task_"), str(item.get("message", ""))  # ``state`` is a word of litestar's
    named = _QUOTED.search(message)
    if key in ("data", "") and named and ("missing" in message or "unknown" in message):
        return named.group(1)
    return "body" if key in ("data", "") else key


def _invalid(_: Request[Any, Any, Any], error: ValidationException) -> Response[dict[str, Any]]:
    found = error.extra if isinstance(error.extra, list) else []
    errors = [{"field": _field(item), "message": _message(item)} for item in found]
    source = "query" if any(item.get("source") == "query" for item in found) else "body"
    detail = "; ".join(f"{item['field']}: {item['message']}" for item in errors) or error.detail
    return problem(400, f"invalid-{source}", f"The {source} is not valid", detail, errors=errors)


def _message(item: dict[str, Any]) -> str:
    message = str(item.get("message", ""))
    return "a JSON object is required" if message == "'data'" else message


def _http_error(_: Request[Any, Any, Any], error: HTTPException) -> Response[dict[str, Any]]:
    if error.status_code == 400:
        return problem(400, "invalid-body", "The body is not valid", error.detail, errors=[{"field": "body", "message": error.detail}])
    return problem(error.status_code, "http", type(error).__name__.removesuffix("Exception"), error.detail)


def _too_deep(_: Request[Any, Any, Any], error: RecursionError) -> Response[dict[str, Any]]:
    """JSON nested beyond what the decoder follows; litestar takes it for a failure of ours."""
    detail = "the JSON is nested too deeply"
    return problem(400, "invalid-body", "The body is not valid", detail, errors=[{"field": "body", "message": detail}])


def _not_text(_: Request[Any, Any, Any], error: UnicodeDecodeError) -> Response[dict[str, Any]]:
    """A string in the body that is no UTF-8: the decoder lets that error through."""
    detail = "the body is not UTF-8"
    return problem(400, "invalid-body", "The body is not valid", detail, errors=[{"field": "body", "message": detail}])


def _not_there(_: Request[Any, Any, Any], error: NotThere) -> Response[dict[str, Any]]:
    return problem(404, "not-found", "Not found", str(error))


def _ambiguous(_: Request[Any, Any, Any], error: Ambiguous) -> Response[dict[str, Any]]:
    return problem(409, "ambiguous", "The name is ambiguous", str(error))


def _exists(_: Request[Any, Any, Any], error: TaskExists) -> Response[dict[str, Any]]:
    return problem(409, "task-exists", "The task exists", str(error), errors=[{"field": "id", "message": str(error)}])


def _out_of_state(_: Request[Any, Any, Any], error: OutOfState) -> Response[dict[str, Any]]:
    return problem(409, "out-of-state", "Conflict with the current state", str(error))


def _stale(_: Request[Any, Any, Any], error: Stale) -> Response[dict[str, Any]]:
    return problem(
        409,
        "stale-revision",
        "Changed in the meantime",
        str(error),
        revision=error.revision,
        errors=[{"field": "If-Match", "message": str(error)}],
    )


def _denied(_: Request[Any, Any, Any], error: Denied) -> Response[dict[str, Any]]:
    return problem(403, "denied", "Not allowed", str(error))


def _cannot_be(_: Request[Any, Any, Any], error: Invalid) -> Response[dict[str, Any]]:
    return field_problem(error.field, str(error))


def _unavailable(_: Request[Any, Any, Any], error: Exception) -> Response[dict[str, Any]]:
    return problem(503, "unavailable", "Not available now", str(error))


HANDLERS: Final[dict[int | type[Exception], Any]] = {
    ValidationException: _invalid,
    HTTPException: _http_error,
    RecursionError: _too_deep,
    UnicodeDecodeError: _not_text,
    NotThere: _not_there,
    Ambiguous: _ambiguous,
    TaskExists: _exists,
    OutOfState: _out_of_state,
    Stale: _stale,
    Denied: _denied,
    Invalid: _cannot_be,
    BusUnavailable: _unavailable,
    BusRefused: _unavailable,
    StoreUnavailable: _unavailable,
    LogUnreadable: _unavailable,
    Busy: _unavailable,
}
