"""A device's memory under pressure, with a real engine, a real store and real files: nothing is lost, and bits come back as they went."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bus_schemas import faults
from scheduler.vram.journal import decode_journal, decode_state
from tests.support.builder import Builder
from tests.support.memory_device import MemoryDevice, memory_device
from tests.support.node import Program, floats, increment
from tests.support.replayed import verify_vram
from wis.dtypes import DType
from wooly.link import Flush

MIB = 1 << 20
SIZE = 5 * MIB // 8  # of f64: a buffer is a chunk of the store and part of another
BUFFER = 8 * SIZE
STEP = increment(SIZE)


def fill(device: MemoryDevice, session: str, buffers: int, first: int = 1) -> None:
    """Buffers ``first``... of BUFFER bytes, buffer n holding the session's own number + n everywhere."""
    for handle in range(first, first + buffers):
        done = device.run(session, increment(SIZE, value(session, handle)).flush([handle], allocs=[(handle, BUFFER)]))
        assert done.fault is None, done.fault


def value(session: str, handle: int) -> float:
    return float(ord(session[0]) * 1000 + handle)


def check(device: MemoryDevice, session: str, handles: range, plus: float = 0.0) -> None:
    """The bytes of these buffers are what they should be; one batch each, so that a session larger than the device can be read."""
    for handle in handles:
        done = device.run(session, Flush(reads=[(handle, 0, 8), (handle, BUFFER - 8, 8)]))
        assert done.fault is None, done.fault
        assert [floats(read.inline)[0] for read in done.reads] == [value(session, handle) + plus] * 2, (session, handle)


def books_close(device: MemoryDevice) -> None:
    """What the core believes is what the engine has given, to the byte; and a replay of the journal ends in the same state."""
    state = device.state
    used = sum(t.space.resident_bytes - t.space.shared_bytes + t.space.workspace_bytes for t in device.tenants.values())
    assert state.used_bytes - sum(s.grant + s.coming for s in state.sessions.values()) == used
    for tenant in device.tenants.values():
        session = state.sessions[tenant.session]
        assert session.logical == sum(tenant.sizes.values()) + tenant.space.workspace_bytes
        assert session.swapped == sum(tenant.sizes[h] for h in tenant.kept)


def test_three_sessions_of_a_device_each(tmp_path: Path) -> None:
    """Three times overcommitted: every session fills the device by itself, and each finds its own again."""
    with memory_device(4 * BUFFER, tmp_path) as device:
        for session in "abc":
            device.open(session)
            fill(device, session, 4)
        for _ in range(2):
            for session in "abc":
                check(device, session, range(1, 5))
        device.settle()
        books_close(device)
        taken = device.memory.journal.take()
        assert taken is not None
        records, _ = decode_journal(taken.frames)
        assert verify_vram(records, taken.snapshot or b"").state == device.state
        assert decode_state(taken.snapshot or b"").sessions == {}


@pytest.mark.parametrize("host_buffers", [0, 1, 8])
def test_the_oldest_goes_to_disk_when_the_hosts_memory_is_full(tmp_path: Path, host_buffers: int) -> None:
    with memory_device(4 * BUFFER, tmp_path, host_bytes=host_buffers * BUFFER) as device:
        for session in "abc":
            device.open(session)
            fill(device, session, 4)
        device.settle()
        store = device.memory.store
        assert store.host_used_bytes == min(host_buffers, 8) * BUFFER
        assert len(list(tmp_path.glob("*.chunk"))) > 0 or host_buffers == 8
        for session in "abc":
            check(device, session, range(1, 5))
        device.settle()
        for session in "abc":
            device.close(session)
        device.settle()
        assert list(tmp_path.iterdir()) == []
        assert (store.host_used_bytes, store.disk_used_bytes) == (0, 0)


def test_of_a_victim_only_what_is_needed_goes_the_coldest_first(tmp_path: Path) -> None:
    with memory_device(4 * BUFFER) as device:
        device.open("a")
        fill(device, "a", 3)
        device.run("a", STEP.flush([1]))  # 2 is now the coldest
        device.open("b")
        fill(device, "b", 2)
        device.settle()
        assert list(device.tenants["a"].kept) == [2]
        assert device.tenants["b"].kept == {}


def test_a_session_larger_than_the_device_gives_up_its_own(tmp_path: Path) -> None:
    with memory_device(3 * BUFFER, idle_ms=1_000_000) as device:
        device.open("a")
        fill(device, "a", 9)
        for handle in range(1, 10):
            device.run("a", STEP.flush([handle]))
        check(device, "a", range(1, 10), plus=1.0)
        device.settle()
        books_close(device)


