"""The event reference, from the structs of bus_schemas/events.py."""

from __future__ import annotations

import inspect
import typing
from pathlib import Path
from typing import Any, Final

import msgspec

from bus_schemas import events
from docs.generate.text import constants, documentation, table

__all__ = ["page"]

_HEAD: Final = """# Event reference

Every event of the log (the JetStream stream `WOOLY_EVENTS`). Controller and billing compute all their state from these events. A message
is a msgpack list of events; an event is an array that begins with its tag. Fields are only ever added at the end, with a default. Times
(`_ns`) are Unix time of the process that emits the event, in nanoseconds.
"""


def page() -> str:
    """The page."""
    source = Path(inspect.getfile(events))
    kinds = [*typing.get_args(events.Event)]
    parts = [_HEAD]
    for kind in sorted(kinds, key=lambda one: str(one.__struct_config__.tag)):
        parts += [f"\n## {kind.__struct_config__.tag}\n", f"`{kind.__name__}`. {_described(kind)}\n", _fields(kind, source)]
    for part in (events.DeviceFact, events.Considered):
        parts += [f"\n## {part.__name__}\n", f"Part of other events. {_described(part)}\n", _fields(part, source)]
    return "\n".join(parts)


def _described(kind: Any) -> str:
    return documentation(kind) if kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}(") else ""


def _fields(kind: Any, source: Path) -> str:
    said = constants(source, kind.__name__)
    rows = []
    for field in msgspec.structs.fields(kind):
        default = "required" if field.default is msgspec.NODEFAULT else f"`{field.default!r}`"
        rows.append((f"`{field.name}`", f"`{_name(field.type)}`", default, said[field.name][1]))
    return table(("Field", "Type", "Default", "Meaning"), rows)


def _name(kind: Any) -> str:
    plain = isinstance(kind, type) and not typing.get_args(kind)
    return kind.__name__ if plain else str(kind).replace("bus_schemas.events.", "").replace(" | ", " or ")
