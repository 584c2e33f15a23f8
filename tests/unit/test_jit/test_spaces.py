"""Buffers that leave the device and come back, and buffers that share one block."""

from __future__ import annotations

import numpy as np
import pytest

from jit.backends import BACKENDS, create_engine
from jit.engine import Engine
from jit.errors import BadBuffer, OutOfMemory
from tests.support.builder import Builder
from wis.dtypes import DType
from wis.verify import Verified, verify

RUNNING = [name for name in BACKENDS if name != "cuda"]
"""Backends that run without a GPU; ``cuda`` is the engine of ``opencl`` on another device."""
PATTERN = bytes(range(256)) * 4


def small(backend: str, vram_bytes: int = 1 << 20) -> Engine:
    return create_engine(backend, cache_dir=None, threads=1, vram_bytes=vram_bytes)


def added_into(n: int = 64, *, created: bool = False) -> Verified:
    """EXTERNAL x += EXTERNAL y; with ``created``, also CREATED z = -y."""
    b = Builder()
    x, y = b.external(DType.F32, (n,)), b.external(DType.F32, (n,))
    b.emit("add", x, [x, y])
    if created:
        b.emit("neg", b.created(DType.F32, (n,)), [y])
    program, dims, _ = b.finish()
    return verify(program, dims)


@pytest.mark.parametrize("backend", RUNNING)
class TestParked:
    def test_a_parked_buffer_takes_no_memory_and_comes_back(self, backend: str) -> None:
        engine = small(backend, 2048)
        space, other = engine.open_space(), engine.open_space()
        space.alloc(1, 1024)
        space.write(1, 0, PATTERN)
        kept = bytes(space.read(1, 0, 1024))
        space.park(1)
        assert (space.resident_bytes, space.size(1), engine.memory.used_bytes) == (0, 1024, 0)
        other.alloc(1, 2048)
        with pytest.raises(OutOfMemory):
            space.unpark(1)
        assert (space.resident_bytes, space.size(1), engine.memory.used_bytes) == (0, 1024, 2048)
        other.free(1)
        space.unpark(1)
        space.write(1, 0, kept)
        assert bytes(space.read(1, 0, 1024)) == PATTERN and space.resident_bytes == 1024

    def test_only_size_and_free_take_its_key(self, backend: str) -> None:
        engine = small(backend)
        space = engine.open_space()
        for key in (1, 2):
            space.alloc(key, 256)
        space.park(1)
        prepared = engine.prepare(added_into())
        for wrong in (
            lambda: space.read(1, 0, 1), lambda: space.write(1, 0, b"x"), lambda: space.park(1), lambda: space.share(1),
            lambda: space.unshare(1), lambda: space.alloc(1, 8), lambda: space.unpark(2), lambda: space.run(prepared, [], [1, 2]),
        ):  # fmt: skip
            with pytest.raises(BadBuffer):
                wrong()
        space.free(1)
        with pytest.raises(BadBuffer):
            space.unpark(1)
        space.alloc(1, 8)
        assert bytes(space.read(1, 0, 8)) == bytes(8)

    def test_reused_memory_shows_no_other_sessions_bytes(self, backend: str) -> None:
        engine = small(backend, 4096)
        space, other = engine.open_space(), engine.open_space()
        space.alloc(1, 4096)
        space.park(1)
        other.alloc(1, 4096)
        other.write(1, 0, b"\xff" * 4096)
        other.park(1)
        space.unpark(1)
        assert not any(space.read(1, 0, 4096))


