"""Parts of the journal put together to segments, replay of each core's journal, and the check that a segment, run again, gives the same
decisions and digests: the one place that knows which core a lane is of. Pure.

A lane is replayed part by part: its frames are decoded, every stimulus goes through a new core, and what that decides is compared with
what is on record, decision by decision and digest by digest.

A *run* of a dispatcher is a stretch without a gap: segments of one device, each beginning with the snapshot of the one before. It ends
where a core began anew (the executor was started again) or where records are missing.

A lane is one core (dispatch, vram or quotas) of one device of one node; a segment one stretch of its record, which begins with an empty
core or a snapshot. Retention takes the oldest parts first, so the first segment of a lane may lack its beginning: nothing of it can be run
again.

Compared are: every frame with its checksum (the decoder), every decision with the one on record, and after every part the digest with the
one it was published with. The first difference ends the segment: from there on the states differ, and every further one would be noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from bus_schemas.journal import DISPATCH, PROGRAMS, QUOTAS, VRAM, JournalPart
from scheduler import dispatch, quotas
from scheduler.dispatch import Decision, Dispatch, DispatchState, Stimulus
from scheduler.errors import SchedulerError
from scheduler.frames import Journal
from scheduler.vram import Vram
from scheduler.vram import journal as vram_journal
from scheduler.vram.state import VramState
from services.replay.question import ReplayError

__all__ = [
    "LANES", "Again", "Replayed", "Segment", "Segments", "Step", "begins_life", "check", "memory_steps",
    "segment_of_file", "steps",
]  # fmt: skip


@dataclass(slots=True)
class Segment:
    """A stretch of one lane."""

    node: str
    epoch: int
    gpu: int
    lane: str
    number: int
    #: consecutive, from the segment's record 0 on
    parts: list[JournalPart] = field(default_factory=list)
    #: why further parts are missing; empty: none is
    gap: str = ""

    @property
    def snapshot(self) -> bytes:
        return self.parts[0].snapshot if self.parts else b""

    @property
    def unix_offset_ns(self) -> int:
        return self.parts[0].unix_offset_ns if self.parts else 0

    @property
    def records(self) -> int:
        return sum(part.records for part in self.parts)


class Segments:
    """Takes parts in the stream's order, gives segments as they become complete."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int, str], Segment] = {}

    def feed(self, part: JournalPart) -> Segment | None:
        """Take one part; the lane's segment before it, when this part begins another."""
        lane = (part.node, part.gpu, part.lane)
        segment = self._open.get(lane)
        if segment is None or segment.number != part.segment:
            self._open[lane] = Segment(part.node, part.epoch, part.gpu, part.lane, part.segment)
            _add(self._open[lane], part)
            return segment
        _add(segment, part)
        return None

    def rest(self) -> Iterator[Segment]:
        """The segments that nothing came after."""
        yield from self._open.values()
        self._open.clear()


def _add(segment: Segment, part: JournalPart) -> None:
    expected = segment.records
    if segment.gap or part.first < expected:
        return  # behind a gap nothing can be run again; what came before is a repeat of the publisher
    if part.first > expected:
        segment.gap = f"records {expected} to {part.first - 1} are missing; what follows cannot be run again, up to the next segment"
        return
    segment.parts.append(part)


def segment_of_file(path: Path) -> Segment:
    """A node's local record, ``gpu<gpu>-<epoch>-<number>.journal`` (the lane in front where it is not dispatch), with the snapshot of the
    same name beside it. Its digest is not on record: the decisions are. Raises OSError."""
    *lane, device, epoch, number = path.stem.split("-") if path.stem.count("-") >= 2 else ("gpu0", "0", "0")
    snapshot = path.with_suffix(".snapshot")
    part = JournalPart(
        node=str(path.parent),
        epoch=_number(epoch),
        gpu=_number(device.removeprefix("gpu")),
        lane="-".join(lane) or DISPATCH,
        segment=_number(number),
        first=0,
        records=-1,
        frames=path.read_bytes(),
        digest=b"",
        unix_offset_ns=0,
        snapshot=snapshot.read_bytes() if snapshot.exists() else b"",
    )
    return Segment(part.node, part.epoch, part.gpu, part.lane, part.segment, [part])


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


