"""The application: REST routes, whatever else answers beside them (pages, login), and what every request passes through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from litestar import Litestar, Request, Response

from services.controller.parts import Parts
from services.controller.problems import HANDLERS, problem
from services.controller.routes import ROUTES
from services.controller.web.problems import for_people
from services.kit.access.access import Access
from services.kit.access.web import HANDLERS as ACCESS_HANDLERS
from services.kit.problems import unknown_parameters
from services.kit.rest import make_rest_app

__all__ = ["make_app"]

_BODY_BYTES_MAX: Final = 1 << 20


def make_app(parts: Parts, access: Access, *, more_routes: Sequence[Any] = (), middleware: Sequence[Any] = ()) -> Litestar:
    """The application over running parts. A route's ``opt["action"]`` names what it is in services.kit.access (None: open to all);
    ``access`` sees to it before the route looks at its parameters, and refuses to start with a route that says nothing."""
    return make_rest_app(
        "Wooly controller",
        [*ROUTES, *more_routes],
        access,
        parts=parts,
        before=_check,
        handlers=for_people({**HANDLERS, **ACCESS_HANDLERS}),
        body_bytes_max=_BODY_BYTES_MAX,
        middleware=middleware,
    )


def _check(request: Request[Any, Any, Any]) -> Response[Any] | None:
    """The problem with a request, if there is one. For routes under /api/: pages have forms. Billing checks what is relayed to it."""
    if not request.url.path.startswith("/api/"):
        return None
    relayed = request.route_handler.opt.get("relayed", False)
    return _wrong_media(request) or (None if relayed else unknown_parameters(request))


def _wrong_media(request: Request[Any, Any, Any]) -> Response[Any] | None:
    given = request.headers.get("content-type")
    if given is None or request.method not in ("POST", "PUT", "PATCH") or request.headers.get("content-length") == "0":
        return None
    kind = given.split(";", 1)[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return None
    message = f"send JSON, with Content-Type: application/json (not {kind[:100]})"
    return problem(415, "media-type", "Unsupported Media Type", message, [("Content-Type", message)])
