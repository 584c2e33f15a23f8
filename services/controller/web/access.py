"""The pages /settings/users, tenants, keys and audit. A new key's secret is shown once, on the answer to the form."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, Final

from litestar import Response, get, post
from msgspec import UNSET

from services.controller.actions.access import KeyValues, UserValues, visible_actions, visible_keys, visible_tenants, visible_users
from services.controller.bodies import KeyBody, NewTenantBody, NewUserBody, TenantBody, TotpBody, TotpRemovalBody, UserBody, values_of
from services.controller.errors import Stale
from services.controller.identity import caller_of
from services.controller.parts import Ask, parts_of
from services.controller.presenters import Json
from services.controller.presenters.access import key_answer, tenant_answer, user_answer
from services.controller.presenters.quotas import Use, quota_answer, quota_uses
from services.controller.routes.access import renewed_session
from services.controller.web.formats import bytes_text, count_text, duration_text
from services.controller.web.forms import Values, form_values, read_as, redirect, revision_in
from services.controller.web.listing import Listing
from services.controller.web.settings import FORM_ERRORS, form_error, settings_page
from services.kit.access import ROLES, SCOPES, AccessView
from services.kit.access.errors import Unauthenticated
from services.kit.access.rules import AUDITED
from wooly.shared.credentials import totp_secret, totp_uri

__all__ = ["ROUTES"]

_STALE: Final = "It was changed since this page was loaded. Nothing was saved: check the current values."
_PEOPLE: Final = ("admin", "operator", "member", "viewer")
_KEY_SORTS: Final = ("issued", "title", "tenant", "user", "role", "state")
_DAY_S: Final = 86_400


def _narrowed(rows: list[Json], listing: Listing, searched: Sequence[str], narrowed: str = "") -> tuple[list[Json], Listing]:
    """The rows of one page. ``searched``: fields that search looks in; ``narrowed``: the field with a filter."""
    needle, chosen = listing.search.casefold(), listing.filters.get(narrowed, "")
    rows = [row for row in rows if needle in "\n".join(str(row[name]) for name in searched).casefold()]
    rows = [row for row in rows if not chosen or row[narrowed] == chosen]
    column = "issued_at" if listing.sort == "issued" else listing.sort
    rows.sort(key=lambda row: (str(row[column] or ""), row["id"]), reverse=listing.descending)
    return listing.take(rows)


# -- quotas ------------------------------------------------------------------------------------------------------------------------------


@get("/settings/quotas", action="tenant.read", include_in_schema=False)
async def quotas(request: Ask) -> Response[str]:
    parts, caller = parts_of(request), caller_of(request)
    await parts.projection.caught_up()
    listing = Listing.parse(
        "/settings/quotas", request.query_params, sorts=("tenant", "quota", "percent"), default="-percent", filters=("tenant", "quota")
    )
    uses = quota_uses(parts, lambda name: caller.may("tenant.read", name))
    rows = [{**quota_answer(use), "percent": use.percent, "used_text": _amount(use, use.used), "limit_text": _limit(use)} for use in uses]
    needle = listing.search.casefold()
    found = [row for row in rows if needle in f"{row['tenant']}\n{row['quota']}".casefold()]
    found = [row for row in found if all(row[name] == chosen for name, chosen in listing.filters.items())]
    found.sort(key=lambda row: row[listing.sort], reverse=listing.descending)
    shown, listing = listing.take(found)
    choices = {name: [(value, value) for value in sorted({row[name] for row in rows})] for name in ("tenant", "quota")}
    nodes = {name: node.registered.name for name, node in parts.projection.view.nodes.items()}
    return settings_page(
        request, "settings/quotas.html", listing=listing, rows=shown, tenants=choices["tenant"], quotas=choices["quota"], nodes=nodes
    )


def _amount(use: Use, number: int | None) -> str:
    """A number of the quota's unit."""
    if number is None:
        return ""
    if use.quota.unit.startswith("bytes"):
        return bytes_text(number)
    return duration_text(number) if use.quota.unit.startswith("ns ") else count_text(number)


