"""``wooly replay``: run the journals of nodes again, as they were or under another policy. ``wooly why``: why a task waited, which sessions
ran instead, and under which rule.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import quote

import click

from wooly import config as configuration
from wooly.cli.group import CommandError, echo
from wooly.cli.http import get_json
from wooly.cli.options import json_flag, nats_flag
from wooly.cli.output import bytes_text, print_json, print_table
from wooly.cli.services import require_server, service_command

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
    given = [("node", node), ("from", from_), ("to", to), *(("file", path) for path in files)]
    return [f"--{flag}={value}" for flag, value in given if value]


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
                echo(f"{line['name']} gpu {line['gpu']} {line['lane']} segment {line['segment']}: {line[what]}")
    decisions, different = sum(line["decisions"] for line in lines), sum(not line["equal"] for line in lines)
    gaps = sum(bool(line["gap"]) for line in lines)
    what = f"{different} of {len(lines)} segments differ" if different else f"{len(lines)} segments, {decisions} decisions, no difference"
    echo(what + (f"; {gaps} with records missing" if gaps else ""))


def _check_row(line: dict[str, Any]) -> tuple[Any, ...]:
    verdict = "differs" if not line["equal"] else "gap" if line["gap"] else "equal"
    name, digest, over = line["name"], line["digest"][:_DIGEST_SHOWN], duration(line["end_ns"] - line["begin_ns"])
    records, decisions, took = line["records"], line["decisions"], f"{line['replay_ms']:.0f} ms"
    return name, line["gpu"], line["lane"], line["segment"], records, decisions, digest, over, took, verdict


# -- under another policy ----------------------------------------------------------------------------------------------------------------


def _show_whatif(document: dict[str, Any]) -> None:
    columns = ("task", "prio", "batches", "P50", "P99", "wait P99", "per s", "P50 then", "P99 then", "wait P99 then", "per s then", "model")
    for device in document["devices"]:
        echo(f"{device['name']} gpu {device['gpu']}: recorded under {device['recorded_policy']}, predicted under {document['policy']}")
        print_table(columns, [_whatif_row(line) for line in device["sessions"]], numbers=columns[1:], empty="nothing ran")
        recorded, predicted = device["recorded"], device["predicted"]
        for what in ("utilization", "starvation"):
            key = f"{what}_percent"
            echo(f"{what} {recorded[key]} % recorded, {predicted[key]} % predicted")
        if device["awaited_memory"]:
            echo(f"{device['awaited_memory']} batches waited for memory; the prediction has them without that wait")
    echo("model: P99 of the model under the recorded policy, against the recorded P99")


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


_STRETCHES_SHOWN: Final = 4
_READ_S: Final = 60.0
"""The controller runs the journal again, which takes seconds."""


@click.command()
@click.argument("task")
@nats_flag
@bounds_flags
@click.option(
    "--top",
    type=click.IntRange(0, 1000),
    default=10,
    show_default=True,
    help="How many of its longest waits to show; a controller has 20 at most.",
)
@json_flag
def why(task: str, nats_url: str | None, node: str, from_: str, to: str, files: tuple[str, ...], top: int, as_json: bool) -> None:
    """Tell why TASK waited: what ran instead, and under which rule.

    TASK is an id, the beginning of one, or a title; on the bus a session too. With CONTROLLER_URL the controller answers, about what is
    yours; --nats-url, --node, --from, --to and --file read the journals themselves.
    """
    which = bounds(node, from_, to, files)
    arguments = ["why", "--top", str(top), *which, "--", task]
    config = configuration.load(task=False)
    if which or nats_url or not config.controller_url:
        document, _ = ask(arguments, nats_url, bus=not files)
    else:
        document = _answer(config, task, top, arguments)
    if as_json:
        print_json(document)
        return
    show(document)


def _answer(config: configuration.Config, task: str, top: int, arguments: list[str]) -> dict[str, Any]:
    """What the controller says of a task of the caller's own, whatever the key may read on the bus; where it knows none of this name, what
    the bus says of a task or session. Raises CommandError with what the controller said."""
    path = f"/api/v1/tasks/{quote(task, safe='')}/waits"
    try:
        document: dict[str, Any] = get_json(config.controller_url.rstrip("/"), path, what="controller", timeout_s=_READ_S)
    except CommandError as refused:
        if not config.nats_urls:
            raise
        try:
            return ask(arguments, None)[0]
        except CommandError:
            raise refused from None
    document["longest"] = document["longest"][:top]
    return document


def show(document: dict[str, Any]) -> None:
    """The document in sentences and tables."""
    for sentence in _sentences(document):
        echo(sentence)
    rows: list[tuple[Any, ...]]
    columns: tuple[str, ...] = ("rule", "waited", "times", "it waited because")
    rows = [(line["rule"], duration(line["ns"]), line["times"], line["meaning"]) for line in document["by_rule"]]
    _table("\nby rule", columns, rows, ("waited", "times"))
    columns = ("ran meanwhile", "prio", "waited", "times", "its core time")
    _table("\nby what ran", columns, [_other_row(line) for line in document["by_other"]], columns[1:])
    columns = ("program", "operations", "recorded at", "batches", "on the device", "longest", "core time")
    _table("\nby program", columns, [_program_row(line) for line in document.get("programs", ())], columns[3:])
    columns = ("batch", "arrived", "waited", "at", "for", "rule", "what ran", "prio", "its core time")
    rows = [row for batch in document["longest"] for row in _batch_rows(batch)]
    _table("\nlongest waits", columns, rows, ("waited", "at", "for", "prio", "its core time"))
    rows = _memory_rows(document["memory"])
    _table("\nmemory", ("when", "what", "bytes", "waited", "for"), rows, ("bytes", "waited"))


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]], numbers: tuple[str, ...]) -> None:
    if rows:
        echo(title)
        print_table(columns, rows, numbers=numbers, empty="")


def _other_row(line: dict[str, Any]) -> tuple[Any, ...]:
    who = line["text"] or "(none)"
    return who, _priority(line), duration(line["ns"]), line["times"], duration(line["core_ns"]) if line["session"] else ""


def _program_row(line: dict[str, Any]) -> tuple[Any, ...]:
    operations = "memory, uploads and reads" if line["program"] == "" else ", ".join(line["operations"])
    times = (duration(line["run_ns"]), duration(line["longest_ns"]), duration(line["core_ns"]))
    return line["program"] or "-", operations or "not on record", line.get("origin") or "-", line["batches"], *times


def _batch_rows(batch: dict[str, Any]) -> list[tuple[Any, ...]]:
    """A row a stretch; the batch stands before the first. ``at`` counts from its arrival."""
    arrived = _clock(batch["arrived_ns"])
    rows = []
    longest = sorted(batch["stretches"], key=lambda part: part["from_ns"] - part["to_ns"])[:_STRETCHES_SHOWN]
    for number, part in enumerate(sorted(longest, key=lambda part: int(part["from_ns"]))):
        head = ("", "", "") if number else (f"{batch['session'][:8]} {batch['seq']}", arrived, duration(batch["waited_ns"]))
        at, length = duration(part["from_ns"] - batch["arrived_ns"]), duration(part["to_ns"] - part["from_ns"])
        core = duration(part["core_ns"]) if part["session"] else ""
        rows.append((*head, at, length, part["rule"], part["text"] or "(none)", _priority(part), core))
    more = batch["stretches_total"] - len(longest)
    if more:
        rest_ns = batch["waited_ns"] - sum(part["to_ns"] - part["from_ns"] for part in longest)
        rows.append(("", "", "", "", duration(rest_ns), f"+{more} more", "", "", ""))
    return rows


def _memory_rows(memory: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Waits and moves, in the order of time."""
    rows = []
    for wait in memory["waits"]:
        took = duration(wait["to_ns"] - wait["from_ns"]) if wait["to_ns"] >= 0 else "still waits"
        whom = ", ".join(f"{_short(name)} gave {bytes_text(nbytes)}" for name, nbytes in wait["swapped_out"].items())
        rows.append((wait["from_ns"], "waited for memory", bytes_text(wait["nbytes"]), took, whom))
    said = {"out": "swapped out", "in": "brought back", "failed": "swap abandoned"}
    rows += [(move["at_ns"], said[move["what"]], bytes_text(move["nbytes"]), "", _short(move["for_session"])) for move in memory["moves"]]
    return [(_clock(row[0]), *row[1:]) for row in sorted(rows)]


