"""API keys: create (the secret is shown once), list, read, revoke."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

from litestar import Request, delete, get, post
from litestar.params import Parameter
from msgspec import UNSET

from services.controller.access_answers import key_answer
from services.controller.access_bodies import KeyBody
from services.controller.actions.keys import KeyValues, visible_keys
from services.controller.answers import Json
from services.controller.identity import caller_of
from services.controller.parts import parts_of
from services.controller.routes.described import Limit, Offset, page, problems
from services.kit.access import AccessView

__all__ = ["ROUTES"]

Ask = Request[Any, Any, Any]
KeyId = Annotated[str, Parameter(description="id of a key")]


@get("/api/v1/keys", summary="List the caller's keys; for admins also those of others", action="key.read", responses=problems())
async def keys(request: Ask, tenant: str | None = None, user: str | None = None, limit: Limit = 1_000, offset: Offset = 0) -> Json:
    parts = parts_of(request)
    await parts.mirror.caught_up()
    view = parts.mirror.fold(AccessView)
    shown, total = page(visible_keys(view, caller_of(request), tenant=tenant, user=user), limit, offset)
    return {"items": [key_answer(view, key, time.time_ns()) for key in shown], "total": total}


@get("/api/v1/keys/{key:str}", summary="Get a key, without its secret", action="key.read", responses=problems(404))
async def key(request: Ask, key: KeyId) -> Json:
    parts = parts_of(request)
    await parts.mirror.caught_up()
    return key_answer(parts.mirror.fold(AccessView), parts.keys.seen(caller_of(request), key), time.time_ns())


@post("/api/v1/keys", summary="Create a key; only this answer contains its secret", action="key.write", responses=problems(409, 413))
async def post_key(request: Ask, data: KeyBody) -> Json:
    """For the caller, within the caller's own permissions; admins may also create keys for other users, nodes and services."""
    values = KeyValues(
        title=data.title,
        user=None if data.user is UNSET else data.user,
        tenant=None if data.tenant is UNSET else data.tenant,
        role=None if data.role is UNSET else data.role,
        scopes=None if data.scopes is UNSET else data.scopes,
        expires_in_s=data.expires_in_s,
        node=data.node,
    )
    parts = parts_of(request)
    made, text = await parts.keys.issue(caller_of(request), values)
    return {**key_answer(parts.mirror.fold(AccessView), made, time.time_ns()), "key": text.text}


@delete("/api/v1/keys/{key:str}", status_code=200, summary="Revoke a key immediately", action="key.write", responses=problems(404, 409))
async def delete_key(request: Ask, key: KeyId) -> Json:
    """REST refuses it from now on, and its connections to the bus end. 409 if no other credential of a cluster admin is left."""
    parts = parts_of(request)
    revoked = await parts.keys.revoke(caller_of(request), key)
    return key_answer(parts.mirror.fold(AccessView), revoked, time.time_ns())


ROUTES: Final = [keys, key, post_key, delete_key]
