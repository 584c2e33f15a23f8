"""Charts as data: what static/charts.js draws, and the same as a table for those who do not see it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from services.controller.web.formats import bytes_text, clock_time, credits_text
from services.controller.web.ring import Floats

__all__ = ["Chart", "Line", "chart_data", "chart_points", "chart_table"]

_TABLE_ROWS: Final = 12
_TEXTS: Final = {"%": lambda value: f"{value:.0f} %", "bytes": bytes_text, "": credits_text}


@dataclass(frozen=True, slots=True)
class Line:
    """``shade``: a class of the stylesheet, k1 to k6. ``unit``: ``%``, ``bytes`` or empty."""

    label: str
    shade: str
    unit: str
    values: Floats


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over the same times (Unix seconds, evenly apart). ``top``: where the axis ends, None: by the values. ``least``: and at
    least here. ``span_s``: how much time the axis shows."""

    times: Sequence[int]
    lines: tuple[Line, ...]
    stacked: bool = False
    top: float | None = None
    least: float = 1.0
    span_s: int = 3600


def chart_data(chart: Chart) -> dict[str, Any]:
    """What a page carries."""
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
