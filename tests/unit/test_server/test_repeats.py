"""Which batches of a session that takes another one's place repeat work, and whose, by what the node and the client know."""

from __future__ import annotations

import pytest

from bus_schemas.session import OpenSession
from bus_schemas.terms import TaskTerms
from services.server.sessions import Session, SessionRecord, _elsewhere, _replayed

TERMS = TaskTerms(tenant="lab", task="t", priority=0)


def lost(seq_done: int, replayed: int = 0, *, elsewhere: bool = False) -> Session:
    return Session(SessionRecord(session="old", terms=TERMS, replayed=replayed, elsewhere=elsewhere), seq_done)


def request(replaces: str = "old", task: str = "t", skips: int = 0) -> OpenSession:
    return OpenSession("new", "lab", task, 0, (0,), 0, replaces=replaces, skips=skips, repeats=30)


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
    ],
)
def test_what_is_repeated(replaced: Session | None, asked: OpenSession, replayed: int, elsewhere: bool) -> None:
    assert (_replayed(replaced, asked), _elsewhere(replaced, asked)) == (replayed, elsewhere)
