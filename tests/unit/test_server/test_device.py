"""One device of the node with a real executor: what the server sends it for a batch."""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from bus_schemas.batch import Done, decode_batch, decode_done
from bus_schemas.journal import DISPATCH, PROGRAMS, VRAM
from bus_schemas.terms import TaskTerms
from scheduler.dispatch import DispatchConfig
from services.kit.trace import Tracing
from services.server.accounting import Accounting, Counters
from services.server.admission import EXECUTOR_LOST, EXECUTOR_OUT_OF_MEMORY
from services.server.allowance import Allowances
from services.server.device import Device
from services.server.dispatch_log import DispatchLog
from services.server.executor_process import ExecutorProcess
from services.server.facts import FactLog
from services.server.journal_stream import JournalStream, ProgramLane
from services.server.protocol import Command, Execute, Forget, Prepare
from services.server.sessions import SessionRecord
from tests.support.executor import batch_of, chain_of, executor_settings
from tests.support.node import increment
from wooly.link import Flush

SIZE = 100
CONFIG = DispatchConfig(parked_batches_max=2)
RECORD = SessionRecord(session="s", terms=TaskTerms(tenant="acme", task="t", priority=2), token="token", epoch=1)


class Bench:
    """A device with its session open; ``sent`` are the commands that concern batches, ``dones`` the answers."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, config: DispatchConfig) -> None:
        self.sent: list[Command] = []
        self.dones: list[Done] = []
        self._came = asyncio.Event()
        facts = FactLog(folder / "facts.journal", "n")
        journal = JournalStream("n", 1)
        lane = journal.lane(0, DISPATCH)
        self.device = Device(
            gpu=0,
            settings=lambda domain: executor_settings(folder),
            accounting=Accounting("n", 0, facts, lambda: ("", 0), Allowances(time.time_ns, time.monotonic_ns)),
            config=config,
            log_factory=lambda: DispatchLog(folder / "dispatch", 0, 1, lane),
            memory_lane=journal.lane(0, VRAM),
            programs=ProgramLane(journal.lane(0, PROGRAMS)),
            counters=Counters(),
            send_done=lambda _, done: self._answered(decode_done(done)),
            tracing=Tracing("test"),
        )
        send = ExecutorProcess.send

        def noted(process: ExecutorProcess, command: Command) -> None:
            if isinstance(command, Prepare | Execute | Forget):
                self.sent.append(command)
            send(process, command)

        monkeypatch.setattr(ExecutorProcess, "send", noted)

    def batch(self, seq: int, flush: Flush) -> bytes:
        data = batch_of("s", seq, flush)
        self.device.batch(self.device.sessions["s"], decode_batch(data), data, seq)
        return data

    def _answered(self, done: Done) -> None:
        self.dones.append(done)
        self._came.set()

    async def answers(self, count: int) -> list[Done]:
        async with asyncio.timeout(60):
            while len(self.dones) < count:
                self._came.clear()
                await self._came.wait()
        return self.dones

    def brought(self) -> list[bytes]:
        """The encodings that were sent, in order."""
        return [command.batch for command in self.sent if not isinstance(command, Forget) and command.batch]


def on_a_device(
    folder: Path, monkeypatch: pytest.MonkeyPatch, body: Callable[[Bench], Awaitable[None]], config: DispatchConfig = CONFIG
) -> None:
    async def run() -> None:
        bench = Bench(folder, monkeypatch, config)
        await bench.device.start()
        await bench.device.open(RECORD)
        try:
            await body(bench)
        finally:
            await bench.device.stop()

    asyncio.run(run())


def test_a_batch_goes_to_the_executor_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To be prepared, or with its launch when its program is known; also when it waits for an earlier one, and when it runs in slices."""
    new, allocs = increment(SIZE), [(1, 8 * SIZE)]

    async def body(bench: Bench) -> None:
        parked = bench.batch(3, new.flush([1]))
        first = bench.batch(1, Flush(allocs=allocs))
        second = bench.batch(2, new.flush([1]))
        assert [done.seq for done in await bench.answers(3)] == [1, 2, 3]
        known = bench.batch(4, new.flush([1]))
        await bench.answers(4)
        assert all(done.fault is None for done in bench.dones)
        assert sorted(bench.brought()) == sorted([parked, first, second, known])
        prepared = {command.seq for command in bench.sent if isinstance(command, Prepare)}
        assert prepared == {2, 3}, "what needs no program, or one that is ready, goes with its launch"
        assert [command.seq for command in bench.sent if isinstance(command, Execute)] == [1, 2, 3, 4]
        assert not any(isinstance(command, Forget) for command in bench.sent)

    on_a_device(tmp_path, monkeypatch, body)


