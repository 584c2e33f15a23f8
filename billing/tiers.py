"""Tiers: the price class of each tenant, and what its tasks may have: a priority, a device for themselves, a number at a time, and the VRAM
of those that name none. A projection of its own, for every service that needs it.

A tenant's tier and what a tier allows are valid from the later of the moment they name and the moment they were set; of those whose
validity has begun, the last one set holds.
"""

from __future__ import annotations

from typing import Final

import msgspec

from billing.tariff import DEFAULT_TIER
from bus_schemas.events import Event, GrantRecorded, TaskSubmitted, TierSet
from bus_schemas.quotas import COUNT_RETRY_MS, QUOTAS, Excess
from bus_schemas.terms import TaskTerms

PRIORITY_LOWEST: Final = 4

BASE_CEILINGS: Final[dict[str, int]] = {"premium": 0, "standard": 0, "basic": 2}
"""In force where the log sets nothing. A tier that is not here has the ceiling 0: it forbids nothing."""

HOLD_PERCENT: Final = 100
"""Where the log does not say otherwise."""

SHARED_ONLY: Final = frozenset({"basic"})
"""Tiers without exclusive devices, where the log does not say otherwise."""


class Ceiling(msgspec.Struct, frozen=True, array_like=True):
    """From ``from_ns`` (Unix time) on, tasks of the tier have at best this priority (0 is the highest of all), and those that name no VRAM
    are placed by ``default_vram_mb`` (MiB; 0: by the cluster's default). A tenant has ``live_tasks`` of them at most and
    ``queued_tasks`` in the queue (0: the table's), and ``exclusive`` ones if that is set (None: by SHARED_ONLY). They pay
    ``hold_percent`` of the price for what they hold and do not use (None: HOLD_PERCENT)."""

    from_ns: int
    priority: int
    default_vram_mb: int = 0
    live_tasks: int = 0
    exclusive: bool | None = None
    queued_tasks: int = 0
    hold_percent: int | None = None


class Membership(msgspec.Struct, frozen=True, array_like=True):
    """From ``from_ns`` (Unix time) on, the tenant is in ``tier``."""

    from_ns: int
    tier: str


class TierBook(msgspec.Struct, array_like=True):
    """Every ceiling and every membership that the log has set so far, in log order. ``grants``: those with a tier that were seen."""

    ceilings: dict[str, list[Ceiling]] = {}
    members: dict[str, list[Membership]] = {}
    grants: dict[str, None] = {}

    def apply(self, position: int, event: Event) -> None:
        """Fold in one event of the log; most kinds change nothing."""
        if isinstance(event, TierSet):
            valid_ns = max(event.from_ns, event.at_ns)
            if event.tenant:
                self.members.setdefault(event.tenant, []).append(Membership(valid_ns, event.tier))
            else:
                ceiling = Ceiling(
                    from_ns=valid_ns,
                    priority=event.priority_ceiling,
                    default_vram_mb=event.default_vram_mb,
                    live_tasks=event.live_tasks,
                    exclusive=event.exclusive,
                    queued_tasks=event.queued_tasks,
                    hold_percent=event.hold_percent,
                )
                self.ceilings.setdefault(event.tier, []).append(ceiling)
        elif isinstance(event, GrantRecorded) and event.tier and event.grant not in self.grants:
            self.grants[event.grant] = None
            self.members.setdefault(event.tenant, []).append(Membership(event.at_ns, event.tier))

    def tier_of(self, tenant: str, at_ns: int) -> str:
        """The tier ``tenant`` is in at ``at_ns``."""
        for membership in reversed(self.members.get(tenant, ())):
            if membership.from_ns <= at_ns:
                return membership.tier
        return DEFAULT_TIER

    def ceiling(self, tier: str, at_ns: int) -> int:
        """The best (lowest) priority that tasks of ``tier`` may have at ``at_ns``."""
        return self.in_force(tier, at_ns).priority

    def default_vram_mb(self, tier: str, at_ns: int) -> int:
        """The VRAM (MiB) of tasks of ``tier`` that name none; 0: the tier has no default of its own."""
        return self.in_force(tier, at_ns).default_vram_mb

    def live_tasks(self, tier: str, at_ns: int) -> int:
        """The most tasks of one tenant of ``tier`` that are not over."""
        return self.in_force(tier, at_ns).live_tasks or QUOTAS["live_tasks"].limit

    def queued_tasks(self, tier: str, at_ns: int) -> int:
        """The most tasks of one tenant of ``tier`` in the queue."""
        return self.in_force(tier, at_ns).queued_tasks or QUOTAS["queued_tasks"].limit

    def exclusive(self, tier: str, at_ns: int) -> bool:
        """Whether tasks of ``tier`` may have a device for themselves."""
        set_to = self.in_force(tier, at_ns).exclusive
        return tier not in SHARED_ONLY if set_to is None else set_to

    def hold_percent(self, tier: str, at_ns: int) -> int:
        """``hold_percent`` of tasks of ``tier``."""
        set_to = self.in_force(tier, at_ns).hold_percent
        return HOLD_PERCENT if set_to is None else set_to

    def in_force(self, tier: str, at_ns: int) -> Ceiling:
        """What the log sets for ``tier`` at ``at_ns``, else what holds without it."""
        for ceiling in reversed(self.ceilings.get(tier, ())):
            if ceiling.from_ns <= at_ns:
                return ceiling
        return Ceiling(0, BASE_CEILINGS.get(tier, 0))

    def ceiling_of(self, tenant: str, at_ns: int) -> int:
        """The best (lowest) priority that ``tenant``'s tasks may have at ``at_ns``."""
        return self.ceiling(self.tier_of(tenant, at_ns), at_ns)


def priority_refusal(book: TierBook, tenant: str, priority: int, at_ns: int) -> str | None:
    """Why a task of ``tenant`` may not have ``priority`` (the text for the field ``priority``), or None."""
    tier = book.tier_of(tenant, at_ns)
    ceiling = book.ceiling(tier, at_ns)
    if priority >= ceiling:
        return None
    return f"{priority} is above the ceiling of tenant {tenant!r}: tasks of tier {tier} have priority {ceiling} at best; use PRIO={ceiling}"


def task_refusal(book: TierBook, task: TaskSubmitted | TaskTerms, at_ns: int) -> tuple[str, str] | None:
    """(field, reason) why the tenant has no right to such a task, or to a session on such terms; or None."""
    text = priority_refusal(book, task.tenant, task.priority, at_ns)
    if text is not None:
        return "priority", text
    tier = book.tier_of(task.tenant, at_ns)
    if task.exclusive and not book.exclusive(tier, at_ns):
        return "gpu_mode", f"tasks of tier {tier} share devices; use GPU_MODE=Shared, or ask for another tier"
    return None


def task_excess(book: TierBook, task: TaskSubmitted, live: int, queued: int, at_ns: int) -> Excess | None:
    """The quota that one more task of a tenant exceeds which has ``live`` tasks that are not over, ``queued`` of them in the queue."""
    tier = book.tier_of(task.tenant, at_ns)
    if live >= (most := book.live_tasks(tier, at_ns)):
        return Excess("live_tasks", most, live, COUNT_RETRY_MS)
    if task.queue and queued >= (most := book.queued_tasks(tier, at_ns)):
        return Excess("queued_tasks", most, queued, COUNT_RETRY_MS)
    return None
