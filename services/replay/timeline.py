"""A task's time on its devices in slots of equal length: running, waiting, and the memory it held. Pure.

However many launches there were, the document has the same size: each slot has the time that went to each condition in it. Times are Unix
time in ns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from scheduler.dispatch.decisions import AWAITS_MEMORY
from scheduler.model.waits import OWN, RUNS, BatchStory
from scheduler.vram.state import SessionMemory, VramState

__all__ = ["CONDITIONS", "Grid", "MemoryUse", "timeline"]

RUN, QUEUE, PREEMPTED, MEMORY = "run_ns", "queue_ns", "preempted_ns", "memory_ns"
CONDITIONS: Final = (RUN, QUEUE, PREEMPTED, MEMORY)
"""What a slot's time went to: it ran; it waited before its first slice; it waited after a slice of it had been stopped; it waited for
memory. What is left of the slot, it had no batch on the device."""
_LANES_MAX: Final = 16
_KINDS: Final[Mapping[str, Callable[[SessionMemory], int]]] = {
    "resident_bytes": lambda held: held.held,
    "shared_bytes": lambda held: held.shared,
    "swapped_bytes": lambda held: held.swapped,
}


@dataclass(frozen=True, slots=True)
class Grid:
    """``slots`` of equal length from ``from_ns`` to ``to_ns``."""

    from_ns: int
    to_ns: int
    slots: int

    @property
    def slot_ns(self) -> int:
        return max(1, -(-(self.to_ns - self.from_ns) // self.slots))

    def slot(self, at_ns: int) -> int:
        """The slot of a time: -1 before the first one, ``slots`` after the last one."""
        return min(max(-1, (at_ns - self.from_ns) // self.slot_ns), self.slots)

    def spread(self, row: list[int], begin_ns: int, end_ns: int) -> None:
        """Add the time from ``begin_ns`` to ``end_ns`` to the slots of ``row`` that it covers."""
        at, end = max(begin_ns, self.from_ns), min(end_ns, self.from_ns + self.slot_ns * self.slots)
        while at < end:
            slot = (at - self.from_ns) // self.slot_ns
            until = min(end, self.from_ns + (slot + 1) * self.slot_ns)
            row[slot] += until - at
            at = until


@dataclass(slots=True)
class _Track:
    """The most memory that one session held in each slot (None: not known). ``held``: by kind, since ``slot``."""

    rows: dict[str, list[int | None]]
    held: tuple[int, ...] | None = None
    slot: int = -1

    def note(self, slot: int, held: tuple[int, ...] | None, slots: int) -> None:
        """From a time in ``slot`` on it holds ``held``; None: it is not on the device."""
        self.fill(slot, slots)
        if held is not None and 0 <= slot < slots:
            for row, value in zip(self.rows.values(), held, strict=True):
                row[slot] = max(row[slot] or 0, value)
        self.held, self.slot = held, slot

    def fill(self, until: int, slots: int) -> None:
        """Extend the state that it held up to slot ``until``."""
        if self.held is None:
            return
        for row, value in zip(self.rows.values(), self.held, strict=True):
            for slot in range(max(0, self.slot), min(until + 1, slots)):
                row[slot] = max(row[slot] or 0, value)


@dataclass(slots=True)
class MemoryUse:
    """Feed it the memory core's state after every record."""

    grid: Grid
    sessions: Collection[str]
    _tracks: dict[str, _Track] = field(default_factory=dict)

    def take(self, at_ns: int, state: VramState) -> None:
        for name in self.sessions:
            memory = state.sessions.get(name)
            held = None if memory is None else tuple(read(memory) for read in _KINDS.values())
            track = self._tracks.get(name)
            if track is None:
                if held is None:
                    continue
                track = self._tracks[name] = _Track({kind: [None] * self.grid.slots for kind in _KINDS})
            if held != track.held:
                track.note(self.grid.slot(at_ns), held, self.grid.slots)

    def rows(self, session: str) -> dict[str, list[int | None]]:
        """By kind, the most bytes in each slot."""
        track = self._tracks.get(session)
        if track is None:
            return {kind: [None] * self.grid.slots for kind in _KINDS}
        track.fill(self.grid.slots, self.grid.slots)
        return track.rows


def timeline(grid: Grid, stories: Iterable[tuple[str, int, BatchStory]], memory: MemoryUse) -> dict[str, Any]:
    """The document: a lane for each session on each device, (node, GPU index, batch) by (node, GPU index, batch); of many lanes those that
    ran longest. A lane's rows have one entry a slot."""
    lanes: dict[tuple[str, int, str], dict[str, list[int]]] = {}
    for node, gpu, story in stories:
        lane = lanes.setdefault((node, gpu, story.session), {name: [0] * grid.slots for name in (*CONDITIONS, "batches")})
        ran = False
        for stretch in story.stretches:
            if stretch.rule == RUNS:
                ran = True
            if stretch.rule != OWN:
                grid.spread(lane[_condition(stretch.rule, ran)], stretch.begin_ns, stretch.end_ns)
        slot = grid.slot(story.end_ns)
        if story.end_ns >= 0 and not story.dropped and 0 <= slot < grid.slots:
            lane["batches"][slot] += 1
    kept = sorted(lanes, key=lambda key: (-sum(lanes[key][RUN]), key))[:_LANES_MAX]
    return {
        "from_ns": grid.from_ns,
        "to_ns": grid.from_ns + grid.slot_ns * grid.slots,
        "slot_ns": grid.slot_ns,
        "lanes": [
            {"node": node, "gpu": gpu, "session": session, **lanes[node, gpu, session], **memory.rows(session)}
            for node, gpu, session in sorted(kept)
        ],
        "lanes_total": len(lanes),
    }


def _condition(rule: str, ran: bool) -> str:
    if rule == RUNS:
        return RUN
    if rule == AWAITS_MEMORY:
        return MEMORY
    return PREEMPTED if ran else QUEUE
