"""Credits report: rows of the view, grouped and limited to a period, or in buckets of a minute, an hour or a day for charts. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from billing.errors import BillingRequestError
from billing.periods import DAY_NS
from billing.projection import MINUTE_NS, BillingView
from bus_schemas.credits import CreditLine, CreditReport, CreditSeries, SeriesLine

__all__ = [
    "BUCKETS_MAX", "GROUPINGS", "By", "CreditLine", "CreditReport", "amount_text", "credit_report", "credit_series", "credits_text",
    "csv_cell", "report_csv",
]  # fmt: skip

By = Literal["tenant", "task", "node", "model"]
GROUPINGS: Final[dict[str, int]] = {"tenant": 1, "task": 2, "node": 3, "model": 4}
"""Grouping -> position in a RowKey."""

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a spreadsheet may take for the beginning of a formula, full-width forms included."""


def credit_report(
    view: BillingView, by: str, from_ns: int = 0, to_ns: int = 0, tenant: str | None = None, task: str | None = None
) -> CreditReport:
    """Lines sorted by key. The period is widened to whole minutes; ``to_ns`` 0 means up to now. ``tenant``, ``task``: only its credits.

    Raises BillingRequestError naming the field.
    """
    check_grouping(by, GROUPINGS)
    first, last = minutes_within(from_ns, to_ns)
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
    lines = tuple(_line(name, groups[name]) for name in sorted(groups))
    return CreditReport(by, first * MINUTE_NS, last * MINUTE_NS, view.position, lines, _line("total", total))


def _line(key: str, values: list[int]) -> CreditLine:
    return CreditLine(key, credits_text(values[0]), credits_text(values[1]), *values)


def check_grouping(by: str, groupings: Iterable[str]) -> None:
    """Raises BillingRequestError."""
    if by not in groupings:
        raise BillingRequestError("by", f"{by!r} is not one of {', '.join(groupings)}")


def minutes_within(from_ns: int, to_ns: int) -> tuple[int, int]:
    """The minutes [first, last) of a period; ``to_ns`` 0: no end, last 0. Raises BillingRequestError."""
    if from_ns < 0:
        raise BillingRequestError("from", "may not be negative")
    if to_ns and to_ns <= from_ns:
        raise BillingRequestError("to", "must be later than from")
    return from_ns // MINUTE_NS, -(-to_ns // MINUTE_NS)


def steps_within(from_ns: int, to_ns: int, step: str) -> tuple[int, int, int]:
    """The length of a step, and the steps [first, last) of a period. Raises BillingRequestError."""
    if step not in STEPS:
        raise BillingRequestError("step", f"{step!r} is not one of {', '.join(STEPS)}")
    if from_ns < 0 or to_ns <= from_ns:
        raise BillingRequestError("to", "must be later than from, and from not negative")
    step_ns = STEPS[step] * MINUTE_NS
    first, last = from_ns // step_ns, -(-to_ns // step_ns)
    if last - first > BUCKETS_MAX:
        raise BillingRequestError("step", f"{last - first} buckets of a {step} are too many: at most {BUCKETS_MAX}; take a longer step")
    return step_ns, first, last


def csv_cell(text: str) -> str:
    """``text`` as a cell that no spreadsheet runs: what begins like a formula (also behind blanks) gets a leading apostrophe."""
    return "'" + text if text.lstrip(" \u00a0\u3000")[:1] in _FORMULA else text


def lines_csv(by: str, lines: Sequence[Any], names: Sequence[str]) -> str:
    """Lines of a report as CSV, one header line; ``by``: what the key of a line is, ``names``: its other fields."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([by, *names])
    for line in lines:
        writer.writerow([csv_cell(line.key), *(getattr(line, name) for name in names)])
    return out.getvalue()


def report_csv(report: CreditReport) -> str:
    """The report as CSV, the total last. Credits are decimal with six places, exact."""
    names = [name for name in CreditLine.__struct_fields__ if name != "key" and not name.endswith("_micro")]
    return lines_csv(report.by, (*report.items, report.total), names)


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


def credit_series(
    view: BillingView, by: str, from_ns: int, to_ns: int, step: str, *, tenant: str | None = None, top: int = 8
) -> CreditSeries:
    """Credits used in [from, to), widened to whole steps; the ``top`` keys by credits, most first, then the rest as one line.

    Raises BillingRequestError naming the field.
    """
    check_grouping(by, GROUPINGS)
    step_ns, first, last = steps_within(from_ns, to_ns, step)
    at = GROUPINGS[by]
    lines: dict[str, list[int]] = {}
    for key, row in view.rows.items():
        bucket = key[0] * MINUTE_NS // step_ns - first
        if 0 <= bucket < last - first and (tenant is None or key[1] == tenant):
            line = lines.setdefault(str(key[at]), [0] * (last - first))
            line[bucket] += row.core_micro + row.vram_micro
    ranked = sorted(lines, key=lambda name: (-sum(lines[name]), name))
    out = [SeriesLine(name, False, tuple(lines[name])) for name in ranked[:top]]
    if ranked[top:]:
        rest = [sum(values) for values in zip(*(lines[name] for name in ranked[top:]), strict=True)]
        out.append(SeriesLine(OTHER, True, tuple(rest)))
    times_ns = tuple(bucket * step_ns for bucket in range(first, last))
    return CreditSeries(by, step_ns, times_ns, tuple(at_ns // 10**9 for at_ns in times_ns), tuple(out), view.position)
