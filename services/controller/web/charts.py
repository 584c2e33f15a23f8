"""Charts of the cluster and of devices as data for static/charts.js, and as tables for screen readers. Pure: the time comes with the
question.

A band is a drawing of ``slots`` columns, 100 high, stretched to the page's width; a table beside it has its figures.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np

from services.controller.presenters import Json
from services.controller.web.formats import bytes_text, clock_time, count_text, credits_text, short_time
from services.controller.web.history import ALL_TENANTS, RANGES, Floats, History, MetricsStore, Range, Unanswered, range_of, times_of
from services.controller.web.scope import Scope

__all__ = [
    "Chart", "Charts", "Column", "Line", "chart_context", "chart_data", "chart_points", "chart_table", "cluster_charts", "credits_chart",
    "credits_per_hour", "device_charts", "device_timeline", "past_charts", "stacked_columns",
]  # fmt: skip

_TABLE_ROWS: Final = 12
_TEXTS: Final = {"%": lambda value: f"{value:.0f} %", "bytes": bytes_text, "": credits_text}
_HOUR_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a chart."""

    label: str
    shade: str  #: class of the stylesheet, k1 to k6
    unit: str  #: ``%``, ``bytes`` or empty
    values: Floats


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over the same times."""

    times: Sequence[int]  #: Unix seconds, evenly apart
    lines: tuple[Line, ...]
    stacked: bool = False
    top: float | None = None  #: end of the axis; None: by the values
    least: float = 1.0  #: the least end of the axis
    span_s: int = 3600  #: how much time the axis shows


def chart_data(chart: Chart) -> dict[str, Any]:
    """The data of a chart in a page."""
    series = [
        {"label": line.label, "class": line.shade, "unit": line.unit, "values": [_number(value) for value in line.values]}
        for line in chart.lines
    ]
    return {
        "t": list(chart.times),
        "series": series,
        "stacked": chart.stacked,
        "max": chart.top,
        "least": chart.least,
        "span": chart.span_s,
    }


def chart_points(chart: Chart, back: int = 1) -> tuple[tuple[float | None, ...], ...]:
    """The last two points as the stream sends them, oldest first: what was measured at the end of a slot is sent in the next one. ``back``
    2: the two before, where the last slot is not full yet."""
    ends = range(len(chart.times) - back - 1, len(chart.times) - back + 1)
    return tuple((float(chart.times[at]), *(_number(line.values[at]) for line in chart.lines)) for at in ends if at >= 0)


def chart_table(chart: Chart) -> tuple[list[str], list[list[str]]]:
    """Head and rows: the mean of a twelfth of the time each, newest first."""
    size = max(1, len(chart.times) // _TABLE_ROWS)
    rows = []
    for end in range(len(chart.times), 0, -size):
        start = max(0, end - size)
        cells = [_mean([float(value) for value in line.values[start:end] if value == value], line.unit) for line in chart.lines]
        rows.append([clock_time(chart.times[start] * 10**9)[11 if chart.span_s <= 86_400 else 5 : 16] + " UTC", *cells])
    return ["From", *(line.label for line in chart.lines)], rows


def _number(value: Any) -> float | int | None:
    """JSON-ready, with as many digits as show; None for what was not measured."""
    number = float(value)
    if math.isnan(number):
        return None
    return int(number) if number >= 1000 else round(number, 1)


def _mean(values: list[float], unit: str) -> str:
    return _TEXTS[unit](sum(values) / len(values)) if values else "–"


Charts = Mapping[str, tuple[str, Chart]]
"""By id in the document: title and chart."""


async def chart_context(
    query: Mapping[str, str], store: MetricsStore, charts: Charts, past: Callable[[Range], Awaitable[Charts]]
) -> dict[str, Any]:
    """What a page shows of its charts over the range that its address asks for: ``charts`` for the last hour, else those of ``past``."""
    chosen, away = range_of(query), ""
    if chosen is not RANGES[0]:
        try:
            charts = await past(chosen)
        except Unanswered as error:
            chosen, away = RANGES[0], str(error)
    return {
        "charts": {name: (title, chart_data(chart), chart_table(chart)) for name, (title, chart) in charts.items()},
        "ranges": RANGES if store.url and (chosen is not RANGES[0] or away or await store.there()) else (),
        "chosen": chosen,
        "away": away,
    }


def cluster_charts(history: History, now_s: float) -> tuple[Chart, Chart]:
    """(utilization and starvation: the mean over devices; VRAM: the sum)."""
    sums = history.devices.means(now_s)
    count = np.maximum(sums["count"], 1).astype(np.float32)
    times = history.devices.times(now_s)
    return _load(times, sums["utilization"] / count, sums["starvation"] / count), _vram(times, sums)


def device_charts(history: History, node: str, gpu: int, now_s: float, total_bytes: int) -> tuple[Chart, Chart]:
    """The same of one device; VRAM up to what it has."""
    means = history.devices.means(now_s, [(node, gpu)])
    times = history.devices.times(now_s)
    return _load(times, means["utilization"], means["starvation"]), _vram(times, means, float(total_bytes))


async def past_charts(store: MetricsStore, chosen: Range, now_s: float, node: str | None = None) -> dict[str, tuple[Chart, Chart]]:
    """The same charts further back: by GPU of ``node``, or of the cluster (under ""). Raises Unanswered."""
    times = times_of(chosen, now_s)
    fields = await store.load(chosen, times, node)
    empty = np.full(len(times), np.nan, np.float32)
    found = {}
    for gpu in {"", *fields["utilization"], *fields["resident"]}:
        of = {name: values.get(gpu, empty) for name, values in fields.items()}
        charts = (_load(times, of["utilization"], of["starvation"]), _vram(times, of))
        found[gpu] = (replace(charts[0], span_s=chosen.span_s), replace(charts[1], span_s=chosen.span_s))
    return found


def credits_chart(history: History, scope: Scope, now_s: float) -> Chart:
    """Credits per hour at the rate of each half minute: of all tenants, or the scope's tenant's."""
    ring = history.credits
    spent = ring.series(scope.tenant or ALL_TENANTS, now_s)["spent"] * (_HOUR_S / ring.step_s)
    spent[-1] = np.nan  # it has only begun
    return Chart(ring.times(now_s), (Line("Credits per hour", "k1", "", spent),))


def credits_per_hour(chart: Chart) -> float:
    """The last full half minute's rate, 0 when nothing was measured."""
    last = float(chart.lines[0].values[-2])
    return last if last == last else 0.0


