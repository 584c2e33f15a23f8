"""Sessions on a real node over a real bus: results, order, isolation, limits, and every way the other side can go away."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bus_schemas import faults, subjects
from bus_schemas.batch import LIMITS, Done, ReadResult, decode_batch, encode_batch, encode_done
from bus_schemas.events import SessionClosedFact, SessionOpenedFact
from bus_schemas.limits import TITLE_CHARS_MAX
from bus_schemas.session import CloseSession, NodeInfo, OpenSession, SessionClosed, SessionOpened
from services.kit.bus import Bus
from tests.support.builder import Builder
from tests.support.executor import batch_of, chain_of
from tests.support.node import DEADLINE_S, Node, Program, add_one, asked, beyond_its_table, floats, increment, until
from tests.support.stack import ROOT
from wis.dtypes import DType
from wooly.config import Config
from wooly.errors import (
    DeviceAssertError,
    ForkError,
    NodeLostError,
    NoServerError,
    PlacementError,
    QuotaExceeded,
    QuotaReachedError,
    RefusedError,
    SessionLostError,
)
from wooly.link import Flush, Origin
from wooly.session import Session, open_session

ANSWER_S = 10.0
"""What the product promises: no failure takes longer than this to show."""


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """What is asked inside ends within ANSWER_S. Moments in which the machine lets this process not run at all are not counted."""
    over, ran_s = threading.Event(), 0.0

    def run() -> None:
        nonlocal ran_s
        before_s = time.monotonic()
        while not over.wait(0.02):
            now_s = time.monotonic()
            ran_s, before_s = ran_s + min(now_s - before_s, 0.2), now_s

    clock = threading.Thread(target=run)
    clock.start()
    try:
        yield
    finally:
        over.set()
        clock.join()
    assert ran_s < ANSWER_S


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node of one's own, to be killed."""
    with Node(tmp_path) as node:
        yield node


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node for tests that leave it as they found it."""
    with Node(tmp_path_factory.mktemp("shared")) as node:
        yield node


def upload(session: Session, handle: int, values: np.ndarray) -> None:
    session.wait(session.submit(Flush(uploads=[(handle, memoryview(values).cast("B"))])))


def read(session: Session, handle: int, nbytes: int) -> np.ndarray:
    return floats(session.wait(session.submit(Flush(reads=[(handle, 0, nbytes)])))[0])


class TestRoundTrip:
    def test_upload_run_read_free(self, shared: Node) -> None:
        session = shared.open()
        x = np.arange(16.0)
        program = add_one()
        ticket = session.submit(program.flush([1, 2], uploads=[(1, memoryview(x).cast("B"))], reads=[(2, 0, 128), (1, 8, 16)], frees=[2]))
        answers = session.wait(ticket)
        assert floats(answers[0]).tolist() == (x + 1).tolist()
        assert floats(answers[1]).tolist() == [1.0, 2.0]
        session.close()
        assert session.totals is not None
        assert session.totals.launches == 1
        assert session.totals.instructions == 16

    def test_known_programs_travel_as_digests(self, shared: Node) -> None:
        """A steady step must not carry its program: that is what keeps the wire small."""
        session = shared.open()
        program = increment()
        upload(session, 1, np.zeros(16))
        first = session.wire_bytes
        session.wait(session.submit(program.flush([1])))
        second = session.wire_bytes
        session.wait(session.submit(program.flush([1])))
        assert session.wire_bytes - second < second - first
        assert session.wire_bytes - second < 200

    def test_changed_dims_travel_as_a_difference(self, shared: Node) -> None:
        """A growing cache changes a few sizes of a large program."""
        session = shared.open()
        sizes = []
        for size in (100, 101):
            program = add_one(size)
            data = memoryview(np.zeros(size)).cast("B")
            before = session.wire_bytes
            session.wait(session.submit(program.flush([size, size + 1000], uploads=[(size, data)])))
            sizes.append(session.wire_bytes - before)
            assert read(session, size + 1000, 8 * size).tolist() == [1.0] * size
        assert program.dims_digest != add_one(100).dims_digest
        assert program.digest == add_one(100).digest

    def test_answers_without_a_waiter_do_not_pile_up(self, shared: Node) -> None:
        """A training loop submits for days and looks at a value now and then."""
        session = shared.open()
        program = increment()
        upload(session, 1, np.zeros(16))
        unheeded = [session.submit(program.flush([1])) for _ in range(100)]
        assert read(session, 1, 128).tolist() == [100.0] * 16
        assert not session._state.answers
        assert session.wait(unheeded[0]) == []
        session.close()

    def test_many_batches_in_flight_keep_their_order(self, shared: Node) -> None:
        session = shared.open()
        upload(session, 1, np.zeros(16))
        double, plus = increment(by=2.0), increment(by=1.0)
        tickets = [session.submit((double if i % 2 else plus).flush([1])) for i in range(200)]
        for ticket in tickets:
            session.wait(ticket)
        assert read(session, 1, 128).tolist() == [300.0] * 16

    def test_forgotten_bodies_are_sent_again(self, shared: Node) -> None:
        """A restarted executor knows no program: a session that thinks it does must not fail for that."""
        first = shared.open()
        upload(first, 1, np.zeros(16))
        program = increment()
        second = shared.open()
        upload(second, 1, np.zeros(16))
        second._state.remote.encoder._is_known(program.digest)  # as if the node had received it, long ago
        second._state.remote.encoder._is_known(program.dims_digest)
        tickets = [second.submit(program.flush([1])) for _ in range(20)]
        for ticket in tickets:
            second.wait(ticket)
        assert read(second, 1, 128).tolist() == [20.0] * 16


class TestBulk:
    def test_large_tensors_go_over_the_data_port_and_come_back_equal(self, shared: Node) -> None:
        session = shared.open()
        data = np.random.default_rng(1).random(3_000_000)  # 24 MB: five whole chunks and a part
        upload(session, 1, data)
        assert (read(session, 1, data.nbytes) == data).all()

    def test_chunks_the_node_holds_are_not_sent_again(self, shared: Node) -> None:
        session = shared.open()
        data = np.random.default_rng(1).random(2_000_000)
        upload(session, 1, data)
        sent = session.wire_bytes
        upload(session, 2, data)
        assert session.wire_bytes - sent < 10_000
        assert (read(session, 2, data.nbytes) == data).all()

    def test_a_large_answer_is_there_however_many_batches_other_threads_send_meanwhile(self, shared: Node) -> None:
        """The node keeps it for as many batches as may be under way."""
        session = shared.open()
        data = np.random.default_rng(6).random(1 << 17)
        upload(session, 1, data)
        upload(session, 2, np.zeros(16))
        ticket = session.submit(Flush(reads=[(1, 0, data.nbytes), (1, 8, data.nbytes - 8)]))
        for _ in range(2 * LIMITS.outstanding_batches_max):
            session.wait(session.submit(increment().flush([2])))
        whole, rest = session.wait(ticket)
        assert floats(whole).tolist() == data.tolist() and floats(rest).tolist() == data[1:].tolist()

    def test_a_wrong_token_opens_nothing(self, shared: Node) -> None:
        session = shared.open()
        session._state.remote.port.close()
        session._state.remote.port._hello = type(session._state.remote.port._hello)(session.info.session, "0" * 32)
        with pytest.raises(NodeLostError, match="token"):
            session.submit(Flush(uploads=[(1, memoryview(bytes(1 << 20)))]))


class TestIsolation:
    def test_sessions_do_not_see_each_other(self, shared: Node) -> None:
        one, two = shared.open(), shared.open(tenant="other")
        upload(one, 1, np.full(16, 7.0))
        with pytest.raises(RefusedError, match="there is no buffer 1"):
            read(two, 1, 128)
        assert read(one, 1, 128).tolist() == [7.0] * 16

    def test_memory_is_not_handed_on_with_contents(self, shared: Node) -> None:
        one = shared.open()
        upload(one, 1, np.full(1 << 16, 7.0))
        one.close()
        two = shared.open(tenant="other")
        two.wait(two.submit(Flush(allocs=[(1, 8 << 16)])))
        assert not read(two, 1, 8 << 16).any()

    def test_a_fault_ends_only_its_session(self, shared: Node) -> None:
        bad, good = shared.open(), shared.open()
        upload(good, 1, np.zeros(16))
        upload(bad, 1, np.array([7.0]))
        with pytest.raises(DeviceAssertError, match="device-side assert triggered"):
            bad.wait(bad.submit(beyond_its_table().flush([1, 2])))
        with pytest.raises(DeviceAssertError):
            bad.submit(Flush())
        good.wait(good.submit(increment().flush([1])))
        assert read(good, 1, 128).tolist() == [1.0] * 16


class TestRefusal:
    """A batch that a node refuses for its form is lost, and no more than that."""

    def test_what_builds_on_it_is_refused_and_the_rest_goes_on(self, shared: Node) -> None:
        session = shared.open()
        upload(session, 1, np.zeros(16))
        upload(session, 2, np.ones(16))
        with pytest.raises(RefusedError, match="the program needs 136"):
            session.wait(session.submit(add_one(17).flush([1, 3])))
        with pytest.raises(RefusedError, match="1 of the buffers of this work were made or changed by work that was refused"):
            read(session, 3, 128)
        assert read(session, 1, 128).tolist() == [0.0] * 16, "it would only have been read"
        session.wait(session.submit(add_one().flush([2, 4], frees=[3])))
        assert read(session, 4, 128).tolist() == [2.0] * 16
        session.close()
        assert session.totals is not None and session.totals.launches == 1

    def test_a_refusal_without_a_waiter_is_raised_once_and_loses_nothing_else(self, shared: Node) -> None:
        session = shared.open()
        upload(session, 1, np.zeros(16))
        session.submit(increment(17).flush([9]))
        session.submit(increment().flush([1]))
        until(lambda: session._refusals.first is not None, "the refusal")
        ticket = session.submit(increment().flush([1]))
        with pytest.raises(RefusedError, match="there is no buffer 9"):
            session.report()
        session.report()
        session.wait(ticket)
        assert read(session, 1, 128).tolist() == [2.0] * 16, "what was sent before and after it was done"

    def test_a_batch_that_cannot_be_encoded_takes_no_number(self, shared: Node) -> None:
        session = shared.open()
        upload(session, 1, np.zeros(16))
        program = increment()
        program.scalars = [2**64]
        with pytest.raises(OverflowError):
            session.submit(program.flush([1]))
        session.wait(session.submit(increment().flush([1])))
        assert read(session, 1, 128).tolist() == [1.0] * 16

    def test_the_message_names_lines_and_operation(self, shared: Node) -> None:
        session = shared.open()
        upload(session, 1, np.zeros(16))
        builder = Builder()
        x, y = builder.external(DType.F64, (16,)), builder.external(DType.F64, (16,), nbytes=8)
        builder.emit("add", x, (x, x))
        builder.emit("mul", y, (y, y))
        operations = [Recorded("aten::add.Tensor", [0]), Recorded("aten::mul.Tensor", [0])]
        flush = Program(builder).flush([1, 1], origin=Origin("train.py:3", "train.py:9", operations))
        with pytest.raises(RefusedError, match=r"(?s)@ code 1.*recorded between train.py:3 and train.py:9, by aten::mul.Tensor"):
            session.wait(session.submit(flush))
        flush = increment().flush([1], origin=Origin("train.py:9", "train.py:12", operations))
        with pytest.raises(
            RefusedError, match=r"(?s)recorded between train.py:9 .*the work that was refused was recorded between train.py:3 and"
        ):
            session.wait(session.submit(flush))


@dataclass
class Recorded:
    """An operation as a flush names it."""

    name: str
    code: list[object]

    def explain(self, instruction: int, text: str) -> str:
        return f"{text} ({self.name} {instruction})"


class TestQuota:
    def test_names_quota_use_and_request_and_the_session_lives_on(self, shared: Node) -> None:
        session = shared.open(required_vram_mb=1)
        session.wait(session.submit(Flush(allocs=[(1, 512 << 10)])))
        with pytest.raises(QuotaExceeded, match=r"1.00 MiB.*quota of 1.00 MiB.*0.50 MiB"):
            session.wait(session.submit(Flush(allocs=[(2, 1 << 20)])))
        session.wait(session.submit(Flush(frees=[1])))
        session.wait(session.submit(Flush(allocs=[(2, 1 << 20)])))
        assert not read(session, 2, 1 << 20).any()

    def test_a_refusal_without_a_waiter_is_not_lost(self, shared: Node) -> None:
        """A script submits on and on and waits only at the end: it must hear of memory, not of a buffer that is not there."""
        session = shared.open(required_vram_mb=1)
        session.submit(Flush(allocs=[(1, 2 << 20)]))
        with pytest.raises(QuotaExceeded):
            for _ in range(1000):
                session.wait(session.submit(increment().flush([1])))
        other = shared.open(required_vram_mb=1)
        other.wait(other.submit(Flush(allocs=[(1, 128)])))
        other.submit(Flush(allocs=[(2, 2 << 20)]))
        with pytest.raises(QuotaExceeded):
            other.wait(other.submit(Flush(reads=[(1, 0, 128)])))
        assert not read(other, 1, 128).any()

    def test_a_refusal_that_was_caught_keeps_nothing_of_the_script(self, shared: Node) -> None:
        """Its traceback holds the frames of the step that was too large, and so its tensors."""
        session, steps = shared.open(required_vram_mb=1), []

        class Step:
            pass

        def step() -> None:
            held = Step()
            steps.append(weakref.ref(held))
            session.submit(Flush(allocs=[(1, 2 << 20)]))
            until(lambda: session._refusals.first, "the refusal")
            session.report()

        for _ in range(3):
            with pytest.raises(QuotaExceeded):
                step()
        gc.collect()
        assert [found() for found in steps] == [None] * 3

    def test_created_buffers_count(self, shared: Node) -> None:
        session = shared.open(required_vram_mb=1)
        upload(session, 1, np.zeros(80_000))
        with pytest.raises(QuotaExceeded):
            session.wait(session.submit(add_one(80_000).flush([1, 2])))

    def test_more_than_the_device_has(self, shared: Node) -> None:
        with pytest.raises(QuotaExceeded, match="REQUIRED_VRAM"):
            shared.open(required_vram_mb=1 << 20)


class TestOpening:
    def test_no_bus(self) -> None:
        with answered(), pytest.raises(NoServerError, match="WOOLY_NATS_URL"):
            open_session(Config(nats_urls=("nats://127.0.0.1:1",), recovery_wait_s=0))

    def test_a_bus_without_a_node(self, node: Node) -> None:
        node.stop_server()
        with answered(), pytest.raises(NoServerError, match="no node"):
            node.open(recovery_wait_s=0)

    def test_no_such_device(self, shared: Node) -> None:
        with pytest.raises(RefusedError, match="devices 0 to 0, not 3"):
            shared.open(gpus=(3,))

    def test_exclusive_shares_with_no_other_session(self, node: Node) -> None:
        session = node.open(gpu_mode="Exclusive")
        with pytest.raises(PlacementError, match="exclusively"):
            node.open()
        session.close()
        node.open()

    def test_a_tenant_has_so_many_sessions_and_no_more(self, tmp_path: Path) -> None:
        """Each costs the other sessions of the node a little. Others are not affected, and one that ends makes room."""
        with Node(tmp_path, WOOLY_TENANT_SESSIONS_MAX="2", WOOLY_DEVICES="2") as node:
            first, _ = node.open(), node.open(gpus=(1,))
            with pytest.raises(QuotaReachedError, match="tenant default has used 2 of 2 open sessions") as refused:
                node.open()
            assert (refused.value.quota, refused.value.limit, refused.value.used) == ("sessions", 2, 2)
            node.open(tenant="other")
            first.close()
            node.open()

    def test_a_name_is_of_one_device(self, tmp_path: Path) -> None:
        """Else the second request, with terms of its own, would pass as a repetition of the first."""
        with Node(tmp_path, WOOLY_DEVICES="2") as node:
            subject = subjects.node_request(node.info().node, "open")

            async def open_both(bus: Bus) -> list[SessionOpened]:
                requests = (OpenSession("s", "default", "", 3 - gpu, (gpu,), 0) for gpu in (0, 1))
                return await asyncio.gather(*(asked(bus, subject, msgspec.msgpack.encode(request), SessionOpened) for request in requests))

            first, second = node.run(open_both)
            assert first.fault is None and second.fault is not None and second.fault.name == faults.SESSION_TAKEN

    def test_a_tenant_opens_so_many_sessions_at_once_and_then_some_each_second(self, tmp_path: Path) -> None:
        """What is refused now may be tried again: a client does."""
        with Node(tmp_path, WOOLY_TENANT_SESSIONS_MAX="40") as node:
            opened = [node.ask("open", OpenSession(f"s{number}", "default", "", 3, (0,), 0), SessionOpened) for number in range(40)]
            assert all(answer.fault is None for answer in opened)
            for number in range(40):
                node.ask("close", CloseSession(f"s{number}", "done", -1), SessionClosed)
            number, fault = 40, None
            while fault is None:  # a machine that takes a second for two of them never comes to the limit
                fault = node.ask("open", OpenSession(f"s{number}", "default", "", 3, (0,), 0), SessionOpened).fault
                node.ask("close", CloseSession(f"s{number}", "done", -1), SessionClosed)
                number += 1
            assert (fault.name, fault.fatal) == (faults.QUOTA_REACHED, False)
            assert (fault.excess.quota, fault.excess.limit, fault.excess.used) == ("opens", 40, 40)
            assert 0 < fault.excess.retry_after_ms <= 500 and "tenant default has used 40 of 40 sessions opened" in fault.message
            node.open(tenant="other")
            node.open()

    def test_a_text_above_its_limit_is_refused_by_field_and_a_title_is_cut(self, shared: Node) -> None:
        for field, value in (("title", "x" * 4000), ("task", "x" * 65), ("tenant", "x" * 201), ("client_version", "x" * 65)):
            request = msgspec.structs.replace(OpenSession("long", "default", "", 3, (0,), 0), **{field: value})
            opened = shared.ask("open", request, SessionOpened)
            assert opened.fault is not None and f"`$.{field}`" in opened.fault.message
        opened = shared.ask("open", msgspec.structs.replace(request, title="x" * (3 << 20)), SessionOpened)
        assert opened.fault is not None and "breaks a limit" in opened.fault.message
        session = open_session(shared.config(), title="é" * 300)
        closed = shared.ask("close", CloseSession(session.info.session, "x" * (1 << 20), -1), SessionClosed)
        assert closed.session == "", "the request does not count, and nothing of it is recorded"
        shared.ask("close", CloseSession(session.info.session, "enough", -1), SessionClosed)
        session.close()
        name = session.info.session
        (title,) = [fact.title for fact in shared.facts(SessionOpenedFact) if fact.session == name]
        assert title == "é" * TITLE_CHARS_MAX
        assert "enough" in {fact.reason for fact in shared.facts(SessionClosedFact) if fact.session == name}

    def test_a_forked_child_gets_an_error(self, shared: Node) -> None:
        session = shared.open()
        pid = os.fork()
        if pid == 0:
            try:
                session.submit(Flush())
            except ForkError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class TestLoss:
    """Exactly once, or a clear error (within ten seconds, without WOOLY_RECOVERY_WAIT_S): never a hang, never a repeat."""

    def test_the_bus_is_killed_and_comes_back(self, node: Node) -> None:
        session = node.open()
        upload(session, 1, np.zeros(16))
        program = increment()
        tickets = []
        for i in range(300):
            if i in (50, 180):
                node.nats.kill()
                node.nats.start()
            tickets.append(session.submit(program.flush([1])))
        for ticket in tickets:
            session.wait(ticket)
        assert read(session, 1, 128).tolist() == [300.0] * 16
        assert node.stats().sessions[0].launches <= 300

    @pytest.mark.timeout(60)
    @pytest.mark.parametrize("lost", [[2], [2, 3], [5]], ids=["the first of several", "two in a row", "the last one"])
    def test_a_batch_that_the_bus_lost_is_sent_again_without_a_reconnect(self, shared: Node, lost: list[int]) -> None:
        """The connection stays; one message never reaches the node. The node's next answer says which batch it waits for."""
        session = shared.open()
        upload(session, 1, np.zeros(16))  # batch 1 (or as many as there were): those below count from there
        publish, first = session._bus.publish, session._state.seq + 1
        dropped: list[int] = []

        async def lossy(subject: str, data: bytes, message_id: str) -> None:
            seq = int(message_id.split(":")[1]) - first + 2
            if seq in lost and seq not in dropped:
                dropped.append(seq)
                return
            await publish(subject, data, message_id)

        session._bus.publish = lossy  # type: ignore[method-assign]
        program = increment()
        with answered():
            for ticket in [session.submit(program.flush([1])) for _ in range(4)]:
                session.wait(ticket)
        assert dropped == lost
        assert read(session, 1, 128).tolist() == [4.0] * 16, "each batch has run once"
        session.close()

    def test_the_server_is_killed_and_comes_back(self, node: Node) -> None:
        """Its executor lives on: the next server takes it over, and nothing is lost or repeated."""
        session = node.open()
        upload(session, 1, np.zeros(16))
        program = increment()
        tickets = []
        for i in range(200):
            if i == 60:
                node.kill_server()
                node.start_server()
            tickets.append(session.submit(program.flush([1])))
        for ticket in tickets:
            session.wait(ticket)
        assert read(session, 1, 128).tolist() == [200.0] * 16
        assert node.stats().epoch == 2

    def test_the_executor_is_killed(self, node: Node) -> None:
        session = node.open(recovery_mb=0)
        upload(session, 1, np.zeros(16))
        node.kill_executor()
        with answered(), pytest.raises(NodeLostError, match="ended"):
            for _ in range(1000):
                session.wait(session.submit(increment().flush([1])))
        # The node itself lives: a new session works once the new executor is up.
        until(lambda: node.info().devices, "a new executor")
        again = node.open()
        upload(again, 1, np.zeros(16))
        again.wait(again.submit(increment().flush([1])))
        assert read(again, 1, 128).tolist() == [1.0] * 16

    def test_server_and_executor_are_killed(self, node: Node) -> None:
        session = node.open(recovery_wait_s=0)
        upload(session, 1, np.zeros(16))
        node.kill_server()
        node.kill_executor()
        with answered(), pytest.raises(NodeLostError, match="has not answered"):
            session.wait(session.submit(increment().flush([1])))
        node.start_server()
        session.close()
        closed = node.facts(SessionClosedFact)
        assert [(event.reason, event.failed) for event in closed] == [("node_restarted", True)]

    def test_a_restarted_node_says_that_it_lost_the_session(self, node: Node) -> None:
        session = node.open(recovery_mb=0)
        upload(session, 1, np.zeros(16))
        node.kill_server()
        node.kill_executor()
        node.start_server()
        with answered(), pytest.raises(SessionLostError):
            session.wait(session.submit(increment().flush([1])))

    def test_the_bus_does_not_come_back(self, node: Node) -> None:
        session = node.open(recovery_wait_s=0)
        node.nats.kill()
        with answered(), pytest.raises(NodeLostError, match="bus"):
            session.wait(session.submit(Flush(allocs=[(1, 8)])))

    def test_closing_does_not_wait_for_a_lost_bus(self, node: Node) -> None:
        session = node.open()
        session.wait(session.submit(Flush(allocs=[(1, 8)])))
        node.nats.kill()
        with answered():
            session.close()
        assert session.totals is None
        assert node.stop_server() == 0

    def test_a_stopped_server_says_goodbye(self, node: Node) -> None:
        session = node.open()
        assert node.stop_server() == 0
        with pytest.raises(NodeLostError, match="stopped"):
            for _ in range(100):
                session.wait(session.submit(Flush()))

    def test_a_silent_server_is_an_error(self, node: Node) -> None:
        session = node.open(recovery_wait_s=0)
        assert node.server is not None
        node.server.send_signal(signal.SIGSTOP)
        try:
            with answered(), pytest.raises(NodeLostError, match="has not answered"):
                session.wait(session.submit(Flush(allocs=[(1, 8)])))
        finally:
            node.server.send_signal(signal.SIGCONT)

    def test_answers_of_another_node_are_not_heard(self, node: Node) -> None:
        session = node.open()
        assert node.server is not None
        node.server.send_signal(signal.SIGSTOP)
        try:
            ticket = session.submit(Flush(allocs=[(1, 8)], reads=[(1, 0, 8)]))
            name = session.info.session
            forged = encode_done(Done(name, ticket.seq, reads=(ReadResult(1, 8, b"\1" * 8),)))
            node.run(lambda bus: bus.publish(subjects.session_done(name, subjects.LOCAL, "another"), forged))
        finally:
            node.server.send_signal(signal.SIGCONT)
        assert session.wait(ticket) == [bytes(8)]

    def test_a_killed_client_frees_its_memory_when_its_lease_ends(self, tmp_path: Path) -> None:
        with Node(tmp_path, WOOLY_LEASE_MS="1000") as node:
            script = (
                "import os, signal\nfrom wooly.config import Config\nfrom wooly.link import Flush\nfrom wooly.session import open_session\n"
                f"s = open_session(Config(nats_urls=({node.nats.url!r},)))\n"
                "s.wait(s.submit(Flush(allocs=[(1, 1 << 20)])))\nos.kill(os.getpid(), signal.SIGKILL)\n"
            )
            subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False, timeout=DEADLINE_S)
            until(lambda: not node.stats().sessions, "the lease's end")
            closed = node.facts(SessionClosedFact)
            assert closed[0].reason == "lease"
            assert node.info().devices[0].vram_free_bytes == node.info().devices[0].vram_bytes

    def test_a_suspended_client_keeps_its_session_and_a_killed_one_does_not(self, tmp_path: Path) -> None:
        with Node(tmp_path, WOOLY_UNLINKED_LEASE_MS="1000") as node:
            script = (
                "import sys\nfrom wooly.config import Config\nfrom wooly.link import Flush\nfrom wooly.session import open_session\n"
                f"s = open_session(Config(nats_urls=({node.nats.url!r},)))\n"
                "s._state.remote.port.open()\ns.wait(s.submit(Flush(allocs=[(1, 8)])))\n"
                "print(s.info.session, flush=True)\nsys.stdin.read()\n"
                "s.wait(s.submit(Flush(frees=(1,))))\n"
            )
            clients = [
                subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                for _ in range(2)
            ]
            names = [client.stdout.readline().strip() for client in clients if client.stdout is not None]
            suspended, killed = clients
            suspended.send_signal(signal.SIGSTOP)
            killed.kill()
            (closed,) = node.facts(SessionClosedFact)
            assert (closed.session, closed.reason) == (names[1], "lease")
            assert [session.session for session in node.stats().sessions] == [names[0]]
            suspended.send_signal(signal.SIGCONT)
            suspended.communicate(timeout=DEADLINE_S)
            killed.communicate()
            assert suspended.returncode == 0
            assert [fact.reason for fact in node.facts(SessionClosedFact, 2)] == ["lease", "done"]

    def test_a_session_that_ends_after_a_batch_that_is_never_sent_ends_with_its_lease(self, tmp_path: Path) -> None:
        """Its last batch was refused (for a budget, say), or lost, and the client has vanished: it would be charged for its memory for
        ever."""
        with Node(tmp_path, WOOLY_LEASE_MS="1000") as node:
            request = OpenSession("left", "default", "", 0, (0,), 0)
            assert node.ask("open", request, SessionOpened).fault is None
            subject, closing = subjects.node_request(node.info().node, "close"), msgspec.msgpack.encode(CloseSession("left", "done", 3))
            totals = node.run(lambda bus: asked(bus, subject, closing, SessionClosed))
            assert totals.session == "left" and not node.stats().sessions

    def test_a_close_behind_a_batch_that_never_comes_ends_with_the_lease(self, tmp_path: Path) -> None:
        """The batch was lost, and the client with it: without the lease its memory would never be freed."""
        with Node(tmp_path, WOOLY_LEASE_MS="1000") as node:
            close_and_vanish(node, "lost", [], last_seq=3)
            until(lambda: not node.stats().sessions, "the lease's end")
            (closed,) = node.facts(SessionClosedFact)
            assert (closed.reason, closed.launches) == ("lease", 0)

    def test_what_was_sent_before_a_close_runs_however_long_it_takes(self, tmp_path: Path) -> None:
        with Node(tmp_path, WOOLY_LEASE_MS="1000") as node:
            long = chain_of(1000, 100_000)
            close_and_vanish(node, "long", [Flush(allocs=[(1, 800_000)]), long.flush([1])], last_seq=2)
            (closed,) = node.facts(SessionClosedFact)
            assert (closed.reason, closed.launches) == ("done", 1)


def close_and_vanish(node: Node, name: str, flushes: list[Flush], last_seq: int) -> None:
    """A session that sends these batches, asks to be closed after ``last_seq``, and is not heard of again."""

    async def body(bus: Bus) -> None:
        info = (await asked(bus, subjects.discover(), b"", NodeInfo)).node
        request = OpenSession(name, "tenant", "", 0, (0,), 0)
        opened = await asked(bus, subjects.node_request(info, "open"), msgspec.msgpack.encode(request), SessionOpened)
        for seq, flush in enumerate(flushes, start=1):
            batch = msgspec.structs.replace(decode_batch(batch_of(name, seq, flush)), epoch=opened.epoch)
            await bus.publish(subjects.batch_subject(info, name), encode_batch(batch))
        await bus.publish(subjects.node_request(info, "close"), msgspec.msgpack.encode(CloseSession(name, "done", last_seq)))

    node.run(body)
