"""The OpenAPI description of a REST service, at /schema/openapi.json and .yaml. The controller shows those of all services to people
(services.controller.web.api)."""

from __future__ import annotations

from typing import Final

from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, YamlRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

__all__ = ["description_of"]

_KEY: Final = SecurityScheme(type="http", scheme="bearer", description="an API key: `wooly keys create`, or Settings, API keys")


def description_of(title: str) -> OpenAPIConfig:
    """What litestar describes itself by. litestar's viewers are left out: they load scripts from other hosts."""
    return OpenAPIConfig(
        title=title,
        version="1",
        render_plugins=[JsonRenderPlugin(), YamlRenderPlugin()],
        use_handler_docstrings=True,
        components=Components(security_schemes={"key": _KEY}),
        security=[{"key": []}],
    )
