"""Shared weights under memory pressure: what several hold stays, what one holds alone can be swapped, and bits come back as they went."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.memory_device import MemoryDevice, memory_device
from tests.support.node import increment
from wooly.link import Flush

MIB = 1 << 20
BUFFER = 5 * MIB
SIZE = BUFFER // 8


def weights(seed: int) -> memoryview:
    return memoryview(np.random.default_rng(seed).standard_normal(SIZE).view(np.uint8))


def load(device: MemoryDevice, session: str, buffers: int, seed: int = 0) -> None:
    for handle in range(1, 1 + buffers):
        done = device.run(session, Flush(uploads=[(handle, weights(seed + handle))]))
        assert done.fault is None, done.fault


def check(device: MemoryDevice, session: str, buffers: int, seed: int = 0) -> None:
    """One batch a buffer, its first and last bytes and some between."""
    for handle in range(1, 1 + buffers):
        places = (0, SIZE * 3, BUFFER - 64)
        done = device.run(session, Flush(reads=[(handle, at, 64) for at in places]))
        assert done.fault is None, done.fault
        assert [bytes(read.inline) for read in done.reads] == [bytes(weights(seed + handle)[at : at + 64]) for at in places]


def books_close(device: MemoryDevice) -> None:
    """Charges and the core's books are what the engine has given; every session's sizes are on the device, swapped or shared."""
    device.settle()
    charged = sum(device.content.charged(session) for session in device.tenants)
    used = device.engine.memory.used_bytes - sum(tenant.space.workspace_bytes for tenant in device.tenants.values())
    assert charged == used
    own = sum(t.space.resident_bytes - t.space.shared_bytes + t.space.workspace_bytes for t in device.tenants.values())
    promised = sum(state.grant + state.coming for state in device.state.sessions.values())
    assert device.state.used_bytes - promised == own + device.content.block_bytes
    for session, tenant in device.tenants.items():
        state = device.state.sessions[session]
        assert state.logical == sum(tenant.sizes.values()) + tenant.space.workspace_bytes
        assert state.shared == device.content.held_bytes(session)


def test_weights_that_one_session_holds_are_swapped_like_any_memory(tmp_path: Path) -> None:
    """Three tenants that opted in, each with other weights that fill the device: all finish, bit for bit."""
    with memory_device(4 * BUFFER, tmp_path) as device:
        for seed, session in ((100, "a"), (200, "b"), (300, "c")):
            device.open(session, domain="d")
            load(device, session, 4, seed)
        for _ in range(2):
            for seed, session in ((100, "a"), (200, "b"), (300, "c")):
                check(device, session, 4, seed)
        books_close(device)


def test_a_session_larger_than_the_device_gives_up_its_own_weights(tmp_path: Path) -> None:
    with memory_device(3 * BUFFER, tmp_path) as device:
        device.open("a", domain="d")
        load(device, "a", 6)
        check(device, "a", 6)
        books_close(device)


def test_what_two_hold_stays_and_is_charged_once(tmp_path: Path) -> None:
    with memory_device(5 * BUFFER, tmp_path) as device:
        for session in ("a", "b"):
            device.open(session, domain="d")
            load(device, session, 3)
        assert device.sent_bytes == 3 * BUFFER
        device.open("c")
        load(device, "c", 2, 500)
        done = device.run("c", Flush(allocs=[(9, BUFFER)]))
        assert done.fault is None, done.fault
        assert device.content.block_bytes == 3 * BUFFER, "c gave up of its own: what two hold stays"
        books_close(device)
        check(device, "c", 2, 500)
        for session in list(device.tenants):
            device.close(session)
        assert device.content.block_bytes == 0


def test_who_writes_under_pressure_gets_its_copy_and_the_others_keep_theirs(tmp_path: Path) -> None:
    with memory_device(4 * BUFFER, tmp_path) as device:
        for session in ("a", "b"):
            device.open(session, domain="d")
            load(device, session, 2)
        device.open("idle")
        load(device, "idle", 2, 700)
        for handle in (1, 2):
            done = device.run("a", increment(SIZE).flush([handle]))
            assert done.fault is None, done.fault
        check(device, "b", 2)
        for handle in (1, 2):
            done = device.run("a", Flush(reads=[(handle, 0, 64)]))
            expected = (np.frombuffer(weights(handle), np.float64)[:8] + 1.0).tobytes()
            assert bytes(done.reads[0].inline) == expected
        check(device, "idle", 2, 700)
        books_close(device)


def test_chunks_that_went_to_make_room_are_asked_for_again(tmp_path: Path) -> None:
    """The chunks reported to the client as present belong to a session that must give its memory to this very upload."""
    with memory_device(2 * BUFFER, tmp_path) as device:
        device.open("a", domain="d")
        load(device, "a", 2)
        device.open("b", domain="d")
        mixed = np.concatenate([np.frombuffer(weights(1), np.uint8)[: 4 * MIB], np.zeros(MIB, np.uint8)])
        before = device.sent_bytes
        done = device.run("b", Flush(uploads=[(1, memoryview(mixed))], reads=[(1, 4 * MIB - 8, 16)]))
        assert done.fault is None, done.fault
        assert bytes(done.reads[0].inline) == bytes(mixed[4 * MIB - 8 : 4 * MIB + 8])
        assert device.needs == 1
        assert device.sent_bytes - before == 5 * MIB
        check(device, "a", 2)
        books_close(device)
