"""Credits over time, for charts: the rows of the view in buckets of a minute, an hour or a day. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from billing.errors import BillingRequestError
from billing.periods import DAY_NS
from billing.projection import MINUTE_NS, BillingView
from billing.report import GROUPINGS

__all__ = ["BUCKETS_MAX", "OTHER", "STEPS", "CreditSeries", "SeriesLine", "credit_series"]

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
