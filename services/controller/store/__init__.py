"""Configuration stores: one protocol, two stores (a JetStream key-value bucket, etcd), one conformance suite for both. Keys are paths
(``config/global``), values are non-empty bytes.

A *revision* names one write of one key: it grows with every write of that key, and a write can be made to depend on it. Stores differ in
nothing a caller can see but the size of the numbers.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from services.kit.errors import KitError

__all__ = ["Entry", "Change", "Lease", "ConfigStore", "StoreError", "StoreConflict", "StoreUnavailable", "LeaseLost", "check_key"]

_KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,64}(/[A-Za-z0-9_-]{1,64}){0,7}\Z")


class StoreError(KitError):
    """Base of the errors of configuration stores."""


class StoreConflict(StoreError):
    """Another writer came first (or the key exists, or does not): read again and decide anew."""


class StoreUnavailable(StoreError):
    """The store did not answer: check that etcd (WOOLY_ETCD_URL) or the bus (WOOLY_NATS_URL) runs. A write may or may not have happened."""


class LeaseLost(StoreError):
    """The lease ran out before it was kept alive: its keys were deleted, take a new one."""


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """A key as it is from now on. ``value`` None: it was deleted, or its lease ran out."""

    key: str
    value: bytes | None
    revision: int


class Lease(Protocol):
    """A time to live shared by the keys written under it: unless kept alive in time, they vanish, and watchers see it."""

    @property
    def ttl_s(self) -> int: ...

    async def keepalive(self) -> None:
        """Start the time anew. Raises LeaseLost when it is too late."""

    async def revoke(self) -> None:
        """End the lease now; its keys vanish."""


class ConfigStore(Protocol):
    """Every method raises StoreUnavailable when the store cannot be reached, and ValueError for a malformed key or an empty value."""

    async def get(self, key: str) -> Entry | None: ...

    async def entries(self, prefix: str) -> list[Entry]:
        """The entries whose key starts with ``prefix``, by key."""

    async def put(self, key: str, value: bytes, *, lease: Lease | None = None) -> int:
        """Write, whatever was there; the new revision."""

    async def cas(self, key: str, value: bytes, revision: int, *, lease: Lease | None = None) -> int:
        """Write if the key's last write is ``revision``; the new revision. Raises StoreConflict."""

    async def create(self, key: str, value: bytes, *, lease: Lease | None = None) -> int:
        """Write if there is no such key; its revision. Raises StoreConflict."""

    async def delete(self, key: str) -> bool:
        """Whether there was such a key."""

    def watch(self, prefix: str) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        """Entered, it has every present entry under ``prefix`` to give, then each change since, in the order of writes, none missing."""

    async def lease(self, ttl_s: int) -> Lease:
        """A new lease of at least one second."""

    async def close(self) -> None: ...


def check_key(key: str) -> str:
    """``key`` if it is a path of 1 to 8 names of letters, digits, ``-`` and ``_``; raises ValueError otherwise."""
    if not _KEY.match(key):
        raise ValueError(f"{key!r} is no key: use names of letters, digits, '-' and '_', separated by '/'")
    return key


def check_value(value: bytes) -> bytes:
    """``value`` unless it is empty: an empty value stands for a deleted key."""
    if not value:
        raise ValueError("a value may not be empty; delete the key instead")
    return value
