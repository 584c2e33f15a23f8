"""Sessions outlive parts that are away for a while: a bus, a server, a data port; and scripts that start then wait for them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bus_schemas.events import NodeLost, SessionClosedFact, UsageRecorded
from tests.support.node import Node, Waiting, floats, increment, until
from wooly.link import Flush
from wooly.session import Session

PROGRAM = increment()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, WOOLY_ON_STOP="keep") as running:
        yield running


class Counting:
    """A session that counts up to 3, one batch at a time; ``go_on`` adds one more and checks that each was executed once."""

    def __init__(self, session: Session) -> None:
        self.session, self.count = session, 0
        session.submit(Flush(uploads=[(1, memoryview(bytes(128)))]))
        for _ in range(3):
            self.go_on()

    def go_on(self) -> None:
        self.count += 1
        ticket = self.session.submit(PROGRAM.flush([1], reads=[(1, 0, 128)]))
        assert floats(self.session.wait(ticket)[0]).tolist() == [float(self.count)] * 16


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that sessions of this process say."""
    lines: list[str] = []
    monkeypatch.setattr("wooly.progress.say", lines.append)
    return lines


def waits(said: list[str], why: str) -> None:
    """Returns once a line says that ``why`` is waited for, which takes some seconds."""
    until(lambda: any(why in line and "waiting, at most 120 s" in line for line in said), "a line that says so")


