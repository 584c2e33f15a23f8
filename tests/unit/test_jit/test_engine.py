"""Engines and spaces as an executor sees them: memory, keys, accounts, interruption, the object cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jit.backends import BACKENDS, create_engine
from jit.engine import Engine
from jit.errors import BadBuffer, Interrupted, KernelRefused, OutOfMemory, UnknownBackend
from jit.host.engine import HostEngine
from jit.memory import Capacity, SpaceMemory
from tests.support.builder import Builder
from tests.unit.test_jit.conftest import Check, interrupted, run
from wis.dtypes import DType
from wis.verify import Verified, verify
from wis.views import expand

F = DType.F32
RUNNING = [name for name in BACKENDS if name != "cuda"]
"""Backends that run without a GPU; ``cuda`` is the engine of ``opencl`` on another device."""


def small(backend: str, vram_bytes: int = 1 << 20) -> Engine:
    return create_engine(backend, cache_dir=None, threads=1, vram_bytes=vram_bytes)


def doubled(n: int = 64) -> tuple[Verified, list[int | float | complex]]:
    """CREATED y = EXTERNAL x + x."""
    b = Builder()
    x, y = b.external(F, (n,)), b.created(F, (n,))
    b.emit("add", y, [x, x])
    program, dims, scalars = b.finish()
    return verify(program, dims), scalars


def through_a_temp(n: int = 64) -> Verified:
    """CREATED y = the running sum of the running sum of EXTERNAL x: the first is a TEMP of 4n bytes that no fusion removes."""
    b = Builder()
    x, t, y = b.external(F, (n,)), b.temp(F, (n,)), b.created(F, (n,))
    b.emit("cumsum", t, [x], (0,))
    b.emit("cumsum", y, [t], (0,))
    program, dims, _ = b.finish()
    return verify(program, dims)


def test_unknown_backends_name_the_known_ones() -> None:
    with pytest.raises(UnknownBackend, match="cuda, host, opencl, reference"):
        create_engine("abacus", cache_dir=None, threads=1, vram_bytes=0)


def test_what_spaces_put_aside_stays_within_the_capacity() -> None:
    capacity = Capacity(1 << 20)
    spaces = [SpaceMemory(capacity) for _ in range(4)]
    for space in spaces:
        space.alloc(1, 1 << 18)
        space.free(1)
    assert capacity.idle_bytes == 1 << 20
    kept = spaces[0].alloc(1, 1 << 18, zero=False)
    assert capacity.idle_bytes == 3 << 18
    spaces[3].alloc(1, 3 << 18)
    assert capacity.idle_bytes + capacity.used_bytes <= 1 << 20
    kept.data[:] = 7
    for space in spaces:
        space.clear()
    assert (capacity.used_bytes, capacity.idle_bytes) == (0, 0)
    assert not spaces[1].alloc(1, 1 << 18, zero=False).data.any()


def test_a_machine_with_less_memory_than_configured_is_out_of_memory() -> None:
    capacity = Capacity(1 << 61)
    space = SpaceMemory(capacity)
    with pytest.raises(OutOfMemory):
        space.alloc(1, 1 << 60)
    assert (capacity.used_bytes, space.resident_bytes, 1 in space) == (0, 0, False)


def greatest(n: int, kept: int = 200) -> Verified:
    """The ``kept`` greatest of one element that is repeated ``n`` times: keys for all of them are sorted in scratch memory."""
    b = Builder()
    x, y, i = b.external(F, (n,), (0,)), b.created(F, (kept,)), b.created(DType.I64, (kept,))
    b.emit("topk", [y, i], [x], (0, 1))
    program, dims, _ = b.finish()
    return verify(program, dims)


@pytest.mark.parametrize("name", ["argmax", "scatter", "matmul", "sum"])
def test_what_could_not_be_stopped_for_long_is_refused(name: str) -> None:
    """A stop waits for a unit, and other sessions with it."""
    n, b = 1 << 40, Builder()
    if name == "matmul":
        n >>= 6
        b.emit(name, b.created(F, (64, 64)), [b.external(F, (64, n), (0, 0)), b.external(F, (n, 64), (0, 0))])
    elif name == "scatter":
        b.emit(name, b.external(F, (1,)), [b.const(1, F), b.external(DType.I64, (n,), (0,))], (0, 1))
    elif name == "argmax":
        b.emit(name, b.created(DType.I64, (1,)), [b.external(F, (n,), (0,))], (0,))
    else:  # by the reference
        b.emit(name, b.created(DType.C64, (1,)), [b.external(DType.C64, (n,), (0,))])
    program, dims, _ = b.finish()
    with pytest.raises(KernelRefused, match="cannot be interrupted"):
        small("host").prepare(verify(program, dims))


def test_much_scratch_memory_counts_as_workspace_and_is_not_kept() -> None:
    engine = small("host", 128 << 20)
    assert isinstance(engine, HostEngine)
    assert engine.prepare(greatest(1 << 20)).workspace_bytes == 0
    wide = engine.prepare(greatest(1 << 25))  # 512 MiB
    assert wide.workspace_bytes >= 448 << 20
    space = engine.open_space()
    space.alloc(1, 4)
    with pytest.raises(OutOfMemory):
        space.run(wide, [], [1, 2, 3])
    engine.walker.reserve(512 << 20)
    space.run(engine.prepare(greatest(100, 1)), [], [1, 2, 3])
    assert engine.walker.scratch_bytes <= 64 << 20


@pytest.mark.parametrize("backend", ["host", "opencl"])
def test_elements_that_the_reference_repeats_count_as_workspace(backend: str) -> None:
    b = Builder()
    x, y = b.external(DType.C64, (1 << 25, 33), (0, 0)), b.created(DType.C64, (1, 1))
    b.emit("sum", y, [x])
    program, dims, scalars = b.finish()
    engine = small(backend)
    prepared = engine.prepare(verify(program, dims))
    assert prepared.workspace_bytes > 8 << 30
    space = engine.open_space()
    space.alloc(0, 8)
    with pytest.raises(OutOfMemory):
        space.run(prepared, scalars, [0, 1])


@pytest.mark.parametrize("backend", ["host", "opencl"])
def test_more_rows_than_blocks_have_numbers_are_refused(backend: str) -> None:
    """The number of a block is an i32: a block behind 2^31 would take its elements from before the buffer."""
    rows = (1 << 31) + 16
    b = Builder()
    x, y = b.external(DType.U8, (rows, 40)), b.created(DType.U8, (rows, 1), (3, 1))
    b.emit("sum", y, [x])
    program, dims, _ = b.finish()
    with pytest.raises(KernelRefused, match=f"{rows} rows"):
        small(backend).prepare(verify(program, dims))


@pytest.mark.parametrize("backend", RUNNING)
class TestSpace:
    def test_new_memory_is_zero_even_where_old_data_was(self, backend: str) -> None:
        space = small(backend).open_space()
        for nbytes in (100, 100, 97):
            space.alloc(1, nbytes)
            assert bytes(space.read(1, 0, nbytes)) == bytes(nbytes)
            space.write(1, 0, b"\xff" * nbytes)
            space.free(1)

    def test_temporaries_count_against_the_capacity(self, backend: str) -> None:
        engine = small(backend, 3 << 20)
        prepared = engine.prepare(through_a_temp(1 << 18))
        assert 1 << 20 <= prepared.workspace_bytes < 9 << 17
        space, other = engine.open_space(), engine.open_space()
        space.alloc(1, 1 << 20)
        other.alloc(1, 1 << 20)
        with pytest.raises(OutOfMemory):
            space.run(prepared, [], [1, 2])
        assert space.resident_bytes == 1 << 20
        other.close()
        space.run(prepared, [], [1, 2])
        space.trim()
        assert space.workspace_bytes == 0
        space.alloc(3, 1 << 20)
        space.close()
        other.alloc(1, 3 << 20)

    def test_capacity_is_shared_and_given_back(self, backend: str) -> None:
        engine = small(backend, 1000)
        one, two = engine.open_space(), engine.open_space()
        one.alloc(1, 600)
        with pytest.raises(OutOfMemory, match="600 of 1000"):
            two.alloc(1, 401)
        two.alloc(1, 400)
        one.close()
        assert (one.resident_bytes, two.resident_bytes) == (0, 400)
        two.alloc(2, 600)

    def test_ranges_and_keys_are_checked(self, backend: str) -> None:
        space = small(backend).open_space()
        space.alloc(1, 10)
        for wrong in (lambda: space.alloc(1, 5), lambda: space.free(2), lambda: space.read(1, 4, 7), lambda: space.write(1, -1, b"x")):
            with pytest.raises(BadBuffer):
                wrong()

    def test_runs_allocate_what_they_create(self, backend: str) -> None:
        engine = small(backend)
        space = engine.open_space()
        verified, scalars = doubled()
        space.alloc(7, 256)
        space.write(7, 0, np.arange(64, dtype=np.float32).tobytes())
        launch = space.run(engine.prepare(verified), scalars, [7, 8])
        assert np.array_equal(np.frombuffer(space.read(8, 0, 256), np.float32), 2.0 * np.arange(64))
        assert space.size(8) == 256 and space.resident_bytes == 512
        assert launch.instructions == 64 and launch.trap is None
        assert 0 < launch.core_ns <= (launch.end_ns - launch.start_ns) * launch.cores and launch.cores == 1

    def test_a_run_that_does_not_fit_changes_nothing(self, backend: str) -> None:
        engine = small(backend, 500)
        space = engine.open_space()
        verified, scalars = doubled()
        space.alloc(7, 256)
        with pytest.raises(OutOfMemory):
            space.run(engine.prepare(verified), scalars, [7, 8])
        with pytest.raises(BadBuffer):
            space.size(8)
        assert space.resident_bytes == 256

    def test_one_buffer_cannot_stand_for_two(self, backend: str) -> None:
        engine = small(backend)
        space = engine.open_space()
        b = Builder()
        x, y = b.external(F, (4,)), b.external(F, (4,))
        b.emit("neg", y, [x])
        program, dims, scalars = b.finish()
        space.alloc(1, 16)
        with pytest.raises(BadBuffer, match="twice"):
            space.run(engine.prepare(verify(program, dims)), scalars, [1, 1])

    def test_runs_check_their_keys(self, backend: str) -> None:
        engine = small(backend)
        space = engine.open_space()
        verified, scalars = doubled()
        prepared = engine.prepare(verified)
        space.alloc(1, 255)
        for keys in ([1, 2], [3, 2], [1]):
            with pytest.raises(BadBuffer):
                space.run(prepared, scalars, keys)
        with pytest.raises(ValueError, match="scalars"):
            space.alloc(5, 256)
            space.run(prepared, [*scalars, 1.0], [5, 6])

    def test_an_index_out_of_range_traps_and_reads_zero(self, backend: str) -> None:
        engine = small(backend)
        b = Builder()
        x, places, y = b.external(F, (4,)), b.external(DType.I64, (3,)), b.created(F, (3,))
        b.emit("gather", y, [x, places], (0,))
        inputs = {x.buffer: np.ones(4, np.float32), places.buffer: np.array([0, 9, -1])}
        result, launch = run(engine, b, inputs)
        assert (launch.trap, launch.trap_at) == ("index 9 is out of bounds for dimension 0 with size 4", 0)
        assert np.array_equal(np.frombuffer(result[y.buffer], np.float32), [1, 0, 1])
        inputs[places.buffer] = np.array([0, 1, 2])
        launch = run(engine, b, inputs)[1]
        assert (launch.trap, launch.trap_at) == (None, -1)

    def test_the_first_trap_is_reported_by_instruction_dimension_and_index(self, backend: str) -> None:
        """Of four traps of two instructions (one of them on a type that back ends leave to the reference): the first one's least index."""
        engine = small(backend)
        b = Builder()
        x, rows, columns = b.external(F, (4, 5)), b.external(DType.I64, (3,)), b.external(DType.U64, (3,))
        sums, wide = b.created(F, (3,)), b.external(DType.C128, (4,))
        b.emit("add", b.created(F, (4, 5)), [x, x])
        b.emit("index", sums, [x, rows, columns])
        b.emit("scatter", wide, [b.external(DType.C128, (3,)), rows], (0, 2))
        inputs = {x.buffer: np.ones(20, np.float32), rows.buffer: np.array([3, -4, 1])}

        def trap(*values: int) -> tuple[str | None, int]:
            launch = run(engine, b, {**inputs, columns.buffer: np.array(values, np.int64)})[1]
            return launch.trap, launch.trap_at

        assert trap(0, 4, 1) == (None, -1)
        assert trap(7, 6, 9) == ("index 6 is out of bounds for dimension 1 with size 5", 1)
        assert trap(7, -1, 9) == ("index -1 is out of bounds for dimension 1 with size 5", 1)
        inputs[rows.buffer] = np.array([4, -5, 1])
        assert trap(7, -1, 9) == ("index -5 is out of bounds for dimension 0 with size 4", 1)
        inputs[rows.buffer] = np.array([3, 4, 1])
        assert trap(0, 1, 2) == ("index 4 is out of bounds for dimension 0 with size 4", 1)


