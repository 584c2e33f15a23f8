"""Reports of credits, as billing computes them and its REST answers them. Amounts ending in ``_micro`` are micro-credits."""

from __future__ import annotations

import msgspec


class CreditLine(msgspec.Struct, frozen=True):
    """One line: use in core-ns, byte-ms and instructions, and its cost, also as decimal credits."""

    key: str
    core_credits: str
    vram_credits: str
    core_credits_micro: int
    vram_credits_micro: int
    core_ns: int
    byte_ms: int
    instructions: int
    launches: int
    recovered_ns: int = 0
    """Core-ns that repeated lost work, and are not charged."""


class CreditReport(msgspec.Struct, frozen=True):
    """Credits of [from, to), whole minutes in Unix ns; ``to_ns`` 0: no end. ``by``: what a line is about; ``position``: of the log."""

    by: str
    from_ns: int
    to_ns: int
    position: int
    items: tuple[CreditLine, ...]
    total: CreditLine


class SeriesLine(msgspec.Struct, frozen=True):
    """``micro``: used in each bucket, of both meters. ``other``: the sum of all lines that have none of their own."""

    key: str
    other: bool
    micro: tuple[int, ...]


class CreditSeries(msgspec.Struct, frozen=True):
    """Bucket i is [times_ns[i], times_ns[i] + step_ns); ``times``: the same in Unix seconds. The lines sum to all credits of the period."""

    by: str
    step_ns: int
    times_ns: tuple[int, ...]
    times: tuple[int, ...]
    lines: tuple[SeriesLine, ...]
    position: int


class Verification(msgspec.Struct, frozen=True):
    """The bill, recomputed from the log up to ``position``; the digests name the two results. ``first_difference`` None: they agree to the
    last micro-credit. ``findings``: what in the log itself does not add up."""

    ok: bool
    position: int
    rows: int
    core_credits_micro: int
    vram_credits_micro: int
    first_difference: str | None
    findings: tuple[str, ...]
    view_digest: str
    log_digest: str
