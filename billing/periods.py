"""Periods of budgets and statements: day, month and total, in UTC. Pure calendar arithmetic on Unix nanoseconds."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Final

from billing.errors import BillingRequestError

PERIODS: Final = ("day", "month", "total")
DAY_NS: Final = 86_400_000_000_000

_EPOCH: Final = date(1970, 1, 1)
_MONTH: Final = re.compile(r"([0-9]{4})-([0-9]{2})")


def day_of(at_ns: int) -> int:
    """Days since 1970 of the UTC day that ``at_ns`` (Unix time) lies in."""
    return at_ns // DAY_NS


def bounds(period: str, at_ns: int) -> tuple[int, int]:
    """[from, to) of the period that ``at_ns`` lies in, Unix nanoseconds; ``total`` has no end (0)."""
    if period == "total":
        return 0, 0
    day = day_of(at_ns)
    if period == "day":
        return day * DAY_NS, (day + 1) * DAY_NS
    if period != "month":
        raise BillingRequestError("period", f"{period!r} is not one of {', '.join(PERIODS)}")
    return _month_of(_EPOCH + timedelta(days=day))


def month_bounds(month: str) -> tuple[int, int]:
    """[from, to) of ``YYYY-MM``, Unix nanoseconds. Raises BillingRequestError."""
    match = _MONTH.fullmatch(month)
    if match is None or not 1 <= int(match[2]) <= 12 or not 1970 <= int(match[1]) <= 9000:
        raise BillingRequestError("month", f"{month!r} is not a month such as 2030-01")
    return _month_of(date(int(match[1]), int(match[2]), 1))


def month_name(at_ns: int) -> str:
    """``YYYY-MM`` of the month that ``at_ns`` lies in."""
    return (_EPOCH + timedelta(days=day_of(at_ns))).strftime("%Y-%m")


def time_text(at_ns: int) -> str:
    """ISO 8601 in UTC, whole seconds, for people: ``2030-01-31T12:00:00Z``."""
    return datetime.fromtimestamp(at_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _month_of(day: date) -> tuple[int, int]:
    first = day.replace(day=1)
    after = first.replace(year=first.year + 1, month=1) if first.month == 12 else first.replace(month=first.month + 1)
    return (first - _EPOCH).days * DAY_NS, (after - _EPOCH).days * DAY_NS