def test_interrupt_stops_a_run_between_phases_and_spares_the_next(host: Engine) -> None:
    b = Builder()
    x = b.external(F, (128, 128))
    for _ in range(1500):
        b.emit("sort", [b.temp(F, (128, 128)), b.temp(DType.I64, (128, 128))], [x], (1, 0))
        b.emit("neg", x, [x])
    assert isinstance(interrupted(host, lambda: run(host, b, {})), Interrupted)
    verified, scalars = doubled()
    space = host.open_space()
    space.alloc(1, 256)
    space.run(host.prepare(verified), scalars, [1, 2])


def test_objects_are_found_on_disk_and_damaged_ones_are_made_again(tmp_path: Path) -> None:
    def compiled() -> int:
        engine = create_engine("host", cache_dir=tmp_path, threads=1, vram_bytes=1 << 20)
        assert isinstance(engine, HostEngine)
        engine.prepare(doubled()[0])
        count = engine.toolchain.compiled
        engine.close()
        return count

    first = compiled()
    assert first > 0 and compiled() == 0
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert compiled() == first
    assert compiled() == 0


def test_temporaries_written_in_parts_wait_for_the_previous_owner_of_their_bytes(check: Check) -> None:
    """Two halves of a concatenation land in memory that an earlier temporary still needs for a while."""
    b = Builder()
    x = b.external(F, (64, 64))
    previous = x
    for _ in range(6):
        half = b.temp(F, (64, 64))
        b.emit("matmul", half, [previous, x])
        joined = b.temp(F, (128, 64))
        top = b.operand(joined, F, (64, 64))
        bottom = b.operand(joined, F, (64, 64), offset=64 * 64)
        b.emit("max", top, [half, x])
        total = b.temp(F, (1, 64))
        b.emit("sum", total, [half])
        b.emit("min", bottom, [half, expand(total, (64, 64))])
        previous = b.temp(F, (64, 64))
        b.emit("matmul", previous, [b.operand(joined, F, (64, 128)), joined])
        squashed = b.temp(F, (64, 64))
        b.emit("tanh", squashed, [previous])
        previous = squashed
    y = b.created(F, (64, 64))
    b.emit("neg", y, [previous])
    rng = np.random.default_rng(0)
    check(b, {x.buffer: rng.standard_normal((64, 64)).astype(np.float32) * 0.01}, [(y, 4096.0)])
