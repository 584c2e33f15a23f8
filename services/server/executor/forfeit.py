"""What a session has lost with a batch that was refused for lack of memory, and may not be used as if it had not.

A client sends ahead: when it hears that a batch was refused, others that build on it are on their way. What the refused batch would have
made is *gone*; what it would have written is *stale*; a batch that touches either is refused in the same words, and what it would have made
and written is lost with it. Dropping what is gone is no mistake, and what a refused batch would have dropped is dropped: a program that
catches the error and lets go goes on.

May live here: that. May not: when memory is short, what a batch is refused with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bus_schemas import faults
from bus_schemas.batch import LIMITS, Batch, Fault
from services.server.executor.errors import Refused
from services.server.executor.plan import Plan

__all__ = ["Forfeit"]

_LOST_MAX: Final = 4 * LIMITS.buffers_max


@dataclass(slots=True)
class Forfeit:
    """Of one session. ``owed``: handles to be freed that could not be when the batch was refused."""

    gone: set[int] = field(default_factory=set)
    stale: set[int] = field(default_factory=set)
    owed: tuple[int, ...] = ()

    def without(self, batch: Batch) -> Batch:
        """``batch`` with the frees that are to be done: not of what is gone, and of what is owed. May be asked again."""
        if not self.gone and not self.owed:
            return batch
        kept = tuple(handle for handle in batch.frees if handle not in self.gone)
        return msgspec.structs.replace(batch, frees=kept + tuple(handle for handle in self.owed if handle not in kept))

    def check(self, named: Iterable[int]) -> None:
        """Raises Refused when one of these is lost; the batch is lost with it."""
        if not self.gone and not self.stale:
            return
        lost = {handle for handle in named if handle in self.gone or handle in self.stale}
        if lost:
            text = (
                f"out of memory: {len(lost)} of the buffers of this work were made or changed by work that was refused for lack of memory; "
                "drop them and compute them anew, or load what was saved"
            )
            raise Refused(Fault(faults.QUOTA_EXCEEDED, text, fatal=False))

    def accepted(self, batch: Batch, plan: Plan) -> None:
        """``batch``, as it came, is about to have its effect."""
        if self.gone:
            self.gone.difference_update(batch.frees, plan.made, plan.created)
        if self.stale:
            self.stale.difference_update(batch.frees, self.owed)
        self.owed = ()

    def refused(self, batch: Batch, made: Iterable[int], written: Iterable[int]) -> tuple[int, ...]:
        """``batch``, as it came, had no effect; the handles that it frees all the same. Raises Refused, fatal, beyond all measure."""
        self.gone.update(made)
        self.stale.update(handle for handle in written if handle not in self.gone)
        frees = self.without(batch).frees
        self.gone.difference_update(batch.frees)
        self.stale.difference_update(frees)
        self.owed = ()
        if len(self.gone) + len(self.stale) > _LOST_MAX:
            text = f"more than {_LOST_MAX} buffers were lost with work that was refused for lack of memory"
            raise Refused(Fault(faults.OVERSIZED, text))
        return frees
