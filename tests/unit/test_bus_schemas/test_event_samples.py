"""Every event ever written stays readable: frozen bytes of each, decoded and compared with what they meant.

tests/golden/events/samples.json maps a tag to the hex of one message and to its fields. A sample is never changed; a new event or a new
field (which goes last and has a default) adds a sample: write it with ``python -m tests.unit.test_bus_schemas.test_event_samples``.
"""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus_schemas import events
from bus_schemas.events import decode_events, encode_events, split_events

FILE = Path(__file__).parents[2] / "golden" / "events" / "samples.json"
KINDS: dict[str, type[Any]] = {str(kind.__struct_config__.tag): kind for kind in typing.get_args(events.Event)}


def samples() -> dict[str, Any]:
    return dict(json.loads(FILE.read_text()))


def test_every_event_has_a_frozen_sample() -> None:
    tags = {sample["tag"] for sample in samples().values()}
    assert tags == KINDS.keys()


@pytest.mark.parametrize("name", samples() if FILE.exists() else [])
def test_a_frozen_sample_still_means_the_same(name: str) -> None:
    sample = samples()[name]
    (event,) = decode_events(bytes.fromhex(sample["bytes"]))
    have = json.loads(msgspec.json.encode(msgspec.structs.asdict(event)))
    for field, value in sample["fields"].items():
        assert have[field] == value, field
    assert type(event) is KINDS[sample["tag"]]


@pytest.mark.parametrize("count", [1, 16, 70_000])
def test_events_that_are_split_from_a_message_are_written_as_they_were(count: int) -> None:
    """The node publishes what its journal holds without decoding it; array headers of one, three and five bytes."""
    known = list(samples().values())
    (first,) = split_events(bytes.fromhex(known[0]["bytes"]))
    data = encode_events([first] * count)
    assert len(split_events(data)) == count
    assert encode_events(split_events(data)) == data
    for sample in known:
        assert encode_events(split_events(bytes.fromhex(sample["bytes"]))).hex() == sample["bytes"]


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\x92\xa3abc\x01", encode_events([])[:0], b"\x91\x93\xb1usage.recorded.v1\x01\x02"])
def test_hostile_bytes_are_a_decode_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_events(data)


def _example(kind: Any, number: int) -> Any:
    """A value of a field's type that differs from its default."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is int:
        return 1000 + number
    if kind is str:
        return f"text{number}"
    if kind is bool:
        return True
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return (_example(arguments[0], number), _example(arguments[0], number + 50))
    if origin is tuple:
        return tuple(_example(a, number + i) for i, a in enumerate(arguments))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _make(kind)
    return _example(arguments[0], number)  # a union: its first member


def _make(kind: Any) -> Any:
    hints = typing.get_type_hints(kind)
    return kind(*[_example(hints[field], i) for i, field in enumerate(kind.__struct_fields__)])


def main() -> None:
    """Add samples for shapes that have none yet; existing ones stay as they are."""
    have = samples() if FILE.exists() else {}
    for tag, kind in KINDS.items():
        event = _make(kind)
        name = f"{tag} with {len(kind.__struct_fields__)} fields"
        fields = json.loads(msgspec.json.encode(msgspec.structs.asdict(event)))
        have.setdefault(name, {"tag": tag, "bytes": encode_events([event]).hex(), "fields": fields})
    FILE.write_text(json.dumps(have, indent=1) + "\n")


if __name__ == "__main__":
    main()
