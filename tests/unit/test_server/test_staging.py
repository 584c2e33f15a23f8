"""The staging area: chunks wait until used, belong to one session, and stay as cache within bounds."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from blake3 import blake3

from bus_schemas.dataport import Answer, Denied, Hello, Put, Stored, Welcome, decode_answer
from bus_schemas.frames import Frames, frame
from bus_schemas.quotas import Excess
from scheduler.quotas import Asked, answer
from services.server.executor import staging as module
from services.server.executor.staging import Blob, Held, Staging
from services.server.protocol import QuotasUsed
from tests.support.executor import Wire
from tests.support.node import until
from wooly.errors import QuotaReachedError
from wooly.transport.data_port import DataPort


def test_chunks_of_one_session_are_not_there_for_another() -> None:
    staging = Staging()
    staging.open("a", "token-a", 100)
    staging.open("b", "token-b", 100)
    assert staging.put("a", b"1", bytearray(10)) is None
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
    name, _ = staging.add_blob("a", 7)
    assert room(staging, "a") == (module.ANSWER_BYTES_MIN - 2, module.ANSWER_BYTES_MIN + 5)
    for _ in range(2):
        staging.drop_blob("a", name)
        assert room(staging, "a")[0] == module.ANSWER_BYTES_MIN + 5


def test_what_waits_is_bounded_and_never_dropped() -> None:
    staging = Staging()
    staging.open("a", "t", 25)
    assert staging.put("a", b"1", bytearray(10)) is None
    assert staging.put("a", b"2", bytearray(10)) is None
    denied = staging.put("a", b"3", bytearray(10))
    assert denied is not None and denied.excess == Excess("staged_bytes", 25, 20, 5_000)
    assert denied.message.startswith("session a has used 20")
    staging.used("a", (b"1",))
    assert staging.put("a", b"3", bytearray(10)) is None
    assert staging.chunk("a", b"1") is not None


def test_used_chunks_are_cache_the_oldest_go_first() -> None:
    staging = Staging()
    staging.open("a", "t", 1 << 40)
    third = module.CACHE_BYTES // 3
    for name in (b"1", b"2", b"3", b"4"):
        staging.put("a", name, bytearray(third))
        staging.used("a", (name,))
    assert staging.have("a", (b"1", b"2", b"3", b"4")) == b"\0\1\1\1"


def room(staging: Staging, session: str) -> tuple[int, int]:
    """Bytes of answers that the session may add, of how many."""
    denied = staging.refuse_answers(session, 1 << 60)
    assert denied is not None and denied.excess is not None
    assert staging.refuse_answers(session, denied.excess.limit - denied.excess.used) is None
    return denied.excess.limit - denied.excess.used, denied.excess.limit


def test_blobs_are_fetched_by_their_session_until_dropped() -> None:
    staging = Staging()
    staging.open("a", "t", 1)
    staging.open("b", "t", 1)
    name, pieces = staging.add_blob("a", 4)
    pieces.append(b"data")
    assert staging.blob("b", name) is None
    assert staging.blob("a", name) == Blob(4, [b"data"])
    staging.drop_blob("a", name)
    assert staging.blob("a", name) is None


def test_what_waits_is_bounded_for_all_sessions_of_a_tenant_together() -> None:
    staging = Staging(tenant_bytes_max=25)
    for session, tenant in (("a", "t"), ("b", "t"), ("c", "u")):
        staging.open(session, "token", 25, tenant=tenant)
    assert staging.put("a", b"1", bytearray(10)) is staging.put("b", b"2", bytearray(10)) is None
    denied = staging.put("b", b"3", bytearray(10))
    assert denied is not None and denied.excess == Excess("staged_bytes", 25, 20, 5_000)
    assert denied.message.startswith("tenant t has used 20 of 25 bytes (quota staged_bytes); read answers sooner"), denied
    assert staging.put("c", b"3", bytearray(25)) is None, "another tenant's"
    staging.used("a", (b"1",))
    assert staging.put("b", b"3", bytearray(10)) is None and staging.chunk("a", b"1") is None, "what was used gives way"
    staging.close("b")
    assert staging.put("a", b"4", bytearray(25)) is None


def test_chunks_under_way_to_the_model_cache_count_whatever_sessions_end_meanwhile() -> None:
    staging = Staging(tenant_bytes_max=1000)
    account = staging.begin("lab", 800)
    assert isinstance(account, Held)
    staging.open("other", "", 1000, tenant="another")
    staging.close("other")
    assert isinstance(staging.begin("lab", 800), Denied)
    staging.end(account, 800)
    assert isinstance(staging.begin("lab", 800), Held)


def test_used_chunks_of_all_sessions_of_a_tenant_together_are_bounded() -> None:
    staging = Staging()
    third = module.CACHE_BYTES // 3
    for at in range(9):
        staging.open(f"s{at}", "token", 1 << 40, tenant="t")
        staging.put(f"s{at}", b"1", bytearray(third))
        staging.used(f"s{at}", (b"1",))
    assert sum(staging.chunk(f"s{at}", b"1") is not None for at in range(9)) == 3


def test_answers_that_wait_are_bounded_for_all_sessions_of_a_tenant_together() -> None:
    most = module.ANSWER_BYTES_MIN
    staging = Staging(tenant_answer_bytes_max=most)
    for session, tenant in (("a", "t"), ("b", "t"), ("c", "u")):
        staging.open(session, "token", 25, tenant=tenant)
    name, _ = staging.add_blob("a", 1000)
    assert room(staging, "b") == (most - 1000, most) and room(staging, "c") == (most, most)
    staging.drop_blob("a", name)
    assert room(staging, "b") == (most, most)
    staging.add_blob("a", 1000)
    staging.close("a")
    assert room(staging, "b") == (most, most)


def test_the_executor_refuses_what_a_tenant_puts_beyond_its_bound_through_any_of_its_sessions(tmp_path: Path) -> None:
    def put(session: str, at: int) -> Answer:
        chunk = bytes([at]) * 600_000
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as port:
            port.settimeout(60)
            port.connect(str(tmp_path / "d"))
            port.sendall(frame(Hello(session, "token")) + frame(Put(blake3(chunk).digest(), len(chunk))) + chunk)
            frames, answers = Frames(), []
            while len(answers) < 2:
                answers += [decode_answer(body) for body in frames.feed(port.recv(1 << 16))]
        assert isinstance(answers[0], Welcome)
        return answers[1]

    with Wire(tmp_path, staged_bytes=1 << 20) as wire:
        wire.open("a")
        wire.open("b")
        wire.open("c", tenant="another")
        assert isinstance(put("a", 1), Stored) and isinstance(put("c", 2), Stored)
        denied = put("b", 2)
        excess = Excess("staged_bytes", 1 << 20, 600_000, 5_000)
        assert isinstance(denied, Denied) and denied.excess == excess
        refused: list[Asked] = []
        uses: dict[str, int] = {}
        while not refused or len(uses) < 2:
            told = wire.next(QuotasUsed)
            refused, uses = [*refused, *told.refused], {use.tenant: use.used for use in told.uses}
        assert [(asked.who, answer(asked)) for asked in refused] == [("acme", excess)] and uses == {"acme": 600_000, "another": 600_000}
        port = DataPort([f"unix:{tmp_path / 'd'}"], "b", "token")
        with pytest.raises(QuotaReachedError, match="tenant acme has used 600000 of 1048576 bytes") as reached:
            port.put([memoryview(bytes([3]) * 600_000)])
        assert (reached.value.quota, reached.value.retry_after_ms) == ("staged_bytes", 5_000)


def test_chunks_that_are_under_way_count_for_their_tenant(tmp_path: Path) -> None:
    """A client that sends all but the last byte holds memory; what is refused is read and not kept."""

    def dial(session: str) -> socket.socket:
        port = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        port.settimeout(60)
        port.connect(str(tmp_path / "d"))
        port.sendall(frame(Hello(session, "token")))
        assert isinstance(answer_of(port), Welcome)
        return port

    def answer_of(port: socket.socket) -> Answer:
        frames = Frames()
        while True:
            for body in frames.feed(port.recv(1 << 16)):
                return decode_answer(body)

    chunk = b"c" * 600_000
    put = frame(Put(blake3(chunk).digest(), len(chunk)))
    with Wire(tmp_path, staged_bytes=1 << 20) as wire:
        for session, tenant in (("a", "t"), ("b", "t"), ("c", "another")):
            wire.open(session, tenant=tenant)
        slow, second, other = dial("a"), dial("b"), dial("c")
        slow.sendall(put + chunk[:-1])
        other.sendall(put + chunk)
        assert isinstance(answer_of(other), Stored), "another tenant's"
        second.sendall(put + chunk)
        denied = answer_of(second)
        assert isinstance(denied, Denied) and denied.excess == Excess("staged_bytes", 1 << 20, 600_000, 5_000)
        slow.close()

        def stored() -> bool:
            second.sendall(put + chunk)
            return isinstance(answer_of(second), Stored)

        until(stored, "the memory is free again")
        second.close()
        other.close()
