"""Template filters for figures and times. Pure: the browser counts how long ago a time was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def bytes_text(size_bytes: float) -> str:
    """``1536 MiB`` is 1.5 GiB: binary units, at most three digits that count."""
    size, unit = float(size_bytes), 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size /= 1024
        unit += 1
    text = f"{size:.0f}" if unit == 0 or abs(size) >= 100 else f"{size:.1f}"
    return f"{text.removesuffix('.0')} {_UNITS[unit]}"


def count_text(number: float) -> str:
    """With thousands apart: 12,345."""
    return f"{number:,.0f}"


def credits_text(number: float) -> str:
    """Credits: whole from a hundred on, two digits behind the point below."""
    return f"{number:,.0f}" if abs(number) >= 100 or number == 0 else f"{number:,.2f}"


def compact_text(number: float) -> str:
    """Credits in few digits: ``4.43 M``; below 100,000 as they are."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e5, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if letter == 'k' else size):.3g} {letter}"
    return credits_text(number)


def gib_seconds_text(byte_ms: int) -> str:
    """Memory over time: ``1,204.5 GiB·s``; less than a hundredth in a smaller unit: ``57 B·s``."""
    gib_s = byte_ms / (1000 * 2**30)
    return f"{bytes_text(byte_ms / 1000)}·s" if gib_s < 0.01 else f"{gib_s:,.{2 if gib_s < 10 else 1 if gib_s < 1000 else 0}f} GiB·s"


def duration_text(duration_ns: int) -> str:
    """The two largest units: ``3 h 12 min``, ``850 ms``."""
    seconds = duration_ns / 1e9
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = int(seconds)
    for size, name, small, small_name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {name} {rest} {small_name}" if rest else f"{whole // size} {name}"
    raise AssertionError("a duration of at least a minute has one of these units")


def short_time(duration_ns: int) -> str:
    """A duration that may be much less than a second: ``12 µs``, ``3.4 ms``."""
    if duration_ns == 0 or duration_ns >= 10_000_000:
        return duration_text(duration_ns)
    return f"{duration_ns / 1e6:.1f} ms" if duration_ns >= 50_000 else f"{duration_ns / 1e3:.0f} µs"


def _moment(unix_ns: int) -> datetime:
    return _EPOCH + timedelta(microseconds=unix_ns // 1_000)


def iso_time(unix_ns: int) -> str:
    """RFC 3339, whole seconds, UTC: for ``datetime`` of ``<time>``."""
    return _moment(unix_ns).strftime("%Y-%m-%dT%H:%M:%SZ")


def clock_time(unix_ns: int) -> str:
    """For people, UTC; the browser shows its own zone and how long ago it was."""
    return _moment(unix_ns).strftime("%Y-%m-%d %H:%M:%S UTC")


FILTERS: Final = {
    "bytes": bytes_text,
    "count": count_text,
    "compact": compact_text,
    "credits": credits_text,
    "gib_seconds": gib_seconds_text,
    "duration": duration_text,
    "short_time": short_time,
    "iso": iso_time,
    "clock": clock_time,
}
