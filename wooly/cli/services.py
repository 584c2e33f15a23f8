"""``wooly up``, ``wooly server``, ``wooly controller``, ``wooly runner``, ``wooly billing``: starting services; verifying the bill, and the
bill at the end of a run.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from wooly.cli.group import CommandError, echo
from wooly.cli.http import get_json
from wooly.cli.options import billing_flag, json_flag
from wooly.cli.output import print_json
from wooly.cli.stack import Stack, require_server, service_command

__all__ = ["become", "bill_lines", "controller", "runner", "server", "up"]


class _Stop(Exception):
    """SIGTERM or SIGINT came."""


@click.command()
@click.option(
    "--dir", "folder", type=click.Path(file_okay=False), default=None, help="Keep state here across restarts (default: temporary)."
)
@click.option("--backend", default=None, metavar="NAME", help="The node's backend: host (default), opencl, cuda or reference.")
@click.option("--secure", is_flag=True, help="TLS and authentication: makes certificates and a first admin key.")
@click.option(
    "--runner", is_flag=True, help="Also start a runner: it executes submitted scripts, other people's Python code, as your own user."
)
@click.option("--listen", default=None, metavar="HOST", help="Listen for other machines too (0.0.0.0: on all addresses); implies --secure.")
@click.option("--cluster", type=click.Choice(["1", "3"]), default="1", help="Servers of the bus: 1 (default), or 3 that store all facts.")
def up(folder: str | None, backend: str | None, secure: bool, runner: bool, listen: str | None, cluster: str) -> None:
    """Start bus, controller, billing and one node on this machine; print how to use them; run until Ctrl-C."""
    arguments = [*(("--dir", folder) if folder else ()), *(("--backend", backend) if backend else ()), *(("--secure",) if secure else ())]
    arguments += [*(("--runner",) if runner else ()), *(("--listen", listen) if listen else ()), "--cluster", cluster]

    def stop(number: int, frame: Any) -> NoReturn:
        # Once: a second signal while the stack is stopping must not interrupt that.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Stop

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    try:
        with Stack(arguments, show_log=True) as stack:
            found = stack.addresses
            echo(f"export WOOLY_NATS_URL={found.nats}")
            echo(f"export CONTROLLER_URL={found.controller}")
            echo(f"export WOOLY_BILLING_URL={found.billing}")
            if found.ca:
                echo(f"export WOOLY_TLS_CA={found.ca}")
                echo(f"export WOOLY_API_KEY=$(cat {found.admin_key_file})  # the admin's; make others: wooly keys create")
            echo(f"# controller: {found.controller}   (the dashboard: open it in a browser)   stop with Ctrl-C")
            sys.stdout.flush()
            code = stack.wait()
        raise CommandError(f"the embedded stack ended by itself (exit code {code}); its log above says why")
    except _Stop:
        pass


def become(module: str) -> NoReturn:
    """Turn this process into a service: same pid, so that signals and containers see the service itself."""
    require_server()
    sys.stdout.flush()
    sys.stderr.flush()
    command = service_command(module)
    os.execv(command[0], command)


@click.command()
def server() -> None:
    """Run a node's server. Settings come from the environment: WOOLY_NATS_URL, NODE_NAME, WOOLY_BACKEND, ..."""
    become("services.server")


@click.command()
def controller() -> None:
    """Run the controller. Settings come from the environment: WOOLY_NATS_URL, WOOLY_HTTP, WOOLY_ETCD_URL, ..."""
    become("services.controller")


@click.command()
def runner() -> None:
    """Run submitted scripts on this machine. IT EXECUTES TENANTS' PYTHON CODE AS ITS OWN UNIX USER: a script can read what that user can
    read, the runner's credentials included, and reach what this machine can reach. Give it a user or a container of its own.

    Settings come from the environment: WOOLY_NATS_URL, CONTROLLER_URL, RUNNER_NAME, RUNNER_SLOTS, RUNNER_TENANTS, ...
    """
    become("services.runner")


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
        echo(f"the bill is right: {result['rows']} rows recomputed from the log up to event {result['position']}, no difference")
    if not result["ok"]:
        findings = result.get("findings") or []
        first = result.get("first_difference") or (findings[0] if findings else "no detail given")
        raise CommandError(f"the bill differs from the log: {first}")