def _short(session: str) -> str:
    """The beginning of a session's id; words as they are."""
    return session if " " in session else session[:8]


def _clock(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3]


def _priority(line: dict[str, Any]) -> str:
    return f"P{line['priority']}" if line["session"] else ""


def _sentences(document: dict[str, Any]) -> list[str]:
    """What a person should know first."""
    batches, waited_ns, latency_ns = document["batches"], document["waited_ns"], document["latency_ns"]
    if not batches:
        return ["no batch of it is on record"]
    meaning = {line["rule"]: line["meaning"] for line in document["by_rule"]}
    part = f", {100 * waited_ns // latency_ns} % of the time from their arrival to their end" if latency_ns else ""
    waited = f"{batches} batches arrived; they waited {_time(waited_ns)} in all{part}"
    out = [f"{waited}; {document['waited']} waited for a millisecond or longer"]
    out += [f"{_time(line['ns'])} of it: {line['meaning']}" for line in document["by_rule"][:3]]
    for line in document["by_other"][:3]:
        if line["text"]:
            main = max(line["rules"], key=lambda rule: line["rules"][rule])
            name = f"{line['text']} ({_priority(line)})" if line["priority"] >= 0 else line["text"]
            out.append(f"for {_time(line['ns'])} {name} ran meanwhile, mostly because {meaning[main]}")
    moved = document["memory"]["moves"]
    if moved:
        out.append(f"its memory was moved {len(moved)} times, {sum(move['nbytes'] for move in moved) / 1e6:.1f} MB in all")
    if document["preempted"]:
        out.append(f"{document['preempted']} of its launches were preempted so that another task could run")
    if not document["complete"]:
        out.append("the journal of this time was too long to be read whole: what is shown ends early")
    return out


def _time(ns: int) -> str:
    return f"{ns / 1e9:.2f} s" if ns >= 10**9 else f"{ns / 1e6:.1f} ms"
