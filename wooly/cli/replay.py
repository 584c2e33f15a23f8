"""``wooly replay``: run the journals of nodes again, as they were or under another policy.

May live here: asking services.replay and showing its answer. May not: journals, importing a service.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any, Final

import click

from wooly import config as configuration
from wooly.cli.errors import CommandError
from wooly.cli.options import json_flag, nats_flag
from wooly.cli.output import print_json, print_table
from wooly.cli.stack import require_server, service_command

__all__ = ["replay", "ask"]

_DIFFERENT: Final = 1
_DIGEST_SHOWN: Final = 16


def ask(arguments: Sequence[str], nats_url: str | None, *, bus: bool = True) -> tuple[dict[str, Any], int]:
    """The document services.replay answers with, and its exit code (0 or 1). Raises CommandError with what it says is wrong."""
    require_server()
    environment = dict(os.environ)
    if bus:
        urls = configuration.load({"WOOLY_NATS_URL": nats_url} if nats_url else None, task=False).nats_urls
        if not urls:
            raise CommandError("no bus is named: set WOOLY_NATS_URL, or use --nats-url nats://HOST:4222")
        environment["WOOLY_NATS_URL"] = ",".join(urls)
    done = subprocess.run(service_command("services.replay", *arguments), env=environment, capture_output=True, check=False)
    if done.returncode not in (0, _DIFFERENT) or not done.stdout:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"services.replay ended with exit code {done.returncode}"]
        raise CommandError(lines[-1])
    document: dict[str, Any] = json.loads(done.stdout)
    return document, done.returncode


@click.command()
@nats_flag
@click.option("--node", default="", metavar="N", help="Only this node, by id or name (default: every node).")
@click.option("--from", "from_", default="", metavar="TIME", help="Start: ISO 8601 or Unix seconds (default: the beginning).")
@click.option("--to", default="", metavar="TIME", help="End, exclusive (default: now).")
@click.option("--file", "files", multiple=True, type=click.Path(dir_okay=False), help="A node's local journal file instead of the bus.")
@json_flag
def replay(nats_url: str | None, node: str, from_: str, to: str, files: tuple[str, ...], as_json: bool) -> None:
    """Run the journal of every node again; a decision or digest that differs is an error (exit code 1)."""
    bounds = [*(("--node", node) if node else ()), *(("--from", from_) if from_ else ()), *(("--to", to) if to else ())]
    bounds += [argument for path in files for argument in ("--file", path)]
    document, code = ask(["check", *bounds], nats_url, bus=not files)
    if as_json:
        print_json(document)
    else:
        _show_check(document)
    click.get_current_context().exit(code)


def _show_check(document: dict[str, Any]) -> None:
    lines = document["segments"]
    columns = ("node", "gpu", "lane", "segment", "records", "decisions", "digest", "over", "verdict")
    print_table(
        columns, [_check_row(line) for line in lines], numbers=("gpu", "segment", "records", "decisions", "over"), empty="no journal"
    )
    for line in lines:
        for what in ("difference", "gap"):
            if line[what]:
                click.echo(f"{line['name']} gpu {line['gpu']} {line['lane']} segment {line['segment']}: {line[what]}")
    decisions, different = sum(line["decisions"] for line in lines), sum(not line["equal"] for line in lines)
    what = f"{different} of {len(lines)} segments differ" if different else f"{len(lines)} segments, {decisions} decisions, no difference"
    click.echo(what)


def _check_row(line: dict[str, Any]) -> tuple[Any, ...]:
    over_s = (line["end_ns"] - line["begin_ns"]) / 1e9
    verdict = "differs" if not line["equal"] else "gap" if line["gap"] else "equal"
    name, digest = line["name"], line["digest"][:_DIGEST_SHOWN]
    return name, line["gpu"], line["lane"], line["segment"], line["records"], line["decisions"], digest, f"{over_s:.1f} s", verdict
