"""Where swapped bytes are kept and who carries them: tiers, limits, damage, order of jobs."""

from __future__ import annotations

import select
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from services.server.executor.errors import SwapCorrupt, SwapFull
from services.server.executor.swap_mover import Gate, Job, Mover
from services.server.executor.swap_store import CHUNK_BYTES, Bytes, DiskTier, Kept, SwapStore
from tests.support.node import until

MIB = 1 << 20
rng = np.random.default_rng(3)


def put(store: SwapStore, data: Bytes) -> Kept:
    kept = Kept(data.size)
    for _ in store.put(kept, lambda at, into: np.copyto(into, data[at : at + into.size])):
        pass
    return kept


def get(store: SwapStore, kept: Kept) -> Bytes:
    out = np.zeros(kept.nbytes, np.uint8)

    def write(at: int, data: Bytes) -> None:
        out[at : at + data.size] = data

    for _ in store.get(kept, write):
        pass
    return out


@pytest.mark.parametrize("host_mib", [0, 3, 4, 9, 100])
@pytest.mark.parametrize("nbytes", [1, 1000, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES - 5])
def test_bytes_come_back_whatever_tier_they_are_in(tmp_path: Path, host_mib: int, nbytes: int) -> None:
    store = SwapStore(host_mib * MIB, DiskTier(tmp_path, 1 << 30))
    contents = [rng.integers(0, 256, nbytes, np.uint8) for _ in range(3)]
    kept = [put(store, data) for data in contents]
    assert store.host_used_bytes <= host_mib * MIB
    assert store.host_used_bytes + store.disk_used_bytes == 3 * nbytes
    for data, what in zip(contents, kept, strict=True):
        assert (get(store, what) == data).all()
        assert (get(store, what) == data).all(), "what is kept stays until it is dropped"
        store.drop(what)
    assert (store.host_used_bytes, store.disk_used_bytes, list(tmp_path.iterdir())) == (0, 0, [])


def test_the_oldest_leaves_the_hosts_memory(tmp_path: Path) -> None:
    store = SwapStore(2 * CHUNK_BYTES, DiskTier(tmp_path, 1 << 30))
    kept = [put(store, rng.integers(0, 256, CHUNK_BYTES, np.uint8)) for _ in range(3)]
    assert [what.chunks[0].memory is None for what in kept] == [True, False, False]


def test_without_a_disk_the_hosts_memory_is_all_there_is() -> None:
    store = SwapStore(CHUNK_BYTES, None)
    kept = put(store, np.ones(CHUNK_BYTES, np.uint8))
    with pytest.raises(SwapFull, match="there is no disk"):
        put(store, np.ones(2 * CHUNK_BYTES, np.uint8))
    assert store.host_used_bytes == CHUNK_BYTES
    store.drop(kept)
    assert store.host_used_bytes == 0


def test_what_is_left_is_given_up_a_chunk_at_a_time(tmp_path: Path) -> None:
    """``leave`` returns at once: it may be thousands of files, and all sessions wait for the thread that calls it."""
    store = SwapStore(CHUNK_BYTES, DiskTier(tmp_path, 1 << 30))
    kept = put(store, rng.integers(0, 256, 4 * CHUNK_BYTES, np.uint8))
    other = rng.integers(0, 256, 1000, np.uint8)
    store.leave(kept)
    assert (store.host_used_bytes, store.disk_used_bytes) == (CHUNK_BYTES, 3 * CHUNK_BYTES)
    assert [store.tidy() for _ in range(5)] == [True, True, True, False, False]
    assert (store.host_used_bytes, store.disk_used_bytes, list(tmp_path.iterdir())) == (0, 0, [])
    assert (get(store, put(store, other)) == other).all()


def test_what_was_left_makes_room_before_anybody_is_refused(tmp_path: Path) -> None:
    store = SwapStore(CHUNK_BYTES, DiskTier(tmp_path, 2 * CHUNK_BYTES))
    for _ in range(3):
        data = rng.integers(0, 256, 3 * CHUNK_BYTES, np.uint8)
        kept = put(store, data)
        assert (get(store, kept) == data).all()
        store.leave(kept)
    kept = put(store, data)
    with pytest.raises(SwapFull, match="in use"):
        put(store, rng.integers(0, 256, CHUNK_BYTES, np.uint8))
    store.drop(kept)
    assert (store.host_used_bytes, store.disk_used_bytes) == (0, 0)