Step = tuple[Stimulus, Sequence[Decision], DispatchState]
"""What happened, what was decided, the state after it."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One record: its time (the node's monotonic clock), its stimulus, the decisions then and the decisions now."""

    at_ns: int
    stimulus: Any
    recorded: tuple[Any, ...]
    again: tuple[Any, ...]


C = TypeVar("C")


class Again(Generic[C]):
    """A core and its journal, from the beginning of a segment."""

    def __init__(self, core: C, on: Callable[[Any], Iterable[Any]], decode: Callable[[bytes], tuple[Sequence[Any], int]]) -> None:
        """``on``: what the core decides on a stimulus. Raises SchedulerError when it refuses that."""
        self.core = core
        self.decode = decode
        """Whole records, and the bytes they take. Raises SchedulerError."""
        self._on = on
        self._journal = Journal()

    @property
    def digest(self) -> bytes:
        return self._journal.digest

    def take(self, record: Any) -> Replayed:
        """Run one record again. Raises SchedulerError when the core refuses its stimulus."""
        again = tuple(self._on(record.stimulus))
        self._journal.add(record.stimulus, again)
        return Replayed(record.stimulus.at_ns, record.stimulus, record.decisions, again)


def _dispatch_again(snapshot: bytes) -> Again[Dispatch]:
    core = Dispatch(dispatch.restore(snapshot))
    return Again(core, core.on, dispatch.decode_journal)


def _vram_again(snapshot: bytes) -> Again[Vram]:
    core = Vram(vram_journal.decode_state(snapshot))
    return Again(core, core.on, vram_journal.decode_journal)


def _quotas_again(snapshot: bytes) -> Again[None]:
    """They have no state."""
    return Again(None, quotas.decisions, quotas.decode_journal)


LANES: Final[dict[str, Callable[[bytes], Again[Any]]]] = {DISPATCH: _dispatch_again, QUOTAS: _quotas_again, VRAM: _vram_again}
"""lane: a new core, from a snapshot (empty: from nothing)."""


def begins_life(segment: Segment, before: Segment | None) -> bool:
    """Does nothing of what went before hold on?"""
    return before is None or bool(before.gap) or not segment.snapshot


def memory_steps(segment: Segment) -> Iterator[tuple[Replayed, VramState]]:
    """Of the memory core's lane: every record with the state after it. Raises ReplayError where the journal cannot be read or gives other
    decisions than those on record."""
    again: Again[Vram] = _begin(segment)
    for seen in _run(segment, again):
        yield seen, again.core.state


def steps(segment: Segment) -> Iterator[tuple[Dispatch, Step | None]]:
    """Of the dispatcher's lane: first (the core as the segment finds it, None), then the core with every step. Raises ReplayError."""
    again: Again[Dispatch] = _begin(segment)
    yield again.core, None
    for seen in _run(segment, again):
        yield again.core, (seen.stimulus, seen.recorded, again.core.state)


def _begin(segment: Segment) -> Again[Any]:
    try:
        return LANES[segment.lane](segment.snapshot)
    except SchedulerError as error:
        raise _broken(segment, str(error)) from None


def _run(segment: Segment, again: Again[Any]) -> Iterator[Replayed]:
    at = 0
    try:
        for part in segment.parts:
            for record in again.decode(part.frames)[0]:
                seen = again.take(record)
                if seen.again != seen.recorded:
                    raise _broken(segment, f"record {at} gives other decisions now")
                yield seen
                at += 1
    except SchedulerError as error:
        raise _broken(segment, f"record {at}: {error}") from None


def _broken(segment: Segment, problem: str) -> ReplayError:
    where = f"segment {segment.number} of the {segment.lane} journal of {segment.node}"
    return ReplayError(f"{where} cannot be run again, {problem}: see wooly replay")


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

    def _part(self, core: Again[Any], records: object) -> bool:
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
