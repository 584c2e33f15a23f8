"""Dims that grow evenly are prepared before they come; a guess changes nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import pytest
from blake3 import blake3

from bus_schemas.batch import Batch
from jit.backends import create_engine
from jit.host.engine import HostEngine
from services.server.executor.errors import Refused
from services.server.executor.programs import Foresight, Programs
from tests.support.builder import Builder
from wis.dtypes import DType
from wis.encoding import encode_program


def _dims(*numbers: int) -> bytes:
    return np.array(numbers, "<i8").tobytes()


def _batch(length: int) -> Batch:
    """A program over ``length`` elements."""
    b = Builder()
    x, y = b.external(DType.F32, (length,)), b.created(DType.F32, (length,))
    b.emit("neg", y, [x])
    program, dims, _ = b.finish()
    body = encode_program(program)
    return Batch("s", 1, 1, blake3(body).digest(), blake3(dims).digest(), body, dims)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[HostEngine]:
    engine = cast(HostEngine, create_engine("host", cache_dir=tmp_path, threads=1, vram_bytes=1 << 20))
    yield engine
    engine.close()


def test_two_equal_steps_are_continued() -> None:
    foresight = Foresight()
    assert foresight.next("t", b"p", b"1", _dims(8, 64)) is None
    assert foresight.next("t", b"p", b"2", _dims(9, 64)) is None
    assert foresight.next("t", b"q", b"2", _dims(1)) is None
    assert foresight.next("t", b"p", b"3", _dims(10, 64)) == _dims(11, 64)
    assert foresight.next("t", b"p", b"3", _dims(10, 64)) is None, "the same again is no step"
    assert foresight.next("t", b"p", b"1", _dims(8, 64)) is None
    assert foresight.next("t", b"p", b"4", _dims(9, 64)) is None
    assert foresight.next("t", b"p", b"5", _dims(10, 64)) == _dims(11, 64)


def test_what_was_foreseen_is_ready(engine: HostEngine) -> None:
    programs = Programs(engine)
    planner = engine.planner(_batch(1).program)
    for length in (4, 5):
        programs.ready(_batch(length), "t")
        assert programs.next(_batch(length), "t") is None
    for length in (6, 7, 8):
        programs.ready(_batch(length), "t")
        guess = programs.next(_batch(length), "t")
        assert guess is not None and (guess.program, guess.dims) == (_batch(length + 1).program, _batch(length + 1).dims)
        made = programs.ready(guess, "t")
        before = planner.full + planner.patched
        assert programs.ready(_batch(length + 1), "t") is made
        assert planner.full + planner.patched == before
    assert programs.next(_batch(8), "t") is None, "dims that come back are ready, and so are those after them"


def test_many_small_dims_are_forgotten_by_what_they_really_take(engine: HostEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.server.executor.programs._DIMS_BYTES", 64 << 10)
    programs = Programs(engine)
    for number in range(1_000):
        body = number.to_bytes(8, "little")
        with pytest.raises(Refused):
            programs.ready(msgspec.structs.replace(_batch(1), dims=blake3(body).digest(), dims_body=body), "t")
    assert len(programs._dims._entries) <= 128
    with pytest.raises(Refused, match="no numbers of 64 bits"):
        programs.ready(msgspec.structs.replace(_batch(1), dims=blake3(b"abc").digest(), dims_body=b"abc"), "t")


def test_a_wrong_guess_is_refused_and_forgotten(engine: HostEngine) -> None:
    programs = Programs(engine)
    guess = None
    for length in (2, 1, 0):
        programs.ready(_batch(length), "t")
        guess = programs.next(_batch(length), "t")
    assert guess is not None
    with pytest.raises(Refused):
        programs.ready(guess, "t")
    assert programs.ready(_batch(3), "t").buffers == ((12, False), (12, True))
