"""The page /settings/keys: make a key (its secret is shown once, on the answer to the form and never again), list, revoke.

May live here: routes. May not: rules (actions.keys), hashes.
"""

from __future__ import annotations

import time
from typing import Any, Final

from litestar import Response, get, post
from msgspec import UNSET

from services.controller.access_answers import key_answer
from services.controller.access_bodies import KeyBody
from services.controller.actions.keys import KeyValues, visible_keys
from services.controller.actions.users import visible_users
from services.controller.identity import caller_of
from services.controller.parts import parts_of
from services.controller.web.flash import redirect
from services.controller.web.forms import Values, form_values, read_as
from services.controller.web.listing import Listing
from services.controller.web.settings.shared import SLIPS, Ask, settings_page, slip_of
from services.kit.access import ROLES, SCOPES, AccessView

__all__ = ["ROUTES"]

_DAY_S: Final = 86_400
_SORTS: Final = ("issued", "title", "tenant", "user", "role", "state")


@get("/settings/keys", action="key.read", include_in_schema=False)
async def listed(request: Ask) -> Response[str]:
    return await _page(request, {}, {})


async def _page(request: Ask, values: Values, errors: dict[str, str], status: int = 200, secret: str = "") -> Response[str]:
    """``secret``: the text of a key that was just made; it is on this page only."""
    parts, caller = parts_of(request), caller_of(request)
    await parts.mirror.caught_up()
    view = parts.mirror.fold(AccessView)
    listing = Listing.parse("/settings/keys", request.query_params, sorts=_SORTS, default="-issued", filters=("state",))
    rows = [key_answer(view, key, time.time_ns()) for key in visible_keys(view, caller)]
    needle = listing.search.casefold()
    rows = [row for row in rows if needle in f"{row['id']}\n{row['title']}\n{row['tenant']}\n{row['user']}\n{row['node']}".casefold()]
    if listing.filters.get("state"):
        rows = [row for row in rows if row["state"] == listing.filters["state"]]
    key_of = "issued_at" if listing.sort == "issued" else listing.sort
    rows.sort(key=lambda row: (str(row[key_of] or ""), row["id"]), reverse=listing.descending)
    shown, listing = listing.take(rows)
    return settings_page(
        request,
        "settings/keys.html",
        status=status,
        listing=listing,
        rows=shown,
        values=values,
        errors=errors,
        secret=secret,
        roles=[role for role in ROLES if not caller.identity.tenant or role in ("member", "viewer")],
        scopes=SCOPES,
        tenants=[] if caller.identity.tenant else sorted(view.tenants),
        users=[user.fact.user for user in visible_users(view, caller)],
    )


@post("/settings/keys", action="key.write", include_in_schema=False, csrf="form")
async def make(request: Ask) -> Response[Any]:
    values = await form_values(request, lists=("scopes",))
    asked = dict(values)
    days = str(asked.pop("expires_days", ""))
    if days:
        asked["expires_in_s"] = int(days) * _DAY_S if days.isascii() and days.isdigit() and len(days) < 6 else days
    body, errors = read_as(KeyBody, asked)
    if body is None:
        return await _page(
            request, values, {("expires_days" if name == "expires_in_s" else name): text for name, text in errors.items()}, 400
        )
    wanted = KeyValues(
        title=body.title,
        user=None if body.user is UNSET else body.user,
        tenant=None if body.tenant is UNSET else body.tenant,
        role=None if body.role is UNSET else body.role,
        scopes=None if body.scopes is UNSET else body.scopes,
        expires_in_s=body.expires_in_s,
        node=body.node,
    )
    try:
        _, text = await parts_of(request).keys.issue(caller_of(request), wanted)
    except SLIPS as error:
        return await _page(request, values, dict([slip_of(error)]), 400)
    return await _page(request, {}, {}, 201, text.text)


@post("/settings/keys/{key:str}/revoke", action="key.write", include_in_schema=False, csrf="form")
async def revoke(request: Ask, key: str) -> Response[Any]:
    await form_values(request)
    try:
        await parts_of(request).keys.revoke(caller_of(request), key)
    except SLIPS as error:
        return redirect("/settings/keys", slip_of(error)[1], "warn")
    return redirect("/settings/keys", f"Key {key} was revoked.")


ROUTES: Final = [listed, make, revoke]