def test_the_executor_forgets_a_batch_that_is_not_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than may be parked are refused, and the executor need not keep what it prepared of them."""
    new = increment(SIZE)

    async def body(bench: Bench) -> None:
        for seq in (3, 4, 5):
            bench.batch(seq, new.flush([1]))
        refused = (await bench.answers(1))[0]
        assert refused.seq == 5 and refused.fault is not None
        assert [command for command in bench.sent if isinstance(command, Forget)] == [Forget("s", 5)]
        assert sorted(bench.device.sessions["s"].pending) == [3, 4]

    on_a_device(tmp_path, monkeypatch, body)


def test_a_tick_that_ends_a_silent_session_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dispatch core hears of the end at a later time than the tick began: the tick's own time comes after it."""

    async def body(bench: Bench) -> None:
        session = bench.device.sessions["s"]
        for _ in range(2):
            bench.device.tick(0, 0, 1)
        assert session.reason == "lease" and session.closing is not None
        await session.closing
        bench.device.tick(0, 0, 1)
        assert bench.device.sessions == {}

    on_a_device(tmp_path, monkeypatch, body)


def test_a_lease_counts_the_time_that_the_node_listened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the event loop is held up, what clients say stays unread: one late tick counts no more than two of those in time."""
    second, lease = 10**9, 30 * 10**9

    async def body(bench: Bench) -> None:
        session = bench.device.sessions["s"]
        bench.device.tick(lease, lease, 1000 * second)
        bench.device.tick(lease, lease, 28 * second)
        assert session.closing is None
        for _ in range(13):
            bench.device.tick(lease, lease, 2 * second)
        assert session.closing is None, "30 s heard nothing, and no more"
        session.silent_ns = 0  # it pings
        for _ in range(30):
            bench.device.tick(lease, lease, second)
        assert session.closing is None
        bench.device.tick(lease, lease, second)
        assert session.reason == "lease"

    on_a_device(tmp_path, monkeypatch, body)


def test_an_executor_that_exceeds_its_memory_is_lost_with_that_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel ends it: by SIGKILL, and counted in a file of its control group, which stands for a group here."""

    async def body(bench: Bench) -> None:
        bench.device._executor._group = tmp_path
        (tmp_path / "memory.events").write_text("max 7\noom 1\noom_kill 1\n")
        bench.device._executor.kill()
        (done,) = await bench.answers(1)
        assert done.fault == EXECUTOR_OUT_OF_MEMORY and done.fault.name == EXECUTOR_LOST.name
        assert not bench.device.sessions

    on_a_device(tmp_path, monkeypatch, body)


def test_a_launch_that_is_taken_back_at_once_does_not_disturb_the_report_it_came_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the executor did beside a launch is reported before the launch itself: what is decided on that may come back meanwhile."""
    paced = msgspec.structs.replace(RECORD, session="p", terms=TaskTerms(tenant="lab", task="u", priority=2, pace_percent=1))

    async def body(bench: Bench) -> None:
        device = bench.device
        await device.open(paced)
        for seq, flush in ((1, Flush(allocs=[(1, 8 * SIZE)])), (2, chain_of(8, SIZE).flush([1])), (3, Flush())):
            data = batch_of("p", seq, flush)
            device.batch(device.sessions["p"], decode_batch(data), data, seq)
        await bench.answers(2)
        passes = device.gate.passes
        monkeypatch.setattr(device.gate, "passes", lambda name, seq: name != "p" and passes(name, seq))
        bench.batch(1, Flush(allocs=[(1, 64 << 20)]))
        due_ns, transport = device._dispatch.next_wakeup_ns, device._executor._transport
        assert due_ns is not None and transport is not None
        while time.monotonic_ns() < due_ns:  # the loop is held up: the pace lets the other session go by the time of the report
            pass
        select.select([transport.get_extra_info("socket").fileno()], [], [])
        await bench.answers(3)
        bench.batch(2, Flush())
        assert [(done.session, done.seq) for done in await bench.answers(4)] == [("p", 1), ("p", 2), ("s", 1), ("s", 2)]

    on_a_device(tmp_path, monkeypatch, body, DispatchConfig(pace_burst_ns=1))