def _load(times: list[int], utilization: Floats, starvation: Floats) -> Chart:
    return Chart(times, (Line("Utilization", "k1", "%", utilization), Line("Starvation", "k2", "%", starvation)), top=100.0)


def _vram(times: list[int], sums: dict[str, Floats], total: float | None = None) -> Chart:
    lines = (
        Line("Resident", "k3", "bytes", sums["resident"]),
        Line("Shared", "k5", "bytes", sums["shared"]),
        Line("Swapped", "k4", "bytes", sums["swapped"]),
    )
    return Chart(times, lines, stacked=True, least=total or float(1 << 20))


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
_SLOT_ROWS: Final = 24
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
        columns=tuple(stacked_columns(CONDITIONS, rows, slot_ns, lambda slot: _time_of_day(from_ns + slot * slot_ns, slot_ns))),
        memory=tuple(_areas(lane, max(peak, quota_bytes))) if peak else (),
        peak_bytes=peak,
        summary=", ".join(figures) or "nothing ran",
        table=_table(lane, rows, from_ns, slot_ns),
    )


def _swapped(lane: Json, slot_ns: int) -> list[int]:
    """Time in which memory of it was elsewhere and it neither ran nor waited, to the slot."""
    busy = zip(lane["run_ns"], lane["queue_ns"], lane["preempted_ns"], lane["memory_ns"], strict=True)
    return [max(0, slot_ns - sum(times)) if out else 0 for times, out in zip(busy, lane["swapped_bytes"], strict=True)]


def stacked_columns(
    conditions: Sequence[tuple[str, str, str]], rows: Mapping[str, Sequence[int]], slot_ns: int, when: Callable[[int], str]
) -> Iterable[Column]:
    """The times in ``rows`` (by the third of each condition) of slots, the first condition at the bottom. Neighbours that look the same
    make one column; where nothing was, there is none. ``when``: the time of a slot in words."""
    slots = list(zip(*(rows[name] for _, _, name in conditions), strict=True))
    at = 0
    while at < len(slots):
        end = at + 1
        while end < len(slots) and slots[end] == slots[at]:
            end += 1
        if any(slots[at]):
            shares = [max(_LEAST, 100 * value / slot_ns) if value else 0.0 for value in slots[at]]
            scale = min(1.0, 100 / sum(shares))
            parts, top = [], 100.0
            for (name, _, _), share in zip(conditions, shares, strict=True):
                if share:
                    top -= share * scale
                    parts.append((name, round(max(0.0, top), 1), round(share * scale, 1)))
            shares_of = zip(conditions, slots[at], strict=True)
            figures = [f"{label.lower()} {100 * value // slot_ns} %" for (_, label, _), value in shares_of if value]
            yield Column(at, end - at, tuple(parts), f"{when(at)}: {', '.join(figures)}")
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
    size = -(-slots // _SLOT_ROWS)
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
