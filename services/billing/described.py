"""Parameters that several routes share: their OpenAPI descriptions, and how they are read."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, Operation, Schema
from litestar.openapi.spec.enums import OpenAPIType
from litestar.params import Parameter

from billing.errors import BillingRequestError
from services.kit.errors import Invalid

__all__ = ["Json", "TenantName", "also_as", "not_past_ns", "parse_time_ns"]

Json = dict[str, Any]
TenantName = Annotated[str | None, Parameter(min_length=1, max_length=200, description="only of this tenant")]

_NS: Final = 1_000_000_000
_LATEST_NS: Final = 1 << 62
_LATE_NS: Final = 60 * _NS
"""How much earlier than now a validity may begin that a person has just typed in: it then begins now."""


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
