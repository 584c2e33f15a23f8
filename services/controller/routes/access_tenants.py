"""Tenants: make, list, look, name, disable."""

from __future__ import annotations

from typing import Annotated, Any, Final

from litestar import Request, get, patch, post
from litestar.params import Parameter
from msgspec import UNSET

from services.controller.access_answers import tenant_answer
from services.controller.access_bodies import NewTenantBody, TenantBody
from services.controller.actions.tenants import visible_tenants
from services.controller.answers import Json
from services.controller.identity import caller_of
from services.controller.parts import parts_of
from services.controller.routes.described import Limit, Offset, Revision, page, problems, revision_of
from services.kit.access import AccessView

__all__ = ["ROUTES"]

Ask = Request[Any, Any, Any]
TenantId = Annotated[str, Parameter(description="id of a tenant")]


@get("/api/v1/tenants", summary="List the tenants that the caller may see", action="tenant.read", responses=problems())
async def tenants(request: Ask, limit: Limit = 1_000, offset: Offset = 0) -> Json:
    parts = parts_of(request)
    await parts.mirror.caught_up()
    shown, total = page(visible_tenants(parts.mirror.fold(AccessView), caller_of(request)), limit, offset)
    return {"items": [tenant_answer(tenant) for tenant in shown], "total": total}


@get("/api/v1/tenants/{tenant:str}", summary="Get a tenant", action="tenant.read", responses=problems(404))
async def tenant(request: Ask, tenant: TenantId) -> Json:
    parts = parts_of(request)
    await parts.mirror.caught_up()
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


ROUTES: Final = [tenants, tenant, post_tenant, patch_tenant]
