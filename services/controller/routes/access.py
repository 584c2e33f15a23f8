"""Tenants, users, API keys (the secret is shown once) and audit records."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Final

from litestar import delete, get, patch, post
from litestar.params import Parameter
from msgspec import UNSET

from services.controller.actions.access import KeyValues, UserValues, visible_actions, visible_keys, visible_tenants, visible_users
from services.controller.bodies import KeyBody, NewTenantBody, NewUserBody, TenantBody, UserBody, values_of
from services.controller.errors import Invalid
from services.controller.identity import caller_of
from services.controller.parts import Ask, parts_of
from services.controller.presenters.access import action_answer, key_answer, tenant_answer, user_answer
from services.controller.presenters.common import Json
from services.controller.routes.described import Limit, Offset, Revision, page, problems, revision_of
from services.kit.access import AccessView
from services.kit.access.rules import AUDITED

__all__ = ["AUDIT", "KEYS", "TENANTS", "USERS"]

TenantId = Annotated[str, Parameter(description="id of a tenant")]
UserId = Annotated[str, Parameter(description="id of a user")]
KeyId = Annotated[str, Parameter(description="id of a key")]
Moment = Annotated[str | None, Parameter(description="a time such as 2030-01-31T12:00:00Z")]


@get("/api/v1/tenants", summary="List the tenants that the caller may see", action="tenant.read", responses=problems())
async def tenants(request: Ask, limit: Limit = 1_000, offset: Offset = 0) -> Json:
    parts = parts_of(request)
    await parts.projection.caught_up()
    shown, total = page(visible_tenants(parts.projection.fold(AccessView), caller_of(request)), limit, offset)
    return {"items": [tenant_answer(tenant) for tenant in shown], "total": total}


@get("/api/v1/tenants/{tenant:str}", summary="Get a tenant", action="tenant.read", responses=problems(404))
async def tenant(request: Ask, tenant: TenantId) -> Json:
    parts = parts_of(request)
    await parts.projection.caught_up()
    return tenant_answer(parts.tenants.seen(caller_of(request), tenant))


@post("/api/v1/tenants", summary="Create a tenant", action="tenant.write", responses=problems(409, 413))
async def post_tenant(request: Ask, data: NewTenantBody) -> Json:
    return tenant_answer(await parts_of(request).tenants.create(caller_of(request), data.id, data.title))


@patch(
    "/api/v1/tenants/{tenant:str}",
    summary="Change a tenant's title or disable it",
    action="tenant.write",
    responses=problems(404, 409, 413),
)
async def patch_tenant(request: Ask, tenant: TenantId, data: TenantBody, if_match: Revision = None) -> Json:
    """Keys and users of a disabled tenant are refused from now on; their earlier actions and usage stay in the log and on the bill."""
    changed = await parts_of(request).tenants.change(
        caller_of(request),
        tenant,
        title=None if data.title is UNSET else data.title,
        disabled=None if data.disabled is UNSET else data.disabled,
        revision=revision_of(if_match),
    )
    return tenant_answer(changed)


@get("/api/v1/users", summary="List the users that the caller may see", action="user.read", responses=problems())
async def users(request: Ask, tenant: str | None = None, limit: Limit = 1_000, offset: Offset = 0) -> Json:
    parts = parts_of(request)
    await parts.projection.caught_up()
    shown, total = page(visible_users(parts.projection.fold(AccessView), caller_of(request), tenant), limit, offset)
    return {"items": [user_answer(user) for user in shown], "total": total}


@get("/api/v1/users/{user:str}", summary="Get a user", action="user.read", responses=problems(404))
async def user(request: Ask, user: UserId) -> Json:
    parts = parts_of(request)
    await parts.projection.caught_up()
    return user_answer(parts.users.seen(caller_of(request), user))


@post("/api/v1/users", summary="Create a user", action="user.write", responses=problems(409, 413))
async def post_user(request: Ask, data: NewUserBody) -> Json:
    """Callers cannot grant privileges beyond their own. Without a password the user can authenticate by API keys only."""
    return user_answer(await parts_of(request).users.create(caller_of(request), data.id, values_of(UserValues, data)))


@patch("/api/v1/users/{user:str}", summary="Change or disable a user", action="user.write", responses=problems(404, 409, 413))
async def patch_user(request: Ask, user: UserId, data: UserBody, if_match: Revision = None) -> Json:
    """A new password ends the user's sessions. 409 also if this would lock out the last admin of the cluster."""
    values = values_of(UserValues, data)
    return user_answer(await parts_of(request).users.change(caller_of(request), user, values, revision=revision_of(if_match)))


