"""Parts become segments; what is missing is said; what differs is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bus_schemas.journal import JournalPart
from scheduler.dispatch import BatchArrived, Dispatch, Journal, LaunchFinished, SessionOpened, Stimulus
from services.replay.lanes import Segment, Segments, check, segment_of_file

OFFSET = 10**18
STIMULI: list[Stimulus] = [
    SessionOpened(1, "a", 1, 1),
    SessionOpened(1, "b", 1, 1),
    *(BatchArrived(2 + seq, name, 1, seq, 10, b"x") for seq in range(3) for name in "ab"),
]


def parts(segment: int = 1, per_part: int = 3) -> list[JournalPart]:
    """A whole run in parts."""
    core, journal, out = Dispatch(), Journal(), []
    frames, first = b"", 0
    for stimulus in STIMULI:
        frames += journal.add(stimulus, core.on(stimulus))
        if journal.records - first == per_part:
            out.append(JournalPart("n", 1, 0, "dispatch", segment, first, per_part, frames, journal.digest, OFFSET))
            frames, first = b"", journal.records
    if frames:
        out.append(JournalPart("n", 1, 0, "dispatch", segment, first, journal.records - first, frames, journal.digest, OFFSET))
    return out


def gathered(given: list[JournalPart]) -> list[Segment]:
    segments = Segments()
    return [segment for part in given if (segment := segments.feed(part)) is not None] + list(segments.rest())


def test_parts_of_several_lanes_and_segments() -> None:
    mixed = [part for pair in zip(parts(1), [msgspec.structs.replace(p, gpu=1) for p in parts(1)], strict=True) for part in pair] + parts(2)
    found = gathered(mixed)
    assert [(segment.gpu, segment.number, segment.records, segment.gap) for segment in found] == [
        (0, 1, 8, ""),
        (0, 2, 8, ""),
        (1, 1, 8, ""),
    ]


def test_a_segment_run_again_is_equal() -> None:
    (segment,) = gathered(parts())
    verdict = check(segment)
    assert verdict is not None and verdict.equal
    assert (verdict.records, verdict.digest) == (8, parts()[-1].digest.hex())
    assert (verdict.begin_ns, verdict.end_ns) == (OFFSET + 1, OFFSET + 4)


def test_a_repeat_changes_nothing() -> None:
    given = parts()
    (segment,) = gathered([given[0], given[0], *given[1:]])
    assert segment.records == 8 and not segment.gap


def test_a_part_that_is_missing_is_said_and_the_next_segment_counts_again() -> None:
    given = parts()
    first, second = gathered([given[0], given[2], *parts(2)])
    assert "records 3 to 5 are missing" in first.gap
    verdicts = [check(first), check(second)]
    assert [(v.records, v.equal, bool(v.gap)) for v in verdicts if v is not None] == [(3, True, True), (8, True, False)]


def test_a_segment_without_its_beginning_cannot_be_run() -> None:
    (segment,) = gathered(parts()[1:])
    verdict = check(segment)
    assert verdict is not None and verdict.records == 0 and "records 0 to 2 are missing" in verdict.gap


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_changed_byte_is_found(at: int) -> None:
    given = parts()
    frames = bytearray(given[at].frames)
    frames[20] ^= 1
    given[at] = msgspec.structs.replace(given[at], frames=bytes(frames))
    (segment,) = gathered(given)
    verdict = check(segment)
    assert verdict is not None and not verdict.equal and f"record {3 * at}" in verdict.difference


def test_a_decision_that_was_changed_with_its_checksum_is_found() -> None:
    """An attacker that can write whole frames still cannot make the core decide so."""
    journal = Journal()
    frames = b"".join(journal.add(stimulus, ()) for stimulus in STIMULI)
    verdict = check(Segment("n", 1, 0, "dispatch", 1, [JournalPart("n", 1, 0, "dispatch", 1, 0, 8, frames, journal.digest, OFFSET)]))
    assert verdict is not None and "record 2, BatchArrived" in verdict.difference and "now (Launch" in verdict.difference


def test_a_digest_that_was_changed_is_found() -> None:
    given = parts()
    given[1] = msgspec.structs.replace(given[1], digest=bytes(32))
    (segment,) = gathered(given)
    verdict = check(segment)
    assert verdict is not None and verdict.difference.startswith("after record 5: the digest on record is 00")


def test_a_stimulus_that_cannot_have_happened_is_a_difference() -> None:
    journal = Journal()
    frames = journal.add(LaunchFinished(1, "nobody", 0, 1), ())
    verdict = check(Segment("n", 1, 0, "dispatch", 1, [JournalPart("n", 1, 0, "dispatch", 1, 0, 1, frames, journal.digest, 0)]))
    assert verdict is not None and verdict.difference.startswith("record 0: LaunchFinished")


def test_a_lane_of_a_newer_version_is_said() -> None:
    verdict = check(Segment("n", 1, 0, "billing", 1, parts()))
    assert verdict is not None and "no core for the lane 'billing'" in verdict.difference


def test_a_window_leaves_segments_out_and_ends_between_parts() -> None:
    (segment,) = gathered(parts())
    assert check(segment, from_ns=OFFSET + 5) is None
    assert check(segment, to_ns=OFFSET + 1) is None
    verdict = check(segment, from_ns=OFFSET + 2, to_ns=OFFSET + 3)
    assert verdict is not None and verdict.equal and verdict.records == 6, "the part that begins at its end is left out"


def test_a_file_is_a_segment_and_its_snapshot_lies_beside_it(tmp_path: Path) -> None:
    whole = b"".join(part.frames for part in parts())
    path = tmp_path / "gpu2-00000003-00000007.journal"
    path.write_bytes(whole[:-3])
    segment = segment_of_file(path)
    assert (segment.gpu, segment.epoch, segment.number, segment.lane, segment.snapshot) == (2, 3, 7, "dispatch", b"")
    verdict = check(segment)
    assert verdict is not None and verdict.equal and verdict.records == 7, "the torn last record is left out"
    path.with_suffix(".snapshot").write_bytes(b"state")
    assert segment_of_file(path).snapshot == b"state"
    assert replace(segment, number=8).number == 8
