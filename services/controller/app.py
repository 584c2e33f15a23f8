"""The application: REST routes, whatever else answers beside them (pages, login), and what every request passes through. Errors are problem
documents for programs, and pages with what is wrong and what to do for browsers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from litestar import Litestar, Request, Response, Router

from services.controller.parts import Parts
from services.controller.routes import access as access_routes
from services.controller.routes import nodes, oidc, system, tasks
from services.controller.store import StoreUnavailable
from services.controller.web.templating import page
from services.kit.access.access import Access
from services.kit.access.web import HANDLERS as ACCESS_HANDLERS
from services.kit.log import get_logger
from services.kit.problems import HANDLERS, problem, unknown_parameters
from services.kit.rest import make_rest_app

__all__ = ["make_app"]

_TAGGED: Final = {
    "Nodes": nodes.ROUTES,
    "Tasks": tasks.TASKS,
    "Runs": tasks.RUNS,
    "Groups": nodes.GROUPS,
    "Placements": tasks.PLACEMENTS,
    "Configuration": system.CONFIG,
    "Service": system.SERVICE,
    "Login": [*access_routes.LOGIN, *oidc.OIDC],
    "Tenants": access_routes.TENANTS,
    "Users": access_routes.USERS,
    "API keys": access_routes.KEYS,
    "Audit": access_routes.AUDIT,
}
ROUTES: Final = [Router("/", route_handlers=routes, tags=[tag]) for tag, routes in _TAGGED.items()]
"""The REST API: every handler names its action, which the guard looks up in the table of rights."""
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
        handlers=for_people({**HANDLERS, StoreUnavailable: _unavailable, **ACCESS_HANDLERS}),
        body_bytes_max=_BODY_BYTES_MAX,
        middleware=middleware,
    )


def _unavailable(_: Request[Any, Any, Any], error: StoreUnavailable) -> Response[dict[str, Any]]:
    return problem(503, "unavailable", "Not available now", str(error))


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


Handler = Callable[[Request[Any, Any, Any], Any], Response[Any]]

_FOR_PROGRAMS: Final = ("/api/", "/metrics", "/health", "/static/", "/live/", "/schema")
_HOME: Final = ("To the dashboard", "/")
_PAGES: Final[dict[int, tuple[str, tuple[str, ...]]]] = {
    400: ("The request is not valid", ("Go back, correct what is named above, and send it again.",)),
    403: (
        "You may not do this",
        ("Your role does not allow it, or the form was open for too long: go back, load the page again, and repeat.",
         "An administrator can give you another role under Settings, Users."),
    ),
    404: (
        "There is nothing here",
        ("It may have been deleted, or the address is mistyped.", "Tasks and charges of other tenants are not shown."),
    ),
    409: (
        "It was changed in the meantime",
        ("It has changed since you opened the page. Load the page again and repeat the change if it is still right.",),
    ),
    413: ("That is too much", ("Send less at once.",)),
    429: ("Too many attempts", ("Wait a minute, then try again.",)),
    500: ("Something broke on our side", ("Try again. If the error remains, the controller's log names the reason.",)),
    503: (
        "Not available now",
        ("The controller cannot reach the bus, or cannot read its log. Work on the nodes continues.",
         "Check with wooly doctor that nats-server is up, then load this page again."),
    ),
}  # fmt: skip


def for_people(handlers: dict[int | type[Exception], Handler]) -> dict[int | type[Exception], Handler]:
    """The same handlers, with pages as answers to browsers; and one for unexpected errors."""
    return {kind: _wrapped(handler) for kind, handler in {500: _unforeseen, **handlers}.items()}


def _wrapped(handler: Handler) -> Handler:
    def answer(request: Request[Any, Any, Any], error: Any) -> Response[Any]:
        found = handler(request, error)
        return _page(request, found) if (found.status_code or 500) >= 400 and _from_browser(request) else found

    return answer


def _unforeseen(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    get_logger().error("a request failed", path=request.url.path, error=repr(error), exc_info=error)
    return problem(500, "internal", "Internal error", "the controller failed to answer; its log names the reason")


def _from_browser(request: Request[Any, Any, Any]) -> bool:
    if request.url.path.startswith(_FOR_PROGRAMS):
        return False
    return "text/html" in request.headers.get("accept", "") or "hx-request" in request.headers


def _page(request: Request[Any, Any, Any], found: Response[Any]) -> Response[Any]:
    status = found.status_code or 500
    if status == 401:
        return _to_login(request)
    heading, advice = _PAGES.get(status, (str(found.content.get("title", "Error")), ()))
    detail = str(found.content.get("detail", ""))
    again = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    back = ("Try again", again) if status in (500, 503) and request.method == "GET" else _HOME
    kept = {name: value for name, value in found.headers.items() if name.lower() == "retry-after"}
    shown: dict[str, Any] = {"code": status, "heading": heading, "detail": _sentence(detail), "advice": advice, "back": back}
    return page(request, "problem.html", status=status, headers=kept, **shown)


def _to_login(request: Request[Any, Any, Any]) -> Response[Any]:
    """Redirect to the login page, which leads back here."""
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    address = "/login?" + urlencode({"next": here}) if request.method == "GET" and here != "/" else "/login"
    if "hx-request" in request.headers:
        return Response(b"", status_code=401, headers={"hx-redirect": address, "cache-control": "no-store"})
    return Response(b"", status_code=303, headers={"location": address, "cache-control": "no-store"})


def _sentence(text: str) -> str:
    if text.lower() in ("not found", ""):
        return ""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
