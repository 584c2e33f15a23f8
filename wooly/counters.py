"""Counters of the client in this process: the public counters behind ``wooly.stats()``.

Counts are of this process; a forked child starts from its parent's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["Counters", "COUNTERS"]


@dataclass(slots=True)
class Counters:
    """``ops``: operations recorded and sent. ``batches``: flushes sent. ``waits``: times the script had to wait for the node.

    ``wire_bytes``: bytes sent, all included. ``upload_bytes`` and ``fetch_bytes``: tensor data given to and taken from the node.
    ``templates``: distinct (operation, metadata) pairs met. ``fallbacks``: calls computed on this machine instead, by operation.
    """

    ops: int = 0
    batches: int = 0
    waits: int = 0
    wire_bytes: int = 0
    upload_bytes: int = 0
    fetch_bytes: int = 0
    templates: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)

    def snapshot(self) -> dict[str, Any]:
        """The counters as plain values that will not change."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "fallbacks"} | {"fallbacks": dict(self.fallbacks)}


COUNTERS: Final = Counters()
"""The counters of this process."""
