"""Which batches of a session that takes another one's place repeat work, and whose, by what the node and the client know."""

from __future__ import annotations

import pytest

from bus_schemas.session import OpenSession
from bus_schemas.terms import TaskTerms
from services.server.sessions import Session, SessionRecord, _elsewhere, _replayed, gives_way, repeats_of

TERMS = TaskTerms(tenant="lab", task="t", priority=0)


def lost(seq_done: int, replayed: int = 0, *, elsewhere: bool = False) -> Session:
    return Session(SessionRecord(session="old", terms=TERMS, replayed=replayed, elsewhere=elsewhere), seq_done)


def request(replaces: str = "old", task: str = "t", skips: int = 0, shared: int = 0) -> OpenSession:
    return OpenSession("new", "lab", task, 0, (0,), 0, replaces=replaces, skips=skips, repeats=30, shared=shared)


@pytest.mark.parametrize(
    ("replaced", "asked", "replayed", "elsewhere"),
    [
        (None, request(""), 0, False),
        (None, request(task=""), 0, False),  # without a task nothing says that it was anywhere
        (None, request(), 30, True),
        (lost(20), request(), 20, False),
        (lost(20), request(skips=5), 15, False),
        (lost(20), request(skips=-5), 20, False),
        (lost(20, 25), request(), 25, False),
        (lost(20, 25, elsewhere=True), request(), 25, True),
        (lost(24, 25, elsewhere=True), request(), 25, True),
        (lost(25, 25, elsewhere=True), request(), 25, False),
        # It ran beside a session on another node, and took its place: the node may not know all that it ran.
        (lost(0, elsewhere=True), request(shared=14), 14, True),
        (lost(10, elsewhere=True), request(shared=14), 14, True),
        (lost(10, elsewhere=True), request(shared=9, skips=5), 9, True),
        (lost(20, elsewhere=True), request(shared=14), 20, False),
        (lost(10), request(shared=14), 10, False),
    ],
)
def test_what_is_repeated(replaced: Session | None, asked: OpenSession, replayed: int, elsewhere: bool) -> None:
    assert (_replayed(replaced, asked), _elsewhere(replaced, asked)) == (replayed, elsewhere)


@pytest.mark.parametrize(
    ("seq_done", "skips", "begun_ns"),
    [
        (4, 0, 7),
        (4, 4, 7),
        (4, 5, 0),  # batch 5, of which a slice was charged, is in the client's image: its rest ran, and the node was lost with that
        (4, 9, 0),
    ],
)
def test_a_begun_batch_is_resumed_unless_the_image_has_it(seq_done: int, skips: int, begun_ns: int) -> None:
    replaced = lost(seq_done)
    replaced.begun_ns = 7
    assert repeats_of(replaced, request(skips=skips))["begun_ns"] == begun_ns


@pytest.mark.parametrize(
    ("record", "gives"),
    [
        (SessionRecord(session="old", terms=TERMS, principal="p"), True),
        (SessionRecord(session="other", terms=TERMS, principal="p"), False),
        (SessionRecord(session="old", terms=TERMS, principal="q"), False),
        (SessionRecord(session="old", terms=TaskTerms(tenant="best", task="t", priority=0), principal="p"), False),
        (SessionRecord(session="old", terms=TaskTerms(tenant="lab", task="u", priority=0), principal="p"), False),
    ],
)
def test_only_a_clients_own_session_of_the_task_gives_way(record: SessionRecord, gives: bool) -> None:
    assert gives_way(record, request(), "p") is gives