def _limit(use: Use) -> str:
    quota = use.quota
    if quota.name == "priority":
        return f"P{use.limit}"
    if quota.name == "exclusive":
        return "yes" if use.limit else "no"
    every = "a second" if quota.every_s == 1 else f"every {quota.every_s} s"
    return _amount(use, use.limit) + (f", then {_amount(use, quota.regained)} {every}" if quota.regained else "")


# -- users -------------------------------------------------------------------------------------------------------------------------------


@get("/settings/users", action="user.read", include_in_schema=False)
async def users(request: Ask) -> Response[str]:
    return await _users(request, {}, {})


async def _users(request: Ask, values: Values, errors: dict[str, str], status: int = 200) -> Response[str]:
    parts, caller = parts_of(request), caller_of(request)
    view = await parts.fresh_access()
    listing = Listing.parse("/settings/users", request.query_params, sorts=("id", "role", "tenant"), default="id", filters=("role", "edit"))
    rows = [user_answer(user) for user in visible_users(view, caller)]
    shown, listing = _narrowed(rows, listing, ("id", "title", "tenant"), "role")
    tenants = [] if caller.identity.tenant else sorted(view.tenants)
    return settings_page(
        request,
        "settings/users.html",
        status=status,
        listing=listing,
        rows=shown,
        values=values,
        errors=errors,
        roles=_PEOPLE,
        tenants=tenants,
    )


@post("/settings/users", action="user.write", include_in_schema=False, csrf="form")
async def make_user(request: Ask) -> Response[Any]:
    values = await form_values(request)
    body, errors = read_as(NewUserBody, values)
    if body is None:
        return await _users(request, values, errors, 400)
    try:
        await parts_of(request).users.create(caller_of(request), body.id, values_of(UserValues, body))
    except FORM_ERRORS as error:
        return await _users(request, values, dict([form_error(error)]), 400)
    return redirect(
        "/settings/users", f"User {body.id} can now log in." if body.password else f"User {body.id} was created, without a password."
    )


@get("/settings/users/{user:str}", action="user.read", include_in_schema=False)
async def one_user(request: Ask, user: str) -> Response[str]:
    return await _user(request, user, {}, {})


async def _user(request: Ask, user: str, values: Values, errors: dict[str, str], status: int = 200) -> Response[str]:
    parts, caller = parts_of(request), caller_of(request)
    view = await parts.fresh_access()
    row = user_answer(parts.users.seen(caller, user))
    tenants = [] if caller.identity.tenant else sorted(view.tenants)
    return settings_page(
        request, "settings/user.html", status=status, row=row, values=values, errors=errors, roles=_PEOPLE, tenants=tenants
    )


@post("/settings/users/{user:str}", action="user.write", include_in_schema=False, csrf="form")
async def change_user(request: Ask, user: str) -> Response[Any]:
    """An empty password leaves the one there is."""
    values = await form_values(request, flags=("disabled",))
    revision = revision_in(values)
    body, errors = read_as(UserBody, {**values, "title": values.get("title", ""), "oidc_name": values.get("oidc_name", "")})
    if body is None:
        return await _user(request, user, values, errors, 400)
    try:
        await parts_of(request).users.change(caller_of(request), user, values_of(UserValues, body), revision=revision)
    except Stale:
        return redirect(f"/settings/users/{user}", _STALE, "warn")
    except FORM_ERRORS as error:
        return await _user(request, user, values, dict([form_error(error)]), 400)
    return redirect("/settings/users", f"User {user} is saved.")


@get("/settings/totp", action="anyone", include_in_schema=False)
async def totp(request: Ask) -> Response[str]:
    await parts_of(request).projection.caught_up()
    return _totp(request, totp_secret(secrets.token_bytes(20)), {})


def _totp(request: Ask, secret: str, errors: dict[str, str], status: int = 200, codes: Sequence[str] = ()) -> Response[str]:
    """``secret``: to be enrolled; ``codes``: recovery codes, shown once."""
    name = caller_of(request).identity.name
    user = parts_of(request).projection.fold(AccessView).users.get(name)
    known = None if user is None or not user.fact.password_hash else user_answer(user)
    address = totp_uri(secret, name, f"Wooly at {request.url.netloc}")
    return settings_page(
        request, "settings/totp.html", status=status, row=known, secret=secret, address=address, errors=errors, codes=codes
    )


