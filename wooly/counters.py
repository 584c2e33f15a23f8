"""Counters of the client in this process: the public counters behind ``wooly.stats()``.

Counts are of this process; a forked child starts from its parent's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(slots=True)
class Counters:
    """Totals of this process."""

    #: operations recorded and sent
    ops: int = 0
    #: flushes sent
    batches: int = 0
    #: times the script waited for the node
    waits: int = 0
    #: bytes sent, all included
    wire_bytes: int = 0
    #: tensor data sent to the node
    upload_bytes: int = 0
    #: tensor data received from the node
    fetch_bytes: int = 0
    #: distinct (operation, metadata) pairs that were lowered
    templates: int = 0
    #: those that got their template from others, which differ in sizes only
    resized: int = 0
    #: calls computed on this machine instead, by operation
    fallbacks: Counter[str] = field(default_factory=Counter)

    def snapshot(self) -> dict[str, Any]:
        """The counters as plain values that will not change."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "fallbacks"} | {"fallbacks": dict(self.fallbacks)}


COUNTERS: Final = Counters()
"""The counters of this process."""
