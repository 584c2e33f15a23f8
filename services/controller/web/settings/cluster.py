"""The page /settings: overcommit and queue of the whole cluster, what nodes have of their own, swap.

May live here: routes. May not: what a value means (scheduler.placement), rules (actions).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from litestar import Response, get, post

from scheduler.placement import ClusterView
from scheduler.placement.states import (
    DEFAULT_VRAM_MB,
    DEFAULTS,
    ENVIRONMENT,
    GLOBAL,
    GLOBAL_LIMITS,
    OVERCOMMIT_GLOBAL,
    OVERCOMMIT_NODE,
    QUEUE_AGE_MS,
    QUEUE_PROTECT_MS,
    QUEUE_RESERVATIONS,
)
from services.controller.errors import Stale
from services.controller.identity import caller_of
from services.controller.parts import parts_of
from services.controller.revisions import config_revision
from services.controller.web.forms import Values, form_values, redirect, revision_in
from services.controller.web.settings.shared import SLIPS, Ask, settings_page, slip_of

__all__ = ["ROUTES", "Setting", "settings_of"]


@dataclass(frozen=True, slots=True)
class Setting:
    """A global value. ``source``: stored, environment or default; ``scale``: what one unit of the form is in units of the value."""

    key: str
    label: str
    unit: str
    hint: str
    value: int
    stored: int | None
    default: int
    source: str
    most: int
    scale: int = 1


_SHOWN: Final = (
    (
        OVERCOMMIT_GLOBAL, "VRAM overcommit", "%", 1,
        "Memory beyond a device's own that tasks may be promised if they can be swapped out. A node's own value has precedence.",
    ),
    (QUEUE_AGE_MS, "Raise waiting tasks every", "s", 1000, "Each time by one priority level (aging). 0: never."),
    (QUEUE_PROTECT_MS, "Reserve devices after waiting", "s", 1000,
     "Later tasks can then no longer overtake it. 0: never."),
    (QUEUE_RESERVATIONS, "Most reservations", "tasks", 1, "For so many tasks at one time."),
    (DEFAULT_VRAM_MB, "Default VRAM of a task", "MiB", 1,
     "For a task that requests none; it may grow beyond. At most a quarter of the largest device. 0: every task must request VRAM."),
)  # fmt: skip


def settings_of(view: ClusterView) -> list[Setting]:
    """Every global value with where it is from."""
    return [_setting(view, key, label, unit, scale, hint) for key, label, unit, scale, hint in _SHOWN]


def _setting(view: ClusterView, key: str, label: str, unit: str, scale: int, hint: str) -> Setting:
    stored, given = view.number(GLOBAL, key), view.number(ENVIRONMENT, key)
    default = given if given else DEFAULTS[key]
    source = "stored" if stored is not None else "environment" if given else "default"
    value = stored if stored is not None else default
    return Setting(key, label, unit, hint, value, stored, default, source, GLOBAL_LIMITS[key] // scale, scale)


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
    """Each field empty: the stored value is taken away, and what the environment or we say holds."""
    values = await form_values(request)
    revision = revision_in(values)
    changes: dict[str, int | None] = {}
    errors: dict[str, str] = {}
    for key, _, _, scale, _ in _SHOWN:
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
    except SLIPS as error:
        return await _page(request, values, dict([slip_of(error)]), 400)
    return redirect("/settings", "Saved. The values apply to every controller from now on.")


ROUTES: Final = [cluster, change]