@pytest.fixture(autouse=True)
def no_mercy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is survived here is survived for WOOLY_RECOVERY_WAIT_S, and not because the outage was short."""
    monkeypatch.setattr("wooly.transport.recovery._SILENCE_S", 0.1)


def test_a_server_that_is_restarted_keeps_its_sessions(node: Node) -> None:
    counting = Counting(node.open())
    assert node.stop_server() == 0
    more = Waiting(counting.go_on)
    node.start_server()
    more.ended()
    counting.session.close()
    assert counting.session.totals is not None and counting.session.totals.launches == counting.count
    facts = node.facts(SessionClosedFact)
    assert [fact.reason for fact in facts] == ["done"] and not [e for e in node.events() if isinstance(e, NodeLost)]


@pytest.mark.parametrize("lost", [False, True], ids=["executor-lives", "executor-dies"])
def test_a_script_that_ends_waits_for_its_server(node: Node, said: list[str], lost: bool) -> None:
    """It has all its answers, and ends while the server is away: the session has not failed, whether its memory is there or not."""
    session = Counting(node.open()).session
    until(lambda: sum(fact.launches for fact in node.facts(UsageRecorded)) == 3, "the log has its work")
    node.kill_server()
    if lost:
        node.kill_executor()
    closing = Waiting(session.close)
    until(lambda: any("node test-node does not answer; waiting, at most 30 s" in line for line in said), "a line that says so")
    node.start_server()
    closing.ended()
    assert session.totals is not None and session.totals.launches == 3
    assert [(fact.reason, fact.failed, fact.launches) for fact in node.facts(SessionClosedFact)] == [("done", False, 3)]


def test_ctrl_c_at_the_end_waits_no_longer_for_a_server(node: Node, said: list[str]) -> None:
    session = Counting(node.open()).session
    main = threading.main_thread().ident
    assert main is not None
    node.kill_server()

    def interrupt() -> None:
        until(lambda: any("does not answer; waiting" in line for line in said), "the session waits")
        signal.pthread_kill(main, signal.SIGINT)

    interrupting = Waiting(interrupt)
    session.close()
    interrupting.ended()
    assert session.totals is None and not session._bus.connected


def test_a_server_without_sessions_says_goodbye_and_ends_its_executor(node: Node) -> None:
    Counting(node.open()).session.close()
    assert node.stop_server() == 0 and not node.executor_pids()
    node.start_server()
    assert [fact.reason for fact in node.facts(NodeLost)] == ["stopped"]


def test_a_killed_server_is_waited_for(node: Node, said: list[str]) -> None:
    counting = Counting(node.open())
    node.kill_server()
    more = Waiting(counting.go_on)
    waits(said, "node test-node does not answer")
    node.start_server()
    more.ended()
    assert any(line.startswith("wooly: continuing after") for line in said)


def test_a_bus_that_is_away_is_waited_for(node: Node, said: list[str]) -> None:
    counting = Counting(node.open())
    node.nats.kill()
    more = Waiting(counting.go_on)
    waits(said, "the connection to the bus is lost")
    node.nats.start()
    more.ended()


def test_a_server_that_stood_still_is_waited_for(node: Node, said: list[str]) -> None:
    counting = Counting(node.open())
    assert node.server is not None
    node.server.send_signal(signal.SIGSTOP)
    try:
        more = Waiting(counting.go_on)
        waits(said, "node test-node does not answer")
    finally:
        node.server.send_signal(signal.SIGCONT)
    more.ended()


def test_a_batch_that_ctrl_c_kept_from_the_node_can_be_sent_again(node: Node) -> None:
    """The script waits for room, since the node stands still."""
    counting = Counting(node.open())
    session, flushes = counting.session, [PROGRAM.flush([1]) for _ in range(100)]
    main = threading.main_thread().ident
    assert node.server is not None and main is not None
    node.server.send_signal(signal.SIGSTOP)
    try:
        limit = 3 + 1 + session.info.limits.outstanding_batches_max

        def interrupt() -> None:
            until(lambda: session._state.seq == limit, "no more room")
            signal.pthread_kill(main, signal.SIGINT)

        interrupting = Waiting(interrupt)
        with pytest.raises(KeyboardInterrupt):
            for flush in flushes:
                session.submit(flush)
        interrupting.ended()
    finally:
        node.server.send_signal(signal.SIGCONT)
    for flush in flushes:
        if not flush.taken:
            session.submit(flush)
    (data,) = session.wait(session.submit(Flush(reads=[(1, 0, 128)])))
    assert floats(data).tolist() == [3.0 + len(flushes)] * 16


def test_a_data_port_that_cannot_be_reached_is_waited_for(node: Node, said: list[str]) -> None:
    """Its socket is moved away: connections are refused."""
    counting = Counting(node.open())
    port = Path(next(a for a in counting.session.info.node.data_port if a.startswith("unix:")).removeprefix("unix:"))  # type: ignore[union-attr]  # an open session has a node
    counting.session._state.remote.port._addresses = [f"unix:{port}"]
    counting.session._state.remote.port.close()
    os.rename(port, f"{port}.away")
    data = np.arange(1 << 20, dtype=np.float64)
    more = Waiting(lambda: counting.session.submit(Flush(uploads=[(2, memoryview(data.tobytes()))])))
    waits(said, "data port")
    os.rename(f"{port}.away", port)
    more.ended()
    ticket = counting.session.submit(Flush(reads=[(2, 0, data.nbytes)]))
    assert np.array_equal(floats(counting.session.wait(ticket)[0]), data)


def test_a_data_port_of_a_session_that_ends_is_not_waited_for(node: Node, said: list[str]) -> None:
    counting = Counting(node.open(recovery_mb=0))
    counting.session._state.remote.port._addresses = ["unix:/nowhere/d0"]
    counting.session._state.remote.port.close()
    more = Waiting(lambda: counting.session.submit(Flush(uploads=[(2, memoryview(bytes(8 << 20)))])))
    waits(said, "data port")
    node.kill_executor()
    with pytest.raises(Exception, match="ended"):
        more.ended()


def test_a_script_that_starts_first_waits_for_bus_and_node(tmp_path: Path, said: list[str]) -> None:
    node = Node(tmp_path)
    with contextlib.ExitStack() as ending:
        ending.push(node)
        node.nats.start()
        node.nats.kill()  # it keeps its port
        opening = Waiting(node.open)
        until(lambda: any("no NATS server answers" in line for line in said), "it waits for the bus")
        node.nats.start()
        until(lambda: any("no node is on it" in line for line in said), "it waits for a node")
        node.start_server()
        Counting(opening.ended())
