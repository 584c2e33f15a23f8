"""Applications with a REST API: assembly, the OpenAPI description, and conditional requests by revision (If-Match)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import structlog
from litestar import Litestar, Request, Response
from litestar.config.app import AppConfig
from litestar.datastructures import State
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.params import Parameter

from services.kit.access.access import Access
from services.kit.access.web import AccessPlugin
from services.kit.errors import Invalid, Stale
from services.kit.problems import Handlers

Before = Callable[[Request[Any, Any, Any]], Response[Any] | None]
"""A check of every request before its route: the refusal, if there is one."""
Revision = Annotated[
    str | None, Parameter(header="If-Match", max_length=40, description="the revision that the change is based on; 409 if it is outdated")
]
_KEY: Final = SecurityScheme(type="http", scheme="bearer", description="an API key: `wooly keys create`, or Settings, API keys")


def make_rest_app(
    title: str,
    routes: Sequence[Any],
    access: Access,
    *,
    parts: Any,
    before: Before,
    handlers: Handlers,
    body_bytes_max: int,
    middleware: Sequence[Any] = (),
) -> Litestar:
    """An application whose routes find ``parts`` in its state. Every request is authenticated and authorised (``access``) and has an id in
    the log before ``before`` and the route see it; exceptions are answered by ``handlers``."""

    async def check(request: Request[Any, Any, Any]) -> Response[Any] | None:
        _bind_to_log(request)
        return before(request)

    config = AppConfig(
        route_handlers=[*routes],
        state=State({"parts": parts}),
        middleware=list(middleware),
        plugins=[AccessPlugin(access)],
        before_request=check,
        exception_handlers=handlers,
        openapi_config=_description(title),
        request_max_body_size=body_bytes_max,
        logging_config=None,
    )
    return Litestar.from_config(config)


def revision_of(header: str | None) -> int | None:
    """The revision of an If-Match header: a number, quoted or not; ``*`` and nothing: whatever holds. Raises Invalid."""
    if header is None or header.strip() == "*":
        return None
    text = header.strip().removeprefix("W/").strip('"')
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Invalid("If-Match", f"{header!r} is no revision; give the number that the answer carried as revision")
    return int(text)


def check_revision(what: str, held: int, expected: int | None) -> None:
    """Raises Stale when ``expected`` is given and is not the revision that holds."""
    if expected is not None and expected != held:
        raise Stale(what, held)


def _description(title: str) -> OpenAPIConfig:
    """Served at /schema/openapi.json; the controller shows those of all services (services.controller.web.api). litestar's viewers are left
    out, for they load scripts from other hosts, and the YAML form, which takes a second to write, each time, for callers without a key."""
    return OpenAPIConfig(
        title=title,
        version="1",
        render_plugins=[JsonRenderPlugin()],
        use_handler_docstrings=True,
        components=Components(security_schemes={"key": _KEY}),
        security=[{"key": []}],
    )


def _bind_to_log(request: Request[Any, Any, Any]) -> None:
    """Every line that is logged while this request is answered names the request and the caller. (A request is a task of its own.)"""
    user = request.scope.get("user")
    caller = {"asker": user.name, "asker_tenant": user.tenant} if isinstance(getattr(user, "name", None), str) else {}
    structlog.contextvars.bind_contextvars(request=secrets.token_hex(4), path=request.url.path, **caller)
