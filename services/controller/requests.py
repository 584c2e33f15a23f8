"""Checks of every API request before its route: unknown query parameters are refused, like unknown fields of a body (a typo is not a
default), and so are bodies that do not say they are JSON.

May live here: such checks. May not: what parameters and bodies mean.
"""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, Response
from litestar.handlers import BaseRouteHandler

from services.controller.problems import problem, query_problem

__all__ = ["check_request"]

_OURS: Final = frozenset({"request", "state", "data", "headers", "cookies", "query", "scope", "socket", "body"})
_known: dict[BaseRouteHandler, frozenset[str]] = {}


async def check_request(request: Request[Any, Any, Any]) -> Response[dict[str, Any]] | None:
    """The problem with a request, if there is one. For routes under /api/: pages ignore what they do not know, as links from elsewhere
    carry all sorts of things, and have forms."""
    if not request.url.path.startswith("/api/"):
        return None
    checked_elsewhere = request.route_handler.opt.get("relayed", False)
    return _wrong_media(request) or (_unknown_parameters(request) if request.query_params and not checked_elsewhere else None)


def _wrong_media(request: Request[Any, Any, Any]) -> Response[dict[str, Any]] | None:
    given = request.headers.get("content-type")
    if given is None or request.method not in ("POST", "PUT", "PATCH") or request.headers.get("content-length") == "0":
        return None
    kind = given.split(";", 1)[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return None
    message = f"send JSON, with Content-Type: application/json (not {kind[:100]})"
    return problem(415, "media-type", "Unsupported Media Type", message, errors=[{"field": "Content-Type", "message": message}])


def _unknown_parameters(request: Request[Any, Any, Any]) -> Response[dict[str, Any]] | None:
    known = _parameters(request.route_handler)
    unknown = sorted(set(request.query_params) - known)
    if not unknown:
        return None
    allowed = f"; there are: {', '.join(sorted(known))}" if known else ""
    return query_problem([(name, f"there is no such parameter{allowed}") for name in unknown])


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
