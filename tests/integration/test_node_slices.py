"""Several tenants on one real node: batches in slices, preemption, shares, paces, and what a restart makes of a batch that is half done."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from bus_schemas import faults, subjects
from bus_schemas.events import DeviceAccounted, SessionOpenedFact, UsageRecorded
from bus_schemas.journal import DISPATCH, VRAM
from bus_schemas.session import OpenSession, SessionOpened
from scheduler.dispatch import (
    BatchArrived,
    ConfigChanged,
    Launch,
    LaunchFinished,
    LaunchStopped,
    Preempt,
    Record,
    decode_journal,
    fairness_bound,
)
from scheduler.dispatch.fair import virtual
from services.kit.bus import Bus
from tests.support.executor import chain_of
from tests.support.journals import segments
from tests.support.node import Node, Program, Waiting, asked, floats, increment, until
from tests.support.replayed import verify
from wooly.errors import NodeLostError
from wooly.link import Flush
from wooly.session import Session

SIZE = 8_000
NBYTES = 8 * SIZE
STEPS = 3_000
LONG = chain_of(STEPS, SIZE)
"""Some tenths of a second on the reference backend: many slices."""


def expected(batches: int, steps: int = STEPS) -> npt.NDArray[np.float64]:
    x = np.zeros(SIZE)
    for _ in range(batches):
        for step in range(steps):
            x = x * 1.0009765625 + float(step)
    return x


def ready(node: Node, program: Program, **keys: object) -> Session:
    """A session whose program the node knows and whose buffer is zeros."""
    session = node.open(**keys)
    session.submit(Flush(allocs=[(1, NBYTES)]))
    session.wait(session.submit(program.flush([1])))
    session.wait(session.submit(Flush(frees=[1])))
    session.wait(session.submit(Flush(allocs=[(1, NBYTES)])))
    return session


def content(session: Session) -> npt.NDArray[np.float64]:
    return floats(session.wait(session.submit(Flush(reads=[(1, 0, NBYTES)])))[0])


def in_flight(node: Node, session: Session) -> bool:
    return any(s.session == session.info.session and s.state == "running" for s in node.stats().sessions)


def records(node: Node) -> list[Record]:
    """The dispatch journal of a stopped node; it has one segment."""
    (path,) = (node.folder / "server" / "dispatch").glob("*.journal")
    found, taken = decode_journal(path.read_bytes())
    assert taken == path.stat().st_size
    return found


def slices_of(found: list[Record], session: Session) -> list[LaunchStopped | LaunchFinished]:
    """Every slice of a session that began, in order."""
    name = session.info.session
    stimuli = [record.stimulus for record in found if isinstance(record.stimulus, LaunchStopped | LaunchFinished)]
    return [s for s in stimuli if s.session == name and s.wall_ns]


def test_a_long_batch_gives_way_to_a_higher_priority(node: Node) -> None:
    """Preempted, not waited for; and both get the bits that they get alone."""
    low, high = ready(node, LONG, prio=3), ready(node, increment(SIZE), prio=0)
    with node.executor_held():
        ticket = low.submit(LONG.flush([1]))
        until(lambda: in_flight(node, low), "the low batch is under way")
        first = high.submit(increment(SIZE).flush([1]))
        until(lambda: in_flight(node, high), "the high one is too")
    high.wait(first)
    for _ in range(7):
        high.wait(high.submit(increment(SIZE).flush([1])))
    low.wait(ticket)
    assert (content(low) == expected(1)).all()
    assert (content(high) == 8).all()
    names = {low.info.session: "low", high.info.session: "high"}
    node.stop_server()
    found = records(node)
    verify(found)
    story = []
    for record in found:
        match record.stimulus:
            case BatchArrived(session=name) | LaunchFinished(session=name):
                story.append((type(record.stimulus).__name__, names[name]))
            case LaunchStopped(session=name, wall_ns=wall_ns) if wall_ns:
                story.append(("LaunchStopped", names[name]))
        story += [(type(d).__name__, names[d.session]) for d in record.decisions if isinstance(d, Launch | Preempt)]
    preempted = [at for at, event in enumerate(story) if event == ("Preempt", "low")]
    assert preempted
    for at in preempted:
        launch = story.index(("Launch", "high"), at)
        ends = [event for event in story[at:] if event[0] in ("LaunchStopped", "LaunchFinished")]
        assert ("LaunchStopped", "low") not in story[at:launch], "the high launch leaves at once, it does not wait for the low one to stop"
        assert ends[: ends.index(("LaunchFinished", "high"))] in ([], [("LaunchStopped", "low")]), "nothing low goes on before it is over"
    assert len(slices_of(found, low)) > 2


def test_equal_priorities_share_by_weight(node: Node) -> None:
    light, heavy = (ready(node, LONG, prio=2, weight=weight) for weight in (100, 300))
    before = node.stats().batches_received
    with node.executor_held():
        tickets = [session.submit(LONG.flush([1])) for _ in range(8) for session in (light, heavy)]
        until(lambda: node.stats().batches_received == before + len(tickets), "the batches of both are there")
    for session, ticket in zip((light, heavy) * 8, tickets, strict=True):
        session.wait(ticket)
    assert (content(light) == expected(8)).all()
    assert (content(heavy) == expected(8)).all()
    node.stop_server()
    found = records(node)
    verify(found)
    config = next(r.stimulus.config for r in found if isinstance(r.stimulus, ConfigChanged))
    weights = {light.info.session: 100, heavy.info.session: 300}
    last = {
        name: max(r.stimulus.seq for r in found if isinstance(r.stimulus, BatchArrived) and r.stimulus.session == name) for name in weights
    }
    begin = next(
        at
        for at, r in enumerate(found)
        if isinstance(r.stimulus, BatchArrived)
        and (r.stimulus.session, r.stimulus.seq) == (heavy.info.session, last[heavy.info.session] - 8)
    )
    served, largest, turns = dict.fromkeys(weights, 0), dict.fromkeys(weights, 0), 0
    before = ""
    for record in found[begin:]:
        for decision in record.decisions:
            if isinstance(decision, Launch):
                largest[decision.session] = max(largest[decision.session], decision.limit_ns)
        s = record.stimulus
        if not isinstance(s, LaunchStopped | LaunchFinished) or not s.wall_ns:
            continue
        served[s.session] += s.core_ns
        largest[s.session] = max(largest[s.session], s.core_ns)
        turns += s.session != before
        before = s.session
        if isinstance(s, LaunchFinished) and s.seq == last[s.session] - 1:
            break  # the first of the two has no more to do
    assert turns > 10, "they interleave"
    assert served[heavy.info.session] > served[light.info.session]
    apart = abs(virtual(served[light.info.session], 100) - virtual(served[heavy.info.session], 300))
    assert apart <= fairness_bound((*largest.values(),), (*weights.values(),), config.in_flight_max)


def test_sessions_that_only_move_memory_leave_others_their_share(node: Node) -> None:
    """They have no core time: as far as that goes, they would always be those that had least."""
    runs, moving = ready(node, increment(1)), [node.open() for _ in range(3)]
    before = node.stats().batches_received
    with node.executor_held():
        moves = [(s, s.submit(Flush(allocs=[(n, 32 << 20)], reads=[(n, 0, 8)], frees=[n]))) for n in range(1, 9) for s in moving]
        steps = [(runs, runs.submit(increment(1).flush([1]))) for _ in range(8)]
        until(lambda: node.stats().batches_received == before + len(moves) + len(steps), "the batches of all are there")
    for session, ticket in moves + steps:
        session.wait(ticket)
    node.stop_server()
    found = records(node)
    verify(found)
    order = [record.stimulus.session for record in found if isinstance(record.stimulus, LaunchFinished)]
    last = max(at for at, name in enumerate(order) if name == runs.info.session)
    assert len(order) - 1 - last >= len(moves) // 2, "its batches waited until nothing else was wanted"


def test_a_large_answer_is_read_in_pieces_that_give_way(node: Node) -> None:
    """Whatever the executor copies for one session, one of a higher priority waits for a piece of it only."""
    reads, asks = node.open(prio=2), node.open(prio=0)
    asks.wait(asks.submit(Flush(allocs=[(1, 8)])))
    reads.wait(reads.submit(Flush(allocs=[(1, 256 << 20)], uploads=[(2, memoryview(np.arange(1000.0)).cast("B"))])))
    first = [reads.submit(Flush(reads=[(1, 0, 256 << 20), (2, 8, 16)])) for _ in range(4)]
    taken, steps = Waiting(lambda: [reads.wait(ticket) for ticket in first]), 0
    while taken.is_alive():
        asks.wait(asks.submit(increment(1).flush([1])))
        steps += 1
    for large, small in taken.ended():
        assert len(large) == 256 << 20 and not np.frombuffer(large, "<i8").any()
        assert np.frombuffer(small, "<f8").tolist() == [1.0, 2.0]
    node.stop_server()
    found = records(node)
    verify(found)
    pieces = [s for s in slices_of(found, reads) if isinstance(s, LaunchStopped)]
    assert len(pieces) > 4 and not any(s.core_ns for s in pieces), "answers are not charged as work of cores"
    assert steps > 4


def test_a_paced_session_leaves_the_device_idle(node: Node) -> None:
    session = ready(node, LONG, prio=1, pace_percent=25)
    session.wait(session.submit(LONG.flush([1])))
    session.wait(session.submit(LONG.flush([1])))
    assert (content(session) == expected(2)).all()
    node.stop_server()
    found = records(node)
    verify(found)
    config = next(r.stimulus.config for r in found if isinstance(r.stimulus, ConfigChanged))
    mine = slices_of(found, session)
    first_ns = next(r.stimulus.at_ns for r in found if isinstance(r.stimulus, BatchArrived))
    used = 0
    longest = max(s.core_ns for s in mine)
    for s in mine:
        used += s.core_ns
        most = (s.at_ns - first_ns + config.pace_burst_ns) * config.cores // 4 + 2 * longest
        assert used <= most + config.pace_burst_ns * config.cores


def test_a_server_that_dies_amid_a_batch(node: Node) -> None:
    """kill -9 between and in slices: the next server goes on where the executor is, every instruction is done and charged once."""
    low = ready(node, LONG, prio=3)
    ready(node, increment(SIZE), prio=0)  # beside it the low one is cut into slices
    alone = low.wait(low.submit(LONG.flush([1], reads=[(1, 0, NBYTES)])))
    ticket = low.submit(LONG.flush([1]))
    for _ in range(2):
        seq = low.batches
        until(lambda: node.stats().sessions, "the node to be up")
        node.kill_server()
        node.start_server()
        assert low.batches == seq
    low.wait(ticket)
    assert (floats(alone[0]) == expected(1)).all()
    assert (content(low) == expected(2)).all()
    low.close()
    assert low.totals is not None
    usage = [e for e in node.events() if isinstance(e, UsageRecorded) and e.session == low.info.session]
    accounted = [e for e in node.events() if isinstance(e, DeviceAccounted)]
    assert all(e.charged_core_ns + e.scheduler_core_ns + e.idle_core_ns == e.wall_ns * e.cores for e in accounted)
    assert sum(e.core_ns for e in usage) == low.totals.core_ns
    assert sum(e.launches for e in usage) == low.totals.launches == 3
    assert sum(e.instructions for e in usage) == low.totals.instructions == 3 * 2 * STEPS * SIZE


def test_an_executor_that_dies_amid_a_batch_takes_only_its_sessions(node: Node) -> None:
    low, built_again = ready(node, LONG, prio=3, recovery_mb=0), ready(node, LONG, prio=3)
    with node.executor_held():
        ticket = low.submit(LONG.flush([1]))
        until(lambda: in_flight(node, low), "the batch is under way")
        node.kill_executor()
    with pytest.raises(NodeLostError):
        low.wait(ticket)
    built_again.wait(built_again.submit(LONG.flush([1])))
    assert (content(built_again) == expected(1)).all()
    until(lambda: node.info().devices, "the executor to be started again")
    again = ready(node, LONG, prio=3)
    again.wait(again.submit(LONG.flush([1])))
    assert (content(again) == expected(1)).all()


def test_what_cannot_be_is_refused_with_the_field(node: Node) -> None:
    info = node.info()
    good = OpenSession("refused", "t", "", 0, (0,), 0)
    cases = [
        (msgspec.structs.replace(good, priority=7), "priority", faults.MALFORMED),
        (msgspec.structs.replace(good, weight=0), "weight", faults.MALFORMED),
        (msgspec.structs.replace(good, priority=2, sla_ms_p99=10), "sla_ms_p99", faults.MALFORMED),
        (msgspec.structs.replace(good, sla_ms_p99=10, pace_percent=50), "sla_ms_p99", faults.MALFORMED),
        (msgspec.structs.replace(good, pace_percent=101), "pace_percent", faults.MALFORMED),
        (msgspec.structs.replace(good, vram_bytes=4 << 30), "vram_bytes", faults.QUOTA_EXCEEDED),
        (msgspec.structs.replace(good, sla_ms_p99=1), "sla_ms_p99", faults.MALFORMED),
    ]

    async def ask(bus: Bus) -> list[SessionOpened]:
        subject = subjects.node_request(info.node, "open")
        return [await asked(bus, subject, msgspec.msgpack.encode(request), SessionOpened) for request, _, _ in cases]

    for answer, (_, field, name) in zip(node.run(ask), cases, strict=True):
        assert answer.fault is not None, field
        assert answer.fault.name == name
        assert answer.fault.message.startswith(f"{field}: ")
    assert node.stats().sessions == ()
    opened = node.open(weight=300, pace_percent=50)
    (fact,) = node.facts(SessionOpenedFact)
    assert (fact.session, fact.weight, fact.sla_ms_p99, fact.pace_percent) == (opened.info.session, 300, 0, 50)


def test_overcommit_counts_for_sessions_that_may_be_swapped(tmp_path: Path) -> None:
    with Node(tmp_path, WOOLY_VRAM_OVERCOMMIT_PERCENT="100") as node:
        assert node.open(required_vram_mb=4096).info.quota_bytes == 4 << 30
        with pytest.raises(RuntimeError, match=r"vram_bytes: REQUIRED_VRAM asks for 4096 MB, device 0 has 2048 MB"):
            node.open(required_vram_mb=4096, swap_from_vram=False)
        with pytest.raises(RuntimeError, match=r"gives 4096 MB to sessions that may be swapped out \(overcommit 100 %\)"):
            node.open(required_vram_mb=4097)


def test_the_journal_on_the_bus_is_the_one_on_disk(node: Node) -> None:
    """Digest for digest, over a restart of the bus and of the server; a stopped node has sent everything."""
    session = ready(node, LONG, prio=3)
    session.wait(session.submit(LONG.flush([1])))
    node.nats.stop()  # (a crash may cost what was acknowledged just before: ``persist_mode: async``)
    node.nats.start()
    session.wait(session.submit(LONG.flush([1])))
    session.close()
    node.stop_server()
    node.start_server()
    again = ready(node, LONG)
    again.wait(again.submit(LONG.flush([1])))
    again.close()
    node.stop_server()
    on_bus = segments(node, DISPATCH)
    files = sorted((node.folder / "server" / "dispatch").glob("*.journal"))
    assert len(on_bus) == len(files) == 2
    for segment, path in zip(on_bus, files, strict=True):
        assert segment.frames == path.read_bytes()
        assert path.name == f"gpu0-{segment.parts[0].epoch:08d}-{segment.number:014d}.journal"
        found, _ = decode_journal(segment.frames)
        assert sum(part.records for part in segment.parts) == len(found)
        verify(found)
    memory = segments(node, VRAM)
    assert len(memory) == 2
    assert all(segment.parts[0].first == 0 and segment.frames for segment in memory)
