"""The global configuration."""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, get, put

from scheduler.placement.states import (
    DEFAULT_VRAM_MB,
    ENVIRONMENT,
    GLOBAL,
    OVERCOMMIT_GLOBAL,
    QUEUE_AGE_MS,
    QUEUE_PROTECT_MS,
    QUEUE_RESERVATIONS,
)
from services.controller.answers import Json
from services.controller.bodies import ConfigBody
from services.controller.identity import caller_of
from services.controller.parts import Parts, parts_of
from services.controller.revisions import config_revision
from services.controller.routes.described import Revision, problems, revision_of

__all__ = ["ROUTES"]

Ask = Request[Any, Any, Any]


@get("/api/v1/config", summary="Get the global configuration", action="config.read", responses=problems())
async def get_config(request: Ask) -> Json:
    parts = parts_of(request)
    await parts.fresh_view()
    return _config(parts)


@put("/api/v1/config", summary="Change the global configuration", action="config.write", responses=problems(409))
async def put_config(request: Ask, data: ConfigBody, if_match: Revision = None) -> Json:
    parts = parts_of(request)
    await parts.config.change(caller_of(request), data.changes(), revision=revision_of(if_match))
    return _config(parts)


def _config(parts: Parts) -> Json:
    """The values that hold; ``source``: where the overcommit is from."""
    view = parts.mirror.view
    stored = view.number(GLOBAL, OVERCOMMIT_GLOBAL)
    source = "stored" if stored is not None else "environment" if view.number(ENVIRONMENT, OVERCOMMIT_GLOBAL) else "default"
    return {
        OVERCOMMIT_GLOBAL: stored if stored is not None else view.overcommit_default(),
        "source": source,
        **{key: view.setting(key) for key in (QUEUE_AGE_MS, QUEUE_PROTECT_MS, QUEUE_RESERVATIONS, DEFAULT_VRAM_MB)},
        "revision": config_revision(parts.mirror),
    }


ROUTES: Final = [get_config, put_config]
