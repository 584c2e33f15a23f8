"""What a session is built from again: which batches are kept, when an image is due, which buffers it has."""

from __future__ import annotations

import pytest
from blake3 import blake3

from bus_schemas.batch import Done, Fault, ReadResult
from tests.support.builder import Builder
from tests.support.node import Program, increment
from wis.dtypes import DType
from wooly.errors import RecoveryDivergedError
from wooly.link import Flush
from wooly.transport.replay import Kept, ReplayLog, groups

MIB = 1 << 20


def done(seq: int, *reads: ReadResult, fault: Fault | None = None) -> Done:
    return Done("s", seq, reads=reads, fault=fault)


def uploaded(handle: int, nbytes: int) -> Flush:
    return Flush(uploads=[(handle, memoryview(bytes(nbytes)))])


def test_more_than_its_memory_gives_the_log_up_for_good() -> None:
    log = ReplayLog(2 * MIB)
    log.keep(1, uploaded(1, MIB), done(1))
    assert log.whole and 1 in log and len(log) == 1
    log.keep(2, uploaded(2, MIB), done(2))
    assert not log.whole and len(log) == 0 and "more than WOOLY_RECOVERY_MB (2)" in log.lack
    log.keep(3, Flush(), done(3))
    assert not log.whole and 3 not in log


def test_a_refused_batch_gives_the_log_up() -> None:
    log = ReplayLog(MIB)
    log.keep(1, Flush(), done(1, fault=Fault("QuotaExceeded", "no memory", fatal=False)))
    assert not log.whole and log.lack == "batch 1 was refused"


def test_an_image_that_is_too_large_gives_the_log_up() -> None:
    log = ReplayLog(MIB)
    log.keep(1, Flush(), done(1))
    log.take(1, [(1, bytes(2 * MIB))])
    assert not log.whole and log.restore() == [] and "more than WOOLY_RECOVERY_MB (1)" in log.lack


