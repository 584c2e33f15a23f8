"""The journal survives a torn end, refuses damage, and replays to the same digest."""

from __future__ import annotations

import pytest

from scheduler.dispatch import FIFO, BatchArrived, DispatchConfig, Journal, LaunchFinished, SessionOpened, Stimulus, decode_journal
from scheduler.dispatch.decisions import Launch
from scheduler.dispatch.snapshot import Record
from scheduler.errors import JournalError
from tests.support.replayed import ReplayMismatch, replay, verify

STIMULI: list[Stimulus] = [
    SessionOpened(1, "a", 1, 0),
    BatchArrived(2, "a", 1, 0, 10, b"x"),
    BatchArrived(3, "a", 1, 1, 10, b"y"),
    LaunchFinished(4, "a", 0, 100),
]


def written() -> tuple[list[bytes], bytes]:
    """The frames of a journal, and its digest."""
    dispatch, _ = replay([])
    journal = Journal()
    frames = [journal.add(stimulus, dispatch.on(stimulus)) for stimulus in STIMULI]
    return frames, journal.digest


def test_what_is_written_reads_back_and_replays_to_the_same_digest() -> None:
    frames, digest = written()
    records, used = decode_journal(b"".join(frames))
    assert [record.stimulus for record in records] == STIMULI
    assert used == sum(map(len, frames))
    assert replay([record.stimulus for record in records])[1].digest == digest
    verify(records)


@pytest.mark.parametrize("lost", [1, 9, 20])
def test_a_torn_last_record_is_left_out(lost: int) -> None:
    """The process died while it wrote: the frame is shorter than its length says, or even its head is incomplete."""
    frames, _ = written()
    records, used = decode_journal(b"".join(frames)[:-lost])
    assert len(records) == len(frames) - 1
    assert used == sum(map(len, frames[:-1]))


def test_damage_before_the_end_is_an_error() -> None:
    data = bytearray(b"".join(written()[0]))
    data[14] ^= 0xFF
    with pytest.raises(JournalError, match="record 0 at byte 0"):
        decode_journal(bytes(data))


def test_a_decision_that_replay_does_not_give_is_named() -> None:
    records, _ = decode_journal(b"".join(written()[0]))
    records[1] = Record(records[1].stimulus, (Launch("a", 5),))
    with pytest.raises(ReplayMismatch, match="record 1"):
        verify(records)


def test_a_replay_begins_with_the_configuration_it_is_given() -> None:
    """Under fifo the first batch of P4 is not stopped for P0."""
    stimuli: list[Stimulus] = [
        SessionOpened(1, "low", 1, 4), SessionOpened(1, "top", 1, 0), BatchArrived(2, "low", 1, 0, 10), BatchArrived(3, "top", 1, 0, 10),
    ]  # fmt: skip
    dispatch, journal = replay(stimuli, DispatchConfig(policy=FIFO))
    assert [flight.preempted for flight in dispatch.state.flights] == [False, False]
    assert [flight.preempted for flight in replay(stimuli)[0].state.flights] == [True, False]
    assert journal.digest != replay(stimuli)[1].digest
    records = [Record(stimulus, ()) for stimulus in stimuli[:2]] + [Record(stimuli[2], (Launch("low", 0),))]
    assert verify(records, DispatchConfig(policy=FIFO)).state.config.policy == FIFO
