"""Compares a bill with one recomputed from the log, and names the first difference. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from billing.projection import BillingView

__all__ = ["Verification", "verify"]


class Verification(msgspec.Struct, frozen=True):
    """``first_difference`` empty: the two agree to the last micro-credit. ``findings``: what in the log itself does not add up."""

    position: int
    rows: int
    core_credits_micro: int
    vram_credits_micro: int
    view_digest: str
    log_digest: str
    first_difference: str
    findings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.first_difference and not self.findings


def verify(view: BillingView, recomputed: BillingView) -> Verification:
    """Compare ``view`` with the fold of the log up to the same position."""
    return Verification(
        position=recomputed.position,
        rows=len(recomputed.rows),
        core_credits_micro=sum(row.core_micro for row in recomputed.rows.values()),
        vram_credits_micro=sum(row.vram_micro for row in recomputed.rows.values()),
        view_digest=view.digest(),
        log_digest=recomputed.digest(),
        first_difference=next(_differences(view, recomputed), ""),
        findings=tuple(recomputed.findings),
    )


def _differences(view: BillingView, log: BillingView) -> Iterator[str]:
    if view.position != log.position:
        yield f"position: the view stands at {view.position}, the log at {log.position}"
    for key in sorted(view.rows.keys() | log.rows.keys()):
        have, want = view.rows.get(key), log.rows.get(key)
        if have != want:
            where = f"minute={key[0]} tenant={key[1]} task={key[2]} node={key[3]} model={key[4]}"
            yield f"row {where}: the view has {have}, the log gives {want}"
    for account in sorted(view.ledger.balances.keys() | log.ledger.balances.keys()):
        a, b = view.ledger.balances.get(account, 0), log.ledger.balances.get(account, 0)
        if a != b:
            yield f"account {account}: the view has {a} micro-credits, the log gives {b}"
    if view.digest() != log.digest():
        yield "the views differ outside rows and balances (tariff, tiers, budgets, devices or findings)"
