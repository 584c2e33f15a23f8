"""Audit records, from the log."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from litestar import Request, get
from litestar.params import Parameter

from services.controller.access_answers import action_answer
from services.controller.answers import Json
from services.controller.errors import Invalid
from services.controller.identity import caller_of
from services.controller.parts import parts_of
from services.controller.routes.described import Limit, Offset, page, problems
from services.kit.access import AccessView
from services.kit.access.rules import AUDITED

__all__ = ["ROUTES"]

Ask = Request[Any, Any, Any]
Moment = Annotated[str | None, Parameter(description="a time such as 2030-01-31T12:00:00Z")]


@get("/api/v1/audit", summary="List audit records, newest first", action="audit.read", responses=problems())
async def audit(
    request: Ask,
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
    await parts.mirror.caught_up()
    found = [
        done
        for done in reversed(parts.mirror.fold(AccessView).actions)
        if (actor is None or done.fact.actor == actor)
        and (action is None or done.fact.action == action)
        and (target is None or done.fact.target == target)
        and (tenant is None or done.fact.tenant == tenant)
        and (from_ns is None or done.fact.at_ns >= from_ns)
        and (to_ns is None or done.fact.at_ns < to_ns)
        and caller.may("audit.read", done.fact.tenant)
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


ROUTES: Final = [audit]