def test_a_batch_that_no_device_could_hold_is_refused_at_once(tmp_path: Path) -> None:
    with memory_device(3 * BUFFER) as device:
        device.open("a")
        done = device.begin("a", Flush(allocs=[(h, BUFFER) for h in range(4)]))
        assert done is not None and done.fault is not None
        assert done.fault.name == faults.QUOTA_EXCEEDED and not done.fault.fatal
        assert "request for 20.00 MiB does not fit the device" in done.fault.message
        fill(device, "a", 3)
        check(device, "a", range(1, 4))


def test_quota_counts_what_is_swapped_out() -> None:
    with memory_device(4 * BUFFER) as device:
        device.open("a", quota_bytes=3 * BUFFER)
        fill(device, "a", 3)
        device.open("b")
        fill(device, "b", 4)
        device.settle()
        assert sum(device.tenants["a"].sizes[h] for h in device.tenants["a"].kept) == 3 * BUFFER
        done = device.run("a", Flush(allocs=[(9, 8)]))
        assert done.fault is not None and "quota of 15.00 MiB, of which 15.00 MiB is in use" in done.fault.message


def test_noswap_sessions_stay(tmp_path: Path) -> None:
    with memory_device(4 * BUFFER) as device:
        device.open("a", swap=False)
        fill(device, "a", 3)
        device.open("b")
        done = device.begin("b", Flush(allocs=[(1, 2 * BUFFER)]))
        assert done is not None and done.fault is not None and "does not fit the device" in done.fault.message
        fill(device, "b", 1)
        check(device, "b", range(1, 2))
        assert device.tenants["a"].kept == {}


def test_a_batch_waits_until_another_session_is_idle(tmp_path: Path) -> None:
    with memory_device(4 * BUFFER, idle_ms=150) as device:
        device.open("a")
        fill(device, "a", 4)
        device.open("b")
        assert device.begin("b", STEP.flush([1], allocs=[(1, BUFFER)])) is None
        wakeup_ns = device.memory.next_wakeup_ns
        assert wakeup_ns == device.state.sessions["a"].used_ns + 150_000_000
        device.wait("b")
        assert device.begin("b", STEP.flush([1], allocs=[(1, BUFFER)])) is not None
        check(device, "a", range(1, 5))


def test_patience_ends(tmp_path: Path) -> None:
    with memory_device(4 * BUFFER, idle_ms=1_000_000) as device:
        device.open("a")
        fill(device, "a", 4)
        device.open("b", wait_ms=30)
        done = device.run("b", Flush(allocs=[(1, BUFFER)]))
        assert done.fault is not None and done.fault.name == faults.QUOTA_EXCEEDED
        assert "after waiting 0 s for what other tasks hold" in done.fault.message
        device.open("c", wait_ms=0)
        at_once = device.begin("c", Flush(allocs=[(1, BUFFER)]))
        assert at_once is not None and at_once.fault is not None and "waiting" not in at_once.fault.message


def test_a_waiting_batch_takes_what_a_closing_session_leaves(tmp_path: Path) -> None:
    with memory_device(4 * BUFFER, idle_ms=1_000_000) as device:
        device.open("a")
        fill(device, "a", 4)
        device.open("b")
        assert device.begin("b", Flush(allocs=[(1, BUFFER)])) is None
        device.close("a")
        device.wait("b")
        done = device.begin("b", Flush(allocs=[(1, BUFFER)]))
        assert done is not None and done.fault is None


