"""Utilization report: time in each state, waste and its cost, by device, node, tenant, task or model over a period; and by device over time
for charts. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from billing.projection import MINUTE_NS, BillingView
from billing.report import check_grouping, credits_text, lines_csv, minutes_within, steps_within
from billing.utilization import Span
from bus_schemas.utilization import BUSY, STATES, UtilizationBuckets, UtilizationLine, UtilizationReport, UtilizationSeries, percent_of

GROUPINGS: Final = ("device", "node", "tenant", "task", "model")
_NS: Final = 1_000_000_000


def utilization_report(
    view: BillingView, by: str, from_ns: int = 0, to_ns: int = 0, *, tenant: str | None = None, task: str | None = None
) -> UtilizationReport:
    """Lines sorted by key; the key of what no task held is empty where a line is about tenants, tasks or models. ``tenant``, ``task``: only
    what is attributed to it. Raises BillingRequestError naming the field.
    """
    check_grouping(by, GROUPINGS)
    first, last = minutes_within(from_ns, to_ns)
    at = GROUPINGS.index(by)
    groups: dict[str, list[int]] = {}
    total = [0] * (len(STATES) + 3)

    def add(name: str, values: list[int]) -> None:
        group = groups.setdefault(name, [0] * len(total))
        for i, value in enumerate(values):
            group[i] += value
            total[i] += value

    for (minute, node, gpu, *owner), row in view.utilization.rows.items():
        inside = minute >= first and (not to_ns or minute < last)
        if inside and (tenant is None or owner[0] == tenant) and (task is None or owner[1] == task):
            add((f"{node}/{gpu}", node, *owner)[at], [*row.times, row.used_core_ns, row.waste_core_ns, row.waste_micro])
    if tenant is None and task is None:
        for (node, gpu), spans in view.utilization.spans.items():
            for span, length_ns in _within(spans, first * MINUTE_NS, last * MINUTE_NS):
                core_ns = length_ns * span.cores
                times = [length_ns if state == span.state else 0 for state in range(len(STATES))]
                add((f"{node}/{gpu}", node, "", "", "")[at], [*times, 0, core_ns, core_ns * span.price_micro // _NS])
    lines = tuple(_line(name, groups[name]) for name in sorted(groups))
    return UtilizationReport(by, first * MINUTE_NS, last * MINUTE_NS, view.position, lines, _line("total", total))


def _within(spans: list[Span], from_ns: int, to_ns: int) -> Iterator[tuple[Span, int]]:
    """The spans of a period, each with how much of it lies within; ``to_ns`` 0: no end."""
    for span in spans:
        length_ns = (min(span.to_ns, to_ns) if to_ns else span.to_ns) - max(span.from_ns, from_ns)
        if length_ns > 0:
            yield span, length_ns


def _line(key: str, values: list[int]) -> UtilizationLine:
    used, waste, micro = values[len(STATES) :]
    times = dict(zip((f"{state}_ns" for state in STATES), values[: len(STATES)], strict=True))
    return UtilizationLine(
        key=key,
        **times,
        wall_ns=sum(times.values()),
        used_core_ns=used,
        waste_core_ns=waste,
        waste_micro=micro,
        waste_credits=credits_text(micro),
        waste_percent=percent_of(waste, used + waste),
    )


def report_csv(report: UtilizationReport) -> str:
    """The report as CSV, one header line, the total last."""
    names = [name for name in UtilizationLine.__struct_fields__ if name != "key"]
    return lines_csv(report.by, (*report.items, report.total), names)


def utilization_series(
    view: BillingView, from_ns: int, to_ns: int, step: str, *, tenant: str | None = None, top: int = 8
) -> UtilizationSeries:
    """The states of each device in [from, to), widened to whole steps; the ``top`` devices with the most time that is not busy.

    Raises BillingRequestError naming the field.
    """
    step_ns, first, last = steps_within(from_ns, to_ns, step)
    count = last - first
    devices: dict[tuple[str, int], list[list[int]]] = {}
    for (minute, node, gpu, owner, _, _), row in view.utilization.rows.items():
        bucket = minute * MINUTE_NS // step_ns - first
        if 0 <= bucket < count and (tenant is None or owner == tenant):
            lines = devices.setdefault((node, gpu), [[0] * count for _ in STATES])
            for line, time_ns in zip(lines, row.times, strict=True):
                line[bucket] += time_ns
    for device, spans in view.utilization.spans.items() if tenant is None else ():
        for span, _ in _within(spans, first * step_ns, last * step_ns):
            line = devices.setdefault(device, [[0] * count for _ in STATES])[span.state]
            for bucket in range(max(0, span.from_ns // step_ns - first), min(count, -(-span.to_ns // step_ns) - first)):
                begin_ns = (first + bucket) * step_ns
                line[bucket] += min(span.to_ns, begin_ns + step_ns) - max(span.from_ns, begin_ns)
    ranked = sorted(devices, key=lambda device: (-sum(map(sum, devices[device])) + sum(devices[device][BUSY]), device))
    shown = tuple(UtilizationBuckets(f"{node}/{gpu}", node, gpu, tuple(map(tuple, devices[node, gpu]))) for node, gpu in ranked[:top])
    times = tuple(bucket * step_ns for bucket in range(first, last))
    return UtilizationSeries(step_ns, times, STATES, shown, len(ranked), view.position)
