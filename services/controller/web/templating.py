"""Pages from templates: ``page(request, "nodes/list.html", title="Nodes", ...)``, and their security headers.

Whatever a template prints is escaped; an undefined name is an error, not an empty string.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import Request, Response

from services.controller.web.assets import ASSETS
from services.controller.web.formats import FILTERS
from services.controller.web.forms import forget_cookie, read_flash
from services.controller.web.scope import Scope
from services.controller.web.terms import TERMS, term_of
from services.kit.access.requests import ANONYMOUS
from services.kit.access.rules import Identity, local_identity

__all__ = ["ENVIRONMENT", "NAVIGATION", "fragment", "page", "page_text", "scope_of", "PAGE_HEADERS", "POLICY"]

_FOLDER: Final = Path(__file__).parent / "templates"
_HTML: Final = "text/html"
THEMES: Final = ("system", "light", "dark")

NAVIGATION: Final = (
    ("/", "Dashboard", "dashboard", "cluster.read"),
    ("/tasks", "Tasks", "tasks", "task.read"),
    ("/nodes", "Nodes", "nodes", "node.read"),
    ("/groups", "Groups", "groups", "group.read"),
    ("/credits", "Credits", "credits", "credits.read"),
    ("/settings", "Settings", "settings", "config.read"),
)
"""(path, label, icon, the action one needs to be shown it)."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(FILTERS)
    made.globals.update(asset=ASSETS.url, navigation=NAVIGATION, themes=THEMES, terms=TERMS, term_of=term_of)
    return made


ENVIRONMENT: Final = _environment()


def scope_of(request: Request[Any, Any, Any]) -> Scope:
    return Scope.of(_asking(request))


def _asking(request: Request[Any, Any, Any]) -> Identity:
    """The caller's identity. Without a route there was no authentication: then ANONYMOUS, or ``local_identity()`` where access is off."""
    found = request.scope.get("user")
    if isinstance(found, Identity):
        return found
    return ANONYMOUS if request.app.state.access.on else local_identity()


def fragment(template: str, /, **context: Any) -> str:
    """A part of a page, for the live stream: it knows only what it is given."""
    return ENVIRONMENT.get_template(template).render(context)


def page(
    request: Request[Any, Any, Any],
    template: str,
    /,
    *,
    status: int = 200,
    live: str = "",
    headers: Mapping[str, str] | None = None,
    **context: Any,
) -> Response[str]:
    """A whole page. ``live``: the topic (web.live) that keeps it up to date, with the page's own query string; empty: none.

    Every template knows: ``scope`` (``scope.may("task.cancel")``), ``identity``, ``path``, ``csrf_token``, ``flash``, ``theme`` and
    ``live_url``.
    """
    answer = Response(page_text(request, template, live=live, **context), status_code=status, media_type=_HTML)
    answer.headers.update(PAGE_HEADERS | dict(headers or {}))
    if read_flash(request) is not None:
        answer.set_cookie(forget_cookie())
    return answer


def page_text(request: Request[Any, Any, Any], template: str, /, *, live: str = "", **context: Any) -> str:
    query = request.scope.get("query_string", b"").decode("ascii", "replace")
    theme = request.cookies.get("wooly_theme", "system")
    known = {
        "identity": _asking(request),
        "scope": scope_of(request),
        "path": request.url.path,
        "csrf_token": request.scope.get("state", {}).get("csrf_token", ""),
        "flash": read_flash(request),
        "theme": theme if theme in THEMES else "system",
        "live_url": f"/live/{live}" + (f"?{query}" if query else "") if live else "",
    }
    return ENVIRONMENT.get_template(template).render(known | context)
