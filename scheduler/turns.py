"""Turns of tenants at a shared worker, with a budget for each: who is served next, and when. Pure; times come from outside.

Work arrives in *lanes* (sessions). The items of a lane are served in order, one at a time. Those of the best priority go first; within a
priority tenants are served in turn (round robin), and so are the lanes of a tenant. What an item costs is known only afterwards, so a
tenant is served while its budget is not used up, and may then overdraw it once. After that it waits until it has some again, or
(``late``) for a moment in which no tenant within its budget wants anything: then whatever its priority, so that none of them starves.

The budget is a token bucket (scheduler.buckets) of costs, and if configured a second one of items.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec

from bus_schemas.quotas import Rate
from scheduler.buckets import level_used, refill_ns

_TIDY_AT: Final = 1024

T = TypeVar("T")


class TurnsConfig(msgspec.Struct, frozen=True):
    #: Cost that each tenant may cause.
    rate: Rate
    #: Items of one lane that may wait.
    lane_items_max: int
    #: Size of the items of one tenant that may wait.
    waiting_bytes_max: int
    #: Tenants without budget are served when no other wants anything, instead of not at all.
    late: bool = False
    #: Items of each tenant that are served, whatever they cost; None: any number.
    items: Rate | None = None


@dataclass(frozen=True, slots=True)
class Taken(Generic[T]):
    """An item to be served now; ``Turns.done`` says that it was."""

    tenant: str
    lane: Hashable
    item: T
    nbytes: int
    priority: int


@dataclass(slots=True)
class _Tenant(Generic[T]):
    #: When its buckets of costs and of items will be full.
    full_ns: int = 0
    items_full_ns: int = 0
    #: Those with waiting items, the next one first.
    lanes: OrderedDict[Hashable, deque[Taken[T]]] = field(default_factory=OrderedDict)
    waiting_bytes: int = 0


class Turns(Generic[T]):
    """Everything that waits for one worker."""

    def __init__(self, config: TurnsConfig) -> None:
        self._config = config
        self._tenants: dict[str, _Tenant[T]] = {}
        self._queue: OrderedDict[str, None] = OrderedDict()
        """Tenants with waiting items, the next one first."""
        self._busy: dict[Hashable, Taken[T]] = {}

    def free(self, tenant: str, lane: Hashable, now_ns: int) -> bool:
        """May an item of the lane be served at once, beside the worker? Not before those that wait, nor on a budget that is used up."""
        found = self._tenants.get(tenant)
        return found is None or (lane not in found.lanes and lane not in self._busy and not self._late_ns(found, now_ns))

    def charge(self, tenant: str, cost: int, now_ns: int, items: int = 1) -> None:
        """Take ``cost``, of so many ``items``, off the tenant's budget."""
        found = self._of(tenant, now_ns)
        found.full_ns = max(found.full_ns, now_ns) + self._config.rate.ns(cost)
        if self._config.items is not None:
            found.items_full_ns = max(found.items_full_ns, now_ns) + self._config.items.ns(items)

    def used(self, tenant: str, now_ns: int) -> tuple[int, int]:
        """(costs, items) that are missing from the tenant's buckets."""
        found = self._tenants.get(tenant)
        if found is None:
            return 0, 0
        items = self._config.items
        return level_used(self._config.rate, found.full_ns, now_ns), 0 if items is None else level_used(items, found.items_full_ns, now_ns)

    def full_ns(self, tenant: str) -> tuple[int, int]:
        """When the tenant's buckets of costs and of items will be full."""
        found = self._tenants.get(tenant)
        return (0, 0) if found is None else (found.full_ns, found.items_full_ns)

    def waiting(self, tenant: str) -> tuple[int, int]:
        """(items, bytes) of the tenant that wait."""
        found = self._tenants.get(tenant)
        return (0, 0) if found is None else (sum(map(len, found.lanes.values())), found.waiting_bytes)

    def tenants(self) -> list[str]:
        """Those with something waiting, or missing from a bucket of theirs, and possibly others."""
        return list(self._tenants)

    def _late_ns(self, tenant: _Tenant[T], now_ns: int) -> int:
        late_ns = refill_ns(self._config.rate, tenant.full_ns, 0, now_ns)
        items = self._config.items
        return late_ns if items is None else max(late_ns, refill_ns(items, tenant.items_full_ns, 0, now_ns))

    def add(self, tenant: str, lane: Hashable, item: T, nbytes: int, now_ns: int, priority: int = 0) -> bool:
        """The item waits (``priority`` 0 is the best); False when as much waits already as may."""
        found = self._of(tenant, now_ns)
        waiting = found.lanes.get(lane)
        if waiting is not None and len(waiting) >= self._config.lane_items_max:
            return False
        if found.waiting_bytes + nbytes > self._config.waiting_bytes_max:
            return False
        found.lanes.setdefault(lane, deque()).append(Taken(tenant, lane, item, nbytes, priority))
        found.waiting_bytes += nbytes
        self._queue.setdefault(tenant)
        return True

    def take(self, now_ns: int) -> Taken[T] | None:
        """The next item; None when nothing may be served now."""
        best: Taken[T] | None = None
        best_rank = (True, 0)
        for tenant in self._queue:
            found = self._tenants[tenant]
            late = self._late_ns(found, now_ns) > 0
            if late and not self._config.late:
                continue
            for lane, waiting in found.lanes.items():
                rank = (late, 0 if late else waiting[0].priority)
                if lane not in self._busy and (best is None or rank < best_rank):
                    best, best_rank = waiting[0], rank
        if best is not None:
            self._begin(self._tenants[best.tenant], best)
        return best

    def _begin(self, tenant: _Tenant[T], taken: Taken[T]) -> None:
        waiting = tenant.lanes[taken.lane]
        waiting.popleft()
        tenant.waiting_bytes -= taken.nbytes
        tenant.lanes.move_to_end(taken.lane)
        if not waiting:
            del tenant.lanes[taken.lane]
        self._queue.move_to_end(taken.tenant)
        if not tenant.lanes:
            del self._queue[taken.tenant]
        self._busy[taken.lane] = taken

    def done(self, taken: Taken[T], cost: int, now_ns: int) -> None:
        """The item was served, at this cost."""
        del self._busy[taken.lane]
        self.charge(taken.tenant, cost, now_ns)

    def put_back(self, taken: Taken[T], cost: int, now_ns: int) -> None:
        """A part of the item was served, at this cost; the rest is the next of its lane."""
        del self._busy[taken.lane]
        self.charge(taken.tenant, cost, now_ns, items=0)
        found = self._of(taken.tenant, now_ns)
        found.lanes.setdefault(taken.lane, deque()).appendleft(taken)
        found.waiting_bytes += taken.nbytes
        self._queue.setdefault(taken.tenant)

    def drop(self, tenant: str, lane: Hashable) -> None:
        """The lane has ended: what waits in it is forgotten."""
        found = self._tenants.get(tenant)
        if found is not None and lane in found.lanes:
            found.waiting_bytes -= sum(taken.nbytes for taken in found.lanes.pop(lane))
            if not found.lanes:
                del self._queue[tenant]

    def wakeup_ns(self) -> int | None:
        """When a budget that is used up lets the next waiting item pass; None: nothing waits. What is past: it waits for its lane."""
        return min((self._late_ns(self._tenants[tenant], 0) for tenant in self._queue), default=None)

    def items(self) -> list[T]:
        """All that wait or are being served."""
        waiting = [taken.item for tenant in self._queue for lane in self._tenants[tenant].lanes.values() for taken in lane]
        return waiting + [taken.item for taken in self._busy.values()]

    def _of(self, tenant: str, now_ns: int) -> _Tenant[T]:
        if tenant not in self._tenants and len(self._tenants) >= _TIDY_AT:
            self._tenants = {
                name: found for name, found in self._tenants.items() if found.lanes or max(found.full_ns, found.items_full_ns) > now_ns
            }
        return self._tenants.setdefault(tenant, _Tenant())
