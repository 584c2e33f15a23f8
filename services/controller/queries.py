"""Unknown query parameters are refused, like unknown fields of a body: a typo is not a default.

May live here: the check. May not: what parameters mean.
"""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, Response
from litestar.handlers import BaseRouteHandler

from services.controller.problems import query_problem

__all__ = ["refuse_unknown_parameters"]

_OURS: Final = frozenset({"request", "state", "data", "headers", "cookies", "query", "scope", "socket", "body"})
_known: dict[BaseRouteHandler, frozenset[str]] = {}


async def refuse_unknown_parameters(request: Request[Any, Any, Any]) -> Response[dict[str, Any]] | None:
    """For routes under /api/: pages ignore what they do not know, as links from elsewhere carry all sorts of things."""
    if not request.query_params or not request.url.path.startswith("/api/"):
        return None
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
