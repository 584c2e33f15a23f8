"""``wooly credits``, ``wooly billing`` and ``wooly billing verify``.

May live here: asking the billing service and showing its answers. May not: computing anything about money.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from wooly.cli.errors import CommandError
from wooly.cli.http import get_json, get_text
from wooly.cli.options import billing_flag, json_flag
from wooly.cli.output import print_json, print_table

__all__ = ["credits_", "billing", "bill_lines"]

_PATH = "/api/v1/billing/credits"
_WHAT = "billing service"


@click.command(name="credits")
@billing_flag
@click.option("--by", type=click.Choice(["tenant", "task", "node"]), default="tenant", show_default=True, help="What a line is about.")
@click.option("--from", "from_", default="", metavar="TIME", help="Start: ISO 8601 or Unix seconds (default: the beginning).")
@click.option("--to", default="", metavar="TIME", help="End, exclusive (default: now).")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@json_flag
def credits_(billing: str, by: str, from_: str, to: str, as_csv: bool, as_json: bool) -> None:
    """Show the credits used, from the event log."""
    query = {"by": by, **({"from": from_} if from_ else {}), **({"to": to} if to else {})}
    if as_csv:
        click.echo(get_text(billing, _PATH, query, accept="text/csv", what=_WHAT), nl=False)
        return
    report = get_json(billing, _PATH, query, what=_WHAT)
    if as_json:
        print_json(report)
        return
    lines = [*report["items"], {**report["total"], "key": "total"}] if report["items"] else []
    columns = (by, "core credits", "VRAM credits", "core-seconds", "launches")
    print_table(columns, [_row(line) for line in lines], numbers=columns[1:], empty="no credits have been used")


def _row(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["key"] or "(none)", line["core_credits"], line["vram_credits"], f"{line['core_ns'] / 1e9:.3f}", line["launches"]


def bill_lines(address: str) -> Iterator[str]:
    """The whole bill of a private stack, for the end of a run. Raises CommandError."""
    total = get_json(address, _PATH, {"by": "tenant"}, what=_WHAT)["total"]
    yield f"wooly: bill: {total['core_credits']} core credits + {total['vram_credits']} VRAM credits"


@click.group(invoke_without_command=True)
@click.pass_context
def billing(context: click.Context) -> None:
    """Run the billing service (settings come from the environment), or verify the bill."""
    if context.invoked_subcommand is None:
        from wooly.cli.services import become

        become("services.billing")


@billing.command()
@billing_flag
@json_flag
def verify(billing: str, as_json: bool) -> None:
    """Recompute the whole bill from the log and compare; a difference is an error."""
    result = get_json(billing, "/api/v1/billing/verify", what=_WHAT)
    if as_json:
        print_json(result)
    elif result["ok"]:
        click.echo(f"the bill is right: {result['rows']} rows recomputed from the log up to event {result['position']}, no difference")
    if not result["ok"]:
        findings = result.get("findings") or []
        first = result.get("first_difference") or (findings[0] if findings else "no detail given")
        raise CommandError(f"the bill differs from the log: {first}")
