"""A real node whose device is too small for its sessions: all of them finish, with the bits they get alone."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from tests.support.executor import chain_of
from tests.support.node import Node, increment, until
from wooly.errors import QuotaExceeded, QuotaReachedError, RefusedError, SwapCorruptError
from wooly.link import Flush
from wooly.session import Session

MIB = 1 << 20
DEVICE_MB = 32
BUFFERS, SIZE = 6, MIB // 2  # of f64: 24 MiB a session
NBYTES = 8 * SIZE
STEP = chain_of(2, SIZE)
ROUNDS = 4


def work(session: Session, seed: int, digests: dict[int, list[str]]) -> None:
    """Several rounds over all buffers, which no device of this size holds for three sessions at once; digests of what they end as."""
    rng = np.random.default_rng(seed)
    handles = range(1, BUFFERS + 1)
    for handle in handles:
        session.submit(Flush(uploads=[(handle, rng.random(SIZE).data.cast("B"))]))
    for turn in range(ROUNDS):
        for handle in handles:
            ticket = session.submit(STEP.flush([handle], reads=[(handle, 0, 8)]))
        if turn % 2:
            session.wait(ticket)  # a pause in which others may come
    digests[seed] = [blake3(bytes(session.wait(session.submit(Flush(reads=[(handle, 0, NBYTES)])))[0])).hexdigest() for handle in handles]


def together(node: Node, seeds: list[int]) -> dict[int, list[str]]:
    sessions = [node.open(prio=seed % 3 + 1, vram_wait_ms=120_000) for seed in seeds]
    digests: dict[int, list[str]] = {}
    threads = [threading.Thread(target=work, args=(session, seed, digests)) for session, seed in zip(sessions, seeds, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for session in sessions:
        session.close()
    return digests


def test_three_sessions_on_a_device_for_one(tmp_path: Path) -> None:
    small = {"WOOLY_DEVICE_VRAM_MB": str(DEVICE_MB), "WOOLY_SWAP_IDLE_MS": "20", "WOOLY_SWAP_HOST_MB": "16", "WOOLY_BACKEND": "host"}
    with Node(tmp_path, **small) as node:
        alone = {seed: together(node, [seed])[seed] for seed in (1, 2, 3)}
        assert together(node, [1, 2, 3]) == alone
        chunks = tmp_path / "server" / "swap"
        assert until(lambda: not list(chunks.rglob("*.chunk")), "swap files go with their sessions")


def test_a_batch_waits_for_a_session_that_ends(tmp_path: Path) -> None:
    """No session becomes idle here: the memory that comes free is that of the session that ends."""
    with Node(tmp_path, WOOLY_DEVICE_VRAM_MB="16") as node:
        first = node.open(prio=2)
        first.wait(first.submit(Flush(allocs=[(1, 12 * MIB)], reads=[(1, 0, 8)])))
        second = node.open(prio=2)
        ticket = second.submit(increment(SIZE).flush([1], allocs=[(1, 8 * MIB)], reads=[(1, 0, 8)]))
        until(lambda: waiting(node), "the second session waits for memory")
        first.close()
        assert np.frombuffer(second.wait(ticket)[0])[0] == 1.0


def test_bytes_of_uploads_that_were_refused_leave_room_for_others(tmp_path: Path) -> None:
    """A script that tries again with less after each refusal: what was refused is waited for no longer."""
    rng = np.random.default_rng(0)
    with Node(tmp_path) as node:
        session = node.open(required_vram_mb=8)
        session.wait(session.submit(Flush(allocs=[(1, 6 * MIB)])))
        for handle in range(2, 6):
            ticket = session.submit(Flush(uploads=[(handle, rng.random(3 * MIB // 8).data.cast("B"))]))
            with pytest.raises(QuotaExceeded):
                session.wait(ticket)
        fits = rng.random(2 * MIB // 8)
        (found,) = session.wait(session.submit(Flush(uploads=[(6, fits.data.cast("B"))], reads=[(6, 0, 2 * MIB)])))
        assert bytes(found) == fits.tobytes()


def test_uploads_wait_for_room_while_batches_are_under_way(tmp_path: Path) -> None:
    """A script that loads its inputs faster than they are used, with memory for one of them at a time."""
    rng = np.random.default_rng(0)
    slow = chain_of(100, MIB // 8)
    with Node(tmp_path) as node:
        session = node.open(required_vram_mb=8)
        session.submit(Flush(uploads=[(1, rng.random(MIB // 8).data.cast("B"))]))
        for handle in range(2, 40):
            data = rng.random(MIB // 8)
            session.submit(Flush(uploads=[(handle, data.data.cast("B"))], frees=[handle - 1]))
            session.submit(slow.flush([handle]))
        session.wait(session.submit(Flush()))


def test_an_upload_that_is_refused_is_not_forgotten_and_takes_no_room(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with Node(tmp_path) as node:
        session = node.open(required_vram_mb=8)
        session.wait(session.submit(Flush(uploads=[(1, np.zeros(16).data.cast("B"))])))
        ticket = session.submit(increment().flush([1], uploads=[(2, rng.random(12 * MIB // 8).data.cast("B"))]))
        with pytest.raises(QuotaReachedError, match="staged_bytes"):
            session.wait(ticket)
        ticket = session.submit(Flush(reads=[(1, 0, 8)]))
        with pytest.raises(RefusedError, match="were made or changed by work that was refused"):
            session.wait(ticket)
        fits = rng.random(6 * MIB // 8)
        (found,) = session.wait(session.submit(Flush(uploads=[(3, fits.data.cast("B"))], reads=[(3, 0, 6 * MIB)])))
        assert bytes(found) == fits.tobytes()


def waiting(node: Node) -> bool:
    return any(session.launches == 0 for session in node.stats().sessions)


def test_patience_is_the_sessions_own(tmp_path: Path) -> None:
    with Node(tmp_path, WOOLY_DEVICE_VRAM_MB="16") as node:
        first = node.open(prio=2)
        first.wait(first.submit(Flush(allocs=[(1, 12 * MIB)], reads=[(1, 0, 8)])))
        for wait_ms, text in ((0, "does not fit the device"), (300, r"after waiting \d+ s")):
            second = node.open(prio=2, vram_wait_ms=wait_ms)
            with pytest.raises(QuotaExceeded, match=text):
                second.wait(second.submit(Flush(allocs=[(1, 8 * MIB)], reads=[(1, 0, 8)])))


def test_damaged_swap_ends_its_session_by_name(tmp_path: Path) -> None:
    small = {"WOOLY_DEVICE_VRAM_MB": "16", "WOOLY_SWAP_IDLE_MS": "0", "WOOLY_SWAP_HOST_MB": "0"}
    with Node(tmp_path, **small) as node:
        first, second = node.open(prio=2), node.open(prio=2)
        data = np.random.default_rng(0).random(3 * SIZE)
        first.wait(first.submit(Flush(uploads=[(1, data.data.cast("B"))], reads=[(1, 0, 8)])))
        second.wait(second.submit(Flush(allocs=[(1, 12 * MIB)], reads=[(1, 0, 8)])))
        chunks = list((tmp_path / "server" / "swap").rglob("*.chunk"))
        assert len(chunks) == 3
        chunks[1].write_bytes(b"\0" * (4 * MIB))
        with pytest.raises(SwapCorruptError, match=r"chunk .* of swapped memory is not what was written"):
            first.wait(first.submit(Flush(reads=[(1, 0, 8)])))
        assert np.frombuffer(second.wait(second.submit(Flush(reads=[(1, 0, 8)])))[0])[0] == 0.0
