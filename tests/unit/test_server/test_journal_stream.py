"""Packs of a lane: what leaves, and what belongs to no session."""

from __future__ import annotations

from services.server.journal_stream import Lane


def test_records_before_any_segment_are_left_out() -> None:
    """An executor that outlived its server may still have some of a segment whose beginning the new server never saw."""
    woken: list[None] = []
    lane = Lane("n", 1, 0, "vram", lambda: woken.append(None))
    lane.add(b"of the server before", 3)
    lane.seal()
    assert not lane.parts and not woken
    number = lane.begin(lambda: b"digest", b"state")
    lane.add(b"own", 1)
    lane.seal()
    (part,) = lane.parts
    assert (part.segment, part.first, part.records, part.frames, part.snapshot) == (number, 0, 1, b"own", b"state")
