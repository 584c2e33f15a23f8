"""Budgets: a tenant's limit for a period, and the part of it that is used. A pure part of the projection.

The use of a period is the sum of the charges of the usage facts that begin in it. Of a budget of the period ``total`` the tenant may spend,
on top of the limit, whatever it was granted: with the limit 0 it is prepaid. Grants do not lift the caps of a day or a month.

Every time a budget's state changes, the fold derives a BudgetCrossed. It is *due* until the log holds it. The append is
fenced by the last sequence number of the tenant's subject, so several controllers together append each crossing once.
"""

from __future__ import annotations

from typing import Final

import msgspec

from billing.periods import bounds, day_of
from bus_schemas.events import BudgetCrossed, BudgetSet

__all__ = ["OPEN", "STOPPED", "WARNING", "Budget", "Budgets", "Spent", "level", "stop_micro"]

_WIRE_MAX: Final = (1 << 63) - 1
"""What a fact can carry; sums of micro-credits outgrow it (years of a large device at the base prices), and are whole in the view."""

OPEN: Final = "open"
WARNING: Final = "warning"
STOPPED: Final = "stopped"

Crossing = tuple[str, str, int, str, int]
"""(tenant, period, start of the period, threshold, position): names a BudgetCrossed for ever."""


def stop_micro(effective_micro: int, stop_percent: int) -> int | None:
    """The use at which a tenant is stopped whose limit, with grants, is ``effective_micro``; None: it never is."""
    return -(-effective_micro * stop_percent // 100) if stop_percent else None


def level(used_micro: int, effective_micro: int, warn_percent: int, stop_percent: int) -> str:
    """``open``, ``warning`` or ``stopped``."""
    if stop_percent and used_micro * 100 >= effective_micro * stop_percent:
        return STOPPED
    if warn_percent and used_micro * 100 >= effective_micro * warn_percent:
        return WARNING
    return OPEN


class Spent(msgspec.Struct, array_like=True):
    """Charges of one tenant on one node in micro-credits: by day (UTC, since 1970), and of all days."""

    days: dict[int, int] = {}
    total_micro: int = 0

    def add(self, at_ns: int, micro: int) -> None:
        day = day_of(at_ns)
        self.days[day] = self.days.get(day, 0) + micro
        self.total_micro += micro

    def within_micro(self, from_ns: int, to_ns: int) -> int:
        """The charges of [from, to), whole days; to_ns 0: all."""
        if not to_ns:
            return self.total_micro
        first, last = day_of(from_ns), day_of(to_ns)
        if last - first <= len(self.days):
            return sum(self.days.get(day, 0) for day in range(first, last))
        return sum(micro for day, micro in self.days.items() if first <= day < last)


class Budget(msgspec.Struct, array_like=True):
    """One budget as the log set it at ``position``, and where it stands in the last period the log has reached, [from_ns, to_ns)."""

    limit_micro: int
    warn_percent: int
    stop_percent: int
    position: int
    from_ns: int = 0
    to_ns: int = 0
    used_micro: int = 0
    level: str = OPEN


class Budgets(msgspec.Struct, array_like=True):
    """All budgets by tenant and period, what was spent and granted, and the crossings derived that the log does not hold yet."""

    by_tenant: dict[str, dict[str, Budget]] = {}
    spent: dict[str, dict[str, Spent]] = {}
    granted: dict[str, int] = {}
    due: dict[Crossing, BudgetCrossed] = {}
    reached_ns: int = 0
    """The latest moment that a fact of a node has named."""
    last_announced: dict[str, int] = {}
    """Of every tenant the position of the last crossing that the log holds."""

    # -- what others ask ---------------------------------------------------------------------------------------------------------------

    def used_micro(self, tenant: str, from_ns: int, to_ns: int) -> int:
        """What ``tenant`` was charged for [from, to), whole days; to_ns 0: ever."""
        return sum(spent.within_micro(from_ns, to_ns) for spent in self.spent.get(tenant, {}).values())

    def effective_micro(self, tenant: str, period: str, limit_micro: int) -> int:
        """The limit with what grants add to it."""
        return limit_micro + (self.granted.get(tenant, 0) if period == "total" else 0)

    # -- the fold ----------------------------------------------------------------------------------------------------------------------

    def charge(self, tenant: str, node: str, at_ns: int, micro: int, position: int) -> None:
        """A usage fact that begins at ``at_ns`` costs ``micro``."""
        self.spent.setdefault(tenant, {}).setdefault(node, Spent()).add(at_ns, micro)
        for period, budget in self.by_tenant.get(tenant, {}).items():
            if budget.to_ns and at_ns >= budget.to_ns:
                self._begin(tenant, period, budget, at_ns)
            elif at_ns >= budget.from_ns:
                budget.used_micro += micro
            self._judge(tenant, period, budget, position)

    def reach(self, at_ns: int, position: int) -> None:
        """The log has come to ``at_ns``: budgets that were used up in a period that is over are open again."""
        if at_ns <= self.reached_ns:
            return
        self.reached_ns = at_ns
        for tenant, budgets in self.by_tenant.items():
            for period, budget in budgets.items():
                if budget.level != OPEN and budget.to_ns and at_ns >= budget.to_ns:
                    self._begin(tenant, period, budget, at_ns)
                    self._judge(tenant, period, budget, position)

    def set(self, fact: BudgetSet, position: int) -> None:
        budgets = self.by_tenant.setdefault(fact.tenant, {})
        old = budgets.get(fact.period)
        budget = Budget(fact.limit_micro, fact.warn_percent, fact.stop_percent, position, level=old.level if old else OPEN)
        self._begin(fact.tenant, fact.period, budget, fact.at_ns)
        if fact.limit_micro < 0:
            budgets.pop(fact.period, None)
            self._enter(fact.tenant, fact.period, budget, OPEN, position)
            return
        budgets[fact.period] = budget
        self._judge(fact.tenant, fact.period, budget, position)

    def grant(self, tenant: str, micro: int, position: int) -> None:
        self.granted[tenant] = self.granted.get(tenant, 0) + micro
        for period, budget in self.by_tenant.get(tenant, {}).items():
            self._judge(tenant, period, budget, position)

    def announced(self, fact: BudgetCrossed) -> bool:
        """The log holds this crossing now; whether it follows from the log, or repeats one that did."""
        was_due = self.due.pop((fact.tenant, fact.period, fact.period_from_ns, fact.threshold, fact.position), None) is not None
        if was_due:
            self.last_announced[fact.tenant] = max(fact.position, self.last_announced.get(fact.tenant, 0))
        return was_due or fact.position <= self.last_announced.get(fact.tenant, 0)

    def _begin(self, tenant: str, period: str, budget: Budget, at_ns: int) -> None:
        """The budget stands in the period that ``at_ns`` lies in."""
        budget.from_ns, budget.to_ns = bounds(period, at_ns)
        budget.used_micro = self.used_micro(tenant, budget.from_ns, budget.to_ns)

    def _judge(self, tenant: str, period: str, budget: Budget, position: int) -> None:
        effective = self.effective_micro(tenant, period, budget.limit_micro)
        self._enter(tenant, period, budget, level(budget.used_micro, effective, budget.warn_percent, budget.stop_percent), position)

    def _enter(self, tenant: str, period: str, budget: Budget, new: str, position: int) -> None:
        if new == budget.level:
            return
        budget.level = new
        effective = self.effective_micro(tenant, period, budget.limit_micro) if budget.limit_micro >= 0 else -1
        fact = BudgetCrossed(0, tenant, new, budget.from_ns, _on_wire(budget.used_micro), _on_wire(effective), position, period)
        self.due[tenant, period, budget.from_ns, new, position] = fact


def _on_wire(micro: int) -> int:
    """``micro``, or the nearest amount that a fact can carry."""
    return max(-_WIRE_MAX, min(micro, _WIRE_MAX))
