"""``GET /login``: the form that ``POST /login`` takes. It says that a try failed, never why: a user that does not exist and a wrong
password look the same."""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, Response, get

from services.controller.web.flash import redirect
from services.controller.web.templating import page
from services.kit.access.requests import proof_of

__all__ = ["ROUTES"]

_WAIT_MAX_S: Final = 86_400


@get("/login", action=None, include_in_schema=False)
async def login(request: Request[Any, Any, Any]) -> Response[Any]:
    """A caller who is logged in is redirected to ``next``."""
    query = request.query_params
    target = query.get("next", "/")
    if not request.app.state.access.on or proof_of(request).kind == "session":
        return redirect(target)
    wait = query.get("wait", "")
    wait_s = min(int(wait), _WAIT_MAX_S) if wait.isascii() and wait.isdigit() and len(wait) < 9 else 0
    return page(request, "login/page.html", target=target, failed="failed" in query, wait_s=wait_s)


ROUTES: Final[list[Any]] = [login]
