"""What a task asks for reaches the node, and the log, as it was asked: field by field."""

from __future__ import annotations

import msgspec

from bus_schemas.events import SessionOpenedFact
from bus_schemas.frames import frame
from bus_schemas.session import OpenSession
from bus_schemas.terms import TaskTerms
from scheduler.dispatch import SessionOpened
from services.server.protocol import OpenSpace, decode_command
from services.server.sessions import Session, SessionRecord, decode_record, encode_record, open_space, opened_stimulus

TERMS = TaskTerms(
    tenant="acme", task="t", title="train", priority=0, vram_bytes=5, exclusive=True, swap=False, weight=7, sla_ms_p99=9, pace_percent=11
)
RECORD = SessionRecord(session="s", terms=TERMS, gpu=2, token="x", epoch=3, domain="d", vram_wait_ms=4)


def test_no_term_is_lost_between_the_request_and_the_executor() -> None:
    """A request has a field for every term; every value differs from its default."""
    assert all(getattr(TERMS, field.name) != field.default for field in msgspec.structs.fields(TaskTerms))
    request = OpenSession(session="s", gpus=(2,), **msgspec.structs.asdict(TERMS))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=OpenSession).terms == TERMS
    assert decode_record(encode_record(RECORD)) == RECORD
    opened = decode_command(frame(open_space(RECORD))[4:])
    assert opened == OpenSpace("s", "x", encode_record(RECORD), TERMS, "d", 4)


def test_the_dispatcher_gets_them_in_its_units() -> None:
    assert opened_stimulus(1, Session(RECORD, seq_done=6, chain=b"c")) == SessionOpened(1, "s", 3, 0, 7, b"c", 7, 9_000_000, 110)


def test_another_priority_ends_a_latency_target() -> None:
    assert TERMS.at_priority(2) == msgspec.structs.replace(TERMS, priority=2, sla_ms_p99=0)
    assert TERMS.at_priority(0) == TERMS


def test_the_fact_holds_what_the_record_says() -> None:
    """Names that differ: a quota, and what a task does not tell the log."""
    names = set(SessionOpenedFact.__struct_fields__) & set(TaskTerms.__struct_fields__)
    assert names == set(TaskTerms.__struct_fields__) - {"vram_bytes", "exclusive"}
