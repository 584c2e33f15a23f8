"""Budget leases: arithmetic that lends the rest of a budget to the nodes that spend it. Pure.

A lease names a *ceiling*: the sum of all charges of the tenant on that node, since the log began, up to which the node may go. Ceilings
are absolute, so a replica that lags, a repeated request or an answer that is lost lends nothing twice. A node that asks gets
an equal part of what is left, among the nodes that are busy for the tenant, and never what another node holds: the ceilings of all nodes
with a live lease sum to at most the limit. A node launches a batch as long as anything is left, so each of its sessions overshoots by at
most one batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from billing.budgets import Budgets, stop_micro
from billing.periods import bounds, time_text
from billing.report import credits_text
from bus_schemas.allowance import EXHAUSTED, GRANTED, MICRO_MAX, UNLIMITED, WAIT, Allowance

LEASE_MS: Final = 30_000
"""A node asks every second; without an answer it may go on for so long, within what it was lent."""
_MARGIN_MS: Final = 2_000
"""Billing holds a lease for live a little longer than the node does: its clock and the way to the node."""
_IDLE_PART: Final = 8
"""A node that runs nothing for the tenant is lent so small a part of its share, where other nodes have the tenant too."""


class Lease(msgspec.Struct, array_like=True, frozen=True):
    """The part of a budget that a node may spend."""

    #: bound on the sum of charges since the log began, micro-credits
    ceiling_micro: int
    #: charges that the node had counted when it asked
    counted_micro: int
    #: end, Unix ms
    until_ms: int
    busy: bool


class Leases(msgspec.Struct, array_like=True, frozen=True):
    """All leases of one tenant, by node."""

    nodes: dict[str, Lease] = {}


class Left(msgspec.Struct, frozen=True):
    """The budget that binds: ``micro`` until the tenant is stopped (negative: it is over). ``limit_micro``: with what grants add to it."""

    micro: int
    period: str
    used_micro: int
    limit_micro: int
    stop_percent: int
    renews_ns: int


def binding(budgets: Budgets, tenant: str, now_ns: int) -> Left | None:
    """The budget of ``tenant`` with the least left at ``now_ns``; None: nothing can stop it."""
    found = None
    for period, budget in budgets.by_tenant.get(tenant, {}).items():
        from_ns, to_ns = bounds(period, now_ns)
        effective = budgets.effective_micro(tenant, period, budget.limit_micro)
        stop = stop_micro(effective, budget.stop_percent)
        if stop is None:
            continue
        used = budgets.used_micro(tenant, from_ns, to_ns)
        if found is None or stop - used < found.micro:
            found = Left(stop - used, period, used, effective, budget.stop_percent, to_ns)
    return found


def used_up(tenant: str, left: Left, unbilled_micro: int) -> str:
    """For people: which budget is used up, how much was used of what, and what can be done."""
    which = {"day": "daily", "month": "monthly", "total": "total"}[left.period]
    limit = f"{credits_text(left.limit_micro)} credits"
    if left.stop_percent != 100:
        limit += f" (it stops at {left.stop_percent} %)"
    renewal = f"it begins anew at {time_text(left.renews_ns)}; ask for" if left.renews_ns else "ask for a grant or"
    used = credits_text(left.used_micro + unbilled_micro)
    return f"the {which} budget of tenant {tenant!r} is used up: {used} of {limit}; {renewal} a higher limit"


def lend(
    leases: Leases, node: str, now_ms: int, *, left: Left, billed: Mapping[str, int], unbilled_micro: int, busy: bool, tenant: str
) -> tuple[Leases, Allowance]:
    """Renew the lease of ``node``. ``billed``: charges since the log began, by node, as the asked replica knows them; ``unbilled_micro``:
    what the node has used beyond. The leases as they are from now on, and the answer."""
    others = {name: lease for name, lease in leases.nodes.items() if name != node and lease.until_ms > now_ms}
    own = billed.get(node, 0) + unbilled_micro
    spent = sum(max(0, lease.counted_micro - billed.get(name, 0)) for name, lease in others.items())
    lent = sum(
        max(0, lease.ceiling_micro - billed.get(name, 0), lease.counted_micro - billed.get(name, 0)) for name, lease in others.items()
    )
    rest = left.micro - unbilled_micro - spent
    share = max(0, rest) // (1 + sum(lease.busy for lease in others.values()))
    if rest > 0:
        share = max(1, share if busy or not others else share // _IDLE_PART)
    give = max(0, min(share, left.micro - unbilled_micro - lent, MICRO_MAX))
    others[node] = Lease(own + give, own, now_ms + LEASE_MS + _MARGIN_MS, busy)
    state = GRANTED if give else EXHAUSTED if rest <= 0 else WAIT
    reason = used_up(tenant, left, unbilled_micro + spent) if state == EXHAUSTED else ""
    return Leases(others), Allowance(tenant, state, unbilled_micro + give, LEASE_MS, reason, left.renews_ns)


def unlimited(tenant: str) -> Allowance:
    """The answer for a tenant that nothing can stop."""
    return Allowance(tenant, UNLIMITED)