@pytest.mark.parametrize(("extra", "fits"), [(0, True), (1, False)])
def test_whether_an_image_fits_depends_on_the_buffers_alone(extra: int, fits: bool) -> None:
    log = ReplayLog(MIB)
    for seq in range(1, 4):
        log.keep(seq, uploaded(1, MIB // 4), done(seq))
    log.keep(4, Flush(allocs=[(2, MIB - MIB // 4 + extra)]), done(4))
    assert log.whole and log.has_room_for_image(small=False) is log.has_room_for_image(small=True) is fits


@pytest.mark.parametrize(("nbytes", "small"), [(32 * MIB, True), (32 * MIB + 1, False)])
def test_a_small_image_is_one_batch(nbytes: int, small: bool) -> None:
    log = ReplayLog(64 * MIB)
    log.keep(1, Flush(allocs=[(1, nbytes)]), done(1))
    assert log.has_room_for_image(small=False) and log.has_room_for_image(small=True) is small


@pytest.mark.parametrize(
    ("upload_bytes", "since_s", "cost_s", "due"),
    [
        (0, 31, 0.5, True),
        (0, 31, 0.7, False),  # more than a fiftieth of the time
        (0, 29, 0.0, False),
        (MIB, 29, 0.5, True),  # the log is half full
        (MIB, 29, 2.9, True),
        (MIB, 29, 3.0, False),
    ],
)
def test_an_image_is_due_for_the_work_to_be_repeated_or_for_a_log_that_is_half_full(
    upload_bytes: int, since_s: float, cost_s: float, due: bool
) -> None:
    log = ReplayLog(2 * MIB)
    log.keep(1, uploaded(1, upload_bytes), done(1))
    assert log.image_due(since_s=since_s, target_s=30, cost_s=cost_s) == due


def test_without_batches_since_the_last_one_no_image_is_due() -> None:
    log = ReplayLog(MIB)
    assert not log.image_due(since_s=100, target_s=30, cost_s=0)
    log.keep(1, Flush(), done(1))
    log.take(1, [])
    assert not log.image_due(since_s=100, target_s=30, cost_s=0)


def test_the_buffers_of_a_session_are_those_of_the_image_and_of_the_batches_since() -> None:
    builder = Builder()
    x, y, z = builder.external(DType.F64, (4,)), builder.created(DType.F64, (4,), nbytes=256), builder.temp(DType.F64, (4,))
    builder.emit("add", z, (x, builder.const(1.0, DType.F64)))
    builder.emit("add", y, (z, z))
    program = Program(builder)
    log = ReplayLog(MIB)
    log.take(3, [(1, bytes(32)), (2, bytes(5))])
    log.keep(3, uploaded(9, 7), done(3))  # in the image already
    log.keep(4, program.flush([1, 10], allocs=[(11, 0)]), done(4))
    log.keep(5, increment(4).flush([1], frees=[2]), done(5))
    log.keep(6, uploaded(12, 3), done(6))
    assert log.live() == ({1: 32, 10: 256, 11: 0, 12: 3}, {12: bytes(3)})
    assert [seq for seq, _ in log] == [4, 5, 6] and 3 in log and 7 not in log


def test_only_buffers_that_were_written_are_fetched_for_an_image() -> None:
    """Weights that are used and not changed travel once, and are known from then on."""
    builder = Builder()
    weights, x = builder.external(DType.F64, (4,)), builder.external(DType.F64, (4,))
    builder.emit("add", x, (x, weights))
    step = Program(builder)
    log = ReplayLog(128 * MIB)
    log.take(3, [(1, b"a" * 32), (2, b"b" * 32), (3, bytes(40 * MIB)), (4, b"d")])
    log.keep(4, step.flush([1, 2]), done(4))
    log.keep(5, uploaded(5, 32), done(5))
    log.keep(6, step.flush([1, 5], frees=[4]), done(6))
    log.keep(7, Flush(uploads=[(4, memoryview(b"again"))]), done(7))
    held, known = log.live()
    assert held == {1: 32, 2: 32, 3: 40 * MIB, 4: 5, 5: 32}
    assert known == {1: b"a" * 32, 3: bytes(40 * MIB), 4: b"again"}
    assert log.has_room_for_image(small=True)
    log.keep(8, step.flush([3, 3]), done(8))
    assert not log.has_room_for_image(small=True) and log.has_room_for_image(small=False)


def test_what_an_image_fetches_is_estimated_while_an_answer_is_lost() -> None:
    """A batch may be answered before the one whose buffer it frees: that answer is sent again later."""
    log = ReplayLog(MIB)
    log.keep(1, Flush(allocs=[(1, 8)]), done(1))
    log.keep(3, Flush(allocs=[(3, 16)], frees=[2]), done(3))
    assert log.fetched_bytes() == 24


def test_groups_of_buffers_are_bounded_in_number_and_bytes() -> None:
    held = dict.fromkeys(range(2000), 0) | {3000: 100 * MIB, 3001: 1, 3002: 31 * MIB, 3003: MIB, 3004: 0}
    found = groups(held)
    assert [len(group) for group in found] == [1024, 976, 1, 2, 2]
    assert [entry for group in found for entry in group] == list(held.items())


def test_answers_that_have_been_taken_are_repeated_where_they_can_be_compared() -> None:
    flush = Flush(reads=[(1, 0, 4), (2, 0, MIB), (3, 0, 4)])
    kept = Kept(flush, (blake3(b"abcd").digest(), None, blake3(b"efgh").digest()))
    assert kept.again(whole=True) is flush
    assert kept.again(whole=False).reads == [(1, 0, 4), (3, 0, 4)]
    small = ReadResult(0, 4, b"abcd"), ReadResult(1, 4, b"efgh")
    kept.check(done(1, *small), whole=False)
    kept.check(done(1, small[0], ReadResult(1, MIB, blob="b"), small[1]), whole=True)
    for reads in ((small[1], small[1]), (small[0], ReadResult(1, 4, b"efgi"))):
        with pytest.raises(RecoveryDivergedError):
            kept.check(done(1, *reads), whole=False)
