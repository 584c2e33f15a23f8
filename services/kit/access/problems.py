"""Refusals as problem documents (RFC 9457), and for people with a browser as the way to the login page."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from litestar import Request, Response
from litestar.response import Redirect

from services.kit.access.errors import AccessError, CrossSite, Forbidden, Hidden, TooMany, Unauthenticated, Unsure

__all__ = ["HANDLERS", "login_address"]

_MEDIA: Final = "application/problem+json"
_API: Final = "/api/"


def login_address(request: Request[Any, Any, Any]) -> str:
    """The login page, which leads back to where the request wanted to go."""
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return f"/login?next={quote(path, safe='')}" if request.method == "GET" else "/login"


def _problem(status: int, kind: str, title: str, error: AccessError, headers: dict[str, str] | None = None) -> Response[Any]:
    body: dict[str, Any] = {"type": f"urn:wooly:problem:{kind}", "title": title, "status": status, "detail": str(error)}
    if error.field:
        body["errors"] = [{"field": error.field, "message": str(error)}]
    return Response(body, status_code=status, media_type=_MEDIA, headers=headers)


def _unauthenticated(request: Request[Any, Any, Any], error: Unauthenticated) -> Response[Any]:
    page = not request.url.path.startswith(_API) and request.app.state.access.pages
    if page and request.headers.get("hx-request") == "true":
        headers = {"HX-Redirect": "/login", "WWW-Authenticate": "Bearer"}
        return _problem(401, "unauthenticated", "Log in", error, headers)
    if page and request.method == "GET" and request.accept.best_match(["application/json", "text/html"]) == "text/html":
        return Redirect(login_address(request), status_code=303)
    return _problem(401, "unauthenticated", "Log in", error, {"WWW-Authenticate": "Bearer"})


def _forbidden(_: Request[Any, Any, Any], error: Forbidden) -> Response[Any]:
    return _problem(403, "cross-site" if isinstance(error, CrossSite) else "forbidden", "Not allowed", error)


def _hidden(_: Request[Any, Any, Any], error: Hidden) -> Response[Any]:
    return _problem(404, "not-found", "Not found", error)


def _too_many(_: Request[Any, Any, Any], error: TooMany) -> Response[Any]:
    return _problem(429, "too-many", "Too many attempts", error, {"Retry-After": str(error.wait_s)})


def _unsure(_: Request[Any, Any, Any], error: Unsure) -> Response[Any]:
    return _problem(503, "unavailable", "Not available now", error, {"Retry-After": "1"})


HANDLERS: Final[dict[int | type[Exception], Any]] = {
    Unauthenticated: _unauthenticated,
    Forbidden: _forbidden,
    Hidden: _hidden,
    TooMany: _too_many,
    Unsure: _unsure,
}
