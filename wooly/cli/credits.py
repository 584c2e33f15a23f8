"""``wooly credits``: what was used, and ``grant``, ``balance``, ``budget``, ``tier``, ``statement``."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Any, Final

import click

from wooly.cli.group import CommandError, echo
from wooly.cli.http import get_json, get_text, send_json
from wooly.cli.options import billing_flag, json_flag
from wooly.cli.output import Columns, print_items, print_json, print_table
from wooly.cli.reports import leave_to_subcommand

__all__ = ["credits_", "micro_of"]

_ROOT: Final = "/api/v1/billing/"
_WHAT: Final = "billing service"
_MICRO: Final = 1_000_000
_EXACT: Final = Context(Emax=30, traps=[InvalidOperation, Overflow, Inexact])
"""Exact arithmetic, without rounding, on all plausible amounts."""
_PERIODS: Final = ("day", "month", "total")


def micro_of(field: str, text: str) -> int:
    """An amount of credits, as people write it, in micro-credits: exact, or refused. Raises CommandError."""
    try:
        micro = _EXACT.multiply(Decimal(text), Decimal(_MICRO))
        whole = int(micro)
    except (InvalidOperation, Overflow, ValueError, OverflowError):
        raise CommandError(f"{field} {text!r} is not a number of credits; write for example 100 or 0.25") from None
    except Inexact:
        whole, micro = 0, Decimal("NaN")
    if micro != whole:
        raise CommandError(f"{field} {text!r} is finer than a micro-credit (0.000001)")
    return whole


def _text(micro: int | None) -> str:
    """Micro-credits as decimal credits, exact."""
    return "" if micro is None else f"{Decimal(micro) / _MICRO:f}" if micro % _MICRO else str(micro // _MICRO)


def _micro(field: str) -> Callable[[Any], str]:
    return lambda item: _text(item[field])


def _of(tenant: str) -> str:
    return urllib.parse.quote(tenant, safe="")


@click.group(name="credits", invoke_without_command=True)
@click.option(
    "--by", type=click.Choice(["tenant", "task", "model", "node"]), default="tenant", show_default=True, help="What a line is about."
)
@click.option("--from", "from_", default="", metavar="TIME", help="Start: ISO 8601 or Unix seconds (default: the beginning).")
@click.option("--to", default="", metavar="TIME", help="End, exclusive (default: now).")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@billing_flag
@json_flag
@click.pass_context
def credits_(context: click.Context, by: str, from_: str, to: str, as_csv: bool, billing: str, as_json: bool) -> None:
    """Show the credits used, from the event log; or give, limit and account for them."""
    if leave_to_subcommand(context):
        return
    query = {"by": by, **({"from": from_} if from_ else {}), **({"to": to} if to else {})}
    if as_csv:
        echo(get_text(billing, _ROOT + "credits", query, accept="text/csv", what=_WHAT), nl=False)
        return
    report = get_json(billing, _ROOT + "credits", query, what=_WHAT)
    if as_json:
        print_json(report)
        return
    lines = [*report["items"], {**report["total"], "key": "total"}] if report["items"] else []
    repeated = any(line["recovered_ns"] for line in lines)
    columns = (by, "core credits", "VRAM credits", "core-seconds", "launches", *(("not charged",) if repeated else ()))
    print_table(columns, [_row(line)[: len(columns)] for line in lines], numbers=columns[1:], empty="no credits have been used")


def _row(line: dict[str, Any]) -> tuple[Any, ...]:
    core_s, recovered_s = (f"{line[name] / 1e9:.3f}" for name in ("core_ns", "recovered_ns"))
    return line["key"] or "(none)", line["core_credits"], line["vram_credits"], core_s, line["launches"], recovered_s


@credits_.command()
@click.argument("tenant")
@click.argument("amount")
@click.option("--id", "name", default=None, metavar="ID", help="Names the grant for ever: repeating the command grants once.")
@click.option("--note", default="", help="Why; it is kept in the log.")
@billing_flag
@json_flag
def grant(tenant: str, amount: str, name: str | None, note: str, billing: str, as_json: bool) -> None:
    """Give AMOUNT credits to TENANT (a negative AMOUNT, after --, takes them back)."""
    body = {"tenant": tenant, "micro": micro_of("AMOUNT", amount), "note": note, **({"id": name} if name else {})}
    made = send_json("POST", billing, _ROOT + "grants", body, what=_WHAT)
    if as_json:
        print_json(made)
    else:
        echo(f"granted {made['credits']} credits to {made['tenant']} ({made['id']})")


@credits_.command()
@click.argument("tenant", required=False)
@billing_flag
@json_flag
def balance(tenant: str | None, billing: str, as_json: bool) -> None:
    """Show what TENANT (or every tenant) was granted, has used and has left."""
    if tenant is None:
        found = get_json(billing, _ROOT + "accounts", what=_WHAT)["items"]
    else:
        found = [get_json(billing, _ROOT + f"accounts/{_of(tenant)}", what=_WHAT)]
    amounts = {"granted": _micro("granted_micro"), "used": _micro("charged_micro"), "balance": _micro("balance_micro")}
    columns: Columns = {"tenant": "tenant", "tier": "tier", **amounts, "budgets": _states}
    print_items(found, found, columns, as_json=as_json, numbers=tuple(amounts), empty="no tenant has used or been given anything")


def _states(account: dict[str, Any]) -> str:
    return ", ".join(f"{budget['period']}: {budget['state']}" for budget in account["budgets"])


@credits_.command()
@click.argument("tenant", required=False)
@click.option("--day", default=None, metavar="CREDITS", help="The most for a day (UTC); `none`: no limit.")
@click.option("--month", default=None, metavar="CREDITS", help="The most for a month (UTC); `none`: no limit.")
@click.option("--total", default=None, metavar="CREDITS", help="The most in all, beside what is granted (0: prepaid); `none`: no limit.")
@click.option("--warn", "warn_percent", type=int, metavar="PERCENT", help="The log says so at this part of it; 0: never (default: 80).")
@click.option("--stop", "stop_percent", type=int, metavar="PERCENT", help="Batches are refused at this part; 0: never (default: 100).")
@billing_flag
@json_flag
def budget(
    tenant: str | None, day: str | None, month: str | None, total: str | None, billing: str, as_json: bool, **percents: int | None
) -> None:
    """Show budgets, or set those of TENANT."""
    asked = {period: value for period, value in zip(_PERIODS, (day, month, total), strict=True) if value is not None}
    if asked and tenant is None:
        raise CommandError("whose budget? name the tenant: wooly credits budget TENANT --month CREDITS")
    given = {name: percent for name, percent in percents.items() if percent is not None}
    if given and not asked:
        raise CommandError("of which budget? give its limit too: --day, --month or --total CREDITS")
    limits = {period: None if value.lower() == "none" else micro_of(f"--{period}", value) for period, value in asked.items()}
    for period, limit in limits.items():
        send_json("PUT", billing, _ROOT + f"budgets/{_of(tenant or '')}/{period}", {"limit_micro": limit, **given}, what=_WHAT)
    found = get_json(billing, _ROOT + ("budgets" if tenant is None else f"budgets/{_of(tenant)}"), what=_WHAT)["items"]
    amounts = {name: _micro(f"{name}_micro") for name in ("limit", "granted", "used", "left")}
    parts = {"warns at": _percent("warn_percent"), "stops at": _percent("stop_percent")}
    columns: Columns = {"tenant": "tenant", "period": "period", **amounts, **parts, "state": "state"}
    print_items(found, found, columns, as_json=as_json, numbers=(*amounts, *parts), empty="there are no budgets")


def _percent(field: str) -> Callable[[Any], str]:
    return lambda item: f"{item[field]} %" if item[field] else "never"


@credits_.command()
@click.argument("tenant", required=False)
@click.argument("tier", required=False, type=click.Choice(["premium", "standard", "basic"]))
@click.option("--from", "from_", default="", metavar="TIME", help="From when on (default: now); never in the past.")
@billing_flag
@json_flag
def tier(tenant: str | None, tier: str | None, from_: str, billing: str, as_json: bool) -> None:
    """Show tiers, what they cost and allow; or put TENANT into TIER."""
    if tenant is not None and tier is None:
        raise CommandError(f"into which tier? wooly credits tier {tenant} premium|standard|basic")
    if tenant is not None:
        changed = send_json("PUT", billing, _ROOT + f"tenants/{_of(tenant)}/tier", {"tier": tier, "from": from_}, what=_WHAT)
        if as_json:
            print_json(changed)
        else:
            echo(f"{tenant} is in tier {changed['next_tier']} from {from_ or 'now'} on")
        return
    found = get_json(billing, _ROOT + "tiers", what=_WHAT)
    columns: Columns = {
        "tier": "tier",
        "best priority": "priority_ceiling",
        "default VRAM (MiB)": lambda item: item["default_vram_mb"] or "of the cluster",
        "credits/core-second": _micro("core_second_micro"),
        "credits/GiB-second": _micro("gib_second_micro"),
    }
    print_items(found, found["items"], columns, as_json=as_json, numbers=list(columns)[1:], empty="there are no tiers")


@credits_.command()
@click.argument("tenant")
@click.option("--month", default="", metavar="YYYY-MM", help="Of this month (default: the current one, so far).")
@click.option("--csv", "form", flag_value="csv", help="Print CSV.")
@click.option("--html", "form", flag_value="html", help="Print a page to be printed.")
@billing_flag
@json_flag
def statement(tenant: str, month: str, form: str | None, billing: str, as_json: bool) -> None:
    """Show the monthly statement of TENANT."""
    path, query = _ROOT + f"statements/{_of(tenant)}", {"month": month} if month else {}
    if form is not None and not as_json:
        echo(get_text(billing, path, {**query, "format": form}, accept=f"text/{form}", what=_WHAT), nl=False)
        return
    found = get_json(billing, path, {**query, "format": "json"}, what=_WHAT)
    amounts = {"core credits": _micro("core_micro"), "VRAM credits": _micro("vram_micro")}
    columns: Columns = {"task": lambda line: line["task"] or "(none)", "model": "model", "node": "node", **amounts}
    print_items(found, found["lines"], columns, as_json=as_json, numbers=tuple(amounts), empty="nothing was used")
    if as_json:
        return
    names = ("opening", "granted", "core", "vram", "closing")
    echo(f"{found['tenant']}, {found['month']}: " + ", ".join(f"{name} {_text(found[name + '_micro'])}" for name in names))
