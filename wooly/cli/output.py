"""Output of commands: tables for people, JSON for scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bus_schemas.texts import printable
from wooly.cli.group import echo, encodable

_ID: Final = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{24}\b")
_GAP: Final = 2
_TIME: Final = re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z")


def print_json(value: Any) -> None:
    echo(json.dumps(value, indent=2, default=str))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, numbers: Sequence[str] = (), optional: Sequence[str] = (), empty: str
) -> None:
    """A table on standard output; ``numbers`` are right-aligned columns; ``optional`` are those that a narrow terminal does without,
    first to last; ``empty`` is printed when there are no rows."""
    if not rows:
        echo(empty)
        return
    console = Console()
    cells = [["" if value is None else encodable(printable(str(value))) for value in row] for row in rows]
    shown: Sequence[str] = columns
    if console.is_terminal:  # else programs read it: they need whole lines and whole ids
        cells = [[_brief(cell) for cell in row] for row in cells]
        shown = columns_within(columns, cells, optional, console.width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in shown:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for column, cell in zip(columns, row, strict=True) if column in shown))
    Console(width=max(console.width, 200) if not console.is_terminal else None, soft_wrap=not console.is_terminal).print(table)


Columns = Mapping[str, str | Callable[[Any], Any]]
"""By title: the field that a column shows, or what it makes of an item."""


def print_items(
    answer: Any,
    items: Sequence[Any],
    columns: Columns,
    *,
    as_json: bool,
    numbers: Sequence[str] = (),
    optional: Sequence[str] = (),
    empty: str,
    more: str = "",
) -> None:
    """``answer`` as JSON, or a table with a row for each of its ``items``. ``more`` says how to see those that are left out. The others as
    in ``print_table``."""
    if as_json:
        print_json(answer)
        return
    rows = [[item[shown] if isinstance(shown, str) else shown(item) for shown in columns.values()] for item in items]
    print_table(list(columns), rows, numbers=numbers, optional=optional, empty=empty)
    total = answer.get("total", 0) if isinstance(answer, dict) else 0
    if total > len(items):
        echo(f"{len(items)} of {total} are shown{more}")


def columns_within(columns: Sequence[str], rows: Sequence[Sequence[str]], optional: Sequence[str], width: int) -> list[str]:
    """The columns that fit ``width`` characters, in order; without ``optional`` ones, first to last, as far as they do not."""
    widths = {name: max(len(name), *(len(row[at]) for row in rows), 0) for at, name in enumerate(columns)}
    shown = list(columns)
    for name in optional:
        if sum(widths[one] + _GAP for one in shown) - _GAP <= width:
            break
        shown.remove(name)
    return shown


def _brief(cell: str) -> str:
    """For a terminal: of a made id its first eight digits, which commands accept; of a time whole seconds."""
    return _TIME.sub(r"\1 \2Z", _ID.sub(r"\1", cell))


def bytes_text(nbytes: int) -> str:
    """Bytes for people: ``1.5 GiB``."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable: the last unit returns")