@post("/settings/totp", action="anyone", include_in_schema=False, csrf="form")
async def enrol_totp(request: Ask) -> Response[Any]:
    values = await form_values(request)
    body, errors = read_as(TotpBody, values)
    if body is None:
        return _totp(request, str(values.get("secret", "")), errors, 400)
    try:
        codes = await parts_of(request).second_factor.enrol(caller_of(request), body.password, body.secret, body.code)
    except (*FORM_ERRORS, Unauthenticated) as error:
        field, text = form_error(error)
        return _totp(request, body.secret, {field or "password": text}, 400)
    answer = _totp(request, body.secret, {}, 201, codes)
    answer.headers.update(await renewed_session(request))
    return answer


@post("/settings/totp/removal", action="anyone", include_in_schema=False, csrf="form")
async def remove_own_totp(request: Ask) -> Response[Any]:
    body, errors = read_as(TotpRemovalBody, await form_values(request))
    if body is None:
        return _totp(request, "", errors, 400)
    try:
        await parts_of(request).second_factor.remove_own(caller_of(request), body.password, body.code)
    except (*FORM_ERRORS, Unauthenticated) as error:
        field, text = form_error(error)
        return _totp(request, "", {field or "password": text}, 400)
    answer = redirect("/settings/totp", "The second factor is removed.")
    answer.headers.update(await renewed_session(request))
    return answer


@post("/settings/users/{user:str}/totp", action="user.write", include_in_schema=False, csrf="form")
async def remove_totp(request: Ask, user: str) -> Response[Any]:
    await form_values(request)
    try:
        await parts_of(request).second_factor.remove(caller_of(request), user)
    except FORM_ERRORS as error:
        return redirect(f"/settings/users/{user}", form_error(error)[1], "warn")
    return redirect(f"/settings/users/{user}", f"The second factor of user {user} is removed.")


# -- tenants -----------------------------------------------------------------------------------------------------------------------------


@get("/settings/tenants", action="tenant.read", include_in_schema=False)
async def tenants(request: Ask) -> Response[str]:
    return await _tenants(request, {}, {})


async def _tenants(request: Ask, values: Values, errors: dict[str, str], status: int = 200) -> Response[str]:
    view = await parts_of(request).fresh_access()
    listing = Listing.parse("/settings/tenants", request.query_params, sorts=("id", "title"), default="id", filters=())
    rows = [tenant_answer(tenant) for tenant in visible_tenants(view, caller_of(request))]
    shown, listing = _narrowed(rows, listing, ("id", "title"))
    people = {row["id"]: sum(user.fact.tenant == row["id"] for user in view.users.values()) for row in shown}
    return settings_page(
        request, "settings/tenants.html", status=status, listing=listing, rows=shown, values=values, errors=errors, people=people
    )


@post("/settings/tenants", action="tenant.write", include_in_schema=False, csrf="form")
async def make_tenant(request: Ask) -> Response[Any]:
    values = await form_values(request)
    body, errors = read_as(NewTenantBody, values)
    if body is None:
        return await _tenants(request, values, errors, 400)
    try:
        await parts_of(request).tenants.create(caller_of(request), body.id, body.title)
    except FORM_ERRORS as error:
        field, text = form_error(error)
        return await _tenants(request, values, {field or "id": text}, 400)
    return redirect("/settings/tenants", f"Tenant {body.id} was created.")


@post("/settings/tenants/{tenant:str}", action="tenant.write", include_in_schema=False, csrf="form")
async def change_tenant(request: Ask, tenant: str) -> Response[Any]:
    values = await form_values(request)
    revision = revision_in(values)
    body, errors = read_as(TenantBody, values)
    if body is None:
        return redirect("/settings/tenants", next(iter(errors.values())), "bad")
    title = None if body.title is UNSET else body.title
    disabled = None if body.disabled is UNSET else body.disabled
    try:
        await parts_of(request).tenants.change(caller_of(request), tenant, title=title, disabled=disabled, revision=revision)
    except Stale:
        return redirect("/settings/tenants", _STALE, "warn")
    except FORM_ERRORS as error:
        return redirect("/settings/tenants", form_error(error)[1], "warn")
    done = "" if disabled is None else " Its keys and users can no longer log in." if disabled else " Its keys and users can log in again."
    return redirect("/settings/tenants", f"Tenant {tenant} is saved.{done}")