@pytest.mark.parametrize("folder", ["", "/dev/shm"])
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("nbytes", [1 << 20, (1 << 20) + 1, 3 * MIB - 4096, 60])
def test_any_memory_goes_to_any_file_system(tmp_path: Path, folder: str, start: int, nbytes: int) -> None:
    """Past the cache or not, aligned or not: files have as many bytes as the chunk, and none of them shows."""
    with tempfile.TemporaryDirectory(dir=folder or tmp_path) as name:
        disk = DiskTier(Path(name), 1 << 30)
        memory = np.zeros(2 * nbytes + 8192, np.uint8)
        first = -memory.ctypes.data % 4096 + start
        data = memory[first : first + nbytes]
        data[:] = rng.integers(0, 256, nbytes, np.uint8)
        chunk = disk.put(data)
        (path,) = Path(name).iterdir()
        written = np.frombuffer(path.read_bytes(), np.uint8)
        assert written.nbytes == nbytes and (written == data).mean() < 0.2
        assert path.stem == chunk.hex() != blake3(data.data).hexdigest()
        into = np.zeros(nbytes + start, np.uint8)[start:]
        disk.read(chunk, into)
        assert (into == data).all()


def test_files_are_read_by_no_other_process(tmp_path: Path) -> None:
    """Each has a key of its own: the same bytes have another name and other contents, and a file that stayed behind gives nothing."""
    data = np.zeros(1000, np.uint8)
    one, other = DiskTier(tmp_path / "one", 1 << 20), DiskTier(tmp_path / "other", 1 << 20)
    names = one.put(data), one.put(data + 1), other.put(data)
    assert len(set(names)) == 3
    (first, second), (third,) = ({path.read_bytes() for path in (tmp_path / folder).iterdir()} for folder in ("one", "other"))
    assert len({first, second, third}) == 3
    stolen = tmp_path / "other" / f"{names[0].hex()}.chunk"
    stolen.write_bytes((tmp_path / "one" / stolen.name).read_bytes())
    with pytest.raises(SwapCorrupt):
        other.read(names[0], np.zeros(1000, np.uint8))


def test_equal_chunks_are_one_file_until_the_last_is_dropped(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, 100)
    data = np.arange(60, dtype=np.uint8)
    names = [disk.put(data) for _ in range(3)]
    assert len(set(names)) == 1 and disk.used_bytes == 60 and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(SwapFull, match="in use"):
        disk.put(data + 1)
    for name in names:
        into = np.zeros(60, np.uint8)
        disk.read(name, into)
        assert (into == data).all()
        disk.drop(name)
    assert (disk.used_bytes, list(tmp_path.iterdir())) == (0, [])


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d + b"x", lambda d: b"\xff" + d[1:], None])
def test_damage_is_found(tmp_path: Path, damage: object) -> None:
    disk = DiskTier(tmp_path, 100)
    name = disk.put(np.arange(60, dtype=np.uint8))
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    path.unlink()
    if callable(damage):
        path.write_bytes(damage(data))
    with pytest.raises(SwapCorrupt):
        disk.read(name, np.zeros(60, np.uint8))
    disk.drop(name)


