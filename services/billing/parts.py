"""What the routes share: their dependencies, and access to them; parameters and bodies of requests, with their limits. Unknown fields are
refused, so that a typo is not a default. Amounts are integers of micro-credits (1 credit = 1,000,000): nothing is rounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from litestar import Request, Response
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, Operation, Schema
from litestar.openapi.spec.enums import OpenAPIType
from litestar.params import Parameter
from msgspec import UNSET, Meta, UnsetType

from billing.budgets import Budget, level, stop_micro
from billing.errors import BillingRequestError
from billing.periods import DAY_NS, bounds
from billing.projection import BillingView
from billing.report import credits_text
from services.billing.projection import BillingProjection
from services.billing.writer import Writer
from services.kit.access.access import Access
from services.kit.access.rules import Action
from services.kit.access.web import permit
from services.kit.errors import Invalid, NotThere

__all__ = [
    "Ask", "Parts", "budget_answer", "fresh_view", "parts_of", "tenant_must_be", "BudgetBody", "From", "GrantBody", "Json",
    "MembershipBody", "PriceBody", "Step", "TaskName", "TenantName", "TierBody", "To", "also_as", "csv_or_json", "not_past_ns",
    "parse_time_ns", "series_period_ns",
]  # fmt: skip

Json = dict[str, Any]
TenantName = Annotated[str | None, Parameter(min_length=1, max_length=200, description="only of this tenant")]
TaskName = Annotated[str | None, Parameter(max_length=64, description="of this task only")]
From = Annotated[str, Parameter(query="from", max_length=40, description="start of the period: Unix seconds or ISO 8601; whole minutes")]
To = Annotated[str, Parameter(max_length=40, description="end of the period, exclusive")]
Step = Annotated[str, Parameter(max_length=20, description="minute, hour or day")]

_NS: Final = 1_000_000_000
_LATEST_NS: Final = 1 << 62
_LATE_NS: Final = 60 * _NS
"""How much earlier than now a validity may begin that a person has just typed in: it then begins now."""
_MICRO_MAX = 10**18
Token = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z", description="1 to 64 letters, digits, '-' or '_'")]
Percent = Annotated[int, Meta(ge=0, le=1_000)]
Note = Annotated[str, Meta(max_length=200, description="the reason; stored in the event log")]
ValidFrom = Annotated[
    str, Meta(max_length=40, description="valid from: Unix seconds or ISO 8601 (UTC), not in the past; empty: from now on")
]


class GrantBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Credits for a tenant; a negative amount takes credits back."""

    tenant: Annotated[str, Meta(min_length=1, max_length=200)]
    micro: Annotated[int, Meta(ge=-_MICRO_MAX, le=_MICRO_MAX, description="micro-credits, not 0")]
    id: Annotated[Token | None, Meta(description="identifies the grant permanently: a repeated request grants once")] = None
    note: Note = ""


class BudgetBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a tenant may spend in the period. ``limit_micro`` null: there is no such budget."""

    limit_micro: Annotated[int, Meta(ge=0, le=_MICRO_MAX)] | None
    warn_percent: Annotated[Percent, Meta(description="percentage of the limit at which a warning is recorded; 0: never")] = 80
    stop_percent: Annotated[Percent, Meta(description="percentage of the limit at which the next batch is refused; 0: never")] = 100
    note: Note = ""


_HOLD: Final = "part of the price that devices and promised memory cost which tasks hold and do not use, in percent"


class TierBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a tier allows. Of what is left out, all stays as it is; null: the default of cluster or tier holds."""

    priority_ceiling: Annotated[int, Meta(ge=0, le=4, description="the best priority its tasks may have; 0 is the highest of all")]
    default_vram_mb: Annotated[int, Meta(ge=1, le=1 << 26, description="VRAM of a task that names none, in MiB")] | UnsetType | None = UNSET
    live_tasks: Annotated[int, Meta(ge=1, le=1 << 20, description="tasks of one tenant that are not over")] | UnsetType | None = UNSET
    exclusive: Annotated[bool, Meta(description="whether tasks may have a device for themselves")] | UnsetType | None = UNSET
    queued_tasks: Annotated[int, Meta(ge=1, le=1 << 20, description="tasks of one tenant in the queue")] | UnsetType | None = UNSET
    hold_percent: Annotated[int, Meta(ge=0, le=1000, description=_HOLD)] | UnsetType | None = UNSET
    from_: ValidFrom = msgspec.field(default="", name="from")


class MembershipBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The tier of a tenant."""

    tier: Literal["premium", "standard", "basic"]
    from_: ValidFrom = msgspec.field(default="", name="from")


class PriceBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The price of a tier."""

    core_second_micro: Annotated[int, Meta(ge=0, le=10**15, description="micro-credits a core-second")]
    gib_second_micro: Annotated[int, Meta(ge=0, le=10**15, description="micro-credits a GiB-second")]
    from_: ValidFrom = msgspec.field(default="", name="from")


