"""``wooly replay``: run the journals of nodes again, as they were or under another policy."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

from wooly import config as configuration
from wooly.cli.errors import CommandError
from wooly.cli.options import json_flag, nats_flag
from wooly.cli.output import print_json, print_table
from wooly.cli.stack import require_server, service_command

__all__ = ["ask", "bounds", "bounds_flags", "duration", "replay"]

F = TypeVar("F", bound=Callable[..., Any])

_DIFFERENT: Final = 1
_DIGEST_SHOWN: Final = 16
_POLICIES: Final = ("strict", "fifo", "timeslice")


def ask(arguments: Sequence[str], nats_url: str | None, *, bus: bool = True) -> tuple[dict[str, Any], int]:
    """The document services.replay answers with, and its exit code (0 or 1). Raises CommandError with what it says is wrong."""
    require_server()
    environment = dict(os.environ)
    if bus:
        config = configuration.load({"WOOLY_NATS_URL": nats_url} if nats_url else None, task=False)
        urls = config.nats_urls
        if not urls:
            raise CommandError("no bus is named: set WOOLY_NATS_URL, or use --nats-url nats://HOST:4222")
        environment["WOOLY_NATS_URL"] = ",".join(urls)
        environment |= {"WOOLY_API_KEY": config.api_key, "WOOLY_TLS_CA": config.tls_ca, "WOOLY_INSECURE": "1" if config.insecure else ""}
    done = subprocess.run(service_command("services.replay", *arguments), env=environment, capture_output=True, check=False)
    if done.returncode not in (0, _DIFFERENT) or not done.stdout:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"services.replay ended with exit code {done.returncode}"]
        raise CommandError(lines[-1])
    document: dict[str, Any] = json.loads(done.stdout)
    return document, done.returncode


def bounds_flags(function: F) -> F:
    """Which journals: node, times, files; ``bounds`` makes arguments of them."""
    for option in (
        click.option("--file", "files", multiple=True, type=click.Path(dir_okay=False), help="A node's local journal file, not the bus."),
        click.option("--to", default="", metavar="TIME", help="End, exclusive (default: now)."),
        click.option("--from", "from_", default="", metavar="TIME", help="Start: ISO 8601 or Unix seconds (default: the beginning)."),
        click.option("--node", default="", metavar="N", help="Only this node, by id or name (default: every node)."),
    ):
        function = option(function)
    return function


def bounds(node: str, from_: str, to: str, files: Sequence[str]) -> list[str]:
    """The arguments of services.replay for these flags."""
    given = [*(("--node", node) if node else ()), *(("--from", from_) if from_ else ()), *(("--to", to) if to else ())]
    return given + [argument for path in files for argument in ("--file", path)]


@click.command()
@nats_flag
@bounds_flags
@click.option("--policy", type=click.Choice(_POLICIES), default=None, help="Predict the same work under this policy instead of checking.")
@click.option("--quantum-ms", type=click.IntRange(1), default=None, help="With --policy: another quantum.")
@json_flag
def replay(
    nats_url: str | None, node: str, from_: str, to: str, files: tuple[str, ...], policy: str | None, quantum_ms: int | None, as_json: bool
) -> None:
    """Run the journal of every node again; a decision or digest that differs is an error (exit code 1)."""
    if quantum_ms is not None and policy is None:
        raise CommandError("--quantum-ms goes with --policy")
    which = bounds(node, from_, to, files)
    if policy is None:
        document, code = ask(["check", *which], nats_url, bus=not files)
        show = _show_check
    else:
        quantum = [] if quantum_ms is None else ["--quantum-ms", str(quantum_ms)]
        document, code = ask(["whatif", "--policy", policy, *quantum, *which], nats_url, bus=not files)
        show = _show_whatif
    if as_json:
        print_json(document)
    else:
        show(document)
    click.get_current_context().exit(code)


# -- as they were ------------------------------------------------------------------------------------------------------------------------


def _show_check(document: dict[str, Any]) -> None:
    lines = document["segments"]
    columns = ("node", "gpu", "lane", "segment", "records", "decisions", "digest", "over", "replayed in", "verdict")
    numbers = ("gpu", "segment", "records", "decisions", "over", "replayed in")
    print_table(columns, [_check_row(line) for line in lines], numbers=numbers, empty="no journal")
    for line in lines:
        for what in ("difference", "gap"):
            if line[what]:
                click.echo(f"{line['name']} gpu {line['gpu']} {line['lane']} segment {line['segment']}: {line[what]}")
    decisions, different = sum(line["decisions"] for line in lines), sum(not line["equal"] for line in lines)
    gaps = sum(bool(line["gap"]) for line in lines)
    what = f"{different} of {len(lines)} segments differ" if different else f"{len(lines)} segments, {decisions} decisions, no difference"
    click.echo(what + (f"; {gaps} with records missing" if gaps else ""))


def _check_row(line: dict[str, Any]) -> tuple[Any, ...]:
    verdict = "differs" if not line["equal"] else "gap" if line["gap"] else "equal"
    name, digest, over = line["name"], line["digest"][:_DIGEST_SHOWN], duration(line["end_ns"] - line["begin_ns"])
    records, decisions, took = line["records"], line["decisions"], f"{line['replay_ms']:.0f} ms"
    return name, line["gpu"], line["lane"], line["segment"], records, decisions, digest, over, took, verdict


# -- under another policy ----------------------------------------------------------------------------------------------------------------


def _show_whatif(document: dict[str, Any]) -> None:
    columns = ("task", "prio", "batches", "P50", "P99", "wait P99", "per s", "P50 then", "P99 then", "wait P99 then", "per s then", "model")
    for device in document["devices"]:
        click.echo(
            f"{device['name']} gpu {device['gpu']}: recorded under {device['recorded_policy']}, predicted under {document['policy']}"
        )
        print_table(columns, [_whatif_row(line) for line in device["sessions"]], numbers=columns[1:], empty="nothing ran")
        recorded, predicted = device["recorded"], device["predicted"]
        for what in ("utilization", "starvation"):
            key = f"{what}_percent"
            click.echo(f"{what} {recorded[key]} % recorded, {predicted[key]} % predicted")
        if device["awaited_memory"]:
            click.echo(f"{device['awaited_memory']} batches waited for memory; the prediction has them without that wait")
    click.echo("model: P99 of the model under the recorded policy, against the recorded P99")


def _whatif_row(line: dict[str, Any]) -> tuple[Any, ...]:
    recorded, modelled, predicted = line["recorded"], line["modelled"], line["predicted"]
    error = (modelled["p99_ns"] - recorded["p99_ns"]) / recorded["p99_ns"] if recorded["p99_ns"] else 0.0
    figures = [
        figure
        for side in (recorded, predicted)
        for figure in (
            duration(side["p50_ns"]), duration(side["p99_ns"]), duration(side["wait_p99_ns"]), f"{side['per_1000_s'] / 1000:.1f}"
        )
    ]  # fmt: skip
    return line["text"], f"P{line['priority']}", line["batches"], *figures, f"{100 * error:+.1f} %"


def duration(ns: int) -> str:
    """Nanoseconds for people."""
    return f"{ns / 1e9:.1f} s" if ns >= 10**10 else f"{ns / 1e6:.2f} ms" if ns < 10**9 else f"{ns / 1e9:.2f} s"
