"""Turns of tenants at a shared worker, with a budget for each: who is served next, and when. Pure; times come from outside.

Work arrives in *lanes* (sessions). The items of a lane are served in order, one at a time. Tenants are served in turn (round robin), and
so are the lanes of a tenant. What an item costs is known only afterwards, so a tenant is served while its budget is not used up, and may
then overdraw it once.

The budget is a token bucket in the form of the generic cell rate algorithm (ITU-T I.371): one instant a tenant, at which its bucket will
be full.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec

__all__ = ["Taken", "Turns", "TurnsConfig"]

_SECOND: Final = 10**9
_TIDY_AT: Final = 1024

T = TypeVar("T")


class TurnsConfig(msgspec.Struct, frozen=True):
    #: Cost that each tenant's budget regains a second.
    rate: int
    #: Cost that a tenant may cause at once after a pause.
    burst: int
    #: Items of one lane that may wait.
    lane_items_max: int
    #: Size of the items of one tenant that may wait.
    waiting_bytes_max: int


@dataclass(frozen=True, slots=True)
class Taken(Generic[T]):
    """An item to be served now; ``Turns.done`` says that it was."""

    tenant: str
    lane: Hashable
    item: T
    nbytes: int


@dataclass(slots=True)
class _Tenant(Generic[T]):
    #: When its bucket will be full.
    full_ns: int = 0
    #: Those with waiting items, the next one first.
    lanes: OrderedDict[Hashable, deque[tuple[T, int]]] = field(default_factory=OrderedDict)
    waiting_bytes: int = 0


class Turns(Generic[T]):
    """Everything that waits for one worker."""

    def __init__(self, config: TurnsConfig) -> None:
        self._config = config
        self._burst_ns = config.burst * _SECOND // config.rate
        self._tenants: dict[str, _Tenant[T]] = {}
        self._queue: OrderedDict[str, None] = OrderedDict()
        """Tenants with waiting items, the next one first."""
        self._busy: dict[Hashable, Taken[T]] = {}

    def free(self, tenant: str, lane: Hashable, now_ns: int) -> bool:
        """May an item of the lane be served at once, beside the worker? Not before those that wait, nor on a budget that is used up."""
        found = self._tenants.get(tenant)
        return found is None or (lane not in found.lanes and lane not in self._busy and found.full_ns - now_ns < self._burst_ns)

    def charge(self, tenant: str, cost: int, now_ns: int) -> None:
        """Take ``cost`` off the tenant's budget."""
        found = self._of(tenant, now_ns)
        found.full_ns = max(found.full_ns, now_ns) + cost * _SECOND // self._config.rate

    def add(self, tenant: str, lane: Hashable, item: T, nbytes: int, now_ns: int) -> bool:
        """The item waits; False when as much waits already as may."""
        found = self._of(tenant, now_ns)
        waiting = found.lanes.get(lane)
        if waiting is not None and len(waiting) >= self._config.lane_items_max:
            return False
        if found.waiting_bytes + nbytes > self._config.waiting_bytes_max:
            return False
        found.lanes.setdefault(lane, deque()).append((item, nbytes))
        found.waiting_bytes += nbytes
        self._queue.setdefault(tenant)
        return True

    def take(self, now_ns: int) -> Taken[T] | None:
        """The next item; None when nothing may be served now."""
        for tenant in self._queue:
            found = self._tenants[tenant]
            if found.full_ns - now_ns >= self._burst_ns:
                continue
            lane = next((lane for lane in found.lanes if lane not in self._busy), None)
            if lane is None:
                continue
            waiting = found.lanes[lane]
            item, nbytes = waiting.popleft()
            found.waiting_bytes -= nbytes
            found.lanes.move_to_end(lane)
            if not waiting:
                del found.lanes[lane]
            self._queue.move_to_end(tenant)
            if not found.lanes:
                del self._queue[tenant]
            taken = self._busy[lane] = Taken(tenant, lane, item, nbytes)
            return taken
        return None

    def done(self, taken: Taken[T], cost: int, now_ns: int) -> None:
        """The item was served, at this cost."""
        del self._busy[taken.lane]
        self.charge(taken.tenant, cost, now_ns)

    def wakeup_ns(self) -> int | None:
        """When a budget that is used up lets the next waiting item pass; None: nothing waits. What is past: it waits for its lane."""
        return min((self._tenants[tenant].full_ns - self._burst_ns + 1 for tenant in self._queue), default=None)

    def items(self) -> list[T]:
        """All that wait or are being served."""
        waiting = [item for tenant in self._queue for lane in self._tenants[tenant].lanes.values() for item, _ in lane]
        return waiting + [taken.item for taken in self._busy.values()]

    def _of(self, tenant: str, now_ns: int) -> _Tenant[T]:
        if tenant not in self._tenants and len(self._tenants) >= _TIDY_AT:
            self._tenants = {name: found for name, found in self._tenants.items() if found.lanes or found.full_ns > now_ns}
        return self._tenants.setdefault(tenant, _Tenant())
