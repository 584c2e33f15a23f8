"""Who goes first among sessions whose next batch is ready: the one place that knows the policy.

Strict between priorities; inside one, first in, first out by arrival. A fair share inside a level is another middle term here
(core time used over weight): the heap in the state takes any tuple of integers, smaller first.
"""

from __future__ import annotations

from scheduler.dispatch.state import SessionState, Waiting

__all__ = ["rank"]


def rank(session: SessionState, head: Waiting) -> tuple[int, ...]:
    """Sort key of a ready batch. Arrival numbers are unique on a device, so the order is total."""
    return (session.priority, head.arrival)
