"""``wooly why``: why a task waited, for whom, and under which rule.

May live here: asking services.replay and showing its answer. May not: journals, rules.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import click

from wooly.cli.options import json_flag, nats_flag
from wooly.cli.output import bytes_text, print_json, print_table
from wooly.cli.replay import ask, bounds, bounds_flags, duration

__all__ = ["why"]

_STRETCHES_SHOWN: Final = 4


@click.command()
@click.argument("task")
@nats_flag
@bounds_flags
@click.option("--top", type=click.IntRange(0, 1000), default=10, show_default=True, help="How many of its longest waits to show.")
@json_flag
def why(task: str, nats_url: str | None, node: str, from_: str, to: str, files: tuple[str, ...], top: int, as_json: bool) -> None:
    """Tell why TASK (a task or session) waited: who ran instead, and under which rule."""
    document, _ = ask(["why", task, "--top", str(top), *bounds(node, from_, to, files)], nats_url, bus=not files)
    if as_json:
        print_json(document)
        return
    for sentence in document["sentences"]:
        click.echo(sentence)
    rows: list[tuple[Any, ...]]
    columns: tuple[str, ...] = ("rule", "waited", "times", "it waited because")
    rows = [(line["rule"], duration(line["ns"]), line["times"], line["meaning"]) for line in document["by_rule"]]
    _table("\nby rule", columns, rows, ("waited", "times"))
    columns = ("who ran meanwhile", "prio", "waited", "times", "its core time")
    _table("\nby who ran", columns, [_other_row(line) for line in document["by_other"]], columns[1:])
    columns = ("batch", "arrived", "waited", "at", "for", "rule", "who ran", "prio", "its core time")
    rows = [row for batch in document["longest"] for row in _batch_rows(batch, document["unix_offset_ns"])]
    _table("\nlongest waits", columns, rows, ("waited", "at", "for", "prio", "its core time"))
    rows = _memory_rows(document["memory"], document["unix_offset_ns"])
    _table("\nmemory", ("when", "what", "bytes", "waited", "for"), rows, ("bytes", "waited"))


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]], numbers: tuple[str, ...]) -> None:
    if rows:
        click.echo(title)
        print_table(columns, rows, numbers=numbers, empty="")


def _other_row(line: dict[str, Any]) -> tuple[Any, ...]:
    who = line["text"] or "(nobody)"
    return who, _priority(line), duration(line["ns"]), line["times"], duration(line["core_ns"]) if line["session"] else ""


def _batch_rows(batch: dict[str, Any], offset_ns: int) -> list[tuple[Any, ...]]:
    """A row a stretch; the batch stands before the first. ``at`` counts from its arrival."""
    arrived = _clock(batch["arrived_ns"] + offset_ns)
    rows = []
    longest = sorted(batch["stretches"], key=lambda part: part["from_ns"] - part["to_ns"])[:_STRETCHES_SHOWN]
    for number, part in enumerate(sorted(longest, key=lambda part: int(part["from_ns"]))):
        head = ("", "", "") if number else (f"{batch['session'][:8]} {batch['seq']}", arrived, duration(batch["waited_ns"]))
        at, length = duration(part["from_ns"] - batch["arrived_ns"]), duration(part["to_ns"] - part["from_ns"])
        core = duration(part["core_ns"]) if part["session"] else ""
        rows.append((*head, at, length, part["rule"], part["text"] or "(nobody)", _priority(part), core))
    more = len(batch["stretches"]) - len(longest)
    if more:
        rest_ns = batch["waited_ns"] - sum(part["to_ns"] - part["from_ns"] for part in longest)
        rows.append(("", "", "", "", duration(rest_ns), f"+{more} more", "", "", ""))
    return rows


def _memory_rows(memory: dict[str, Any], offset_ns: int) -> list[tuple[Any, ...]]:
    """Waits and moves, in the order of time."""
    rows = []
    for wait in memory["waits"]:
        took = duration(wait["to_ns"] - wait["from_ns"]) if wait["to_ns"] >= 0 else "still waits"
        whom = ", ".join(f"{name[:8]} gave {bytes_text(nbytes)}" for name, nbytes in wait["swapped_out"].items())
        rows.append((wait["from_ns"], "waited for memory", bytes_text(wait["nbytes"]), took, whom))
    said = {"out": "swapped out", "in": "brought back", "failed": "swap abandoned"}
    rows += [(move["at_ns"], said[move["what"]], bytes_text(move["nbytes"]), "", move["for_session"][:8]) for move in memory["moves"]]
    return [(_clock(row[0] + offset_ns), *row[1:]) for row in sorted(rows)]


def _clock(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3]


def _priority(line: dict[str, Any]) -> str:
    return f"P{line['priority']}" if line["session"] else ""
