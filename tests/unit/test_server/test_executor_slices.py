"""A real executor runs batches in slices: never lost, never run twice, the same bits wherever cut, charged to the nanosecond."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bus_schemas import faults
from bus_schemas.batch import decode_batch, decode_done, encode_batch
from services.server.protocol import (
    BEHIND,
    FAULTED,
    RAN,
    STOPPED,
    CloseSpace,
    Executed,
    Forget,
    Prepare,
    Prepared,
    Recall,
    Recalled,
    SpaceClosed,
)
from tests.support.executor import Wire, batch_of, chain_of
from tests.support.node import Program, beyond_its_table, floats, increment
from wooly.link import Flush

SIZE = 8_000
NBYTES = 8 * SIZE
LONG = chain_of(40, SIZE)
NEVER = 1 << 62


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    with Wire(tmp_path) as wire:
        wire.open()
        assert wire.execute(1, Flush(allocs=[(1, NBYTES)])).status == RAN
        yield wire


def expected(program: Program = LONG, steps: int = 40) -> np.ndarray:
    x = np.zeros(SIZE)
    for step in range(steps):
        x = x * 1.0009765625 + float(step)
    return x


def whole(seq: int = 2) -> Flush:
    return LONG.flush([1], reads=[(1, 0, NBYTES)])


def finish(wire: Wire, seq: int, limit_ns: int) -> list[Executed]:
    """Slices until the batch is over."""
    reports = [wire.execute(seq, None, limit_ns=limit_ns)]
    while reports[-1].status == STOPPED:
        reports.append(wire.execute(seq, None, limit_ns=limit_ns))
    return reports


def test_a_batch_in_slices_is_one_batch(wire: Wire, tmp_path: Path) -> None:
    reports = [wire.execute(2, whole(), limit_ns=1)]
    reports += finish(wire, 2, 1)
    assert len(reports) > 10
    assert [r.status for r in reports] == [STOPPED] * (len(reports) - 1) + [RAN]
    assert all(r.done == b"" and r.launches == 0 and r.instructions == 0 for r in reports[:-1])
    assert all(r.end_ns > r.start_ns and r.core_ns > 0 for r in reports)
    done = wire.done(reports[-1])
    assert (floats(done.reads[0].inline) == expected()).all()
    assert done.core_ns == sum(r.core_ns for r in reports)
    assert reports[-1].launches == 1
    once = wire.execute(3, LONG.flush([1]))
    assert reports[-1].instructions == once.instructions == done.instructions > 0


def test_what_has_not_begun_comes_back_at_once_and_runs_later(wire: Wire) -> None:
    first, second = wire.command(2, batch_of("s", 2, whole())), wire.command(3, batch_of("s", 3, increment(SIZE).flush([1])))
    wire.page.stop(3, first.serial)
    wire.send(first, second)
    stopped, behind = wire.next(Executed), wire.next(Executed)
    assert (stopped.status, stopped.core_ns, stopped.end_ns - stopped.start_ns) == (STOPPED, 0, 0)
    assert behind.status == BEHIND
    assert (floats(wire.done(wire.execute(2, whole())).reads[0].inline) == expected()).all()


def test_what_is_behind_a_fault_does_not_run(wire: Wire) -> None:
    """It was sent before the fault was known; no session is charged for it."""
    wire.prepare(2, batch_of("s", 2, beyond_its_table(SIZE).flush([1, 99])))
    wire.prepare(3, batch_of("s", 3, LONG.flush([1])))
    wire.send(wire.command(2, b""), wire.command(3, b""))
    fault, behind = wire.next(Executed), wire.next(Executed)
    assert fault.status == FAULTED
    assert (behind.status, behind.core_ns, behind.launches, behind.done) == (BEHIND, 0, 0, b"")


def test_answers_are_recalled_a_few_megabytes_at_a_time(wire: Wire) -> None:
    """Who has lost them asks again for the rest; who only asks does not keep the others from the device for long."""
    wire.execute(2, Flush(allocs=[(2, 1 << 16)]))
    for seq in range(3, 12):
        wire.execute(seq, Flush(reads=[(2, 0, 1 << 16)] * 15))
    seen, rounds = 0, 0
    while seen < 11:
        wire.send(Recall("s", seen))
        dones = [decode_done(done) for done in wire.next(Recalled).dones]
        assert [done.seq for done in dones] == list(range(seen + 1, seen + 1 + len(dones)))
        assert sum(len(read.inline) for done in dones for read in done.reads) <= 4 << 20
        seen += len(dones)
        rounds += 1
    assert rounds == 3
    wire.send(Recall("s", 11))
    assert wire.next(Recalled).dones == ()


def test_the_stop_page_stops_a_run_and_only_of_its_priority(wire: Wire) -> None:
    wire.page.stop(4, NEVER)
    wire.page.stop(2, NEVER)
    long = chain_of(4000, SIZE)
    wire.prepare(2, batch_of("s", 2, long.flush([1])))
    running = wire.command(2, b"")
    wire.send(running)
    wire.page.stop(3, running.serial)
    stopped = wire.next(Executed)
    assert stopped.status == STOPPED
    ended = wire.execute(2, None if stopped.core_ns else long.flush([1], reads=[(1, 0, NBYTES)]))
    assert ended.status == RAN
    (data,) = wire.done(wire.execute(3, Flush(reads=[(1, 0, NBYTES)]))).reads
    assert (floats(data.inline) == expected(long, 4000)).all()


def test_sessions_take_turns_between_slices(wire: Wire) -> None:
    wire.open("other")
    wire.execute(1, Flush(allocs=[(1, NBYTES)]), session="other")
    assert wire.execute(2, whole(), limit_ns=1).status == STOPPED
    assert wire.execute(2, whole(), session="other", limit_ns=1).status == STOPPED
    results = []
    while len(results) < 2:
        for session in ("s", "other"):
            if session not in dict(results):
                report = wire.execute(2, None, session=session, limit_ns=1)
                if report.status == RAN:
                    results.append((session, floats(wire.done(report).reads[0].inline)))
    assert all((data == expected()).all() for _, data in results)


def test_a_new_server_finds_the_run_where_it_was(wire: Wire) -> None:
    """The server dies between two slices: the next one sends the batch again, and nothing of it is done twice."""
    before = wire.execute(2, whole(), limit_ns=1)
    wire.page.stop(3, NEVER)
    wire.drop()
    attached = wire.connect()
    (held,) = attached.held
    assert (held.seq_done, held.faulted) == (1, False)
    assert [r.index for r in attached.results][-1] == before.index
    assert wire.page.word(3) == 0, "what the dead server stopped is forgotten"
    goes_on = wire.execute(2, whole(), limit_ns=1)
    assert goes_on.status == STOPPED
    reports = [before, goes_on, *finish(wire, 2, 0)]
    done = wire.done(reports[-1])
    assert (floats(done.reads[0].inline) == expected()).all()
    assert done.core_ns == sum(r.core_ns for r in reports)


def test_a_server_that_dies_while_a_slice_runs(wire: Wire) -> None:
    """What it had sent is carried out, and reported to the next one."""
    wire.prepare(2, batch_of("s", 2, whole()))
    wire.send(wire.command(2, b"", limit_ns=1), wire.command(2, b"", limit_ns=1))
    wire.drop()
    attached = wire.connect()
    assert [(r.seq, r.status) for r in attached.results][-2:] == [(2, STOPPED), (2, STOPPED)]
    reports = [*attached.results[-2:], wire.execute(2, whole())]
    done = wire.done(reports[-1])
    assert (floats(done.reads[0].inline) == expected()).all()
    assert done.core_ns == sum(r.core_ns for r in reports)


def test_another_batch_of_the_same_number_ends_the_session(wire: Wire) -> None:
    assert wire.execute(2, whole(), limit_ns=1).status == STOPPED
    report = wire.execute(2, increment(SIZE).flush([1]))
    assert report.status == FAULTED
    fault = wire.done(report).fault
    assert fault is not None and fault.name == faults.NODE_FAULT and "other content" in fault.message


def test_a_batch_is_the_same_with_and_without_the_line_that_recorded_it(wire: Wire) -> None:
    """The line comes with a program's body, which a sender repeats or not."""
    batch = msgspec.structs.replace(decode_batch(batch_of("s", 2, whole())), origin="train.py:3")
    wire.prepare(2, encode_batch(batch))
    wire.send(wire.command(2, b"", limit_ns=1))
    assert wire.next(Executed).status == STOPPED
    wire.drop()
    wire.connect()
    assert wire.execute(2, whole()).status == RAN