def test_what_an_earlier_life_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("ab.chunk", "cd.part", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    DiskTier(tmp_path, 100)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.fixture
def mover() -> Iterator[Mover]:
    mover = Mover()
    yield mover
    mover.close()


def steps(
    done: list[str], name: str, count: int, go: threading.Event | None = None, stepping: threading.Event | None = None
) -> Iterator[None]:
    """Notes its name ``count`` times; the first step says that it is ``stepping`` and waits for ``go``."""
    for _ in range(count):
        if stepping is not None:
            stepping.set()
        if go is not None:
            assert go.wait(30)
        done.append(name)
        yield


def ended(mover: Mover, count: int) -> list[Job]:
    """The next jobs to end."""
    jobs: list[Job] = []
    while len(jobs) < count:
        assert select.select([mover.fileno()], [], [], 30)[0], "no job ended"
        jobs += mover.take()
    return jobs


def test_the_highest_priority_goes_on_first(mover: Mover) -> None:
    done: list[str] = []
    go, stepping = threading.Event(), threading.Event()
    mover.add(Job("low", 3, steps(done, "low", 3, go, stepping)))
    assert stepping.wait(30)
    mover.add(Job("high", 0, steps(done, "high", 2)))
    go.set()
    assert [job.session for job in ended(mover, 2)] == ["high", "low"]
    assert done == ["low", "high", "high", "low", "low"]


def test_a_job_may_become_urgent(mover: Mover) -> None:
    done: list[str] = []
    go, stepping = threading.Event(), threading.Event()
    mover.add(Job("first", 1, steps(done, "first", 2, go, stepping)))
    assert stepping.wait(30)
    later = Job("later", 4, steps(done, "later", 2))
    mover.add(later)
    later.priority = 0
    go.set()
    ended(mover, 2)
    assert done == ["first", "later", "later", "first"]


def test_what_is_to_be_tidied_waits_for_jobs_and_is_done() -> None:
    done: list[str] = []
    go, stepping, tidied = threading.Event(), threading.Event(), threading.Event()

    def tidy() -> bool:
        done.append("tidy")
        if done.count("tidy") == 3:
            tidied.set()
        return not tidied.is_set()

    mover = Mover(tidy)
    mover.add(Job("job", 4, steps(done, "job", 2, go, stepping)))
    assert stepping.wait(30)
    mover.stir()
    go.set()
    assert tidied.wait(30)
    mover.close()
    assert done == ["job", "job", "tidy", "tidy", "tidy"]


def test_stopping_a_job_waits_for_no_other(mover: Mover) -> None:
    done: list[str] = []
    go, stepping = threading.Event(), threading.Event()
    first, second = Job("first", 1, steps(done, "first", 2, go, stepping)), Job("second", 2, steps(done, "second", 2))
    mover.add(first)
    mover.add(second)
    assert stepping.wait(30)
    stopper = threading.Thread(target=mover.stop, args=(second,))
    stopper.start()
    until(lambda: second.stopped, "the wish to stop it")
    go.set()
    stopper.join(30)
    assert not stopper.is_alive()
    assert [job.session for job in ended(mover, 1)] == ["first"]
    assert "second" not in done


def test_what_a_stopped_job_had_begun_to_keep_is_given_back_at_once() -> None:
    stepping, tidied = threading.Event(), threading.Event()
    begun: list[str] = []

    def partial() -> Iterator[None]:
        begun.append("half a buffer")
        try:
            while True:
                stepping.set()
                yield
        finally:
            begun.clear()

    def tidy() -> bool:
        if not begun:
            tidied.set()
        return False

    mover = Mover(tidy)
    job = Job("out", 1, partial())
    mover.add(job)
    assert stepping.wait(30)
    mover.stop(job)
    assert not begun and tidied.wait(30)
    mover.close()


def test_an_internal_failure_is_reported_and_ends_only_its_job(mover: Mover) -> None:
    def fails() -> Iterator[None]:
        yield
        raise ZeroDivisionError("by zero")

    mover.add(Job("a", 1, fails()))
    mover.add(Job("b", 2, steps([], "b", 1)))
    assert [(job.session, job.failure) for job in ended(mover, 2)] == [("a", "ZeroDivisionError: by zero"), ("b", "")]


def test_the_launching_thread_goes_first_through_the_gate() -> None:
    gate = Gate()
    order: list[str] = []
    inside = threading.Event()

    def move() -> None:
        for _ in range(1000):
            with gate.moving():
                order.append("piece")
                inside.set()

    with gate.launching():
        mover = threading.Thread(target=move)
        mover.start()
        assert order == []
        order.append("launch")
    assert inside.wait(30)
    mover.join(30)
    assert order == ["launch", *["piece"] * 1000]
