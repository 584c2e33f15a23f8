"""The answers of quotas, and their journal. Pure.

What a quota answers follows from the question alone, which has all that the answer depends on. So a journal holds only the questions that
were refused or delayed, and each can be run again by itself.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bus_schemas.quotas import COUNT_RETRY_MS, Excess, Rate
from scheduler.buckets import Buckets, level_used, refill_ns
from scheduler.frames import decode_records

_PENDING_MAX: Final = 256


class Asked(msgspec.Struct, array_like=True, frozen=True):
    """May ``who`` have ``cost`` more of a quota?"""

    #: monotonic clock of the component that asks
    at_ns: int
    quota: str
    #: tenant, key, user, address or trust domain; empty: several, too many to be recorded one by one
    who: str
    #: the limit of a count, or the parameters of a bucket
    bound: Rate | int
    #: what is used of a count, or the time at which the bucket will be full
    held: int
    cost: int = 1
    #: so many like this one since the record before
    times: int = 1


class Record(msgspec.Struct, array_like=True, frozen=True):
    stimulus: Asked
    decisions: tuple[Excess, ...]


def answer(asked: Asked) -> Excess | None:
    """The refusal, or None."""
    bound = asked.bound
    if isinstance(bound, int):
        return Excess(asked.quota, bound, asked.held, COUNT_RETRY_MS) if asked.held + asked.cost > bound else None
    wait_ns = refill_ns(bound, asked.held, asked.cost, asked.at_ns)
    used = level_used(bound, asked.held, asked.at_ns)
    return Excess(asked.quota, bound.burst, used, -(-wait_ns // 10**6)) if wait_ns else None


def decisions(asked: Asked) -> tuple[Excess, ...]:
    """The answer as its record has it."""
    excess = answer(asked)
    return () if excess is None else (excess,)


def asked_of(quota: str, buckets: Buckets[str], who: str, now_ns: int, cost: int = 1) -> Asked:
    """The question to the bucket of ``who``."""
    return Asked(now_ns, quota, who, buckets.rate, buckets.full_ns(who), cost)


def excess_of(quota: str, buckets: Buckets[str], who: str, now_ns: int) -> Excess | None:
    """The refusal of one more from the bucket of ``who``, or None."""
    return answer(asked_of(quota, buckets, who, now_ns))


class Refusals:
    """Refused questions that are not recorded yet: the last one of each quota and asker, with their number."""

    def __init__(self) -> None:
        self._pending: dict[tuple[str, str], Asked] = {}

    def note(self, asked: Asked) -> None:
        key = asked.quota, asked.who
        if key not in self._pending and len(self._pending) >= _PENDING_MAX:
            key, asked = (asked.quota, ""), msgspec.structs.replace(asked, who="")
        known = self._pending.get(key)
        self._pending[key] = asked if known is None else msgspec.structs.replace(asked, times=known.times + asked.times)

    def take(self) -> list[Asked]:
        """Those since the last call, by time."""
        pending, self._pending = self._pending, {}
        return sorted(pending.values(), key=lambda asked: asked.at_ns)


_decoder: Final = msgspec.msgpack.Decoder(Record)


def decode_journal(data: bytes | memoryview) -> tuple[list[Record], int]:
    """The whole records of ``data``, and how many bytes they take: see ``decode_records``."""
    return decode_records(data, _decoder)
