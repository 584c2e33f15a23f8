"""Credits report: rows of the view, grouped and limited to a period, or in buckets of a minute, an hour or a day for charts. Pure."""

from __future__ import annotations

import csv
import io
from typing import Final, Literal

import msgspec

from billing.errors import BillingRequestError
from billing.periods import DAY_NS
from billing.projection import MINUTE_NS, BillingView

__all__ = [
    "BUCKETS_MAX", "GROUPINGS", "By", "CreditLine", "CreditReport", "amount_text", "credit_report", "credit_series", "credits_text",
    "csv_cell", "report_csv",
]  # fmt: skip

By = Literal["tenant", "task", "node", "model"]
GROUPINGS: Final[dict[str, int]] = {"tenant": 1, "task": 2, "node": 3, "model": 4}
"""Grouping -> position in a RowKey."""

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a spreadsheet may take for the beginning of a formula, full-width forms included."""


class CreditLine(msgspec.Struct, frozen=True):
    """One line: use in core-ns, byte-ms and instructions; cost in micro-credits."""

    key: str
    core_credits_micro: int
    vram_credits_micro: int
    core_ns: int
    byte_ms: int
    instructions: int
    launches: int
    #: core-ns that repeated lost work, and are not charged
    recovered_ns: int


class CreditReport(msgspec.Struct, frozen=True):
    """Credits of a period."""

    by: str
    #: start of the period that is covered, whole minutes, Unix ns
    from_ns: int
    #: its end, exclusive; 0: no end
    to_ns: int
    #: log position of the view
    position: int
    lines: tuple[CreditLine, ...]
    total: CreditLine


def credit_report(
    view: BillingView, by: str, from_ns: int = 0, to_ns: int = 0, tenant: str | None = None, task: str | None = None
) -> CreditReport:
    """Lines sorted by key. The period is widened to whole minutes; ``to_ns`` 0 means up to now. ``tenant``, ``task``: only its credits.

    Raises BillingRequestError naming the field.
    """
    if by not in GROUPINGS:
        raise BillingRequestError("by", f"{by!r} is not one of {', '.join(GROUPINGS)}")
    if from_ns < 0:
        raise BillingRequestError("from", "may not be negative")
    if to_ns and to_ns <= from_ns:
        raise BillingRequestError("to", "must be later than from")
    first = from_ns // MINUTE_NS
    last = -(-to_ns // MINUTE_NS)
    at = GROUPINGS[by]
    groups: dict[str, list[int]] = {}
    total = [0] * 7
    for key, row in view.rows.items():
        if (
            key[0] < first
            or (to_ns and key[0] >= last)
            or (tenant is not None and key[1] != tenant)
            or (task is not None and key[2] != task)
        ):
            continue
        values = (row.core_micro, row.vram_micro, row.core_ns, row.byte_ms, row.instructions, row.launches, row.recovered_ns)
        group = groups.setdefault(str(key[at]), [0] * 7)
        for i, value in enumerate(values):
            group[i] += value
            total[i] += value
    lines = tuple(CreditLine(name, *groups[name]) for name in sorted(groups))
    return CreditReport(by, first * MINUTE_NS, last * MINUTE_NS, view.position, lines, CreditLine("total", *total))


def csv_cell(text: str) -> str:
    """``text`` as a cell that no spreadsheet runs: what begins like a formula (also behind blanks) gets a leading apostrophe."""
    return "'" + text if text.lstrip(" \u00a0\u3000")[:1] in _FORMULA else text


def report_csv(report: CreditReport) -> str:
    """The report as CSV, one header line, the total last. Credits are decimal with six places, exact."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([report.by, "core_credits", "vram_credits", "core_ns", "byte_ms", "instructions", "launches", "recovered_ns"])
    for line in (*report.lines, report.total):
        writer.writerow(
            [
                csv_cell(line.key),
                credits_text(line.core_credits_micro),
                credits_text(line.vram_credits_micro),
                line.core_ns,
                line.byte_ms,
                line.instructions,
                line.launches,
                line.recovered_ns,
            ]
        )
    return out.getvalue()


def amount_text(micro: int) -> str:
    """Micro-credits for sentences, exact: thousands apart, no trailing zeros, for example 1,600,000 or 0.5."""
    whole, _, part = credits_text(abs(micro)).partition(".")
    return f"{'-' if micro < 0 else ''}{int(whole):,}.{part}".rstrip("0").rstrip(".")


def credits_text(micro: int) -> str:
    """Micro-credits as exact decimal credits, for example 1.250000."""
    sign, micro = ("-", -micro) if micro < 0 else ("", micro)
    return f"{sign}{micro // 1_000_000}.{micro % 1_000_000:06d}"


STEPS: Final[dict[str, int]] = {"minute": 1, "hour": 60, "day": DAY_NS // MINUTE_NS}
"""Name -> minutes."""
BUCKETS_MAX: Final = 2_000
OTHER: Final = ""
"""The key of what is in no line of its own."""


class SeriesLine(msgspec.Struct, frozen=True):
    """Micro-credits (both meters) of each bucket. ``other``: the sum of all that have no line of their own."""

    key: str
    micro: tuple[int, ...]
    other: bool = False


class CreditSeries(msgspec.Struct, frozen=True):
    """Bucket i is [times_ns[i], times_ns[i] + step_ns). The lines sum to all credits of the period."""

    by: str
    step_ns: int
    times_ns: tuple[int, ...]
    lines: tuple[SeriesLine, ...]
    position: int


def credit_series(
    view: BillingView, by: str, from_ns: int, to_ns: int, step: str, *, tenant: str | None = None, top: int = 8
) -> CreditSeries:
    """Credits used in [from, to), widened to whole steps; the ``top`` keys by credits, most first, then the rest as one line.

    Raises BillingRequestError naming the field.
    """
    if by not in GROUPINGS:
        raise BillingRequestError("by", f"{by!r} is not one of {', '.join(GROUPINGS)}")
    if step not in STEPS:
        raise BillingRequestError("step", f"{step!r} is not one of {', '.join(STEPS)}")
    if from_ns < 0 or to_ns <= from_ns:
        raise BillingRequestError("to", "must be later than from, and from not negative")
    minutes = STEPS[step]
    first, last = from_ns // MINUTE_NS // minutes, -(-to_ns // (MINUTE_NS * minutes))
    if last - first > BUCKETS_MAX:
        raise BillingRequestError("step", f"{last - first} buckets of a {step} are too many: at most {BUCKETS_MAX}; take a longer step")
    at = GROUPINGS[by]
    lines: dict[str, list[int]] = {}
    for key, row in view.rows.items():
        bucket = key[0] // minutes - first
        if 0 <= bucket < last - first and (tenant is None or key[1] == tenant):
            line = lines.setdefault(str(key[at]), [0] * (last - first))
            line[bucket] += row.core_micro + row.vram_micro
    ranked = sorted(lines, key=lambda name: (-sum(lines[name]), name))
    out = [SeriesLine(name, tuple(lines[name])) for name in ranked[:top]]
    if ranked[top:]:
        rest = [sum(values) for values in zip(*(lines[name] for name in ranked[top:]), strict=True)]
        out.append(SeriesLine(OTHER, tuple(rest), other=True))
    step_ns = minutes * MINUTE_NS
    times = tuple(bucket * step_ns for bucket in range(first, last))
    return CreditSeries(by, step_ns, times, tuple(out), view.position)
