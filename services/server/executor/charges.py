"""How memory that several sessions hold is charged: exact division, and its sums by session. Pure.

A block of S bytes with n holders is charged S // n to each, and one byte more to the first S mod n of them by name. So charges sum to S at
every instant, and which session pays the odd byte does not depend on their order of arrival.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["Charges", "split"]


def split(nbytes: int, holders: Collection[str]) -> dict[str, int]:
    """What each of ``holders`` (different ones) is charged for a block of ``nbytes``."""
    if not holders:
        return {}
    each, odd = divmod(nbytes, len(holders))
    return {holder: each + (at < odd) for at, holder in enumerate(sorted(holders))}


class Charges:
    """What every session is charged for shared blocks, in bytes."""

    __slots__ = ("_changed", "_of")

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self._changed: set[str] = set()

    def move(self, nbytes: int, before: Collection[str], after: Collection[str]) -> None:
        """A block of ``nbytes`` had the holders ``before`` and has ``after``."""
        old, new = split(nbytes, before), split(nbytes, after)
        for holder in old.keys() | new.keys():
            change = new.get(holder, 0) - old.get(holder, 0)
            if change:
                self._changed.add(holder)
                held = self._of.pop(holder, 0) + change
                if held:
                    self._of[holder] = held

    def of(self, session: str) -> int:
        return self._of.get(session, 0)

    def total(self) -> int:
        """The sum over all sessions: the bytes of all blocks, each once."""
        return sum(self._of.values())

    def take_changed(self) -> tuple[str, ...]:
        """Sessions whose charge was changed since the last call, by name."""
        if not self._changed:
            return ()
        changed = tuple(sorted(self._changed))
        self._changed.clear()
        return changed
