"""The monthly statement of a tenant, for programs, spreadsheets and paper."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final, Literal

import msgspec
from litestar import MediaType, Response, get
from litestar.params import Parameter

from billing.periods import month_name
from billing.statement import statement, statement_csv
from services.billing.parts import Ask, fresh_view, tenant_must_be
from services.billing.requests import also_as
from services.billing.statement_page import statement_page
from services.kit.problems import problems

__all__ = ["ROUTES"]

_MEDIA: Final = {"json": "application/json", "csv": "text/csv", "html": "text/html"}
_PAGE_HEADERS: Final = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"}


@get(
    "/api/v1/billing/statements/{tenant:str}",
    summary="Get a tenant's monthly statement as JSON, CSV or a printable page",
    media_type=MediaType.JSON,
    action="credits.read",
    responses=problems(404),
    operation_class=also_as("text/csv", "text/html"),
)
async def get_statement(
    request: Ask,
    tenant: str,
    month: Annotated[str, Parameter(max_length=10, description="YYYY-MM in UTC; empty: this month so far")] = "",
    form: Annotated[Literal["json", "csv", "html"] | None, Parameter(query="format", description="left out: by the Accept header")] = None,
) -> Response[Any]:
    """Opening balance + grants - charges = closing balance, exactly. The statement names the log position that it was computed at: an event
    of the month that reaches the log later changes it."""
    view = await fresh_view(request)
    tenant_must_be(request, view, "credits.read", tenant)
    found = statement(view, tenant, month or month_name(time.time_ns()))
    best = request.accept.best_match(list(_MEDIA.values()), default="application/json")
    chosen: str = form or next((name for name, media in _MEDIA.items() if media == best), "json")
    if chosen == "csv":
        headers = {"content-disposition": f'attachment; filename="statement-{found.month}.csv"'}
        return Response(statement_csv(found), media_type="text/csv", headers=headers)
    if chosen == "html":
        return Response(statement_page(found), media_type="text/html", headers=_PAGE_HEADERS)
    return Response(msgspec.to_builtins(found))


ROUTES: Final = (get_statement,)
