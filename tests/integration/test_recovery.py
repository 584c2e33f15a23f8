"""A session whose node has lost its memory is built again by its client: the same bits, charged once, in the same task."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from billing.projection import BillingView
from bus_schemas import faults
from bus_schemas.batch import LIMITS, Upload
from bus_schemas.events import SessionClosedFact, SessionOpenedFact, UsageRecorded
from bus_schemas.session import CloseSession, OpenSession, SessionClosed, SessionOpened
from services.kit.process import spawn
from services.server.device import EXECUTOR_WAIT_S
from tests.support.builder import Builder
from tests.support.node import NO_IMAGES_S, Node, Program, beyond_its_table, floats, increment, until
from tests.support.stack import ROOT
from wis.dtypes import DType
from wooly import progress
from wooly.errors import DeviceAssertError, NodeLostError, PlacementError, RecoveryDivergedError, SessionLostError
from wooly.link import Flush
from wooly.session import Session
from wooly.transport.opening import Lost
from wooly.transport.session_state import Sent

N = 16


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(progress, "say", lines.append)
    return lines


def upload(session: Session, handle: int, array: np.ndarray) -> None:
    session.wait(session.submit(Flush(uploads=[(handle, memoryview(array).cast("B"))])))


def add_one(session: Session, times: int) -> None:
    for _ in range(times):
        session.wait(session.submit(increment(N).flush([1])))


def value(session: Session) -> float:
    (data,) = session.wait(session.submit(Flush(reads=[(1, 0, 8 * N)])))
    (found,) = set(floats(data))
    return found


def test_a_killed_executor_costs_no_batch_and_no_bit(node: Node, said: list[str]) -> None:
    session, undisturbed = node.open(), node.open()
    for one in (session, undisturbed):
        upload(one, 1, np.zeros(N))
        add_one(one, 20)
        assert value(one) == 20
    node.kill_executor()
    add_one(session, 20)
    assert value(session) == 40
    add_one(undisturbed, 20)
    assert value(undisturbed) == 40
    node.kill_executor()
    assert value(session) == 40
    add_one(session, 1)
    assert value(session) == 41
    assert any("lost the session's memory; repeating" in line for line in said)
    session.close()
    assert sum(fact.launches for fact in node.facts(SessionClosedFact, 4) if fact.reason != "done") == 80
    assert session.totals is not None and session.totals.launches == 41, "the totals are those of the script"


def test_a_request_for_a_session_waits_for_the_executor_that_is_being_started(node: Node) -> None:
    """As long as its client waits for the answer; on a slow machine that asks again."""
    node.kill_executor()
    until(lambda: not node.info().devices, "the node has noticed")

    def opened() -> bool:
        asked_s = time.monotonic()
        fault = node.ask("open", OpenSession("asked-early", "default", "", 2, (0,), 0), SessionOpened).fault
        assert fault is None or time.monotonic() - asked_s >= EXECUTOR_WAIT_S
        return fault is None

    until(opened, "a session")
    assert node.info().devices
    node.ask("close", CloseSession("asked-early", "done"), SessionClosed)


def test_a_server_of_another_version_ends_the_executor_and_the_session_is_built_again(tmp_path: Path, said: list[str]) -> None:
    older = tmp_path / "older"
    older.mkdir()
    (older / "sitecustomize.py").write_text("from services.server import protocol\n\nprotocol.PROTOCOL -= 1\n")
    with Node(tmp_path, WOOLY_ON_STOP="keep") as node:
        node.stop_server()
        node.kill_executor()
        with (tmp_path / "older.log").open("ab") as log:
            environment = node.environment() | {"PYTHONPATH": os.pathsep.join((str(older), str(ROOT)))}
            server = spawn([sys.executable, "-P", "-m", "services.server"], env=environment, stdout=subprocess.PIPE, stderr=log)
        assert server.stdout is not None and server.stdout.readline(), (tmp_path / "older.log").read_text()
        session = node.open()
        upload(session, 1, np.zeros(N))
        add_one(session, 20)
        before = node.executor_pids()
        server.terminate()
        server.wait(60)
        server.stdout.close()
        assert node.executor_pids() == before, "it was left to the next server"
        node.start_server()
        add_one(session, 20)
        assert value(session) == 40
        assert node.executor_pids() != before and any("lost the session's memory; repeating" in line for line in said)
        session.close()
        assert session.totals is not None and session.totals.launches == 40


def test_work_under_way_is_repeated_and_done_once(node: Node) -> None:
    """Batches without an answer, answers that no caller has taken, and a large upload and answer; and the executor is killed again."""
    session = node.open()
    upload(session, 1, np.zeros(N))
    large = np.arange(1 << 20, dtype=np.uint8)
    upload(session, 2, large)
    for kills in range(1, 4):
        untaken = [session.submit(Flush(reads=[(2, 0, large.nbytes), (1, 0, 8 * N)])) for _ in range(2)]
        session.wait(session.submit(Flush(reads=[(1, 0, 8)])))
        for number in range(20):
            session.submit(increment(N).flush([1]))
            if number == 10:
                node.kill_executor()
        for ticket in untaken:
            first, second = session.wait(ticket)
            assert np.array_equal(np.frombuffer(first, np.uint8), large) and set(floats(second)) == {20.0 * (kills - 1)}
        assert value(session) == 20 * kills


def test_repeated_work_is_not_charged_again_and_its_task_goes_on(node: Node) -> None:
    session = node.open()
    upload(session, 1, np.zeros(N))
    add_one(session, 50)
    lost = session.info.session
    node.kill_executor()
    add_one(session, 50)
    assert session.info.session != lost
    session.close()
    closed = node.facts(SessionClosedFact, 2)
    assert [(fact.session, fact.reason, fact.failed) for fact in closed] == [
        (lost, "executor_lost", True),
        (session.info.session, "done", False),
    ]
    used = [event for event in node.events() if isinstance(event, UsageRecorded)]
    before, after = (sum(e.core_ns for e in used if e.session == fact.session) for fact in closed)
    repeated = sum(event.recovered_ns for event in used)
    assert 0 < repeated <= before and repeated < after
    assert sum(fact.launches for fact in closed) == 100, "each batch counts once"
    assert all(event.recovered_ns == 0 for event in used if event.session == lost)
    view = BillingView()
    for position, event in enumerate(node.events(), start=1):
        view.apply(position, [event])
    assert not view.findings
    assert session.totals is not None
    assert session.totals.core_ns == before + after - repeated and session.totals.launches == 100
    assert sum(row.core_ns for row in view.rows.values()) == before + after - repeated + sum(event.compile_ns for event in used)


def test_a_node_that_started_anew_is_used_again(node: Node) -> None:
    session = node.open()
    upload(session, 1, np.zeros(N))
    add_one(session, 5)
    node.kill_server()
    node.kill_executor()
    node.start_server()
    add_one(session, 5)
    assert value(session) == 10


@pytest.mark.parametrize("log_mb", [0, 1])
def test_a_session_with_more_than_its_log_holds_is_over(node: Node, said: list[str], log_mb: int) -> None:
    """The script is warned when that begins, once, and the error says why."""
    session = node.open(recovery_mb=log_mb)
    upload(session, 1, np.zeros(1 << 18))
    add_one(session, 3)
    lack = f"more than WOOLY_RECOVERY_MB ({log_mb})" if log_mb else "WOOLY_RECOVERY_MB is 0"
    assert len([line for line in said if "this script ends from now on" in line and lack in line]) == (1 if log_mb else 0)
    node.kill_executor()
    with pytest.raises((NodeLostError, SessionLostError), match=r"start the script again|no longer knows") as lost:
        add_one(session, 1000)
    assert [lack in note for note in lost.value.__notes__] == [True]
    until(lambda: node.info().devices, "a new executor")
    session.close()
    assert [fact.reason for fact in node.facts(SessionClosedFact, 1)] == ["executor_lost"]


def test_a_lost_session_keeps_its_device_to_itself(node: Node) -> None:
    """One that has the device exclusively has it again; another session is refused meanwhile."""
    session = node.open(gpu_mode="Exclusive")
    upload(session, 1, np.zeros(N))
    add_one(session, 5)
    lost = session.info.session
    node.kill_executor()
    other = OpenSession("other", "default", "", 3, (0,), 0)

    def refused() -> bool:
        opened = node.ask("open", other, SessionOpened)
        assert opened.fault is not None and opened.fault.name in (faults.DEVICE_TAKEN, faults.NODE_FAULT), opened
        return session.info.session != lost

    until(refused, "the session is open again")
    add_one(session, 5)
    assert value(session) == 10


def test_a_lost_session_is_replaced_once_and_by_its_client_alone(node: Node) -> None:
    session = node.open(recovery_mb=0)
    upload(session, 1, np.zeros(N))
    add_one(session, 20)
    lost = session.info.session
    node.kill_executor()
    until(lambda: node.stats().executor_restarts == 1 and node.info().devices, "a new executor")
    for number, terms in enumerate(({"tenant": "another"}, {"task": "another"}, {}, {})):
        asked = OpenSession(
            **{"session": f"s{number}", "tenant": "default", "task": "", "priority": 3, "gpus": (0,), "vram_bytes": 0} | terms
        )
        opened = node.ask("open", msgspec.structs.replace(asked, replaces=lost, skips=-1000), SessionOpened)
        assert opened.fault is None
    node.facts(SessionClosedFact, 1)
    node.facts(SessionOpenedFact, 5)
    facts = [event for event in node.events() if isinstance(event, SessionOpenedFact | SessionClosedFact)]
    assert [fact.session for fact in facts] == [lost, "s0", "s1", "s2", lost, "s3"]


@pytest.mark.parametrize("waits", [False, True], ids=["after its fault", "before its fault"])
def test_a_session_with_a_fault_was_not_displaced_whatever_its_client_says(node: Node, waits: bool) -> None:
    """What a displaced session did may be repeated elsewhere without a charge."""
    session = node.open()
    name = session.info.session
    upload(session, 1, np.zeros(1))
    said = session.submit(beyond_its_table().flush([1, 2]))
    if not waits:
        with pytest.raises(DeviceAssertError):
            session.wait(said)
    node.ask("close", CloseSession(name, "displaced", said.seq if waits else -1), SessionClosed)

    def closed() -> list[SessionClosedFact]:
        return [event for event in node.events() if isinstance(event, SessionClosedFact) and event.session == name]

    (fact,) = until(closed, "the end")
    assert (fact.failed, fact.reason) == (True, "failed")


def test_another_answer_than_before_is_an_error(node: Node) -> None:
    session = node.open()
    data = np.zeros(N)
    upload(session, 1, data)
    assert value(session) == 0
    data += 1  # as if the node computed something else
    node.kill_executor()
    with pytest.raises(RecoveryDivergedError, match="did not give what it gave before"):
        add_one(session, 1000)


def test_a_session_whose_client_does_not_come_back_is_closed(tmp_path: Path) -> None:
    with Node(tmp_path, WOOLY_LEASE_MS="2000") as node:
        session = node.open(recovery_mb=0)
        upload(session, 1, np.zeros(N))
        node.kill_executor()
        until(lambda: [fact.reason for fact in node.facts(SessionClosedFact, 1)] == ["executor_lost"], "its end")


def programs_of(session: Session, seed: int, steps: int) -> None:
    """Buffers that are uploaded, allocated, made by programs, changed and freed."""
    chance = random.Random(seed)
    held = [1]
    for step in range(2, steps):
        if step % 10 == 0:
            session._image_cost_s = 0.0  # the next image is due
        session.submit(MADE.flush([chance.choice(held), step]))
        session.submit(increment(N).flush([chance.choice(held)], allocs=[(1000 + step, 8 * N)]))
        held.append(step)
        if len(held) > 5:
            session.submit(Flush(frees=[held.pop(chance.randrange(1, len(held))), 1000 + step]))
    session.wait(session.submit(Flush()))


def contents(session: Session, live: dict[int, int]) -> list[bytes]:
    return [bytes(data) for data in session.wait(session.submit(Flush(reads=[(at, 0, nbytes) for at, nbytes in live.items()])))]


def made() -> Program:
    """y = x + 1, in a buffer that the program makes."""
    builder = Builder()
    x, y = builder.external(DType.F64, (N,)), builder.created(DType.F64, (N,))
    builder.emit("add", y, (x, builder.const(1.0, DType.F64)))
    return Program(builder)


MADE = made()


@pytest.mark.parametrize("seed", range(3))
def test_after_an_image_only_later_batches_are_repeated(node: Node, said: list[str], seed: int) -> None:
    session, plain = node.open(recovery_target_s=0), node.open(recovery_mb=0)
    for one in (session, plain):
        upload(one, 1, np.arange(float(N)))
        programs_of(one, seed, 40)
    live, _ = session._log.live()
    assert session._log.base > 60 and len(live) == 9
    want = contents(plain, live)
    for kills in range(1, 3):
        node.kill_executor()
        until(lambda kills=kills: node.stats().executor_restarts == kills and node.info().devices, "a new executor")
        assert contents(session, live) == want
    repeated = [int(line.split("repeating ")[1].split()[0]) for line in said if "repeating" in line]
    assert len(repeated) == 2 and max(repeated) < 60
    session.wait(session.submit(increment(N).flush([1])))
    session.close()
    assert session.totals is not None and session.totals.launches == 38 * 2 + 1, "what was repeated counts once"


def test_a_first_image_that_may_take_more_than_a_fiftieth_of_the_time_waits(node: Node) -> None:
    bases = []
    for nbytes in (8 * N, 256 << 20):
        session = node.open(recovery_target_s=0)
        session.wait(session.submit(Flush(allocs=[(1, nbytes)])))
        for _ in range(4):
            session.wait(session.submit(increment(N).flush([1])))
        bases.append(session._log.base)
    assert bases[0] > 0 and bases[1] == 0


def test_what_a_first_image_may_take_is_estimated_again_when_it_is_due(node: Node) -> None:
    session = node.open(recovery_target_s=0)
    for handle, nbytes, passed_s in ((1, 20 << 20, 1), (2, 256 << 20, 20)):
        session.wait(session.submit(Flush(allocs=[(handle, nbytes)])))
        session._image_s -= passed_s
        session.wait(session.submit(Flush()))
    assert session._log.base == 0


def test_an_image_may_take_more_batches_to_build_than_were_sent(node: Node) -> None:
    """Buffers that came in one batch, and were not fetched for the image, go back in several."""
    session = node.open()
    upload(session, 1, np.zeros(N))
    for kills in (1, 2):
        before, held = session._log.base, range(10_000 * kills, 10_000 * kills + 3_000 * kills)
        session.submit(Flush(uploads=[(at, memoryview(b"%d" % at)) for at in held]))
        session._target_s, session._image_cost_s = 0, 0.0
        add_one(session, 1)
        assert session._log.base > before
        session._target_s = NO_IMAGES_S
        add_one(session, 3)
        node.kill_executor()
        until(lambda kills=kills: node.stats().executor_restarts == kills and node.info().devices, "a new executor")
        assert value(session) == 4 * kills
        some = held[::100]
        assert session.wait(session.submit(Flush(reads=[(at, 0, 5) for at in some]))) == [b"%d" % at for at in some]
    session.close()
    assert session.totals is not None and session.totals.launches == 8, "what was repeated counts once"


def test_a_session_that_is_lost_again_and_again_is_over(node: Node, said: list[str]) -> None:
    """Its own batch may be what ends the executor: nothing is answered for the first time in between."""
    session = node.open()
    upload(session, 1, np.zeros(N))
    lost: list[str] = []

    def repeated(group: list[Sent]) -> bool:
        lost.append(session.info.session)
        node.kill_executor()
        until(lambda: session._state.lost == lost[-1], "the client knows of it")
        return False

    session._rebuild._repeated = repeated
    node.kill_executor()
    with pytest.raises(NodeLostError, match="start the script again"):
        add_one(session, 1000)
    assert len(set(lost)) == len(lost) == 3


def test_a_session_whose_log_is_given_up_while_it_is_built_again_is_over(node: Node) -> None:
    """Batches that were not answered before the loss are more than the log holds; then the node loses the session again."""
    session = node.open(recovery_mb=1)
    upload(session, 1, np.zeros(N))
    add_one(session, 3)
    stopped = node.executor_pids()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    for handle in range(2, 20):
        session.submit(Flush(uploads=[(handle, memoryview(bytes(LIMITS.inline_bytes_max)))]))
    repeat, lost = session._rebuild._repeated, []

    def repeated(group: list[Sent]) -> bool:
        sends = repeat(group)
        if group[-1].seq == session._state.seq:
            until(lambda: not session._log.whole, "the log is given up")
            lost.append(session.info.session)
            node.kill_executor()
            until(lambda: session._state.lost == lost[-1], "the client knows of it")
            return False
        return sends

    session._rebuild._repeated = repeated
    for pid in stopped:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(NodeLostError, match="start the script again") as over:
        add_one(session, 1000)
    assert len(lost) == 1 and any("more than WOOLY_RECOVERY_MB (1)" in note for note in over.value.__notes__)


def test_a_session_is_built_again_while_chunks_are_brought_that_its_node_gave_back(node: Node) -> None:
    """The node had them of another session, which ends before they are used; the executor dies when they are sent."""
    data = np.arange(1 << 18, dtype=np.float64)
    other, session = node.open(weights_dedup=True), node.open(weights_dedup=True)
    upload(session, 1, np.zeros(N))
    upload(other, 1, data)
    remote = session._state.remote
    announce, bring = remote.upload, remote.upload_again

    def announced(uploads: Sequence[tuple[int, memoryview]]) -> tuple[Upload, ...]:
        found = announce(uploads)
        other.close()
        return found

    def brought(sent: Sent, names: set[bytes]) -> None:
        node.kill_executor()
        bring(sent, names)

    remote.upload, remote.upload_again = announced, brought
    upload(session, 2, data)
    assert session._state.remote is not remote
    (found,) = session.wait(session.submit(Flush(reads=[(2, 0, data.nbytes)])))
    assert np.array_equal(floats(found), data)


def test_a_place_that_is_refused_ends_the_session(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    session = node.open()
    upload(session, 1, np.zeros(N))
    assert session._rebuild.opening is not None
    monkeypatch.setattr(session._rebuild.opening, "open_again", refusing)
    node.kill_executor()
    with pytest.raises(PlacementError, match="no place"):
        add_one(session, 1000)


def refusing(lost: Lost, check: Callable[[], None]) -> SessionOpened:
    raise PlacementError("no place")
