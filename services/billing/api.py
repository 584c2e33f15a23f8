"""The REST face of billing, under /api/v1/billing. Reads only: money moves by facts in the log."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from litestar import Litestar, MediaType, Request, Response, get
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.openapi.config import OpenAPIConfig
from litestar.params import Parameter
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from billing.errors import BillingRequestError
from billing.ledger import CORE, VRAM
from billing.report import CreditLine, CreditReport, credit_report, credits_text, report_csv
from billing.tariff import DEFAULT_TIER, TIERS
from services.billing.keeper import Keeper

__all__ = ["make_app", "parse_time_ns"]

_NS: Final = 1_000_000_000


def parse_time_ns(field: str, text: str) -> int:
    """Unix seconds, or ISO 8601 (UTC where it names no zone); raises BillingRequestError naming the field."""
    if not text:
        return 0
    try:
        if text.lstrip("-").isdigit():
            return int(text) * _NS
        moment = datetime.fromisoformat(text)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()) * _NS
    except (ValueError, OverflowError) as error:
        raise BillingRequestError(field, f"{text!r} is neither Unix seconds nor an ISO 8601 time such as 2030-01-31T12:00") from error


def _line(line: CreditLine) -> dict[str, Any]:
    return {
        "key": line.key,
        "core_credits": credits_text(line.core_credits_micro),
        "vram_credits": credits_text(line.vram_credits_micro),
        "core_credits_micro": line.core_credits_micro,
        "vram_credits_micro": line.vram_credits_micro,
        "core_ns": line.core_ns,
        "byte_ms": line.byte_ms,
        "instructions": line.instructions,
        "launches": line.launches,
    }


def _json(report: CreditReport) -> dict[str, Any]:
    return {
        "by": report.by,
        "from_ns": report.from_ns,
        "to_ns": report.to_ns,
        "position": report.position,
        "items": [_line(line) for line in report.lines],
        "total": _line(report.total),
    }


@get("/api/v1/billing/credits", summary="Credits used, by tenant, task or node", media_type=MediaType.JSON)
async def credits(
    request: Request[Any, Any, Any],
    state: State,
    by: str = "tenant",
    from_: Annotated[str, Parameter(query="from", description="start of the period: Unix seconds or ISO 8601; whole minutes")] = "",
    to: Annotated[str, Parameter(description="end of the period, exclusive")] = "",
) -> Response[Any]:
    """JSON, or CSV when the Accept header prefers text/csv. Waits a moment for facts that are in the log already."""
    keeper: Keeper = state.keeper
    await keeper.caught_up()
    report = credit_report(keeper.view, by, parse_time_ns("from", from_), parse_time_ns("to", to))
    if request.accept.best_match(["application/json", "text/csv"], default="application/json") == "text/csv":
        headers = {"content-disposition": 'attachment; filename="credits.csv"'}
        return Response(report_csv(report), media_type="text/csv; charset=utf-8", headers=headers)
    return Response(_json(report))


@get("/api/v1/billing/ledger", summary="Every account and its balance; debits equal credits")
async def ledger(state: State) -> dict[str, Any]:
    keeper: Keeper = state.keeper
    await keeper.caught_up()
    book = keeper.view.ledger
    return {
        "position": keeper.view.position,
        "transactions": book.transactions,
        "debits_micro": book.debits_micro,
        "credits_micro": book.credits_micro,
        "accounts": [{"account": name, "micro": book.balances[name]} for name in sorted(book.balances)],
    }


@get("/api/v1/billing/verify", summary="Recompute the whole bill from the log and compare")
async def verify(state: State) -> dict[str, Any]:
    keeper: Keeper = state.keeper
    result = await keeper.verify()
    return {
        "ok": result.ok,
        "position": result.position,
        "rows": result.rows,
        "core_credits_micro": result.core_credits_micro,
        "vram_credits_micro": result.vram_credits_micro,
        "first_difference": result.first_difference or None,
        "findings": list(result.findings),
        "view_digest": result.view_digest,
        "log_digest": result.log_digest,
    }


@get("/api/v1/billing/prices", summary="Prices in force, by tier, and the tier of each tenant that has one")
async def prices(state: State) -> dict[str, Any]:
    view = state.keeper.view
    now_ns = time.time_ns()
    items = [(tier, view.tariff.at(tier, now_ns)) for tier in sorted({*TIERS, *view.tariff.prices})]
    return {
        "items": [
            {"tier": tier, "core_second_micro": price.core_second_micro, "gib_second_micro": price.gib_second_micro}
            for tier, price in items
        ],
        "tenants": dict(sorted(view.tiers.items())),
        "default_tier": DEFAULT_TIER,
    }


@get("/health", summary="Whether billing follows the log")
async def health(state: State) -> Response[dict[str, Any]]:
    keeper: Keeper = state.keeper
    if keeper.failure is not None:
        return Response({"status": "failed", "position": keeper.view.position, "detail": str(keeper.failure)}, status_code=503)
    return Response({"status": "ok", "position": keeper.view.position})


@get("/metrics", summary="Prometheus metrics", media_type=MediaType.TEXT)
async def metrics(state: State) -> str:
    view = state.keeper.view
    registry = CollectorRegistry()
    values = {
        "wooly_billing_log_position": ("Position of the last event billed", view.position),
        "wooly_billing_core_credits_total": ("Core credits charged", -view.ledger.balances.get(CORE, 0) / 1e6),
        "wooly_billing_vram_credits_total": ("VRAM credits charged", -view.ledger.balances.get(VRAM, 0) / 1e6),
        "wooly_billing_findings": ("Places in the log that do not add up", len(view.findings)),
    }
    for name, (text, value) in values.items():
        Gauge(name, text, registry=registry).set(value)
    return generate_latest(registry).decode()


def _problem(status: int, title: str, detail: str, field: str = "") -> Response[dict[str, Any]]:
    body: dict[str, Any] = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    if field:
        body["errors"] = [{"field": field, "message": detail}]
    return Response(body, status_code=status, media_type="application/problem+json")


def _bad_request(_: Request[Any, Any, Any], error: BillingRequestError) -> Response[dict[str, Any]]:
    return _problem(400, "Bad request", str(error), error.field)


def _http_error(_: Request[Any, Any, Any], error: HTTPException) -> Response[dict[str, Any]]:
    return _problem(error.status_code, type(error).__name__, error.detail)


def make_app(keeper: Keeper) -> Litestar:
    """The application over a running keeper."""
    return Litestar(
        [credits, ledger, verify, prices, health, metrics],
        state=State({"keeper": keeper}),
        exception_handlers={BillingRequestError: _bad_request, HTTPException: _http_error},
        openapi_config=OpenAPIConfig(title="Wooly billing", version="1"),
        logging_config=None,
    )