def also_as(*media: str) -> type[Operation]:
    """``operation_class`` of a route whose good answer may also be text of these media types."""

    @dataclass
    class AlsoAs(Operation):
        def __post_init__(self) -> None:
            good = (self.responses or {}).get("200")
            if isinstance(good, OpenAPIResponse):
                texts = {name: OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING)) for name in media}
                good.content = {**(good.content or {}), **texts}

    return AlsoAs


def parse_time_ns(field: str, text: str) -> int:
    """Unix seconds, or ISO 8601 (UTC where it names no zone); 0 for nothing. Raises BillingRequestError naming the field."""
    if not text:
        return 0
    try:
        if text.isascii() and text.lstrip("-").isdigit():
            at_ns = int(text) * _NS
        else:
            moment = datetime.fromisoformat(text)
            at_ns = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()) * _NS
    except (ValueError, OverflowError) as error:
        message = f"{text[:60]!r} is neither Unix seconds nor an ISO 8601 time such as 2030-01-31T12:00"
        raise BillingRequestError(field, message) from error
    if abs(at_ns) > _LATEST_NS:
        raise BillingRequestError(field, f"{text[:60]!r} lies beyond what can be counted")
    return at_ns


def series_period_ns(from_: str, to: str) -> tuple[int, int]:
    """The period of a series: up to now without ``to``, from the day before ``to`` without ``from_``. Raises BillingRequestError."""
    to_ns = parse_time_ns("to", to) or time.time_ns()
    return parse_time_ns("from", from_) or max(0, to_ns - DAY_NS), to_ns


def csv_or_json(request: Request[Any, Any, Any], filename: str, as_csv: Callable[[], str], as_json: Callable[[], Any]) -> Response[Any]:
    """A report as JSON, or as a CSV file if the Accept header prefers text/csv."""
    if request.accept.best_match(["application/json", "text/csv"], default="application/json") == "text/csv":
        return Response(as_csv(), media_type="text/csv", headers={"content-disposition": f'attachment; filename="{filename}"'})
    return Response(as_json())


def not_past_ns(text: str, now_ns: int | None = None) -> int:
    """From when something is valid that may not work backwards; nothing: from now on. Raises Invalid."""
    now_ns = time.time_ns() if now_ns is None else now_ns
    try:
        at_ns = parse_time_ns("from", text)
    except BillingRequestError as error:
        raise Invalid("from", str(error).removeprefix("from: ")) from None
    if text and at_ns < now_ns - _LATE_NS:
        raise Invalid("from", "lies in the past: what is used already is billed as it was; name a time from now on")
    return max(at_ns, now_ns)


Ask = Request[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Parts:
    projection: BillingProjection
    writer: Writer
    access: Access


def parts_of(request: Ask) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


async def fresh_view(request: Ask) -> BillingView:
    """The view, with everything that is in the log now."""
    return await parts_of(request).projection.fresh_view()


def known_tenants(request: Ask, view: BillingView) -> set[str]:
    """Every tenant that was ever charged, granted, given a budget or a tier, or that access knows."""
    charged = {account.removeprefix("tenant:") for account in view.ledger.balances if account.startswith("tenant:")}
    found = charged | view.budgets.by_tenant.keys() | view.tiers.members.keys() | {grant.tenant for grant in view.grants.values()}
    access = parts_of(request).access
    return found | set(access.view.tenants) if access.on else found


def tenant_must_be(request: Ask, view: BillingView, action: Action, tenant: str) -> None:
    """Raises NotThere (or Hidden, in the same words) unless the caller may do ``action`` to ``tenant`` and there is such a tenant. Without
    authentication every name is a tenant, as it is for clients that open sessions."""
    nothing = f"there is no tenant {tenant}"
    asking = permit(request, action, tenant, hidden=nothing)
    if parts_of(request).access.on and asking.tenant != tenant and tenant not in known_tenants(request, view):
        raise NotThere(nothing)


def budget_answer(view: BillingView, tenant: str, period: str, budget: Budget, now_ns: int) -> Json:
    """A budget as it stands in the period of ``now_ns``."""
    from_ns, to_ns = bounds(period, now_ns)
    effective = view.budgets.effective_micro(tenant, period, budget.limit_micro)
    used = view.budgets.used_micro(tenant, from_ns, to_ns)
    stop = stop_micro(effective, budget.stop_percent)
    return {
        "tenant": tenant,
        "period": period,
        "from_ns": from_ns,
        "to_ns": to_ns,
        "limit_micro": budget.limit_micro,
        "granted_micro": effective - budget.limit_micro,
        "used_micro": used,
        "left_micro": None if stop is None else stop - used,
        "limit_credits": credits_text(budget.limit_micro),
        "used_credits": credits_text(used),
        "warn_percent": budget.warn_percent,
        "stop_percent": budget.stop_percent,
        "state": level(used, effective, budget.warn_percent, budget.stop_percent),
        "revision": budget.position,
    }
