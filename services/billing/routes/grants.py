"""Grants: credits given to tenants."""

from __future__ import annotations

import time
import uuid
from typing import Final

from litestar import Response, get, post

from billing.projection import BillingView, Grant
from billing.report import amount_text, credits_text
from bus_schemas.events import Event, GrantRecorded
from services.billing.parts import Ask, fresh_view, parts_of, tenant_must_be
from services.billing.requests import GrantBody, Json, TenantName
from services.kit.access.requests import audit_record, tenant_filter
from services.kit.errors import Invalid, RequestError
from services.kit.problems import problems

__all__ = ["ROUTES"]


class GrantExists(RequestError):
    """The id belongs to a grant of another tenant or another amount."""

    kind, title = "grant-exists", "The grant exists"

    def __init__(self, message: str) -> None:
        super().__init__(message, "id")


def _answer(name: str, grant: Grant) -> Json:
    return {
        "id": name,
        "tenant": grant.tenant,
        "micro": grant.micro,
        "credits": credits_text(grant.micro),
        "at_ns": grant.at_ns,
        "position": grant.position,
    }


def _made(view: BillingView, name: str, asked: GrantBody) -> Grant | None:
    """The grant that was made under this id. Raises GrantExists when it is not the one asked for."""
    known = view.grants.get(name)
    if known is not None and (known.tenant, known.micro) != (asked.tenant, asked.micro):
        raise GrantExists(f"the id {name} names a grant of another tenant or amount")
    return known


@get("/api/v1/billing/grants", summary="List grants of credits, newest first", action="credits.read", responses=problems())
async def grants(request: Ask, tenant: TenantName = None) -> Json:
    only = tenant_filter(request, "credits.read", tenant)
    view = await fresh_view(request)
    found = [(name, grant) for name, grant in view.grants.items() if only is None or grant.tenant == only]
    found.sort(key=lambda item: -item[1].position)
    return {"items": [_answer(name, grant) for name, grant in found], "total": len(found)}


@post("/api/v1/billing/grants", summary="Grant credits to a tenant", action="credits.grant", responses=problems(404, 409, 413))
async def post_grant(request: Ask, data: GrantBody) -> Response[Json]:
    """201: granted. 200: the same grant exists under this id. 409: the id belongs to another grant."""
    if data.micro == 0:
        raise Invalid("micro", "a grant of nothing is none")
    parts = parts_of(request)
    tenant_must_be(request, await fresh_view(request), "credits.grant", data.tenant)
    name = data.id or uuid.uuid4().hex
    fact = GrantRecorded(time.time_ns(), name, data.tenant, data.micro)
    detail = f"{amount_text(data.micro)} credits{f': {data.note}' if data.note else ''} (grant {name})"
    action = audit_record(request, "credits.grant", data.tenant, detail, tenant=data.tenant)

    def decide(view: BillingView) -> list[Event]:
        return [] if _made(view, name, data) else [fact, action]

    written = await parts.writer.tenant(data.tenant, decide)
    # The log orders what is given to several tenants under one id at once: the first one counts.
    made = _made(parts.projection.view, name, data)
    assert made is not None, "the view holds what was written"
    return Response(_answer(name, made), status_code=201 if written == made.position else 200)


ROUTES: Final = (grants, post_grant)
