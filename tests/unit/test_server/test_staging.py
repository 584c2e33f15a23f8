"""The staging area: chunks wait until used, belong to one session, and stay as cache within bounds."""

from __future__ import annotations

from services.server.executor import staging as module
from services.server.executor.staging import Staging


def test_chunks_of_one_session_are_not_there_for_another() -> None:
    staging = Staging()
    staging.open("a", "token-a", 100)
    staging.open("b", "token-b", 100)
    assert staging.put("a", b"1", bytearray(10)) == ""
    assert staging.have("a", (b"1", b"2")) == b"\1\0"
    assert staging.have("b", (b"1",)) == b"\0"
    assert staging.chunk("b", b"1") is None
    assert staging.admits("a", "token-a")
    assert not staging.admits("a", "token-b")
    assert not staging.admits("c", "")


def test_a_token_of_any_letters_is_only_wrong() -> None:
    staging = Staging()
    staging.open("a", "token-a", 100)
    assert not staging.admits("a", "\u00e9")
    assert not staging.admits("a", "\ud800")


def test_answers_that_wait_are_counted_until_dropped() -> None:
    staging = Staging()
    staging.open("a", "t", 100, module.ANSWER_BYTES_MIN + 5)
    name = staging.add_blob("a", memoryview(bytes(7)))
    assert staging.answer_room("a") == (module.ANSWER_BYTES_MIN - 2, module.ANSWER_BYTES_MIN + 5)
    for _ in range(2):
        staging.drop_blob("a", name)
        assert staging.answer_room("a")[0] == module.ANSWER_BYTES_MIN + 5


def test_what_waits_is_bounded_and_never_dropped() -> None:
    staging = Staging()
    staging.open("a", "t", 25)
    assert staging.put("a", b"1", bytearray(10)) == ""
    assert staging.put("a", b"2", bytearray(10)) == ""
    assert "20 bytes wait" in staging.put("a", b"3", bytearray(10))
    staging.used("a", (b"1",))
    assert staging.put("a", b"3", bytearray(10)) == ""
    assert staging.chunk("a", b"1") is not None


def test_used_chunks_are_cache_the_oldest_go_first() -> None:
    staging = Staging()
    staging.open("a", "t", 1 << 40)
    third = module.CACHE_BYTES // 3
    for name in (b"1", b"2", b"3", b"4"):
        staging.put("a", name, bytearray(third))
        staging.used("a", (name,))
    assert staging.have("a", (b"1", b"2", b"3", b"4")) == b"\0\1\1\1"


def test_blobs_are_fetched_by_their_session_until_dropped() -> None:
    staging = Staging()
    staging.open("a", "t", 1)
    staging.open("b", "t", 1)
    name = staging.add_blob("a", memoryview(b"data"))
    assert staging.blob("b", name) is None
    assert bytes(staging.blob("a", name) or b"") == b"data"
    staging.drop_blob("a", name)
    assert staging.blob("a", name) is None