@get("/api/v1/keys", summary="List the caller's keys; for admins also those of others", action="key.read", responses=problems())
async def keys(request: Ask, tenant: str | None = None, user: str | None = None, limit: Limit = 1_000, offset: Offset = 0) -> Json:
    parts = parts_of(request)
    await parts.projection.caught_up()
    view = parts.projection.fold(AccessView)
    shown, total = page(visible_keys(view, caller_of(request), tenant=tenant, user=user), limit, offset)
    return {"items": [key_answer(view, key, time.time_ns()) for key in shown], "total": total}


@get("/api/v1/keys/{key:str}", summary="Get a key, without its secret", action="key.read", responses=problems(404))
async def key(request: Ask, key: KeyId) -> Json:
    parts = parts_of(request)
    await parts.projection.caught_up()
    return key_answer(parts.projection.fold(AccessView), parts.keys.seen(caller_of(request), key), time.time_ns())


@post("/api/v1/keys", summary="Create a key; only this answer contains its secret", action="key.write", responses=problems(409, 413))
async def post_key(request: Ask, data: KeyBody) -> Json:
    """For the caller, within the caller's own permissions; admins may also create keys for other users, nodes and services."""
    parts = parts_of(request)
    made, text = await parts.keys.issue(caller_of(request), values_of(KeyValues, data))
    return {**key_answer(parts.projection.fold(AccessView), made, time.time_ns()), "key": text.text}


@delete("/api/v1/keys/{key:str}", status_code=200, summary="Revoke a key immediately", action="key.write", responses=problems(404, 409))
async def delete_key(request: Ask, key: KeyId) -> Json:
    """REST refuses it from now on, and its connections to the bus end. 409 if no other credential of a cluster admin is left."""
    parts = parts_of(request)
    revoked = await parts.keys.revoke(caller_of(request), key)
    return key_answer(parts.projection.fold(AccessView), revoked, time.time_ns())


@get("/api/v1/audit", summary="List audit records, newest first", action="audit.read", responses=problems())
async def audit(
    request: Ask,
    *,
    actor: str | None = None,
    action: str | None = None,
    target: str | None = None,
    tenant: str | None = None,
    after: Moment = None,
    before: Moment = None,
    limit: Limit = 100,
    offset: Offset = 0,
) -> Json:
    """Those of the caller's tenant, or of the whole cluster; the last hundred thousand are kept."""
    if action is not None and action not in AUDITED:
        raise Invalid("action", f"there is no action {action}; there are: {', '.join(sorted(AUDITED))}")
    from_ns, to_ns = _ns("after", after), _ns("before", before)
    parts, caller = parts_of(request), caller_of(request)
    await parts.projection.caught_up()
    found = [
        done
        for done in visible_actions(parts.projection.fold(AccessView), caller, actor=actor or "", action=action or "")
        if (target is None or done.fact.target == target)
        and (tenant is None or done.fact.tenant == tenant)
        and (from_ns is None or done.fact.at_ns >= from_ns)
        and (to_ns is None or done.fact.at_ns < to_ns)
    ]
    shown, total = page(found, limit, offset)
    return {"items": [action_answer(done) for done in shown], "total": total}


def _ns(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError("no zone")
        return int(moment.timestamp() * 1_000) * 1_000_000
    except (ValueError, OverflowError) as error:
        raise Invalid(name, f"{text!r} is no time with a zone, such as 2030-01-31T12:00:00Z") from error


TENANTS: Final = [tenants, tenant, post_tenant, patch_tenant]
USERS: Final = [users, user, post_user, patch_user]
KEYS: Final = [keys, key, post_key, delete_key]
AUDIT: Final = [audit]
