"""The page /settings: overcommit and queue of the whole cluster, values of nodes, swap."""

from __future__ import annotations

from typing import Any, Final

from litestar import Response, get, post

from scheduler.placement.states import GLOBAL, GLOBAL_LIMITS, OVERCOMMIT_NODE
from services.controller.errors import Stale
from services.controller.identity import caller_of
from services.controller.lookup import config_revision
from services.controller.parts import Ask, parts_of
from services.controller.presenters.config import SETTINGS, settings_of
from services.controller.web.forms import Values, form_values, redirect, revision_in
from services.controller.web.settings.shared import FORM_ERRORS, form_error, settings_page

__all__ = ["ROUTES"]


@get("/settings", action="config.read", include_in_schema=False)
async def cluster(request: Ask) -> Response[str]:
    return await _page(request, {}, {})


async def _page(request: Ask, values: Values, errors: dict[str, str], status: int = 200) -> Response[str]:
    parts = parts_of(request)
    view = await parts.fresh_view()
    own = [
        (name, node.registered.name, view.number(name, OVERCOMMIT_NODE), view.overcommit_percent(name))
        for name, node in sorted(view.nodes.items())
    ]
    return settings_page(
        request,
        "settings/cluster.html",
        status=status,
        settings=settings_of(view),
        revision=config_revision(parts.projection),
        nodes=own,
        values=values,
        errors=errors,
        running={one.node: one for one in parts.gauges.last()},
    )


@post("/settings", action="config.write", include_in_schema=False, csrf="form")
async def change(request: Ask) -> Response[Any]:
    """An empty field unsets the stored value: the environment's or the default then applies."""
    values = await form_values(request)
    revision = revision_in(values)
    changes: dict[str, int | None] = {}
    errors: dict[str, str] = {}
    for key, _, _, scale, _ in SETTINGS:
        text, most = str(values.get(key, "")), GLOBAL_LIMITS[key] // scale
        if not text:
            changes[key] = None
        elif text.isascii() and text.isdigit() and len(text) < 12 and int(text) <= most:
            changes[key] = int(text) * scale
        else:
            errors[key] = f"Write an integer from 0 to {most}, or nothing."
    if errors:
        return await _page(request, values, errors, 400)
    view = parts_of(request).projection.view
    differing = {key: value for key, value in changes.items() if value != view.number(GLOBAL, key)}
    if not differing:
        return redirect("/settings", "Nothing was changed.")
    try:
        await parts_of(request).config.change(caller_of(request), differing, revision=revision)
    except Stale:
        return redirect("/settings", "The settings have changed since this page was loaded. Nothing was saved.", "warn")
    except FORM_ERRORS as error:
        return await _page(request, values, dict([form_error(error)]), 400)
    return redirect("/settings", "Saved. The values apply to every controller from now on.")


ROUTES: Final = [cluster, change]
