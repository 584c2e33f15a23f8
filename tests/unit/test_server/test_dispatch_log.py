"""The dispatch journal: the files and the parts on the bus are the same record; segments end and begin so that each replays by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus_schemas.journal import DISPATCH, JournalPart
from scheduler.dispatch import (
    BatchArrived,
    ConfigChanged,
    Dispatch,
    DispatchConfig,
    Journal,
    LaunchFinished,
    Record,
    SessionOpened,
    decode_journal,
    restore,
    snapshot,
)
from services.server import dispatch_log, journal_stream
from services.server.dispatch_log import DispatchLog
from services.server.journal_stream import Lane


def lane() -> Lane:
    return Lane("node", 1, 0, DISPATCH, lambda: None)


def play(log: DispatchLog, batches: int, first: int = 1) -> None:
    """One session's batches, each launched and finished."""
    for seq in range(first, first + batches):
        at_ns = 1000 * seq
        log.on(BatchArrived(at_ns, "s", 1, seq, 100, bytes(32)))
        log.on(LaunchFinished(at_ns + 500, "s", seq, 400))


def again(records: list[Record], state: bytes) -> tuple[Dispatch, Journal]:
    """The segment run again from where it began."""
    core = Dispatch(restore(state)) if state else Dispatch()
    journal = Journal()
    for record in records:
        decisions = core.on(record.stimulus)
        assert tuple(decisions) == record.decisions
        journal.add(record.stimulus, decisions)
    return core, journal


def test_long_records_are_cut_into_segments_that_replay_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch_log, "_SEGMENT_BYTES", 2000)
    ours = lane()
    log = DispatchLog(tmp_path, 0, 1, ours)
    log.on(SessionOpened(0, "s", 1, 0, 1))
    play(log, 60)
    log.close()
    parts: dict[int, list[JournalPart]] = {}
    for part in ours.parts:
        parts.setdefault(part.segment, []).append(part)
    assert len(parts) > dispatch_log._SEGMENTS_KEPT
    assert list(parts) == sorted(parts)
    seen = []
    for segment, of in parts.items():
        frames = b"".join(part.frames for part in of)
        assert [part.first for part in of] == [sum(p.records for p in of[:at]) for at in range(len(of))]
        records, taken = decode_journal(frames)
        assert taken == len(frames)
        core, journal = again(records, of[0].snapshot)
        assert journal.digest == of[-1].digest
        seen += records
        path = tmp_path / f"gpu0-00000001-{segment:014d}.journal"
        if path.exists():
            assert path.read_bytes() == frames
            assert (path.with_suffix(".snapshot").read_bytes() if of[0].snapshot else b"") == of[0].snapshot
    assert snapshot(core.state) == snapshot(log.state)
    assert sum(isinstance(record.stimulus, LaunchFinished) for record in seen) == 60
    assert len(list(tmp_path.glob("*.journal"))) == dispatch_log._SEGMENTS_KEPT
    assert len(list(tmp_path.glob("*.snapshot"))) == dispatch_log._SEGMENTS_KEPT


def test_a_new_core_begins_a_segment_with_a_higher_number(tmp_path: Path) -> None:
    ours = lane()
    first = DispatchLog(tmp_path, 0, 1, ours)
    first.on(SessionOpened(0, "s", 1, 0, 1))
    first.close()
    second = DispatchLog(tmp_path, 0, 1, ours)
    second.on(ConfigChanged(5, DispatchConfig(parked_batches_max=3)))
    second.close()
    assert [part.records for part in ours.parts] == [1, 1]
    assert ours.parts[0].segment < ours.parts[1].segment
    assert [part.snapshot for part in ours.parts] == [b"", b""]


def test_a_hole_is_bounded_and_followed_by_a_segment_with_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bus takes nothing for long: memory stays bounded, and what comes after the hole replays."""
    monkeypatch.setattr(journal_stream, "_PART_BYTES", 500)
    monkeypatch.setattr(journal_stream, "_KEPT_BYTES_MAX", 3000)
    ours = lane()
    log = DispatchLog(tmp_path, 0, 1, ours)
    log.on(SessionOpened(0, "s", 1, 0, 1))
    play(log, 100)
    assert ours.hole
    assert sum(len(part.frames) for part in ours.parts) <= 3000
    lost = ours.segment
    while ours.parts:
        ours.sent()
    assert not ours.hole
    play(log, 5, first=101)
    log.close()
    assert ours.segment > lost
    records, _ = decode_journal(b"".join(part.frames for part in ours.parts))
    assert len(records) == 10
    core, journal = again(records, ours.parts[0].snapshot)
    assert journal.digest == ours.parts[-1].digest
    assert snapshot(core.state) == snapshot(log.state)
