"""The timeline of a task on its devices as the page draws it. Pure: the answers of presenters.journal in, coordinates and texts out.

A band is a drawing of ``slots`` columns, 100 high, stretched to the page's width; a table beside it has its figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from services.controller.presenters.common import Json
from services.controller.web.formats import bytes_text, clock_time, count_text, short_time

__all__ = ["CONDITIONS", "KINDS", "Band", "Column", "DeviceTimeline", "Wait", "device_timeline"]

CONDITIONS: Final = (
    ("run", "Running", "run_ns"),
    ("queue", "In the queue", "queue_ns"),
    ("preempted", "Preempted", "preempted_ns"),
    ("memory", "Waits for memory", "memory_ns"),
    ("swapped", "Swapped out", "swapped_ns"),
)
"""(class in the stylesheet, label, row of the answer), from the bottom of a column up."""
KINDS: Final = (("resident", "Resident", "resident_bytes"), ("shared", "Shared", "shared_bytes"), ("out", "Swapped out", "swapped_bytes"))
"""The same for memory."""
_LEAST: Final = 6.0
"""Percent of a column: less would not be seen."""
_TABLE_ROWS: Final = 24
_TICKS: Final = 5
_LONGEST: Final = 5
_FINE_NS: Final = 10 * 10**9


@dataclass(frozen=True, slots=True)
class Column:
    """Neighbouring slots that look the same."""

    x: int  #: the first slot
    width: int
    parts: tuple[tuple[str, float, float], ...]  #: (class, y, height) in percent
    title: str  #: time and figures


@dataclass(frozen=True, slots=True)
class Band:
    """One session on one device."""

    node: str
    node_name: str
    gpu: int
    session: str
    columns: tuple[Column, ...]
    memory: tuple[tuple[str, str], ...]  #: (class, path) of stacked areas, as high as the task's quota; empty: not known
    peak_bytes: int  #: the most it held
    summary: str  #: the figures in a sentence
    table: tuple[Sequence[str], Sequence[Sequence[str]]]  #: head and rows


@dataclass(frozen=True, slots=True)
class Wait:
    """One of the longest waits of a batch."""

    at_ns: int
    waited_ns: int
    because: str  #: the rule it waited under longest
    other: str  #: what ran then
    task: str  #: its id


@dataclass(frozen=True, slots=True)
class DeviceTimeline:
    """What the page shows of a task on its devices."""

    conditions: ClassVar = CONDITIONS
    kinds: ClassVar = KINDS
    bands: tuple[Band, ...]
    bands_total: int
    slots: int
    slot_ns: int
    from_ns: int
    to_ns: int
    ticks: tuple[str, ...]  #: times of day under a band, evenly apart
    waits: Json
    others: tuple[tuple[Json, str], ...]  #: lines of the waits with their main reason in words
    longest: tuple[Wait, ...]
    moved_bytes: int

    @property
    def run_ns(self) -> int:
        """Time on the device, of the programs shown."""
        return sum(int(one["run_ns"]) for one in self.waits["programs"])

    @property
    def waited_percent(self) -> int:
        latency_ns = int(self.waits["latency_ns"])
        return 100 * int(self.waits["waited_ns"]) // latency_ns if latency_ns else 0


def device_timeline(timeline: Json, waits: Json, quota_bytes: int) -> DeviceTimeline:
    """What the page shows of the two answers. ``quota_bytes``: the memory that the task asked for on each device."""
    slot_ns, slots = timeline["slot_ns"], len(timeline["lanes"][0]["run_ns"]) if timeline["lanes"] else 0
    from_ns, to_ns = timeline["from_ns"], timeline["to_ns"]
    meaning = {line["rule"]: line["meaning"] for line in waits["by_rule"]}
    others = tuple((line, meaning[max(line["rules"], key=lambda rule: line["rules"][rule])]) for line in waits["by_other"])
    return DeviceTimeline(
        bands=tuple(_band(lane, from_ns, slot_ns, quota_bytes) for lane in timeline["lanes"]),
        bands_total=timeline["lanes_total"],
        slots=slots,
        slot_ns=slot_ns,
        from_ns=from_ns,
        to_ns=to_ns,
        ticks=tuple(_time_of_day(from_ns + (to_ns - from_ns) * at // (_TICKS - 1), to_ns - from_ns) for at in range(_TICKS)),
        waits=waits,
        others=others,
        longest=tuple(_wait(batch, meaning) for batch in waits["longest"][:_LONGEST]),
        moved_bytes=sum(move["nbytes"] for move in waits["memory"]["moves"]),
    )


def _time_of_day(unix_ns: int, span_ns: int) -> str:
    """UTC; with milliseconds where all of it is short."""
    text = clock_time(unix_ns)[11:19]
    return f"{text}.{unix_ns // 1_000_000 % 1000:03d}" if span_ns < _FINE_NS else text


def _band(lane: Json, from_ns: int, slot_ns: int, quota_bytes: int) -> Band:
    rows = {name: lane[name] for _, _, name in CONDITIONS if name != "swapped_ns"}
    rows["swapped_ns"] = _swapped(lane, slot_ns)
    sums = {name: sum(values) for name, values in rows.items()}
    figures = [f"{label.lower()} {short_time(sums[name])}" for _, label, name in CONDITIONS if sums[name]]
    peak = max((sum(lane[name][slot] or 0 for _, _, name in KINDS) for slot in range(len(lane["run_ns"]))), default=0)
    return Band(
        node=lane["node"],
        node_name=lane["node_name"],
        gpu=lane["gpu"],
        session=lane["session"],
        columns=tuple(_columns(rows, from_ns, slot_ns)),
        memory=tuple(_areas(lane, max(peak, quota_bytes))) if peak else (),
        peak_bytes=peak,
        summary=", ".join(figures) or "nothing ran",
        table=_table(lane, rows, from_ns, slot_ns),
    )


def _swapped(lane: Json, slot_ns: int) -> list[int]:
    """Time in which memory of it was elsewhere and it neither ran nor waited, to the slot."""
    busy = zip(lane["run_ns"], lane["queue_ns"], lane["preempted_ns"], lane["memory_ns"], strict=True)
    return [max(0, slot_ns - sum(times)) if out else 0 for times, out in zip(busy, lane["swapped_bytes"], strict=True)]


def _columns(rows: Json, from_ns: int, slot_ns: int) -> Iterable[Column]:
    """Neighbours that look the same make one column; where nothing was, there is none."""
    slots = [tuple(rows[name][at] for _, _, name in CONDITIONS) for at in range(len(rows["run_ns"]))]
    at = 0
    while at < len(slots):
        end = at + 1
        while end < len(slots) and slots[end] == slots[at]:
            end += 1
        if any(slots[at]):
            shares = [max(_LEAST, 100 * value / slot_ns) if value else 0.0 for value in slots[at]]
            scale = min(1.0, 100 / sum(shares))
            parts, top = [], 100.0
            for (name, _, _), share in zip(CONDITIONS, shares, strict=True):
                if share:
                    top -= share * scale
                    parts.append((name, round(max(0.0, top), 1), round(share * scale, 1)))
            shares_of = zip(CONDITIONS, slots[at], strict=True)
            figures = [f"{label.lower()} {100 * value // slot_ns} %" for (_, label, _), value in shares_of if value]
            yield Column(at, end - at, tuple(parts), f"{_time_of_day(from_ns + at * slot_ns, slot_ns)}: {', '.join(figures)}")
        at = end


def _areas(lane: Json, whole: int) -> Iterable[tuple[str, str]]:
    """Each kind stacked on those before it, as the outline of its steps."""
    below = [0] * len(lane["run_ns"])
    for name, _, row in KINDS:
        if not any(lane[row]):
            continue
        steps = []
        for slot, value in enumerate(lane[row]):
            if value:
                low, high = 100 - 100 * below[slot] / whole, 100 - 100 * (below[slot] + value) / whole
                steps.append(f"M{slot},{low:.1f}V{high:.1f}h1V{low:.1f}z")
                below[slot] += value
        yield name, "".join(steps)


def _table(lane: Json, rows: Json, from_ns: int, slot_ns: int) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Sums of neighbouring slots, in the order of time."""
    head = ["From (UTC)", *(label for _, label, _ in CONDITIONS), "Batches ended", *(f"{label}, most" for _, label, _ in KINDS)]
    slots = len(lane["run_ns"])
    size = -(-slots // _TABLE_ROWS)
    out = []
    for begin in range(0, slots, size):
        part = slice(begin, begin + size)
        known = [[value for value in lane[name][part] if value is not None] for _, _, name in KINDS]
        out.append(
            [
                _time_of_day(from_ns + begin * slot_ns, slot_ns * size),
                *(short_time(sum(rows[name][part])) for _, _, name in CONDITIONS),
                count_text(sum(lane["batches"][part])),
                *(bytes_text(max(values)) if values else "–" for values in known),
            ]
        )
    return head, out


def _wait(batch: Json, meaning: dict[str, str]) -> Wait:
    most: Any = max(batch["stretches"], key=lambda part: part["to_ns"] - part["from_ns"])
    return Wait(batch["arrived_ns"], batch["waited_ns"], meaning.get(most["rule"], most["rule"]), most["text"], most["task"])
