"""Users: make, list, look, change, disable."""

from __future__ import annotations

from typing import Annotated, Any, Final

from litestar import Request, get, patch, post
from litestar.params import Parameter
from msgspec import UNSET

from services.controller.access_answers import user_answer
from services.controller.access_bodies import NewUserBody, UserBody
from services.controller.actions.users import UserValues, visible_users
from services.controller.answers import Json
from services.controller.identity import caller_of
from services.controller.parts import parts_of
from services.controller.routes.described import Limit, Offset, Revision, page, problems, revision_of
from services.kit.access import AccessView

__all__ = ["ROUTES"]

Ask = Request[Any, Any, Any]
UserId = Annotated[str, Parameter(description="id of a user")]


@get("/api/v1/users", summary="List the users that the caller may see", action="user.read", responses=problems())
async def users(request: Ask, tenant: str | None = None, limit: Limit = 1_000, offset: Offset = 0) -> Json:
    parts = parts_of(request)
    await parts.mirror.caught_up()
    shown, total = page(visible_users(parts.mirror.fold(AccessView), caller_of(request), tenant), limit, offset)
    return {"items": [user_answer(user) for user in shown], "total": total}


@get("/api/v1/users/{user:str}", summary="Get a user", action="user.read", responses=problems(404))
async def user(request: Ask, user: UserId) -> Json:
    parts = parts_of(request)
    await parts.mirror.caught_up()
    return user_answer(parts.users.seen(caller_of(request), user))


@post("/api/v1/users", summary="Create a user", action="user.write", responses=problems(409, 413))
async def post_user(request: Ask, data: NewUserBody) -> Json:
    """Callers cannot grant privileges beyond their own. Without a password the user can authenticate by API keys only."""
    tenant = None if data.tenant is UNSET else data.tenant
    values = UserValues(tenant=tenant, role=data.role, title=data.title, password=data.password)
    return user_answer(await parts_of(request).users.create(caller_of(request), data.id, values))


@patch("/api/v1/users/{user:str}", summary="Change or disable a user", action="user.write", responses=problems(404, 409, 413))
async def patch_user(request: Ask, user: UserId, data: UserBody, if_match: Revision = None) -> Json:
    """A new password ends the user's sessions. 409 also if this would lock out the last admin of the cluster."""
    values = UserValues(
        tenant=None if data.tenant is UNSET else data.tenant,
        role=None if data.role is UNSET else data.role,
        title=None if data.title is UNSET else data.title,
        disabled=None if data.disabled is UNSET else data.disabled,
        password=None if data.password is UNSET else data.password,
    )
    return user_answer(await parts_of(request).users.change(caller_of(request), user, values, revision=revision_of(if_match)))


ROUTES: Final = [users, user, post_user, patch_user]
