"""Error pages: what is wrong and what to do. Programs get the same as a problem document (services.controller.problems)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode

from litestar import Request, Response

from services.controller.problems import problem
from services.controller.web.templating import page
from services.kit.log import get_logger

__all__ = ["for_people"]

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
