"""Rights on the bus that hold for every key there can be. What each identity may on a real bus: tests/integration/test_secure_bus.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from bus_schemas import subjects
from services.kit.access.rules import ROLES, SCOPES, Identity
from services.kit.bus_permissions import may_follow, may_know, of_key

STREAMS = (subjects.EVENTS_STREAM, subjects.JOURNAL_STREAM, subjects.TELEMETRY_STREAM)


def every_key() -> Iterator[Identity]:
    for role, tenant, count in itertools.product(ROLES, ("", "acme"), range(3)):
        for scopes in itertools.combinations(SCOPES, count):
            yield Identity("x", tenant, role, scopes, "k1", "n1" if role == "node" else "")


def test_no_key_has_access_to_jetstream() -> None:
    """It would choose where JetStream answers."""
    for who in every_key():
        granted = of_key(who)
        said = granted.publish if granted is not None else ()
        assert not [subject for subject in said if subject.startswith(("$JS.API", "$JS.ACK", "$KV", "$SYS", ">", "$JS.>", "$JS.*"))], who


def test_who_reads_the_whole_log() -> None:
    readers = {(who.role, who.scopes) for who in every_key() if may_follow(who, subjects.EVENTS_STREAM, "") and not who.tenant}
    assert ("admin", ()) in readers
    assert ("operator", ("read",)) in readers
    assert not [role for role, _ in readers if role not in ("admin", "operator", "service")]
    assert not [who for who in every_key() if who.tenant and (may_follow(who, STREAMS[0], "") or may_know(who, STREAMS[0], ""))]


def test_who_reads_may_ask() -> None:
    """The controllers' answer and the bus's are one: an identity that may read has a subject for its requests, and one that may not has
    none."""
    for who in every_key():
        granted = of_key(who)
        asks = granted is not None and "wooly.access.read.k1" in granted.publish
        reads = may_follow(who, subjects.EVENTS_STREAM, "") or may_follow(who, subjects.batch_stream("n1"), "")
        assert asks == reads, who


@pytest.mark.parametrize("stream", ["KV_wooly_access", "WOOLY_LEASES", "", subjects.batch_stream("n2")])
def test_streams_that_no_key_reads(stream: str) -> None:
    for who in every_key():
        assert not may_follow(who, stream, "")
        assert not may_know(who, stream, "")
