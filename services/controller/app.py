"""The application: REST routes, whatever else answers beside them (pages, login), and what every request passes through.

May live here: assembling. May not: routes, what they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from litestar import Litestar, Request, Response
from litestar.config.app import AppConfig
from litestar.datastructures import State
from litestar.handlers import BaseRouteHandler

from services.controller.parts import Parts
from services.controller.problems import HANDLERS, problem, query_problem
from services.controller.routes import ROUTES
from services.controller.web.problems import for_people
from services.kit.access.access import Access
from services.kit.access.problems import HANDLERS as ACCESS_HANDLERS
from services.kit.access.web import AccessPlugin
from services.kit.described import description_of
from services.kit.facts_log import bind_request

__all__ = ["make_app", "check_request"]

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


_BODY_BYTES_MAX: Final = 1 << 20


async def _before(request: Request[Any, Any, Any]) -> Response[Any] | None:
    bind_request(request)
    return await check_request(request)


def make_app(parts: Parts, access: Access, *, more_routes: Sequence[Any] = (), middleware: Sequence[Any] = ()) -> Litestar:
    """The application over running parts. A route's ``opt["action"]`` names what it is in services.kit.access (None: open to all);
    ``access`` sees to it before the route looks at its parameters, and refuses to start with a route that says nothing."""
    config = AppConfig(
        route_handlers=[*ROUTES, *more_routes],
        state=State({"parts": parts}),
        middleware=list(middleware),
        plugins=[AccessPlugin(access)],
        before_request=_before,
        exception_handlers=for_people({**ACCESS_HANDLERS, **HANDLERS}),
        openapi_config=description_of("Wooly controller"),
        request_max_body_size=_BODY_BYTES_MAX,
        logging_config=None,
    )
    return Litestar.from_config(config)
