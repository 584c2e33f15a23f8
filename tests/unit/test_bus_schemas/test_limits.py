"""Every text and list that a client or a node can send has a limit in its type, and what nodes publish fits into a message of the bus."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from bus_schemas.access import Asked, WhoIs
from bus_schemas.allowance import AskAllowances
from bus_schemas.dataport import OpenModelCache
from bus_schemas.events import (
    DeviceAccounted,
    NodeLost,
    NodeRecovered,
    NodeRegistered,
    SessionClosedFact,
    SessionOpenedFact,
    SessionPriorityChanged,
    UsageRecorded,
    decode_events,
    encode_events,
)
from bus_schemas.limits import RECORDED_CHARS_MAX, TITLE_CHARS_MAX
from bus_schemas.runs import RunnerSync, RunReport
from bus_schemas.session import CloseSession, EndTask, OpenSession, Ping, SetPriority
from bus_schemas.telemetry import Telemetry
from services.kit.nats_server import MAX_PAYLOAD_BYTES

OF_CLIENTS = [OpenSession, CloseSession, Ping, OpenModelCache]
REQUESTS = [*OF_CLIENTS, EndTask, SetPriority, WhoIs, AskAllowances, RunnerSync, RunReport, *get_args(Asked)]
FACTS = [
    NodeRegistered, NodeLost, NodeRecovered, SessionOpenedFact, SessionClosedFact, SessionPriorityChanged, UsageRecorded, DeviceAccounted,
]  # fmt: skip
LISTS_BY_CALLER = {"AskAllowances.tenants", "TenantUse.facts", "RunnerSync.running", "RunnerSync.tenants"}
"""As long as what a node or a runner has: counted by the size of the message alone."""


def unbounded(kind: Any, where: str) -> list[str]:
    """The places of ``kind`` (of msgspec.inspect) that may hold any number of characters or elements."""
    match kind:
        case inspect.StructType():
            return [place for field in kind.fields for place in unbounded(field.type, f"{kind.cls.__name__}.{field.name}")]
        case inspect.UnionType():
            return [place for part in kind.types for place in unbounded(part, where)]
        case inspect.StrType() | inspect.BytesType():
            return [where] if kind.max_length is None else []
        case inspect.VarTupleType():
            own = [where] if kind.max_length is None and where not in LISTS_BY_CALLER else []
            return own + unbounded(kind.item_type, where)
        case inspect.TupleType():
            return [place for part in kind.item_types for place in unbounded(part, where)]
    return []


@pytest.mark.parametrize("kind", [*REQUESTS, *FACTS, Telemetry])
def test_every_text_and_list_has_a_limit(kind: type[msgspec.Struct]) -> None:
    assert unbounded(inspect.type_info(kind), kind.__name__) == []


def largest(kind: Any) -> int:
    """Bytes of the longest encoding: four a character, nine a number, five for each head."""
    match kind:
        case inspect.StructType():
            return 100 + sum(largest(field.type) for field in kind.fields)
        case inspect.UnionType():
            return max(largest(part) for part in kind.types)
        case inspect.StrType():
            return 5 + 4 * (kind.max_length or 1 << 60)
        case inspect.VarTupleType():
            return 5 + (kind.max_length or 1 << 60) * largest(kind.item_type)
    return 9


@pytest.mark.parametrize("kind", [*FACTS, Telemetry])
def test_what_a_node_publishes_fits_into_a_message(kind: type[msgspec.Struct]) -> None:
    assert largest(inspect.type_info(kind)) <= MAX_PAYLOAD_BYTES // 2


def test_a_request_above_a_limit_is_refused_by_field() -> None:
    longest = OpenSession("s", "t", "", 0, (0,), 0, title="é" * TITLE_CHARS_MAX)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(longest), type=OpenSession) == longest
    longer = msgspec.structs.replace(longest, title="é" * (TITLE_CHARS_MAX + 1))
    with pytest.raises(msgspec.ValidationError, match=rf"length <= {TITLE_CHARS_MAX} - at `\$.title`"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(longer), type=OpenSession)


def test_events_recorded_with_longer_texts_than_a_request_may_have_are_read() -> None:
    opened = SessionOpenedFact(1, "s", "t", "", "n", 0, 0, 0, title="x" * RECORDED_CHARS_MAX)
    assert decode_events(encode_events([opened])) == [opened]
    with pytest.raises(msgspec.DecodeError):
        decode_events(encode_events([msgspec.structs.replace(opened, title="x" * (RECORDED_CHARS_MAX + 1))]))
