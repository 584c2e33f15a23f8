"""The memory core's journal on its way to the server: whatever is taken when, its segments replay to the core's own state."""

from __future__ import annotations

import pytest

from scheduler.vram import AllocationRequested, DeviceConfigured, Holds, SessionOpened, Stimulus, Vram
from scheduler.vram.journal import Journal, decode_journal
from services.server.executor import vram_journal
from services.server.executor.vram_journal import VramJournal
from tests.support.replayed import verify_vram


class Core:
    def __init__(self) -> None:
        self.vram = Vram()
        self.journal = VramJournal(self.vram.state)
        self.at = 0
        self.tell(DeviceConfigured(0, 100))
        self.tell(SessionOpened(0, "a", 0))

    def tell(self, stimulus: Stimulus) -> None:
        self.journal.add(stimulus, self.vram.on(stimulus))

    def batches(self, count: int) -> None:
        for _ in range(count):
            self.at += 1
            self.tell(AllocationRequested(self.at, "a", 10))
            self.tell(Holds(self.at, "a", self.at % 7))


def check(core: Core, snapshot: bytes, frames: bytes, digest: bytes) -> None:
    """A segment ends in the state that the core has, and its digest is that of its records."""
    records, end = decode_journal(frames)
    assert end == len(frames)
    again = Journal()
    for record in records:
        again.add(record.stimulus, record.decisions)
    assert again.digest == digest
    assert verify_vram(records, snapshot).state == core.vram.state


def test_a_segment_in_parts() -> None:
    core = Core()
    snapshot, frames, digest, records = None, b"", b"", 0
    for part in range(4):
        core.batches(part + 1)
        taken = core.journal.take()
        assert taken is not None and (taken.snapshot is not None) == (part == 0)
        snapshot = taken.snapshot if part == 0 else snapshot
        frames, digest, records = frames + taken.frames, taken.digest, records + taken.records
    assert core.journal.take() is None and not core.journal.waiting
    assert snapshot == b"" and records == 2 + 2 * (1 + 2 + 3 + 4)
    check(core, b"", frames, digest)


def test_a_new_segment_begins_with_the_state_as_it_is() -> None:
    core = Core()
    core.batches(3)
    core.journal.anew()
    core.batches(2)
    taken = core.journal.take()
    assert taken is not None and taken.snapshot and taken.records == 4
    check(core, taken.snapshot, taken.frames, taken.digest)


def test_untaken_records_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vram_journal, "_BYTES_MAX", 1000)
    core = Core()
    core.batches(100)
    taken = core.journal.take()
    assert taken is not None and taken.snapshot and len(taken.frames) <= 1000
    check(core, taken.snapshot, taken.frames, taken.digest)
