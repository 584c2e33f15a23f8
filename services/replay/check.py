"""Does a segment, run again, give the same decisions and digests? Pure.

Compared are: every frame with its checksum (the decoder), every decision with the one on record, and after every part the digest with the
one it was published with. The first difference ends the segment: from there on the states differ, and every further one would be noise.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus_schemas.journal import PROGRAMS
from scheduler.errors import SchedulerError
from services.replay.lanes import LANES, Again
from services.replay.segments import Segment

__all__ = ["Verdict", "check"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one segment. ``records`` and ``decisions`` are those that were run again; ``difference``: the first one (empty: none);
    ``gap``: what could not be run again, and why; times are the node's Unix time, 0 without a record."""

    node: str
    epoch: int
    gpu: int
    lane: str
    segment: int
    records: int
    decisions: int
    digest: str
    difference: str
    gap: str
    begin_ns: int
    end_ns: int

    @property
    def equal(self) -> bool:
        return not self.difference


def check(segment: Segment, from_ns: int = 0, to_ns: int | None = None) -> Verdict | None:
    """Run a segment again, up to the first part that begins at ``to_ns`` (Unix time) or later. None: it has nothing of that time."""
    if segment.lane == PROGRAMS:
        return None  # nothing was decided
    run = _Run(segment)
    run.go(to_ns)
    outside = run.end_ns < from_ns or (to_ns is not None and run.begin_ns >= to_ns) if run.records else run.later
    if outside and not run.difference:
        return None
    return Verdict(
        node=segment.node,
        epoch=segment.epoch,
        gpu=segment.gpu,
        lane=segment.lane,
        segment=segment.number,
        records=run.records,
        decisions=run.decisions,
        digest=run.digest,
        difference=run.difference,
        gap=segment.gap,
        begin_ns=run.begin_ns,
        end_ns=run.end_ns,
    )


class _Run:
    """A segment being run again."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.records = self.decisions = 0
        self.begin_ns = self.end_ns = 0
        self.digest = self.difference = ""
        self.later = False
        """It begins after the time that was asked for."""

    def go(self, to_ns: int | None) -> None:
        segment = self._segment
        if segment.lane not in LANES:
            self.difference = f"there is no core for the lane {segment.lane!r}: written by a newer version"
            return
        try:
            core = LANES[segment.lane](segment.snapshot)
            for part in segment.parts:
                records, taken = core.decode(part.frames)
                if part.records >= 0 and (taken != len(part.frames) or len(records) != part.records):
                    self.difference = (
                        f"part {part.first}: says {part.records} records in {len(part.frames)} bytes, has {len(records)} in {taken}"
                    )
                    return
                if to_ns is not None and records and records[0].stimulus.at_ns + segment.unix_offset_ns >= to_ns:
                    self.later = not self.records
                    return
                if not self._part(core, records):
                    return
                if part.digest and core.digest != part.digest:
                    self.difference = (
                        f"after record {self.records - 1}: the digest on record is {part.digest.hex()}, now it is {self.digest}"
                    )
                    return
        except SchedulerError as error:
            self.difference = f"record {self.records}: {error}"

    def _part(self, core: Again, records: object) -> bool:
        """Run the records of one part; False at a difference."""
        assert isinstance(records, list | tuple)
        for record in records:
            seen = core.take(record)
            at_ns = seen.at_ns + self._segment.unix_offset_ns
            self.begin_ns = self.begin_ns or at_ns
            self.end_ns = at_ns
            if seen.again != seen.recorded:
                self.difference = f"record {self.records}, {seen.stimulus!r}: on record {seen.recorded!r}, now {seen.again!r}"
                return False
            self.records += 1
            self.decisions += len(seen.again)
        self.digest = core.digest.hex()
        return True
