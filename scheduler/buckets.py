"""Token buckets in the form of the generic cell rate algorithm (ITU-T I.371): one instant each, at which the bucket will be full. Pure;
times come from outside, so the same calls give the same answers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from bus_schemas.quotas import Rate

_KEPT_MAX: Final = 20_000
K = TypeVar("K", bound=Hashable)


def refill_ns(rate: Rate, full_ns: int, cost: int, now_ns: int) -> int:
    """How long until a bucket that will be full at ``full_ns`` holds ``cost``; of 0: anything. 0: it does now."""
    return max(0, max(full_ns, now_ns) - now_ns - max(1, rate.ns(rate.burst)) + max(1, rate.ns(cost)))


def level_used(rate: Rate, full_ns: int, now_ns: int) -> int:
    """What is missing from a bucket that will be full at ``full_ns``, rounded up; more than the burst where it was overdrawn."""
    return -(-max(0, full_ns - now_ns) * rate.amount // rate.every_ns)


class Buckets(Generic[K]):
    """One bucket a key. When there are too many, the one untouched for longest is forgotten, so callers who choose keys cannot fill the
    memory."""

    def __init__(self, rate: Rate, *, kept_max: int = _KEPT_MAX) -> None:
        self.rate = rate
        self._kept_max = kept_max
        #: for each key the time at which its bucket will be full
        self._full_ns: OrderedDict[K, int] = OrderedDict()

    def full_ns(self, key: K) -> int:
        """When the bucket will be full."""
        return self._full_ns.get(key, 0)

    def wait_ns(self, key: K, now_ns: int, cost: int = 1) -> int:
        """How long until the bucket holds ``cost``; 0: it does now."""
        return refill_ns(self.rate, self._full_ns.get(key, 0), cost, now_ns)

    def take(self, key: K, now_ns: int, cost: int = 1) -> None:
        """Take ``cost`` out, whether the bucket holds it or not."""
        self._full_ns[key] = max(self._full_ns.get(key, 0), now_ns) + self.rate.ns(cost)
        self._full_ns.move_to_end(key)
        if len(self._full_ns) > self._kept_max:
            self._full_ns.popitem(last=False)

    def give_back(self, key: K, cost: int = 1) -> None:
        """Undo a ``take``."""
        if key in self._full_ns:
            self._full_ns[key] -= self.rate.ns(cost)

    def used(self, key: K, now_ns: int) -> int:
        """What is missing from the bucket."""
        return level_used(self.rate, self._full_ns.get(key, 0), now_ns)

    def most_used(self, now_ns: int) -> int:
        """Of the bucket with the least left."""
        return level_used(self.rate, max(self._full_ns.values(), default=0), now_ns)
