"""What an operator orders of running tasks, on one real node: another priority, and the end."""

from __future__ import annotations

import numpy as np
import pytest

from bus_schemas import faults
from bus_schemas.events import SessionClosedFact, SessionPriorityChanged, UsageRecorded
from bus_schemas.session import EndTask, PrioritySet, SetPriority, TaskEnded
from scheduler.dispatch import Launch, LaunchFinished, LaunchStopped, Preempt, PriorityChanged, Record, SessionClosed, decode_journal
from tests.support.executor import chain_of
from tests.support.node import Node, Program, floats, increment, until
from tests.support.replayed import verify
from wooly.errors import TaskCancelledError
from wooly.link import Flush
from wooly.session import Session

SIZE = 64_000
NBYTES = 8 * SIZE
STEPS = 3_000
LONG = chain_of(STEPS, SIZE)
"""Some tenths of a second on the reference backend."""


def warm(session: Session, program: Program) -> Session:
    """The node knows the program; the buffer is zeros."""
    session.submit(Flush(allocs=[(1, NBYTES)]))
    session.wait(session.submit(program.flush([1])))
    session.submit(Flush(frees=[1]))
    session.wait(session.submit(Flush(allocs=[(1, NBYTES)])))
    return session


def content(session: Session) -> np.ndarray:
    return floats(session.wait(session.submit(Flush(reads=[(1, 0, NBYTES)])))[0])


def expected(batches: int) -> np.ndarray:
    x = np.zeros(SIZE)
    for _ in range(batches):
        for step in range(STEPS):
            x = x * 1.0009765625 + float(step)
    return x


def records(node: Node) -> list[Record]:
    """The dispatch journal of a stopped node, verified."""
    found: list[Record] = []
    for path in sorted((node.folder / "server" / "dispatch").glob("*.journal")):
        life, taken = decode_journal(path.read_bytes())
        assert taken == path.stat().st_size
        verify(life)
        found += life
    return found


def standing(node: Node, session: Session) -> str:
    return next((s.state for s in node.stats().sessions if s.session == session.info.session), "")


def running(node: Node, session: Session) -> bool:
    return standing(node, session) == "running"


def test_a_lowered_task_gives_way_at_once_and_from_then_on(node: Node) -> None:
    first, second = warm(node.open_for("first", prio=1), LONG), warm(node.open_for("second", prio=2), LONG)
    for _ in range(30):  # far more than it gets to
        first.submit(LONG.flush([1]))
    ticket = second.submit(LONG.flush([1]))
    until(lambda: running(node, first) and standing(node, second) in ("ready", "running"), "the first task runs, the second waits for it")
    answer = node.ask("set_priority", SetPriority("first", 4), PrioritySet)
    assert (answer.fault, answer.task, answer.priority, answer.sessions) == (None, "first", 4, (first.info.session,))
    assert node.ask("set_priority", SetPriority("first", 4), PrioritySet).sessions == answer.sessions, "the same again"
    second.wait(ticket)
    for _ in range(2):
        until(lambda: running(node, first), "the first task goes on, launched with its new priority")
        second.wait(second.submit(LONG.flush([1])))
    assert (content(second) == expected(3)).all()
    assert {s.session: s.priority for s in node.stats().sessions} == {first.info.session: 4, second.info.session: 2}
    node.ask("end_task", EndTask("first"), TaskEnded)
    until(lambda: [s.task for s in node.stats().sessions] == ["second"], "the first task is over")
    node.stop_server()
    facts = node.events()
    changed = [e for e in facts if isinstance(e, SessionPriorityChanged)]
    assert [(e.session, e.priority) for e in changed] == [(first.info.session, 4)], "recorded once"
    usage = [e for e in facts if isinstance(e, UsageRecorded) and e.session == first.info.session and e.core_ns]
    assert {e.priority for e in usage} == {1, 4}, "each part of its bill at the priority it ran at"
    found = records(node)
    at = next(i for i, r in enumerate(found) if isinstance(r.stimulus, PriorityChanged))
    names = {first.info.session: "first", second.info.session: "second"}
    told = [names[d.session] for r in found[at:] for d in r.decisions if isinstance(d, Preempt)]
    ends = [
        names[r.stimulus.session] + (" ends" if isinstance(r.stimulus, LaunchFinished) else " stops")
        for r in found[at:]
        if isinstance(r.stimulus, LaunchFinished | LaunchStopped) and r.stimulus.wall_ns
    ]
    assert set(told) == {"first"}
    before = ends[: ends.index("second ends")]
    assert before.count("first ends") <= 1, "what ends is what was quicker than the stop; then the higher one's batch goes first"
    assert told.count("first") >= 2, "it is preempted again when it runs at its new priority"


