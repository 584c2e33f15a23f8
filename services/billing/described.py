"""OpenAPI descriptions of routes: the parameters several share, and the problems they may answer with.

May live here: OpenAPI descriptions, parameter types and how they are read. May not: routes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, Operation, Schema
from litestar.openapi.spec.enums import OpenAPIType
from litestar.params import Parameter

from billing.errors import BillingRequestError
from services.billing.errors import Invalid, Stale

__all__ = ["Json", "Revision", "TenantName", "also_as", "check_revision", "not_past_ns", "parse_time_ns", "problems", "revision_of"]

Json = dict[str, Any]
TenantName = Annotated[str | None, Parameter(min_length=1, max_length=200, description="only of this tenant")]
Revision = Annotated[
    str | None, Parameter(header="If-Match", max_length=40, description="the revision that the change is based on; 409 if it is outdated")
]

_NS: Final = 1_000_000_000
_LATEST_NS: Final = 1 << 62
_LATE_NS: Final = 60 * _NS
"""How much earlier than now a validity may begin that a person has just typed in: it then begins now."""


class FieldError(msgspec.Struct):
    field: str
    message: str


class Problem(msgspec.Struct):
    """A problem document (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldError] = []


_TEXT: Final = {
    400: "The query or the body is not valid; errors names the fields",
    401: "The request has no credentials, or unknown ones",
    403: "Not allowed",
    404: "Not found, or the caller may not see it",
    409: "It was changed in the meantime, or contradicts what is stored",
    413: "The body is too large",
    429: "Too many requests",
    503: "The bus or the log is not available now",
}


def problems(*statuses: int) -> dict[int, ResponseSpec]:
    """The problems a route may answer with, beside those that any may: 400, 401, 403, 429, 503."""
    return {
        status: ResponseSpec(Problem, generate_examples=False, description=_TEXT[status], media_type="application/problem+json")
        for status in sorted({400, 401, 403, 429, 503, *statuses})
    }


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


def revision_of(header: str | None) -> int | None:
    """The revision of an If-Match header: a number, quoted or not; ``*`` and nothing: whatever holds. Raises Invalid."""
    if header is None or header.strip() == "*":
        return None
    text = header.strip().removeprefix("W/").strip('"')
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Invalid("If-Match", f"{header!r} is no revision; give the number that the answer carried as revision")
    return int(text)


def check_revision(what: str, held: int, expected: int | None) -> None:
    """Raises Stale when ``expected`` is given and is not the revision that holds."""
    if expected is not None and expected != held:
        raise Stale(what, held)


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
