"""The page /settings/audit: who did what, from the log, the newest first.

May live here: the route. May not: what is recorded (actions).
"""

from __future__ import annotations

from typing import Final

from litestar import Response, get

from services.controller.identity import caller_of
from services.controller.parts import parts_of
from services.controller.web.listing import Listing
from services.controller.web.settings.shared import Ask, settings_page
from services.kit.access import AccessView
from services.kit.access.rules import AUDITED

__all__ = ["ROUTES"]


@get("/settings/audit", action="audit.read", include_in_schema=False)
async def audit(request: Ask) -> Response[str]:
    """The last hundred thousand actions, as far as the asker may see them."""
    parts, caller = parts_of(request), caller_of(request)
    await parts.mirror.caught_up()
    access, tasks = parts.mirror.fold(AccessView), parts.mirror.view.tasks
    listing = Listing.parse("/settings/audit", request.query_params, sorts=("at",), default="-at", filters=("action", "actor"))
    needle, action, actor = listing.search.casefold(), listing.filters.get("action", ""), listing.filters.get("actor", "")
    found = [
        done.fact
        for done in access.actions
        if (not action or done.fact.action == action)
        and (not actor or done.fact.actor == actor)
        and (not needle or needle in f"{done.fact.actor}\n{done.fact.tenant}\n{done.fact.target}\n{done.fact.detail}".casefold())
        and caller.may("audit.read", done.fact.tenant)
    ]
    if listing.descending:
        found.reverse()
    shown, listing = listing.take(found)
    titles = {fact.target: tasks[fact.target].submitted.title for fact in shown if fact.target in tasks}
    titles |= {fact.target: access.keys[fact.target].fact.title for fact in shown if fact.target in access.keys}
    actions = [(action, action) for action in sorted(AUDITED)]
    return settings_page(request, "settings/audit.html", listing=listing, rows=shown, actions=actions, titles=titles)


ROUTES: Final = [audit]