@get("/settings/keys", action="key.read", include_in_schema=False)
async def keys(request: Ask) -> Response[str]:
    return await _keys(request, {}, {})


async def _keys(request: Ask, values: Values, errors: dict[str, str], status: int = 200, secret: str = "") -> Response[str]:
    """``secret``: the text of a key that was just made; it is on this page only."""
    parts, caller = parts_of(request), caller_of(request)
    view = await parts.fresh_access()
    listing = Listing.parse("/settings/keys", request.query_params, sorts=_KEY_SORTS, default="-issued", filters=("state",))
    rows = [key_answer(view, key, time.time_ns()) for key in visible_keys(view, caller)]
    shown, listing = _narrowed(rows, listing, ("id", "title", "tenant", "user", "node"), "state")
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
async def make_key(request: Ask) -> Response[Any]:
    values = await form_values(request, lists=("scopes",))
    asked = dict(values)
    days = str(asked.pop("expires_days", ""))
    if days:
        asked["expires_in_s"] = int(days) * _DAY_S if days.isascii() and days.isdigit() and len(days) < 6 else days
    body, errors = read_as(KeyBody, asked)
    if body is None:
        return await _keys(
            request, values, {("expires_days" if name == "expires_in_s" else name): text for name, text in errors.items()}, 400
        )
    try:
        _, text = await parts_of(request).keys.issue(caller_of(request), values_of(KeyValues, body))
    except FORM_ERRORS as error:
        return await _keys(request, values, dict([form_error(error)]), 400)
    return await _keys(request, {}, {}, 201, text.text)


@post("/settings/keys/{key:str}/revoke", action="key.write", include_in_schema=False, csrf="form")
async def revoke_key(request: Ask, key: str) -> Response[Any]:
    await form_values(request)
    try:
        await parts_of(request).keys.revoke(caller_of(request), key)
    except FORM_ERRORS as error:
        return redirect("/settings/keys", form_error(error)[1], "warn")
    return redirect("/settings/keys", f"Key {key} was revoked.")


@get("/settings/audit", action="audit.read", include_in_schema=False)
async def audit(request: Ask) -> Response[str]:
    """The audit records that are kept, as far as the caller may read them."""
    parts, caller = parts_of(request), caller_of(request)
    access, tasks = await parts.fresh_access(), parts.projection.view.tasks
    listing = Listing.parse("/settings/audit", request.query_params, sorts=("at",), default="-at", filters=("action", "actor"))
    needle, chosen = listing.search.casefold(), {name: listing.filters.get(name, "") for name in ("action", "actor")}
    found = [
        done.fact
        for done in visible_actions(access, caller, **chosen)
        if needle in f"{done.fact.actor}\n{done.fact.tenant}\n{done.fact.target}\n{done.fact.detail}".casefold()
    ]
    if not listing.descending:
        found.reverse()
    shown, listing = listing.take(found)
    named = [tasks[fact.target].submitted for fact in shown if fact.target in tasks]  # a user may be called as a task of another tenant
    titles = {task.task: task.title for task in named if caller.sees(task.tenant)}
    titles |= {fact.target: access.keys[fact.target].fact.title for fact in shown if fact.target in access.keys}
    actions = [(action, action) for action in sorted(AUDITED)]
    return settings_page(request, "settings/audit.html", listing=listing, rows=shown, actions=actions, titles=titles)


ROUTES: Final = [
    quotas, users, make_user, one_user, change_user, totp, enrol_totp, remove_own_totp, remove_totp,
    tenants, make_tenant, change_tenant, keys, make_key,
    revoke_key, audit,
]  # fmt: skip