@contextmanager
def files_of_at_most(nbytes: int) -> Iterator[None]:
    """The system refuses to write more, as a full disk does: in the middle of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("host_buffers", [0, 1])
def test_a_full_disk_leaves_the_victim_where_it_is(tmp_path: Path, host_buffers: int) -> None:
    with memory_device(4 * BUFFER, tmp_path, host_bytes=host_buffers * BUFFER) as device:
        device.open("a")
        fill(device, "a", 4)
        device.open("b", wait_ms=50)
        with files_of_at_most(MIB):
            done = device.run("b", Flush(allocs=[(1, 2 * BUFFER)]))
        assert done.fault is not None and "does not fit the device" in done.fault.message
        assert len(device.tenants["a"].kept) == host_buffers and list(tmp_path.iterdir()) == []
        books_close(device)
        check(device, "a", range(1, 5))


def test_when_one_swap_fails_the_next_victim_is_asked(tmp_path: Path) -> None:
    with memory_device(4 * BUFFER, tmp_path, host_bytes=BUFFER // 4) as device:
        device.open("a")
        fill(device, "a", 3)
        device.open("b")
        for handle in range(8):
            device.run("b", Flush(allocs=[(handle, BUFFER // 8)]))
        device.open("c", wait_ms=50)
        with files_of_at_most(MIB):
            done = device.run("c", Flush(allocs=[(1, BUFFER // 4)]))
        assert done.fault is None
        assert device.tenants["a"].kept == {} and len(device.tenants["b"].kept) == 2
        check(device, "a", range(1, 4))


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_chunk_ends_its_session_and_no_other(tmp_path: Path, damage: str) -> None:
    with memory_device(4 * BUFFER, tmp_path, host_bytes=0) as device:
        device.open("a")
        fill(device, "a", 4)
        device.open("b")
        fill(device, "b", 4)
        device.settle()
        for path in tmp_path.glob("*.chunk"):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.unlink()
            if damage != "gone":
                path.write_bytes(data[:-1] if damage == "cut" else data)
        done = device.run("a", STEP.flush([1], reads=[(1, 0, 8)]))
        assert done.fault is not None and done.fault.name == faults.SWAP_CORRUPT and done.fault.fatal
        assert done.reads == ()
        check(device, "b", range(1, 5))
        books_close(device)
        device.close("a")
        check(device, "b", range(1, 5))
        books_close(device)


def away(device: MemoryDevice) -> None:
    """All four buffers of ``a`` are on disk, and there is room for two beside those of ``b``, 3 and 4."""
    for session in "ab":
        device.open(session)
        fill(device, session, 4)
    device.run("b", Flush(frees=[1, 2]))
    device.settle()
    assert len(device.tenants["a"].kept) == 4


@contextmanager
def no_more_files() -> Iterator[None]:
    """The process may open no further file, as when all its descriptors are in use."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_what_cannot_be_read_for_want_of_a_file_is_not_lost(tmp_path: Path) -> None:
    """The batch is refused, the session lives, and its bits are there when the shortage is over."""
    with memory_device(4 * BUFFER, tmp_path, host_bytes=0) as device:
        away(device)
        with no_more_files():
            done = device.run("a", Flush(reads=[(1, 0, 8)]))
        assert done.fault is not None and not done.fault.fatal
        assert "bringing swapped memory back failed" in done.fault.message and "open files" in done.fault.message
        books_close(device)
        check(device, "a", range(1, 5))
        check(device, "b", range(3, 5))
        books_close(device)


def test_a_failure_of_ours_while_memory_comes_back_leaves_it_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with memory_device(4 * BUFFER, tmp_path, host_bytes=0) as device:
        away(device)

        def fails(*_: object) -> None:
            raise ZeroDivisionError("by zero")

        with monkeypatch.context() as patch:
            patch.setattr(device.memory, "_write", fails)
            done = device.run("a", Flush(reads=[(1, 0, 8)]))
        assert done.fault is not None and not done.fault.fatal and "the node failed while moving memory" in done.fault.message
        books_close(device)
        check(device, "a", range(1, 5))


def test_frees_of_swapped_buffers(tmp_path: Path) -> None:
    with memory_device(4 * BUFFER, tmp_path, host_bytes=BUFFER) as device:
        device.open("a")
        fill(device, "a", 4)
        device.open("b")
        fill(device, "b", 4)
        device.settle()
        assert len(device.tenants["a"].kept) == 4
        device.run("a", Flush(frees=[1, 2, 3]))
        device.settle()
        assert list(device.tenants["a"].kept) == [4]
        assert device.state.sessions["a"].logical == BUFFER
        check(device, "a", range(4, 5))
        books_close(device)


def test_what_is_expected_is_brought_back_into_free_memory(tmp_path: Path) -> None:
    with memory_device(4 * BUFFER) as device:
        device.open("a")
        fill(device, "a", 4)
        device.open("b")
        fill(device, "b", 3)
        device.settle()
        assert sorted(device.tenants["a"].kept) == [1, 2, 3]
        device.memory.expect("a")
        assert not device.state.sessions["a"].moving, "no memory is free, and no session gives any up for a guess"
        device.run("b", Flush(frees=[1, 2]))
        device.memory.expect("a")
        device.settle()
        assert sorted(device.tenants["a"].kept) == [1], "those used last come first"
        books_close(device)


def leaves_at(device: MemoryDevice, session: str) -> int:
    """The priority at which memory of this session leaves the device."""
    job = device.memory._moves[session].job
    assert job is not None
    return job.priority