@pytest.mark.parametrize("backend", RUNNING)
class TestShared:
    def test_a_shared_block_is_counted_once_and_freed_with_its_last_holder(self, backend: str) -> None:
        engine = small(backend, 2048)
        one, two = engine.open_space(), engine.open_space()
        one.alloc(1, 1024)
        one.write(1, 0, PATTERN)
        shared = one.share(1)
        assert one.share(1) is shared
        two.attach(7, shared)
        two.attach(8, shared)
        assert (shared.holders, shared.nbytes, engine.memory.used_bytes) == (3, 1024, 1024)
        assert (one.resident_bytes, one.shared_bytes, two.resident_bytes, two.shared_bytes) == (1024, 1024, 2048, 2048)
        one.close()
        assert bytes(two.read(8, 0, 1024)) == PATTERN
        two.free(7)
        assert (shared.holders, engine.memory.used_bytes) == (1, 1024)
        two.free(8)
        assert (shared.holders, engine.memory.used_bytes, two.shared_bytes) == (0, 0, 0)
        for space in (one, two):
            with pytest.raises(BadBuffer):
                space.attach(9, shared)

    def test_a_write_leaves_the_other_holders_alone(self, backend: str) -> None:
        engine = small(backend, 4096)
        one, two = engine.open_space(), engine.open_space()
        one.alloc(1, 1024)
        one.write(1, 0, PATTERN)
        two.attach(1, one.share(1))
        with pytest.raises(BadBuffer):
            two.write(1, 1000, b"far too long for what is left")
        assert engine.memory.used_bytes == 1024
        two.write(1, 3, b"other")
        assert bytes(one.read(1, 0, 1024)) == PATTERN
        assert bytes(two.read(1, 0, 1024)) == PATTERN[:3] + b"other" + PATTERN[8:]
        assert (engine.memory.used_bytes, two.shared_bytes, one.shared_bytes) == (2048, 0, 1024)
        one.write(1, 0, b"!")  # the last holder: it simply becomes its own
        assert (engine.memory.used_bytes, one.shared_bytes) == (2048, 0)

    def test_a_run_that_writes_gets_blocks_of_its_own_or_changes_nothing(self, backend: str) -> None:
        engine = small(backend, 700)
        one, two = engine.open_space(), engine.open_space()
        one.alloc(1, 256)
        one.write(1, 0, np.arange(64, dtype=np.float32).tobytes())
        two.attach(1, one.share(1))
        two.attach(2, one.share(1))
        with pytest.raises(OutOfMemory):
            two.run(engine.prepare(added_into(created=True)), [], [1, 2, 3])
        assert (engine.memory.used_bytes, two.shared_bytes, two.resident_bytes) == (256, 512, 512)
        two.run(engine.prepare(added_into()), [], [1, 2])
        assert np.array_equal(np.frombuffer(two.read(1, 0, 256), np.float32), 2.0 * np.arange(64))
        for space, key in ((one, 1), (two, 2)):
            assert np.array_equal(np.frombuffer(space.read(key, 0, 256), np.float32), np.arange(64))
        assert (engine.memory.used_bytes, two.shared_bytes) == (512, 256)

    def test_unsharing_without_memory_changes_nothing(self, backend: str) -> None:
        engine = small(backend, 1500)
        one, two = engine.open_space(), engine.open_space()
        one.alloc(1, 1024)
        one.write(1, 0, PATTERN)
        two.attach(1, one.share(1))
        for attempt in (lambda: two.unshare(1), lambda: two.write(1, 0, b"x")):
            with pytest.raises(OutOfMemory):
                attempt()
        assert (two.shared_bytes, engine.memory.used_bytes) == (1024, 1024)
        with pytest.raises(BadBuffer):
            two.park(1)
        one.free(1)
        two.unshare(1)
        assert (two.shared_bytes, engine.memory.used_bytes) == (0, 1024)
        assert bytes(two.read(1, 0, 1024)) == PATTERN

    def test_both_written_buffers_of_one_block_part(self, backend: str) -> None:
        """x and y share one block and both are written: one copy is enough for two buffers without other holders."""
        engine = small(backend)
        space = engine.open_space()
        space.alloc(1, 256)
        space.write(1, 0, np.arange(64, dtype=np.float32).tobytes())
        space.attach(2, space.share(1))
        b = Builder()
        x, y = b.external(DType.F32, (64,)), b.external(DType.F32, (64,))
        b.emit("neg", x, [x])
        b.emit("abs", y, [x])
        program, dims, _ = b.finish()
        space.run(engine.prepare(verify(program, dims)), [], [1, 2])
        assert np.array_equal(np.frombuffer(space.read(1, 0, 256), np.float32), -np.arange(64, dtype=np.float32))
        assert np.array_equal(np.frombuffer(space.read(2, 0, 256), np.float32), np.arange(64))
        assert (space.resident_bytes, space.shared_bytes) == (512, 0)
        space.close()
        assert engine.memory.used_bytes == 0


def test_a_shared_block_stays_on_its_engine() -> None:
    one, two = small("reference"), small("reference")
    space = one.open_space()
    space.alloc(1, 8)
    with pytest.raises(BadBuffer):
        two.open_space().attach(1, space.share(1))
