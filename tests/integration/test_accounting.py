"""The bill's raw material on a real node: every core-nanosecond accounted for, facts gapless, two runs of one script alike."""

from __future__ import annotations

import shutil

import numpy as np

from billing.projection import BillingView
from bus_schemas.events import DeviceAccounted, NodeLost, NodeRegistered, SessionClosedFact, SessionOpenedFact, UsageRecorded
from tests.support.node import Node, add_one, increment, until
from wooly.link import Flush
from wooly.session import Session


def work(session: Session, steps: int, first_handle: int = 1) -> None:
    """A script of its own: uploads, runs, reads, frees."""
    x = first_handle
    session.submit(Flush(uploads=[(x, memoryview(np.zeros(2000)).cast("B"))]))
    for step in range(steps):
        session.submit(increment(2000).flush([x]))
        session.submit(add_one(2000).flush([x, x + 1 + step], frees=[x + 1 + step] if step % 2 else []))
    session.wait(session.submit(Flush(reads=[(x, 0, 16000)])))


def check_identity(node: Node) -> tuple[list[UsageRecorded], list[DeviceAccounted]]:
    """charged + scheduler + idle == wall x cores, exactly, without holes or gaps; what is charged is what facts say."""
    events = node.events()
    accounted = [e for e in events if isinstance(e, DeviceAccounted)]
    used = [e for e in events if isinstance(e, UsageRecorded)]
    by_serial = {(e.epoch, e.serial): e for e in used}
    assert len(by_serial) == len(used)
    at_ns = None
    epoch = 0
    for fact in accounted:
        assert fact.charged_core_ns + fact.scheduler_core_ns + fact.idle_core_ns == fact.wall_ns * fact.cores
        assert min(fact.charged_core_ns, fact.scheduler_core_ns, fact.idle_core_ns) >= 0
        assert fact.charged_core_ns <= fact.launch_ns * fact.cores <= fact.wall_ns * fact.cores
        named = [by_serial[(fact.epoch, serial)] for serial in range(fact.serial_first, fact.serial_last + 1)]
        assert sum(e.core_ns for e in named) == fact.charged_core_ns
        if fact.epoch == epoch:
            assert fact.from_ns == at_ns
        epoch, at_ns = fact.epoch, fact.from_ns + fact.wall_ns
    for number in {fact.epoch for fact in accounted}:
        assert [f.serial for f in accounted if f.epoch == number] == list(range(1, 1 + sum(f.epoch == number for f in accounted)))
        serials = [e.serial for e in used if e.epoch == number]
        assert serials == list(range(1, len(serials) + 1))
    return used, accounted


def test_the_identity_holds_with_two_tenants(node: Node) -> None:
    one, two = node.open(tenant="one"), node.open(tenant="two", prio=2)
    for _ in range(3):
        work(one, 20, one.batches * 100 + 1)
        work(two, 10, two.batches * 100 + 1)
    one.close()
    two.close()
    used, accounted = check_identity(node)
    for session in (one, two):
        assert session.totals is not None
        mine = [e for e in used if e.session == session.info.session]
        assert sum(e.core_ns for e in mine) == session.totals.core_ns > 0
        assert sum(e.byte_ms for e in mine) == session.totals.byte_ms > 0
        assert sum(e.instructions for e in mine) == session.totals.instructions > 0
        assert sum(e.launches for e in mine) == session.totals.launches
        assert {e.tenant for e in mine} == {"one" if session is one else "two"}
        assert all(e.to_ns - e.from_ns <= 10**9 for e in mine)
    assert one.totals is not None
    assert one.totals.launches == 120
    facts = {fact.session: fact for fact in node.facts(SessionClosedFact, 2)}
    assert facts[one.info.session].core_ns == one.totals.core_ns
    assert sum(fact.scheduler_core_ns for fact in accounted) > 0


def test_the_identity_survives_a_killed_server(node: Node) -> None:
    """Work done and not yet in the log when the server dies is charged by the next one, once."""
    session = node.open()
    work(session, 30)
    node.kill_server()
    node.start_server()
    work(session, 30, 1000)
    session.close()
    used, _ = check_identity(node)
    assert session.totals is not None
    assert session.totals.launches == 120
    assert sum(e.launches for e in used) == 120
    assert sum(e.core_ns for e in used) == session.totals.core_ns
    assert sum(e.instructions for e in used) == session.totals.instructions
    registered = [e.epoch for e in node.events() if isinstance(e, NodeRegistered)]
    assert registered == [1, 2]
    assert len([e for e in node.events() if isinstance(e, SessionOpenedFact)]) == 2


def test_a_node_that_lost_its_journal_is_billed_all_the_same(node: Node) -> None:
    """Its disk was replaced, or the journal was damaged: facts of an epoch that was before would be taken for repeats of those."""
    first = node.open()
    work(first, 10)
    first.close()
    node.stop_server()
    shutil.rmtree(node.folder / "server")
    node.start_server()
    second = node.open()
    work(second, 10)
    second.close()
    used, _ = check_identity(node)
    assert second.totals is not None and second.totals.core_ns > 0
    mine = [e for e in used if e.session == second.info.session]
    assert sum(e.core_ns for e in mine) == second.totals.core_ns
    assert [e.epoch for e in node.events() if isinstance(e, NodeRegistered)] == [1, 2]
    view = BillingView()
    for position, event in enumerate(node.events(), start=1):
        view.apply(position, [event])
    assert sum(row.core_ns for row in view.rows.values()) == sum(e.core_ns + e.compile_ns for e in used) and not view.findings


def test_the_identity_survives_a_killed_executor_and_bus(node: Node) -> None:
    first = node.open(recovery_mb=0)
    work(first, 20)
    node.kill_executor()
    until(lambda: node.stats().executor_restarts == 1 and node.info().devices, "a new executor")
    first.close()
    second = node.open()
    work(second, 20)
    node.nats.kill()
    node.nats.start()
    work(second, 20, 1000)
    second.close()
    assert [fact.reason for fact in node.facts(SessionClosedFact, 2)] == ["executor_lost", "done"]
    check_identity(node)


def test_two_runs_of_one_script_have_equal_digests(node: Node) -> None:
    """The digest names what ran in which order, not who ran it nor on which handles; another script has another one."""
    digests = []
    for first_handle, steps in ((1, 15), (5000, 15), (1, 16)):
        session = node.open()
        work(session, steps, first_handle)
        session.close()
        assert session.totals is not None
        digests.append(session.totals.launch_digest)
    assert digests[0] == digests[1] != digests[2]
    assert [fact.launch_digest for fact in node.facts(SessionClosedFact, 3)] == digests


def test_a_clean_stop_is_a_fact(node: Node) -> None:
    session = node.open()
    work(session, 3)
    node.stop_server()
    lost = [e for e in node.events() if isinstance(e, NodeLost)]
    assert [(e.epoch, e.reason) for e in lost] == [(1, "stopped")]
    assert [fact.reason for fact in node.facts(SessionClosedFact, 1)] == ["node_stopped"]
    check_identity(node)
