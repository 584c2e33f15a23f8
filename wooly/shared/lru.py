"""A dictionary with a bound."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruDict(OrderedDict[K, V]):
    """At most ``entries_max`` entries: a write makes its entry the newest one and evicts the oldest beyond the bound. A read does not
    change the order; ``move_to_end`` does."""

    def __init__(self, entries_max: int) -> None:
        super().__init__()
        self._entries_max = entries_max

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._entries_max:
            self.popitem(last=False)
