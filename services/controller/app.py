"""The application: REST routes, whatever else answers beside them (pages, login), and what every request passes through.

May live here: assembling. May not: routes, what they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from litestar import Litestar, Request, Response
from litestar.config.app import AppConfig
from litestar.datastructures import State

from services.controller.parts import Parts
from services.controller.problems import HANDLERS
from services.controller.requests import check_request
from services.controller.routes import ROUTES
from services.controller.web.problems import for_people
from services.kit.access.access import Access
from services.kit.access.problems import HANDLERS as ACCESS_HANDLERS
from services.kit.access.web import AccessPlugin
from services.kit.described import description_of
from services.kit.facts_log import bind_request

__all__ = ["make_app"]

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