def test_a_batch_is_the_same_although_it_frees_what_was_never_made(wire: Wire) -> None:
    """The buffers of a refused batch were not made: the executor leaves them out of what the next one frees."""
    fault = wire.done(wire.execute(2, Flush(allocs=[(5, 1 << 35)]))).fault
    assert fault is not None and fault.name == faults.QUOTA_EXCEEDED
    long = LONG.flush([1], reads=[(1, 0, NBYTES)])
    long.frees = [5]
    assert wire.execute(3, long, limit_ns=1).status == STOPPED
    wire.drop()
    wire.connect()
    assert wire.execute(3, long).status == RAN


def test_closing_drops_a_run_that_was_stopped(wire: Wire) -> None:
    assert wire.execute(2, whole(), limit_ns=1).status == STOPPED
    wire.send(CloseSpace("s"))
    wire.next(SpaceClosed)
    wire.open()
    assert wire.execute(1, Flush(allocs=[(1, NBYTES)])).resident_bytes == NBYTES
    (zeros,) = wire.done(wire.execute(2, Flush(reads=[(1, 0, NBYTES)]))).reads
    assert (floats(zeros.inline) == 0).all()


def test_a_batch_that_did_not_begin_is_not_brought_again(wire: Wire) -> None:
    """The executor has it from the first command that names it, until it begins or the server says to forget it."""
    first, second = wire.command(2, b""), wire.command(3, batch_of("s", 3, increment(SIZE).flush([1])))
    wire.send(Prepare("s", 2, batch_of("s", 2, whole())))
    assert wire.next(Prepared).ready
    wire.page.stop(3, first.serial)
    wire.send(first, second)
    assert [wire.next(Executed).status for _ in range(2)] == [STOPPED, BEHIND]
    assert (floats(wire.done(wire.execute(2, None)).reads[0].inline) == expected()).all()
    assert wire.execute(3, None).status == RAN
    wire.send(Prepare("s", 4, batch_of("s", 4, whole())), Forget("s", 4))
    wire.next(Prepared)
    fault = wire.done(wire.execute(4, None)).fault
    assert fault is not None and (fault.name, "no batch under way" in fault.message) == (faults.NODE_FAULT, True)


def test_what_a_dead_server_brought_is_brought_again(wire: Wire) -> None:
    wire.send(Prepare("s", 2, batch_of("s", 2, whole())))
    wire.next(Prepared)
    wire.drop()
    wire.connect()
    assert wire.execute(2, whole()).status == RAN
    wire.send(Prepare("s", 3, batch_of("s", 3, whole())))
    wire.next(Prepared)
    wire.drop()
    wire.connect()
    assert wire.execute(3, None).status == FAULTED
