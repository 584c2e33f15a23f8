"""``wooly billing`` and ``wooly billing verify``; the bill at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator

import click

from wooly.cli.errors import CommandError
from wooly.cli.http import get_json
from wooly.cli.options import billing_flag, json_flag
from wooly.cli.output import print_json

__all__ = ["billing", "bill_lines"]

_PATH = "/api/v1/billing/credits"
_WHAT = "billing service"


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
