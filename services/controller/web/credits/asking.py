"""Query of the Credits page: a period, a grouping, a tenant; read from the address. And the charts of billing's answer. Pure.

May live here: that. May not: asking billing (client), sums of money (billing does them).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from services.controller.web.formats import clock_time, credits_text

__all__ = ["GROUPINGS", "PERIODS", "Asked", "ask_of", "chart_of", "rows_of"]

GROUPINGS: Final = (("tenant", "Tenant"), ("task", "Task"), ("model", "Model"), ("node", "Node"))
PERIODS: Final = (("hour", "1 hour"), ("day", "24 hours"), ("week", "7 days"), ("month", "This month"), ("quarter", "90 days"))
_LENGTHS_S: Final = {"hour": 3_600, "day": 86_400, "week": 7 * 86_400, "quarter": 90 * 86_400}
_SHADES: Final = ("k1", "k2", "k3", "k4", "k5")
_TABLE_ROWS: Final = 24
_MICRO: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Asked:
    """``period``: a name of PERIODS, or ``custom``. Times are Unix seconds, whole minutes; ``to_s`` exclusive. ``step``: of the chart.
    ``from_day`` and ``to_day`` are what the date fields show (UTC, both inclusive). ``wrong``: what could not be understood, or empty."""

    by: str
    period: str
    from_s: int
    to_s: int
    step: str
    tenant: str
    from_day: str
    to_day: str
    wrong: str = ""

    @property
    def label(self) -> str:
        known = dict(PERIODS)
        return known.get(self.period, f"{self.from_day} to {self.to_day}")

    @property
    def query(self) -> dict[str, str]:
        """For billing."""
        return {"by": self.by, "from": str(self.from_s), "to": str(self.to_s), "tenant": self.tenant}

    @property
    def pairs(self) -> dict[str, str]:
        """For an address of ours; ``by`` not among them."""
        pairs = {"period": self.period}
        if self.period == "custom":
            pairs |= {"from": self.from_day, "to": self.to_day}
        return pairs | ({"tenant": self.tenant} if self.tenant else {})


def ask_of(query: Mapping[str, str], now_s: int, own: str = "") -> Asked:
    """``own``: the caller's tenant, empty for those who see all. What cannot be meant falls back to the last hour, and says so."""
    by = query.get("by", "tenant")
    by = by if by in dict(GROUPINGS) else "tenant"
    tenant = own or query.get("tenant", "").strip()[:200]
    period, wrong = query.get("period", ""), ""
    end_s = (now_s // 60 + 1) * 60
    if period == "custom" or (period not in dict(PERIODS) and (query.get("from") or query.get("to"))):
        found = _days(query.get("from", ""), query.get("to", ""), now_s)
        if isinstance(found, tuple):
            return _asked(by, "custom", found[0], found[1], tenant)
        wrong, period = found, "hour"
    if period == "month":
        first = datetime.fromtimestamp(now_s, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        return _asked(by, period, int(first.timestamp()), end_s, tenant)
    if period not in _LENGTHS_S:
        period = "hour"
    return _asked(by, period, end_s - _LENGTHS_S[period], end_s, tenant, wrong)


def _asked(by: str, period: str, from_s: int, to_s: int, tenant: str, wrong: str = "") -> Asked:
    length = to_s - from_s
    step = "minute" if length <= 4 * 3_600 else "hour" if length <= 32 * 86_400 else "day"
    days = [datetime.fromtimestamp(second, UTC).date().isoformat() for second in (from_s, to_s - 1)]
    return Asked(by, period, from_s, to_s, step, tenant, days[0], days[1], wrong)


def _days(from_day: str, to_day: str, now_s: int) -> tuple[int, int] | str:
    """[from, to) of two dates, both inclusive; or what is wrong with them."""
    try:
        today = datetime.fromtimestamp(now_s, UTC).date().isoformat()
        start = datetime.strptime(from_day or to_day or today, "%Y-%m-%d").replace(tzinfo=UTC)
        end = datetime.strptime(to_day or today, "%Y-%m-%d").replace(tzinfo=UTC) + timedelta(days=1)
    except (ValueError, OverflowError):
        return "Write dates as 2030-01-31. The last hour is shown."
    if end <= start:
        return "The first day is after the last. The last hour is shown."
    if start.year < 1970 or end - start > timedelta(days=1100):
        return "At most three years at once. The last hour is shown."
    return int(start.timestamp()), int(end.timestamp())


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the report. ``share``: of the whole, 0 to 100."""

    key: str
    micro: int
    core_micro: int
    vram_micro: int
    core_ns: int
    byte_ms: int
    launches: int
    share: float


def rows_of(report: Mapping[str, Any]) -> tuple[list[Line], Line]:
    """The lines of billing's answer and their total, the dearest first."""
    total = report["total"]["core_credits_micro"] + report["total"]["vram_credits_micro"]
    lines = [_line(line, total) for line in report["items"]]
    return sorted(lines, key=lambda line: (-line.micro, line.key)), _line(report["total"], total)


def _line(line: Mapping[str, Any], total: int) -> Line:
    micro = line["core_credits_micro"] + line["vram_credits_micro"]
    share = 100 * micro / total if total > 0 else 0.0
    return Line(
        line["key"],
        micro,
        line["core_credits_micro"],
        line["vram_credits_micro"],
        line["core_ns"],
        line["byte_ms"],
        line["launches"],
        share,
    )


def chart_of(series: Mapping[str, Any], span_s: int, titles: Mapping[str, str]) -> tuple[dict[str, Any], tuple[list[str], list[list[str]]]]:
    """Credits of each bucket, stacked: the data that static/charts.js draws, and the same as a table. ``titles``: names by key."""
    times = [int(second) for second in series["times"]]
    lines = [
        (("others" if line["other"] else titles.get(line["key"], line["key"]) or "no name"), line["micro"]) for line in series["lines"]
    ]
    drawn = [
        {"label": label, "class": "k6" if label == "others" else _SHADES[number % len(_SHADES)], "unit": "", "values": _credits(micro)}
        for number, (label, micro) in enumerate(lines)
    ]
    if not drawn:
        drawn = [{"label": "credits", "class": "k1", "unit": "", "values": [0] * len(times)}]
    data = {"t": times, "series": drawn, "stacked": True, "max": None, "least": 1, "span": span_s}
    return data, _table(times, lines)


def _credits(micro: Sequence[int]) -> list[float]:
    return [round(value / _MICRO, 3) for value in micro]


def _table(times: Sequence[int], lines: Sequence[tuple[str, Sequence[int]]]) -> tuple[list[str], list[list[str]]]:
    """Head and rows, the newest first: sums of as many buckets as it takes for two dozen rows."""
    size = max(1, math.ceil(len(times) / _TABLE_ROWS))
    rows = []
    for end in range(len(times), 0, -size):
        start = max(0, end - size)
        rows.append([clock_time(times[start] * 10**9)[:16], *(credits_text(sum(micro[start:end]) / _MICRO) for _, micro in lines)])
    return ["From (UTC)", *(label for label, _ in lines)], rows
