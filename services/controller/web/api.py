"""The page of help, and the REST API of all services in one place: a page that shows their descriptions and sends requests (Swagger UI,
served from here), and the paths of billing, which are relayed to it.

A relayed request carries the caller's identity as a short-lived token, never their key or cookie: billing decides what they may do.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from litestar import HttpMethod, Request, Response, get, route

from services.controller.errors import NotThere
from services.controller.problems import problem
from services.controller.web.credits.client import Unreachable
from services.controller.web.desk import desk_of
from services.controller.web.templating import page
from services.kit.access.requests import relay_authorization

__all__ = ["ROUTES"]

Ask = Request[Any, Any, Any]

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
        answer = await desk_of(request).billing.send_raw(
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


ROUTES: Final[list[Any]] = [help_page, viewer, billing_document, billing]
