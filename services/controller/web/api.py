"""The login page, the page of help, and the REST API of all services in one place: a page that shows their descriptions and sends requests
(Swagger UI), and the paths of billing, which are relayed to it.

A relayed request carries the caller's identity as a short-lived token, never their key or cookie: billing decides what they may do. The
login page says that an attempt failed, never why: an unknown user and a wrong password look the same.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from litestar import HttpMethod, Request, Response, get, route

from services.controller.errors import NotThere
from services.controller.parts import Ask, parts_of
from services.controller.web.billing import Unreachable
from services.controller.web.context import context_of
from services.controller.web.forms import redirect
from services.controller.web.templating import page
from services.kit.access.web import proof_of, relay_authorization
from services.kit.problems import problem

__all__ = ["ROUTES"]


_WAIT_MAX_S: Final = 86_400
_OIDC_PROBLEMS: Final = {
    "unavailable": "{host} does not answer. Try again, or log in with a password or a key.",
    "refused": "{host} did not confirm the login. Try again.",
    "expired": "The login at {host} took too long, or was begun in another window. Try again.",
    "unknown": "{host} knows you, but no user here has your identity. An administrator enters it under Settings, Users.",
}
"""Why a login through the identity provider failed."""
_DOCUMENTS: Final = {"controller": "/schema/openapi.json", "billing": "/schema/billing.json"}
_SENT: Final = ("accept", "content-type", "if-match")
_RETURNED: Final = ("content-type", "content-disposition", "content-security-policy", "retry-after")


@get("/schema/swagger", action=None, include_in_schema=False)
async def viewer(request: Ask) -> Response[str]:
    """``service``: ``controller`` (the default) or ``billing``."""
    service = request.query_params.get("service", "controller")
    if service not in _DOCUMENTS:
        raise NotThere(f"no service of that name describes an API; there are: {', '.join(_DOCUMENTS)}")
    return page(request, "api.html", service=service, documents=_DOCUMENTS)


@get("/schema/billing.json", action=None, include_in_schema=False)
async def billing_document(request: Ask) -> Response[Any]:
    return await _relay(request, "/schema/openapi.json", authorization="")


@route(
    "/api/v1/billing/{path:path}",
    http_method=[HttpMethod.GET, HttpMethod.PUT, HttpMethod.POST],
    action="anyone",
    relayed=True,
    include_in_schema=False,
)
async def billing(request: Ask, path: str) -> Response[Any]:
    """As billing answers, problems included. 503 where billing is not configured or does not answer."""
    raw = request.scope["raw_path"].decode("latin-1")
    if {".", ".."} & {*unquote(raw).split("/")}:
        raise NotThere("no such path")
    return await _relay(request, raw, authorization=relay_authorization(request))


async def _relay(request: Ask, path: str, *, authorization: str) -> Response[Any]:
    headers = {name: request.headers[name] for name in _SENT if name in request.headers}
    if authorization:
        headers["authorization"] = authorization
    query = request.scope["query_string"]
    try:
        answer = await context_of(request).billing.send_raw(
            request.method, path + (f"?{query.decode('latin-1')}" if query else ""), headers=headers, content=await request.body()
        )
    except Unreachable as error:
        return problem(503, "unavailable", "Billing is not available", str(error))
    returned = {name: answer.headers[name] for name in _RETURNED if name in answer.headers}
    media = returned.pop("content-type", "application/octet-stream")
    if media.startswith("text/html"):
        returned.setdefault("content-security-policy", "sandbox")
    return Response(answer.content, status_code=answer.status_code, media_type=media, headers=returned)


@get("/help", action="anyone", include_in_schema=False)
async def help_page(request: Ask) -> Response[str]:
    return page(request, "help.html")


@get("/login", action=None, include_in_schema=False)
async def login(request: Request[Any, Any, Any]) -> Response[Any]:
    """A caller who is logged in is redirected to ``next``."""
    query = request.query_params
    target = query.get("next", "/")
    if not request.app.state.access.on or proof_of(request).kind == "session":
        return redirect(target)
    wait = query.get("wait", "")
    wait_s = min(int(wait), _WAIT_MAX_S) if wait.isascii() and wait.isdigit() and len(wait) < 9 else 0
    oidc = parts_of(request).oidc
    host = "" if oidc is None else oidc.settings.host
    problem_said = _OIDC_PROBLEMS.get(query.get("oidc", ""), "").format(host=host) if host else ""
    return page(
        request,
        "login/page.html",
        target=target,
        failed="failed" in query,
        code="code" in query,
        wait_s=wait_s,
        provider=host,
        provider_problem=problem_said,
    )


ROUTES: Final[list[Any]] = [login, help_page, viewer, billing_document, billing]
