"""A bounded table that drops what was used least recently."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["Lru"]

K = TypeVar("K")
V = TypeVar("V")


class Lru(Generic[K, V]):
    """At most ``entries_max`` entries; both ``get`` and ``put`` make an entry the most recently used one. Not thread-safe."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """The entry, or None."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> V:
        """Add or replace an entry, and drop one when there are too many. Returns ``value``."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
        return value

    def values(self) -> list[V]:
        """All entries, the least recently used first."""
        return list(self._entries.values())

    def clear(self) -> None:
        self._entries.clear()