def test_memory_leaves_at_the_priority_of_who_waits_for_it(tmp_path: Path) -> None:
    """A P0 that needs what an idle P4 holds does not wait behind what is moved for a P3; also when it is the P3 that began it."""
    with memory_device(4 * BUFFER) as device:
        device.open("victim", priority=4)
        fill(device, "victim", 4)
        device.open("low", priority=3)
        device.open("high", priority=0)
        batch = Flush(allocs=[(1, 2 * BUFFER)])
        assert device.begin("low", batch) is None
        assert leaves_at(device, "victim") == 3
        assert device.begin("high", batch) is None
        assert leaves_at(device, "victim") == 0
        assert device.run("high", batch).fault is None
        assert device.run("low", batch).fault is None


def test_what_leaves_for_the_reserve_goes_last_unless_its_own_session_waits(tmp_path: Path) -> None:
    with memory_device(4 * BUFFER, reserve_bytes=BUFFER) as device:
        device.open("a", priority=1)
        fill(device, "a", 2)
        device.open("b", priority=2)
        fill(device, "b", 2)
        assert leaves_at(device, "a") == 5
        assert device.begin("a", STEP.flush([1])) is None
        assert leaves_at(device, "a") == 1
        assert device.run("a", STEP.flush([1])).fault is None


def test_a_session_that_ends_while_its_memory_moves(tmp_path: Path) -> None:
    with memory_device(16 * BUFFER, tmp_path, host_bytes=BUFFER) as device:
        device.open("a")
        fill(device, "a", 16)
        device.open("b")
        assert device.begin("b", Flush(allocs=[(1, 16 * BUFFER)])) is None
        device.close("a")
        done = device.run("b", Flush(allocs=[(1, 16 * BUFFER)]))
        assert done.fault is None
        device.settle()
        assert list(tmp_path.iterdir()) == [] and device.memory.store.host_used_bytes == 0
        books_close(device)


def test_the_reserve_is_filled_beside_the_batch_that_used_it() -> None:
    with memory_device(4 * BUFFER, reserve_bytes=BUFFER) as device:
        device.open("a")
        fill(device, "a", 2)
        device.open("b")
        assert device.begin("b", Flush(allocs=[(1, BUFFER), (2, BUFFER)])) is not None, "what fits is not held up by the reserve"
        device.settle()
        assert device.state.free_bytes == BUFFER
        assert len(device.tenants["a"].kept) == 1


def test_temporaries_of_idle_sessions_go_before_their_buffers(tmp_path: Path) -> None:
    """The host back end keeps what a program worked in; that is given up without a copy."""
    with memory_device(4 * BUFFER, backend="host") as device:
        device.open("a")
        fill(device, "a", 1)
        done = device.run("a", chained().flush([1, 2]))
        assert done.fault is None
        workspace = device.tenants["a"].space.workspace_bytes
        assert workspace >= BUFFER
        device.open("b")
        fill(device, "b", 2)
        device.settle()
        assert device.tenants["a"].space.workspace_bytes == 0 and device.tenants["a"].kept == {}
        books_close(device)


def chained() -> Program:
    """A program with temporaries. Takes two handles: x, y."""
    b = Builder()
    x = b.external(DType.F64, (SIZE,))
    y = b.created(DType.F64, (1,))
    t = b.temp(DType.F64, (SIZE,))
    b.emit("add", t, (x, b.const(1.0, DType.F64)))
    u = b.temp(DType.F64, (SIZE,))
    b.emit("cumsum", u, (t,), (0,))
    b.emit("sum", y, (u,))
    return Program(b)


def test_random_tenants_find_what_they_wrote(tmp_path: Path) -> None:
    """Five sessions on a device of six buffers, 120 random batches: every value is what a session alone would have."""
    rng = np.random.default_rng(7)
    with memory_device(6 * BUFFER, tmp_path, host_bytes=6 * BUFFER) as device:
        wanted: dict[str, dict[int, float]] = {}
        for number in range(5):
            session = "abcde"[number]
            device.open(session, priority=1 + number % 3)
            wanted[session] = {}
        for _ in range(120):
            session = "abcde"[int(rng.integers(5))]
            mine = wanted[session]
            handle = int(rng.integers(1, 5))
            if handle not in mine:
                done = device.run(session, STEP.flush([handle], allocs=[(handle, BUFFER)]))
                mine[handle] = 1.0
            elif rng.random() < 0.15:
                done = device.run(session, Flush(frees=[handle]))
                del mine[handle]
            else:
                done = device.run(session, STEP.flush([handle], reads=[(handle, BUFFER - 8, 8)]))
                mine[handle] += 1.0
                assert floats(done.reads[0].inline)[0] == mine[handle]
            assert done.fault is None, done.fault
        device.settle()
        books_close(device)
        for session, mine in wanted.items():
            for handle, expected in mine.items():
                done = device.run(session, Flush(reads=[(handle, 8, 8)]))
                assert floats(done.reads[0].inline)[0] == expected