def test_a_raised_task_overtakes(node: Node) -> None:
    low, other = warm(node.open_for("low", prio=4), increment(SIZE)), warm(node.open_for("other", prio=2), LONG)
    with node.executor_held():
        ticket = other.submit(LONG.flush([1]))
        until(lambda: running(node, other), "the other task runs")
        waiting = low.submit(increment(SIZE).flush([1]))
        until(lambda: standing(node, low) in ("ready", "running"), "the low task's batch is there, behind the other's")
        assert node.ask("set_priority", SetPriority("low", 0), PrioritySet).fault is None
    low.wait(waiting)
    other.wait(ticket)
    assert (content(other) == expected(1)).all()
    assert (content(low) == 1).all()
    node.stop_server()
    found = records(node)
    at = next(i for i, r in enumerate(found) if isinstance(r.stimulus, PriorityChanged))
    ends = [r.stimulus.session for r in found[at:] if isinstance(r.stimulus, LaunchFinished)]
    assert ends[0] == low.info.session


def test_a_priority_outlives_the_server(node: Node) -> None:
    session = warm(node.open_for("task", prio=1), increment(SIZE))
    assert node.ask("set_priority", SetPriority("task", 3), PrioritySet).sessions
    until(lambda: any(isinstance(e, SessionPriorityChanged) for e in node.events()), "it is in the log")
    node.kill_server()
    node.start_server()
    assert [s.priority for s in node.stats().sessions] == [3]
    session.wait(session.submit(increment(SIZE).flush([1])))
    assert (content(session) == 1).all()


def test_a_cancelled_task_stops_and_its_client_hears_who_did_it(node: Node) -> None:
    ended, bystander = warm(node.open_for("ended", prio=2), LONG), warm(node.open_for("bystander", prio=2), LONG)
    tickets = [ended.submit(LONG.flush([1])) for _ in range(30)]  # far more than it gets to
    kept = bystander.submit(LONG.flush([1]))
    until(lambda: running(node, ended), "the task runs")
    answer = node.ask("end_task", EndTask("ended", "alice"), TaskEnded)
    assert (answer.fault, answer.sessions) == (None, (ended.info.session,))
    with pytest.raises(TaskCancelledError, match=r"^task ended was cancelled by alice$"):
        ended.wait(tickets[-1])
    with pytest.raises(TaskCancelledError, match="by alice"):
        ended.submit(LONG.flush([1]))
    until(lambda: [s.task for s in node.stats().sessions] == ["bystander"], "the session is over")
    assert node.ask("end_task", EndTask("ended", "bob"), TaskEnded).sessions == (), "the same again"
    bystander.wait(kept)
    assert (content(bystander) == expected(1)).all()
    closed = node.facts(SessionClosedFact)
    assert [(e.session, e.reason) for e in closed] == [(ended.info.session, "cancelled")]
    node.stop_server()
    found = records(node)
    at = next(i for i, r in enumerate(found) if isinstance(r.stimulus, SessionClosed) and r.stimulus.stop)
    after = [
        r.stimulus
        for r in found[at + 1 :]
        if isinstance(r.stimulus, LaunchFinished | LaunchStopped) and r.stimulus.session == ended.info.session
    ]
    assert len(after) <= 2 and all(isinstance(s, LaunchStopped) for s in after), (
        "its batch ends at the bound of a slice, not at its own end"
    )
    assert not [d for r in found[at + 1 :] for d in r.decisions if isinstance(d, Launch) and d.session == ended.info.session]


def test_orders_that_make_no_sense_are_refused_with_the_field(node: Node) -> None:
    session = warm(node.open(prio=1), increment(SIZE))  # of no task
    for request, field in ((EndTask(""), "task"), (b"\xc1", "request"), (b"\x93\x01\x02", "request")):
        ended = node.ask("end_task", request, TaskEnded)
        assert ended.fault is not None and ended.fault.name == faults.MALFORMED and field in ended.fault.message
    for order, field in (
        (SetPriority("", 1), "task"),
        (SetPriority("t", 5), "priority"),
        (SetPriority("t", -1), "priority"),
        (b"", "request"),
    ):
        told = node.ask("set_priority", order, PrioritySet)
        assert told.fault is not None and told.fault.name == faults.MALFORMED and field in told.fault.message
    assert node.ask("end_task", EndTask("nobody's"), TaskEnded).sessions == ()
    assert node.ask("set_priority", SetPriority("nobody's", 3), PrioritySet).sessions == ()
    session.wait(session.submit(increment(SIZE).flush([1])))
    assert (content(session) == 1).all(), "a session without a task is not ended by an order about tasks"
