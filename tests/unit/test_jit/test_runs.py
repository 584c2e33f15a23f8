"""Runs as an executor sees them: begin, pieces, stops, what may happen between two pieces."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jit.backends import BACKENDS, create_engine
from jit.engine import Engine, Stop
from jit.errors import BadBuffer
from tests.support.builder import Builder
from wis.dtypes import DType
from wis.verify import Verified, verify

F = DType.F32
RUNNING = [name for name in BACKENDS if name != "cuda"]
"""Backends that run without a GPU; ``cuda`` is the engine of ``opencl`` on another device."""
N = 512


@pytest.fixture(scope="module", params=RUNNING)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder: Path = tmp_path_factory.mktemp("objects")
    made = create_engine(request.param, cache_dir=folder, threads=1, vram_bytes=1 << 26)
    yield made
    made.close()


def sums(steps: int = 6) -> Verified:
    """x becomes its running sum, ``steps`` times, through temporaries; y keeps the last but one; z is only read."""
    b = Builder()
    x, z, y = b.external(F, (N,)), b.external(F, (N,)), b.created(F, (N,))
    for step in range(steps):
        t = b.temp(F, (N,))
        b.emit("cumsum", t, [x], (0,))
        b.emit("mul", x, [t, z])
        if step == steps - 2:
            b.emit("cast", y, [x])
    return verify(*b.finish()[:2])


def filled(engine: Engine, space: Any) -> None:
    for key, value in ((7, 1.0), (8, 0.5)):
        space.alloc(key, 4 * N)
        space.write(key, 0, np.full(N, value, np.float32).tobytes())


KEYS = [7, 8, 9]


def bytes_of(space: Any) -> list[bytes]:
    return [bytes(space.read(key, 0, 4 * N)) for key in KEYS]


@pytest.fixture
def begun(engine: Any) -> Iterator[tuple[Any, Any]]:
    """(space, run) of which nothing ran."""
    space = engine.open_space()
    filled(engine, space)
    yield space, space.begin(engine.prepare(sums()), [], KEYS)
    engine.cut_after = 0
    space.close()


def expected(engine: Engine) -> tuple[list[bytes], int]:
    space = engine.open_space()
    filled(engine, space)
    launch = space.run(engine.prepare(sums()), [], KEYS)
    found = bytes_of(space)
    space.close()
    return found, launch.instructions


def piece(engine: Any, run: Any) -> Any:
    """One claim, or one launch."""
    engine.cut_after = 1
    launch = run.go()
    engine.cut_after = 0
    return launch


def test_only_external_buffers_that_are_written_are_writes(engine: Any) -> None:
    assert engine.prepare(sums()).writes == {0}


def test_a_word_that_is_reached_stops_a_run_before_it_does_anything(engine: Any, begun: tuple[Any, Any]) -> None:
    space, run = begun
    word = np.array([5], np.uint64)
    before = bytes_of(space)
    for value in (5, 4, 0):
        launch = run.go(stop=Stop(word.ctypes.data, value))
        assert (launch.stopped, run.over, launch.instructions) == (True, False, 0)
    assert bytes_of(space) == before
    launch = run.go(stop=Stop(word.ctypes.data, 6))
    assert not launch.stopped and run.over and (bytes_of(space), launch.instructions) == expected(engine)


def test_values_of_the_word_have_64_bits(engine: Any, begun: tuple[Any, Any]) -> None:
    _, run = begun
    word = np.array([(1 << 63) + 2], np.uint64)
    assert run.go(stop=Stop(word.ctypes.data, (1 << 63) + 2)).stopped
    assert not run.go(stop=Stop(word.ctypes.data, (1 << 63) + 3)).stopped


def test_the_shortest_limit_lets_a_run_come_to_its_end(engine: Any, begun: tuple[Any, Any]) -> None:
    space, run = begun
    pieces = 1
    while run.go(limit_ns=1).stopped:
        pieces += 1
    assert 1 < pieces <= 30 and bytes_of(space) == expected(engine)[0]


def test_a_long_limit_does_not_stop_it(engine: Any, begun: tuple[Any, Any]) -> None:
    _, run = begun
    assert not run.go(limit_ns=1 << 40).stopped


def test_an_interrupted_piece_can_be_resumed(engine: Any) -> None:
    """Also one that is interrupted inside of its longest instruction."""
    space = engine.open_space()
    filled(engine, space)
    run = space.begin(engine.prepare(sums(60)), [], KEYS)
    done = threading.Event()

    def interrupting() -> None:
        while not done.is_set():
            engine.interrupt()
            done.wait(0.0005)

    thread = threading.Thread(target=interrupting)
    thread.start()
    launches = [run.go()]
    while not run.over and len(launches) < 10_000:
        launches.append(run.go())
    done.set()
    thread.join()
    while not run.over:
        launches.append(run.go())
    found = bytes_of(space)
    space.close()
    whole = engine.open_space()
    filled(engine, whole)
    want = whole.run(engine.prepare(sums(60)), [], KEYS)
    assert found == bytes_of(whole) and launches[-1].instructions == want.instructions
    whole.close()


def test_one_run_of_a_space_at_a_time(engine: Any, begun: tuple[Any, Any]) -> None:
    space, run = begun
    prepared = engine.prepare(sums())
    piece(engine, run)
    with pytest.raises(ValueError, match="under way"):
        space.begin(prepared, [], [7, 8, 10])
    run.drop()
    run.drop()
    assert run.over
    with pytest.raises(ValueError, match="is over"):
        run.go()
    space.free(9)
    assert not space.run(prepared, [], KEYS).stopped


def test_temporaries_outlive_a_trim_between_two_pieces(engine: Any, begun: tuple[Any, Any]) -> None:
    space, run = begun
    while not run.over:
        piece(engine, run)
        space.trim()
    assert bytes_of(space) == expected(engine)[0]


def test_a_buffer_that_is_away_ends_the_run_and_nothing_else(engine: Any, begun: tuple[Any, Any]) -> None:
    space, run = begun
    piece(engine, run)
    space.park(8)
    with pytest.raises(BadBuffer, match="parked"):
        run.go()
    assert run.over
    space.unpark(8)
    space.write(8, 0, np.full(N, 0.5, np.float32).tobytes())
    space.write(7, 0, np.full(N, 1.0, np.float32).tobytes())
    space.free(9)
    space.run(engine.prepare(sums()), [], KEYS)
    assert bytes_of(space) == expected(engine)[0]


def test_a_buffer_that_another_took_the_place_of_ends_the_run(engine: Any, begun: tuple[Any, Any]) -> None:
    space, run = begun
    piece(engine, run)
    space.free(8)
    space.alloc(8, 16)  # too short for the program
    with pytest.raises(BadBuffer):
        run.go()


def test_a_shared_buffer_that_a_run_writes_gets_a_block_of_its_own(engine: Any) -> None:
    one, other = engine.open_space(), engine.open_space()
    filled(engine, one)
    shared = one.share(7)
    other.attach(7, shared)
    other.attach(8, one.share(8))
    before = bytes(one.read(7, 0, 4 * N))
    other.run(engine.prepare(sums()), [], KEYS)
    assert bytes(one.read(7, 0, 4 * N)) == before
    assert bytes_of(other) == expected(engine)[0]
    assert other.shared_bytes == 4 * N
    one.close()
    other.close()


def test_a_space_that_closes_drops_its_run(engine: Any, begun: tuple[Any, Any]) -> None:
    space, run = begun
    piece(engine, run)
    space.close()
    assert run.over
