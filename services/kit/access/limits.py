"""Rate limits, above all of failed logins: token buckets by address and by name. Time is an argument; memory is bounded.

A try takes a token before its secret is looked at, so that a thousand at once cannot all pass; a good one gives it back. A name that is
under attack stays open for addresses from which it logged in before, so an attacker cannot lock users out of their usual addresses.
"""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from typing import Final

from wooly.shared.lru import LruDict

__all__ = ["Buckets", "FailureLimits", "Rate", "address_group"]

_S: Final = 1_000_000_000
_KEPT: Final = 20_000
_IPV6_PREFIX: Final = 64


@dataclass(frozen=True, slots=True)
class Rate:
    """``burst`` failures at once, then one every ``every_s``."""

    burst: int
    every_s: float


class Buckets:
    """One bucket a key; a full one is not kept. When there are too many, the one untouched for longest is forgotten."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._every_ns = int(rate.every_s * _S)
        #: for each key the time at which its bucket will be full again, ns
        self._spent: LruDict[str, int] = LruDict(_KEPT)

    def wait_ns(self, key: str, now_ns: int) -> int:
        """How long until a token is there; 0: now."""
        return max(0, self._spent.get(key, 0) - now_ns - (self._rate.burst - 1) * self._every_ns)

    def take(self, key: str, now_ns: int) -> None:
        self._spent[key] = max(self._spent.get(key, 0), now_ns) + self._every_ns

    def give_back(self, key: str) -> None:
        if key in self._spent:
            self._spent[key] -= self._every_ns


class FailureLimits:
    """``take`` before a try, ``good`` after one that succeeded."""

    def __init__(self, address: Rate = Rate(20, 3.0), name: Rate = Rate(10, 15.0)) -> None:
        self._addresses = Buckets(address)
        self._names = Buckets(name)
        self._known: LruDict[tuple[str, str], None] = LruDict(_KEPT)

    def take(self, name: str, address: str, now_ns: int) -> int:
        """Take a token for a try at ``name`` from ``address``. Seconds to wait when there is none (then nothing is taken), else 0."""
        group = address_group(address)
        who = self._who(name, group)
        wait_ns = max(self._addresses.wait_ns(group, now_ns), self._names.wait_ns(who, now_ns))
        if wait_ns:
            return max(1, math.ceil(wait_ns / _S))
        self._addresses.take(group, now_ns)
        self._names.take(who, now_ns)
        return 0

    def good(self, name: str, address: str) -> None:
        """The attempt succeeded: return its tokens, and remember the pair."""
        group = address_group(address)
        self._addresses.give_back(group)
        self._names.give_back(self._who(name, group))
        self._known[name, group] = None

    def _who(self, name: str, group: str) -> str:
        return f"{name} {group}" if (name, group) in self._known else name


def address_group(address: str) -> str:
    """The unit of limits: the address itself, or for IPv6 its network of 64 bits, whose addresses belong to one host."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if parsed.version == 4:
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False))
