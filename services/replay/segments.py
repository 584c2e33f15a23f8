"""Parts of the journal put together: lanes, segments, and what is missing between them. Pure.

A lane is one core (dispatch or vram) of one device of one node; a segment one stretch of its life, which begins with an empty core or a
snapshot. Retention takes the oldest parts first, so the first segment of a lane may lack its beginning: nothing of it can be run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bus_schemas.journal import DISPATCH, JournalPart

__all__ = ["Segment", "Segments", "segment_of_file"]


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
