"""Output of commands: tables for people, JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table

__all__ = ["bytes_text", "print_json", "print_table"]


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, numbers: Sequence[str] = (), empty: str) -> None:
    """A table on standard output; ``numbers`` are right-aligned columns; ``empty`` is said when there are no rows."""
    if not rows:
        click.echo(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row))
    console = Console()
    # Not a terminal: programs that read a pipe need whole lines.
    Console(width=max(console.width, 200) if not console.is_terminal else None, soft_wrap=not console.is_terminal).print(table)


def bytes_text(nbytes: int) -> str:
    """Bytes for people: ``1.5 GiB``."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable: the last unit returns")
