"""The REST face of billing, under /api/v1/billing: routes and what every request passes through.

May live here: assembling. May not: routes, what they do.
"""

from __future__ import annotations

from typing import Any, Final

from litestar import Litestar, Request, Response
from litestar.config.app import AppConfig
from litestar.datastructures import State

from services.billing.parts import Parts
from services.billing.problems import HANDLERS, refuse_unknown_parameters
from services.billing.routes import ROUTES
from services.kit.access.web import AccessPlugin
from services.kit.described import description_of
from services.kit.facts_log import bind_request

__all__ = ["make_app"]

_BODY_BYTES_MAX: Final = 64 << 10


async def _before(request: Request[Any, Any, Any]) -> Response[Any] | None:
    bind_request(request)
    return await refuse_unknown_parameters(request)


def make_app(parts: Parts) -> Litestar:
    """The application over running parts."""
    config = AppConfig(
        route_handlers=[*ROUTES],
        state=State({"parts": parts}),
        plugins=[AccessPlugin(parts.access)],
        before_request=_before,
        exception_handlers=HANDLERS,
        openapi_config=description_of("Wooly billing"),
        request_max_body_size=_BODY_BYTES_MAX,
        logging_config=None,
    )
    return Litestar.from_config(config)
